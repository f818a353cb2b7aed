"""Authorizers that share a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
import trio.testing

from kce import wire
from kce.broker_stub.reactor import ConnectionContext, RequestContext
from kce.broker_stub.security.authorizer import CLASS_NAME, AclAuthorizer, AuthorizerConfig
from kce.broker_stub.security.filters import AclBinding, AclBindingFilter
from kce.broker_stub.security.operations import Operation, PatternTypeFilter, ResourceType
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.broker_stub.zookeeper.acl_store import AclChanges, ZkAclStore
from kce.wire.configuration import Properties
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import AccessControlEntry, PatternType, ResourcePattern
from kce.zookeeper.store.memory import MemoryZooKeeper

ALICE = KafkaPrincipal("User", "alice")
HOST = "192.168.0.1"
SUPER_USERS = "User:superuser1; User:superuser2"
ANY_USER = "User:*"
PRODUCE = wire.ProduceRequest.__api_key__


def requester(
    principal: KafkaPrincipal | str = ALICE, host: str = HOST, api_key: int = wire.ProduceRequest.__api_key__
) -> RequestContext:
    if isinstance(principal, str):
        principal = KafkaPrincipal("User", principal)
    header = wire.Header(api_key, 2, 1, "")
    return RequestContext(header, ConnectionContext("", "SASL_PLAINTEXT", host, principal))


def entry(
    operation: Operation | str, permission: str = "Allow", principal: KafkaPrincipal | str = ANY_USER, host: str = "*"
) -> AccessControlEntry:
    label = operation.label if isinstance(operation, Operation) else operation
    return AccessControlEntry(str(principal), host, label, permission)


def literal(name: str, kind: str = "Topic") -> ResourcePattern:
    return ResourcePattern(kind, name)


def prefixed(name: str, kind: str = "Topic") -> ResourcePattern:
    return ResourcePattern(kind, name, PatternType.PREFIXED)


def authorizer_config(**properties: str) -> AuthorizerConfig:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    read = AuthorizerConfig.from_properties(
        Properties({"authorizer.class.name": CLASS_NAME, "super.users": SUPER_USERS, **given})
    )
    assert read is not None
    return read


def allows(authorizer: AclAuthorizer, who: RequestContext, operation: Operation, resource: ResourcePattern) -> bool:
    """``resource`` is literal."""
    assert resource.pattern is PatternType.LITERAL
    return authorizer.authorize(who, operation, ResourceType.of_label(resource.type), resource.name)


async def add(authorizer: AclAuthorizer, resource: ResourcePattern, *entries: AccessControlEntry) -> None:
    for error in await authorizer.create_acls([AclBinding(resource, one) for one in entries]):
        if error is not None:
            raise error


async def remove(authorizer: AclAuthorizer, resource: ResourcePattern, *entries: AccessControlEntry) -> bool:
    """Without entries all of the resource. Returns whether each filter deleted something."""
    whole = AclBindingFilter(
        ResourceType.of_label(resource.type), resource.name, PatternTypeFilter[resource.pattern.name]
    )
    filters = [
        whole._replace(principal=one.principal, host=one.host, operation=Operation.of_label(one.operation))
        for one in entries
    ]
    deleted = await authorizer.delete_acls(filters or [whole])
    assert all(acl.error is None for of_filter in deleted for acl in of_filter)
    return all(deleted)


def known(authorizer: AclAuthorizer, resource: ResourcePattern | None = None) -> set[AccessControlEntry]:
    """The entries of a resource, or all."""
    return {
        binding.entry
        for binding in authorizer.acls(AclBindingFilter())
        if resource is None or binding.pattern == resource
    }


class Authorizers:
    """``await propagated()`` returns when all of them have seen all changes."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.nursery = nursery
        self.zk = self.client()
        self._changes: list[tuple[AclAuthorizer, AclChanges]] = []

    def changes_of(self, authorizer: AclAuthorizer) -> AclChanges:
        return next(changes for one, changes in self._changes if one is authorizer)

    def client(self) -> KafkaZkClient:
        return KafkaZkClient(self.zookeeper.connect(), now_ms=lambda: 0)

    async def start(self, *, has_prefixed: bool = True, **properties: str) -> AclAuthorizer:
        authorizer = self.make(has_prefixed=has_prefixed, **properties)
        changes = AclChanges(authorizer._store._zk, authorizer)  # type: ignore[attr-defined]
        self._changes.append((authorizer, changes))
        await self.nursery.start(changes.run)
        return authorizer

    def make(self, *, has_prefixed: bool = True, **properties: str) -> AclAuthorizer:
        return AclAuthorizer(
            authorizer_config(**properties), ZkAclStore(self.client()), jitter=lambda: 0.5, has_prefixed=has_prefixed
        )

    async def propagated(self) -> None:
        await trio.testing.wait_all_tasks_blocked()

    async def changes(self, pattern: PatternType) -> list[bytes]:
        names = await self.zk.get_children(pattern.changes)
        found = await self.zk.get_data([f"{pattern.changes}/{name}" for name in sorted(names)])
        return [one.data for one in found]  # type: ignore[union-attr]

    async def exists(self, resource: ResourcePattern) -> bool:
        return (await self.zk.get_one(resource.path)) is not None


@asynccontextmanager
async def authorizers() -> AsyncIterator[Authorizers]:
    async with trio.open_nursery() as nursery:
        yield Authorizers(nursery)
        nursery.cancel_scope.cancel()


def bindings(resource: ResourcePattern, entries: Iterable[AccessControlEntry]) -> set[AclBinding]:
    return {AclBinding(resource, one) for one in entries}
