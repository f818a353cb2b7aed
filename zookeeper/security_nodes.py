"""Typed operations on the znodes of ACLs and delegation tokens (rules 1.44, 1.45).

No controller reads them. They are for brokers: the authorizer, and the handlers of delegation tokens.
"""

from __future__ import annotations

import enum
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import (
    ANY_VERSION,
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SetData,
    Stat,
    StoreError,
    value,
)
from kce.zookeeper.znodes import BadZNode

#: resource types as znode names; JSON has them in upper case with underscores
RESOURCE_TYPES = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User")
#: rule 1.2: the version of a missing node
NO_VERSION = -2

TOKENS = "/delegation_token/tokens"
TOKEN_CHANGES = "/delegation_token/token_changes"  # noqa: S105 - a path
_TOKEN_CHANGE_PREFIX = f"{TOKEN_CHANGES}/token_change_"
_TOKEN_VERSION = 3


class PatternType(enum.Enum):
    """How a resource name matches; each type has its own tree and change notifications."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"

    @property
    def root(self) -> str:
        return "/kafka-acl" if self is PatternType.LITERAL else "/kafka-acl-extended/prefixed"

    @property
    def changes(self) -> str:
        return "/kafka-acl-changes" if self is PatternType.LITERAL else "/kafka-acl-extended-changes"


class ResourcePattern(NamedTuple):
    """``type`` is one of `RESOURCE_TYPES`."""

    type: str
    name: str
    pattern: PatternType = PatternType.LITERAL

    @property
    def path(self) -> str:
        return f"{self.pattern.root}/{self.type}/{self.name}"

    @property
    def type_in_json(self) -> str:
        return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(self.type)).upper()


_TYPES_IN_JSON = {ResourcePattern(kind, "").type_in_json: kind for kind in RESOURCE_TYPES}


class AccessControlEntry(NamedTuple):
    """An entry as Kafka writes it: ("User:alice", "*", "Read", "Allow")."""

    principal: str
    host: str
    operation: str
    permission: str


class VersionedAcls(NamedTuple):
    acls: frozenset[AccessControlEntry]
    version: int


NO_ACLS = VersionedAcls(frozenset(), NO_VERSION)


@dataclass(frozen=True, slots=True)
class TokenInformation:
    """A delegation token, without its secret. Principals as "User:alice", times in ms since the epoch."""

    token_id: str
    owner: str
    token_requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiry_timestamp: int


def encode_acls(acls: Iterable[AccessControlEntry]) -> bytes:
    entries = [
        {"principal": a.principal, "permissionType": a.permission, "host": a.host, "operation": a.operation}
        for a in sorted(acls)
    ]
    return orjson.dumps({"version": 1, "acls": entries})


def is_principal(text: str) -> bool:
    """Whether Kafka can read it: `type:name`, each maybe empty."""
    return ":" in text


def decode_acls(path: str, data: bytes) -> frozenset[AccessControlEntry]:
    """Raises BadZNode."""
    try:
        obj = orjson.loads(data)
        if obj["version"] != 1:
            raise BadZNode(f"unknown version {obj['version']}")
        entries = frozenset(
            AccessControlEntry(a["principal"], a["host"], a["operation"], a["permissionType"]) for a in obj["acls"]
        )
        wrong = [entry.principal for entry in entries if not is_principal(entry.principal)]
    except (ValueError, KeyError, TypeError) as e:
        raise BadZNode(f"{path}: malformed ACLs: {e!r} in {data[:200]!r}") from None
    if wrong:
        raise BadZNode(f"{path}: malformed ACLs: {wrong[0]!r} is no principal")
    return entries


def encode_acl_change(resource: ResourcePattern) -> bytes:
    """Rule 1.44."""
    if resource.pattern is PatternType.LITERAL:
        return f"{resource.type_in_json}:{resource.name}".encode()
    return orjson.dumps(
        {
            "version": 1,
            "resourceType": resource.type_in_json,
            "name": resource.name,
            "patternType": resource.pattern.value,
        }
    )


def decode_acl_change(pattern: PatternType, data: bytes) -> ResourcePattern:
    """``pattern``: whose notification it is. Raises BadZNode."""
    try:
        if pattern is PatternType.LITERAL:
            kind, name = data.decode().split(":", 1)
            kind, pattern = kind.upper(), PatternType.LITERAL
        else:
            obj = orjson.loads(data)
            if obj["version"] > 1:
                raise BadZNode(f"unknown version {obj['version']}")
            kind, name, pattern = obj["resourceType"].upper(), obj["name"], PatternType(obj["patternType"])
        return ResourcePattern(_TYPES_IN_JSON[kind], name, pattern)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadZNode(f"malformed change of ACLs: {e!r} in {data[:200]!r}") from None


def encode_token(token: TokenInformation) -> bytes:
    return orjson.dumps(
        {
            "version": _TOKEN_VERSION,
            "owner": _sanitized(token.owner),
            "tokenRequester": _sanitized(token.token_requester),
            "renewers": [_sanitized(renewer) for renewer in token.renewers],
            "issueTimestamp": token.issue_timestamp,
            "maxTimestamp": token.max_timestamp,
            "expiryTimestamp": token.expiry_timestamp,
            "tokenId": token.token_id,
        }
    )


def decode_token(path: str, data: bytes) -> TokenInformation:
    """Up to version 2 the owner was always the requester. Raises BadZNode."""
    try:
        obj: dict[str, Any] = orjson.loads(data)
        if not 1 <= obj["version"] <= _TOKEN_VERSION:
            raise BadZNode(f"unknown version {obj['version']}")
        owner = urllib.parse.unquote(obj["owner"])
        return TokenInformation(
            token_id=obj["tokenId"],
            owner=owner,
            token_requester=urllib.parse.unquote(obj.get("tokenRequester", owner)),
            renewers=tuple(urllib.parse.unquote(renewer) for renewer in obj["renewers"]),
            issue_timestamp=int(obj["issueTimestamp"]),
            max_timestamp=int(obj["maxTimestamp"]),
            expiry_timestamp=int(obj["expiryTimestamp"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadZNode(f"{path}: malformed delegation token: {e!r} in {data[:200]!r}") from None


def _sanitized(principal: str) -> str:
    """Percent-encode arbitrary names, like Kafka's Sanitizer."""
    return urllib.parse.quote(principal, safe="")


