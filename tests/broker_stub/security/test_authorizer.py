"""How the authorizer writes ACLs that others change, too."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.errors import ApiException
from kce.broker_stub.security.acl_cache import AclCache
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.filters import AclBinding, AclBindingFilter
from kce.broker_stub.security.operations import Operation, PatternTypeFilter, ResourceType
from kce.wire import ErrorCode
from kce.zookeeper.security_nodes import ResourcePattern, VersionedAcls
from tests.broker_stub.security.authorizers import add, authorizer_config, authorizers, entry, literal, prefixed


async def test_a_conflict_is_read_after_a_while(autojump_clock: MockClock) -> None:  # rule B9.28
    """Another broker writes while this one waits."""
    written: list[tuple[float, int]] = []

    class Store:
        async def read(self, resource: ResourcePattern) -> VersionedAcls:
            return VersionedAcls(frozenset(), int(trio.current_time() >= began + 0.12))

        async def write(self, resource: ResourcePattern, acls: object, expected: int) -> int | None:
            written.append((trio.current_time() - began, expected))
            return 7 if expected else None

        async def notify(self, resource: ResourcePattern) -> None:
            assert resource.name == "t"

    began = trio.current_time()
    store: Any = Store()
    made = AclAuthorizer(authorizer_config(), store, jitter=lambda: 0.5, has_prefixed=True)
    assert await made.create_acls([AclBinding(literal("t"), entry(Operation.READ))]) == [None]
    assert written == [(0, 0), (pytest.approx(0.125), 1)]
    assert made.cache.get(literal("t")).version == 7


async def test_eleven_attempts(autojump_clock: MockClock) -> None:  # rule B9.28
    times: list[float] = []

    class Store:
        async def read(self, resource: ResourcePattern) -> VersionedAcls:
            return VersionedAcls(frozenset(), 1)

        async def write(self, resource: ResourcePattern, acls: object, expected: int) -> None:
            times.append(trio.current_time() - began)

    began = trio.current_time()
    store: Any = Store()
    made = AclAuthorizer(authorizer_config(), store, jitter=lambda: 0, has_prefixed=True)
    (error,) = await made.create_acls([AclBinding(literal("t"), entry(Operation.READ))])
    assert isinstance(error, ApiException)
    assert str(error) == "the ACLs of /kafka-acl/Topic/t could not be changed in 11 attempts"
    assert times == pytest.approx([n / 10 for n in range(11)])
    assert made.cache.resources() == []


async def test_what_is_no_acl() -> None:  # rule B9.28
    async with authorizers() as world:
        made = await world.start()
        of_topic = entry(Operation.READ)
        wrong = (
            (literal(""), of_topic, "Invalid empty resource name"),
            (literal("t", "Planet"), of_topic, "the ACL has unknown elements"),
            (literal("t"), entry("Fly"), "the ACL has unknown elements"),
            (literal("t"), entry(Operation.READ, "Perhaps"), "the ACL has unknown elements"),
            (literal("a/b"), of_topic, "'a/b' is no name of a resource"),
        )
        errors = await made.create_acls([AclBinding(resource, one) for resource, one, _ in wrong])
        assert [str(error) for error in errors] == [why for *_, why in wrong]
        assert await made.create_acls([AclBinding(prefixed("t"), of_topic)]) == [None]
        made._has_prefixed = False
        (error,) = await made.create_acls([AclBinding(prefixed("t"), of_topic)])
        assert "2.0-IV1" in str(error)
        assert made.cache.resources() == [prefixed("t")]


@pytest.mark.parametrize("principal", ["alice", "", "*"])
async def test_what_is_no_principal_fails_all_of_its_resource(principal: str) -> None:  # rule B9.28
    """A Kafka broker would not start with it in ZooKeeper."""
    async with authorizers() as world:
        made = await world.start()
        good, bad = entry(Operation.READ), entry(Operation.READ, principal=principal)
        wanted = [AclBinding(literal("t"), good), AclBinding(literal("t"), bad), AclBinding(literal("u"), good)]
        first, second, third = await made.create_acls(wanted)
        assert [str(first), str(second)] == [f"{principal!r} is no principal, which is type:name"] * 2
        assert isinstance(first, ApiException)
        assert first.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert third is None
        assert made.cache.resources() == [literal("u")]
        assert await made.create_acls([AclBinding(literal("t"), entry(Operation.READ, principal=":"))]) == [None]


async def test_others_work_while_many_resources_are_looked_at() -> None:
    async with authorizers() as world:
        made = await world.start()
        for i in range(20):
            await add(made, literal(f"t{i}"), entry(Operation.READ))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            filters = [AclBindingFilter(ResourceType.GROUP, None, PatternTypeFilter.ANY)]
            assert await made.delete_acls(filters) == [[]]
            nursery.cancel_scope.cancel()
        assert turns >= 20


def test_only_beginnings_that_there_are_are_looked_up() -> None:
    cache = AclCache()
    of_topics = cache._types["Topic"]
    acls = VersionedAcls(frozenset({entry(Operation.READ)}), 1)
    for name in ("ab", "cd", "efg"):
        cache.put(prefixed(name), acls)
    cache.put(prefixed("ab"), VersionedAcls(frozenset({entry(Operation.WRITE)}), 2))
    cache.put(literal("h"), acls)
    assert of_topics._lengths == (2, 3)
    for name, lengths in (("cd", (2, 3)), ("ab", (3,)), ("efg", ())):
        cache.put(prefixed(name), VersionedAcls(frozenset(), 3))
        assert of_topics._lengths == lengths
    assert cache.resources() == [literal("h")]
