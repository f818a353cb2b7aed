"""Who may do what: Kafka's AclAuthorizer (rules B9.27 to B9.36)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import trio

from kce import wire
from kce.broker_stub.errors import ApiException, InvalidRequest
from kce.broker_stub.security.acl_cache import AclCache
from kce.broker_stub.security.filters import AclBinding, AclBindingFilter
from kce.broker_stub.security.operations import Operation, PermissionType, ResourceType
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.pauses import Paced
from kce.wire.configuration import ConfigError, Properties
from kce.zookeeper.security_nodes import (
    AccessControlEntry,
    PatternType,
    ResourcePattern,
    VersionedAcls,
    is_principal,
)

log = logging.getLogger(__name__)
#: rule B9.36: denied at INFO, allowed at DEBUG, and at TRACE what only filters
audit_log = logging.getLogger("kafka.authorizer.logger")
_TRACE: Final = 5

CLASS_NAME: Final = "kafka.security.authorizer.AclAuthorizer"
#: rule B9.28
ATTEMPTS: Final = 11
_BACKOFF_SECONDS: Final = 0.1
_JITTER_SECONDS: Final = 0.05

_Change = Callable[[frozenset[AccessControlEntry]], frozenset[AccessControlEntry]]


class Requester(Protocol):
    """Who asks, from where, with which request."""

    @property
    def principal(self) -> KafkaPrincipal: ...
    @property
    def client_host(self) -> str: ...
    @property
    def header(self) -> wire.Header: ...


class AclStore(Protocol):
    """ACLs in ZooKeeper. Every method may raise what the store raises."""

    async def read(self, resource: ResourcePattern) -> VersionedAcls: ...

    async def read_all(self, resources: Sequence[ResourcePattern]) -> dict[ResourcePattern, VersionedAcls]:
        """Without those that cannot be read."""

    async def write(self, resource: ResourcePattern, acls: frozenset[AccessControlEntry], expected: int) -> int | None:
        """Set, create or delete what has that version. Returns the new version; None if the version is another."""

    async def notify(self, resource: ResourcePattern) -> None: ...


class AuthorizerConfig(NamedTuple):
    super_users: frozenset[KafkaPrincipal]
    allow_everyone_if_no_acl_found: bool

    @classmethod
    def from_properties(cls, read: Properties) -> AuthorizerConfig | None:
        """None without an authorizer. Raises ConfigError."""
        if not read.given("authorizer.class.name"):
            return None
        read.required("authorizer.class.name")  # there is one class
        return cls(_super_users(read.text("super.users") or ""), read.boolean("allow.everyone.if.no.acl.found"))


def _super_users(text: str) -> frozenset[KafkaPrincipal]:
    users = set()
    for user in filter(None, map(str.strip, text.split(";"))):
        kind, separator, name = user.partition(":")
        if not separator or not kind or not name:
            raise ConfigError(f"super.users={text}: {user!r} is not TYPE:NAME, such as User:alice")
        users.add(KafkaPrincipal(kind, name))
    return frozenset(users)


@dataclass(frozen=True, slots=True)
class DeletedAcl:
    """``error``: None if it was deleted."""

    binding: AclBinding
    error: Exception | None


class AclAuthorizer:
    """``cache`` is kept up to date by whoever follows ZooKeeper, with ``reload``."""

    def __init__(
        self, config: AuthorizerConfig, store: AclStore, *, jitter: Callable[[], float], has_prefixed: bool
    ) -> None:
        """``has_prefixed``: `inter.broker.protocol.version` is at least 2.0-IV1. ``jitter``: from 0 to 1, random."""
        self.cache = AclCache()
        self._config = config
        self._store = store
        self._jitter = jitter
        self._has_prefixed = has_prefixed
        self._writing = trio.Lock()

    # decisions

    def authorize(
        self,
        requester: Requester,
        operation: Operation,
        kind: ResourceType,
        name: str,
        *,
        log_allowed: bool = True,
        log_denied: bool = True,
        count: int = 1,
    ) -> bool:
        """Rules B9.30 to B9.33. The rest is for the log: whether access is really granted or denied, and how often the
        request names the resource."""
        principal = requester.principal
        if principal in self._config.super_users:
            allowed = True
        else:
            allowed = self.cache.allows(
                str(principal),
                requester.client_host,
                operation,
                kind,
                name,
                if_none=self._config.allow_everyone_if_no_acl_found,
            )
        usual, matters = (logging.DEBUG, log_allowed) if allowed else (logging.INFO, log_denied)
        level = usual if matters else _TRACE
        if audit_log.isEnabledFor(level):
            resource = f"{kind.label}:LITERAL:{name}"
            _audit(level, requester, operation, resource, count, allowed=allowed)
        return allowed

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        """Rule B9.34."""
        principal = requester.principal
        if principal in self._config.super_users:
            return True
        allowed = self.cache.allows_any(
            str(principal),
            requester.client_host,
            operation,
            kind,
            if_none=self._config.allow_everyone_if_no_acl_found,
        )
        level = logging.DEBUG if allowed else logging.INFO
        if audit_log.isEnabledFor(level):
            _audit(level, requester, operation, f"{kind.label}:UNKNOWN:NONE", 0, allowed=allowed)
        return allowed

    # management

    def acls(self, wanted: AclBindingFilter) -> list[AclBinding]:
        bindings = (AclBinding(*found) for found in self.cache.entries())
        return [binding for binding in bindings if wanted.matches(binding)]

    async def create_acls(self, bindings: Sequence[AclBinding]) -> list[Exception | None]:
        """What is wrong with each, in their order; None: it exists now."""
        results: list[Exception | None] = [None] * len(bindings)
        of_resource: dict[ResourcePattern, list[int]] = {}
        async for i, binding in Paced(enumerate(bindings)):
            results[i] = self._refusal(binding)
            if results[i] is None:
                of_resource.setdefault(binding.pattern, []).append(i)
        async with self._writing:
            for resource, indexes in of_resource.items():
                added = frozenset(bindings[i].entry for i in indexes)
                error = _malformed(added) or await self._try_update(resource, added.union)
                for i in indexes:
                    results[i] = error
        return results

    def _refusal(self, binding: AclBinding) -> ApiException | None:
        """Rule B9.28."""
        resource, entry = binding
        if not resource.name:
            return ApiException("Invalid empty resource name")
        if not self._has_prefixed and resource.pattern is PatternType.PREFIXED:
            return InvalidRequest("prefixed resources need inter.broker.protocol.version of 2.0-IV1 or greater")
        unknown = Operation.of_label(entry.operation), PermissionType.of_label(entry.permission)
        if 0 in unknown or ResourceType.of_label(resource.type) == ResourceType.UNKNOWN:
            return InvalidRequest("the ACL has unknown elements")
        if "/" in resource.name:
            return InvalidRequest(f"{resource.name!r} is no name of a resource")
        return None

    async def delete_acls(self, filters: Sequence[AclBindingFilter]) -> list[list[DeletedAcl]]:
        """For each filter what it deleted; what several match is deleted by the first."""
        deleted: list[list[DeletedAcl]] = [[] for _ in filters]
        async with self._writing:
            named = (pattern for one in filters for pattern in one.patterns())
            for resource in dict.fromkeys((*self.cache.resources(), *named)):
                await trio.lowlevel.checkpoint()
                matching = [i async for i, one in Paced(enumerate(filters)) if one.matches_pattern(resource)]
                if matching:
                    for i, found in await self._delete(resource, matching, filters):
                        deleted[i].append(found)
        return deleted

    async def _delete(
        self, resource: ResourcePattern, matching: Collection[int], filters: Sequence[AclBindingFilter]
    ) -> Iterable[tuple[int, DeletedAcl]]:
        doomed: dict[AccessControlEntry, int] = {}

        def rest(acls: frozenset[AccessControlEntry]) -> frozenset[AccessControlEntry]:
            removed = set()
            for entry in acls:
                first = next((i for i in matching if filters[i].matches_entry(entry)), None)
                if first is not None:
                    doomed.setdefault(entry, first)
                    removed.add(entry)
            return acls - removed

        error = await self._try_update(resource, rest)
        return [(i, DeletedAcl(AclBinding(resource, entry), error)) for entry, i in doomed.items()]

    async def reload(self, resource: ResourcePattern) -> None:
        """Rule B9.29. Raises what the store raises."""
        async with self._writing:
            self.cache.put(resource, await self._store.read(resource))

    async def load(self, resources: Sequence[ResourcePattern]) -> None:
        """For the start. Raises what the store raises."""
        async with self._writing:
            for resource, acls in (await self._store.read_all(resources)).items():
                self.cache.put(resource, acls)

    async def _try_update(self, resource: ResourcePattern, change: _Change) -> Exception | None:
        try:
            await self._update(resource, change)
        except Exception as e:
            if not isinstance(e, ApiException):
                log.exception("could not change the ACLs of %r", resource)
            return e
        return None

    async def _update(self, resource: ResourcePattern, change: _Change) -> None:
        """Rule B9.28."""
        current = self.cache.get(resource)
        if not current.acls:
            current = await self._store.read(resource)
        for _ in range(ATTEMPTS):
            changed = change(current.acls)
            version = await self._store.write(resource, changed, current.version)
            if version is not None:
                self.cache.put(resource, VersionedAcls(changed, version))
                if changed != current.acls:
                    log.info("updated the ACLs of %s to version %d", resource.path, version)
                    await self._store.notify(resource)
                return
            await trio.sleep(_BACKOFF_SECONDS + _JITTER_SECONDS * self._jitter())
            current = await self._store.read(resource)
        raise ApiException(f"the ACLs of {resource.path} could not be changed in {ATTEMPTS} attempts")


def _malformed(entries: Iterable[AccessControlEntry]) -> ApiException | None:
    """Why none of them can be stored: a Kafka broker that reads such a principal does not start (rule B9.28)."""
    wrong = next((entry.principal for entry in entries if not is_principal(entry.principal)), None)
    return None if wrong is None else ApiException(f"{wrong!r} is no principal, which is type:name")


def _audit(level: int, requester: Requester, operation: Operation, resource: str, count: int, *, allowed: bool) -> None:
    """One line like Kafka's."""
    audit_log.log(
        level,
        "Principal = %s is %s Operation = %s from host = %s on resource = %s"
        " for request = %s with resourceRefCount = %d",
        requester.principal,
        "Allowed" if allowed else "Denied",
        operation.label,
        requester.client_host,
        resource,
        wire.api(requester.header.api_key).name,
        count,
    )