# ACLs


async def create_acl_paths(zk: KafkaZkClient) -> None:
    for pattern in PatternType:
        await zk.ensure_paths([pattern.changes, *(f"{pattern.root}/{kind}" for kind in RESOURCE_TYPES)])


async def get_acls(zk: KafkaZkClient, resource: ResourcePattern) -> VersionedAcls:
    """`NO_ACLS` if the node does not exist. Raises BadZNode."""
    found = await zk.get_one(resource.path)
    return NO_ACLS if found is None else VersionedAcls(decode_acls(resource.path, found.data), found.stat.version)


async def set_acls(
    zk: KafkaZkClient, resource: ResourcePattern, acls: Iterable[AccessControlEntry], expected: int
) -> int | None:
    """Replace the ACLs of version ``expected``, or create them for `NO_VERSION`. Returns the new version, or None on a
    version conflict.

    ``notify_acl_change`` notifies brokers.
    """
    data = encode_acls(acls)
    op = Create(resource.path, data) if expected == NO_VERSION else SetData(resource.path, data, expected)
    answer = (await zk.store.write([op]))[0]
    if isinstance(answer, (NodeExists, BadVersion)) or (isinstance(answer, NoNode) and expected != NO_VERSION):
        return None
    written = value(answer)
    return written.version if isinstance(written, Stat) else 0


async def delete_acls(zk: KafkaZkClient, resource: ResourcePattern, expected: int = ANY_VERSION) -> bool:
    """Returns whether ACLs of version ``expected`` existed."""
    return await _deleted(zk, resource.path, expected)


async def get_resources(zk: KafkaZkClient, pattern: PatternType) -> list[ResourcePattern]:
    """All resources with ACLs."""
    kinds = await zk.get_children(pattern.root)
    names = await zk.store.get_children([f"{pattern.root}/{kind}" for kind in kinds])
    return [
        ResourcePattern(kind, name, pattern)
        for kind, found in zip(kinds, names, strict=True)
        if not isinstance(found, StoreError)
        for name in found
    ]


async def notify_acl_change(zk: KafkaZkClient, resource: ResourcePattern) -> str:
    """Notify every broker. Returns the path of the notification."""
    prefix = f"{resource.pattern.changes}/acl_changes_"
    return await _notify(zk, prefix, encode_acl_change(resource))


# delegation tokens


async def create_token_paths(zk: KafkaZkClient) -> None:
    await zk.ensure_paths([TOKENS, TOKEN_CHANGES])


async def get_token(zk: KafkaZkClient, token_id: str) -> TokenInformation | None:
    """Raises BadZNode."""
    path = f"{TOKENS}/{token_id}"
    found = await zk.get_one(path)
    return None if found is None else decode_token(path, found.data)


async def set_or_create_token(zk: KafkaZkClient, token: TokenInformation) -> None:
    await zk.set_or_create(f"{TOKENS}/{token.token_id}", encode_token(token))


async def delete_token(zk: KafkaZkClient, token_id: str) -> bool:
    """Returns whether the token existed."""
    return await _deleted(zk, f"{TOKENS}/{token_id}", ANY_VERSION)


async def notify_token_change(zk: KafkaZkClient, token_id: str) -> str:
    """Notify every broker. Returns the path of the notification. Raises NoNode before ``create_token_paths``."""
    return await _notify(zk, _TOKEN_CHANGE_PREFIX, token_id.encode())


async def _deleted(zk: KafkaZkClient, path: str, expected: int) -> bool:
    answer = (await zk.store.write([Delete(path, expected)]))[0]
    if isinstance(answer, (NoNode, BadVersion)):
        return False
    value(answer)
    return True


async def _notify(zk: KafkaZkClient, prefix: str, data: bytes) -> str:
    made = value((await zk.store.write([Create(prefix, data, sequential=True)]))[0])
    assert isinstance(made, str)
    return made
