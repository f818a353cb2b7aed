"""Ports of AuthorizerTest and BaseAuthorizerTest for ZooKeeper: decisions, management, concurrent changes.

A test's waiting is for all tasks to block: then every change has reached every authorizer.

Covers: broker_stub/security/acl_cache.py, broker_stub/security/authorizer.py, broker_stub/security/filters.py,
broker_stub/security/operations.py, broker_stub/zookeeper/acl_store.py, broker_stub/zookeeper/notifications.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import trio

from kce.broker_stub.errors import ApiException, InvalidRequest
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.filters import AclBinding, AclBindingFilter
from kce.broker_stub.security.operations import CLUSTER_NAME, Operation, PatternTypeFilter, PermissionType, ResourceType
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.broker_stub.zookeeper.acl_store import AclChanges
from kce.zookeeper.security_nodes import PatternType, ResourcePattern, encode_acl_change
from kce.zookeeper.store import Delete, value
from tests.broker_stub.security.authorizers import (
    ALICE,
    ANY_USER,
    HOST,
    Authorizers,
    add,
    allows,
    authorizers,
    bindings,
    entry,
    known,
    literal,
    prefixed,
    remove,
    requester,
)

READ, WRITE, DESCRIBE, ALTER, DELETE = (
    Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER, Operation.DELETE,
)  # fmt: skip
ALL = Operation.ALL
REAL = [operation for operation in Operation if operation not in (Operation.ANY, Operation.UNKNOWN)]
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALICES = requester()
ALLOW_READ, ALLOW_WRITE, DENY_READ = entry(READ), entry(WRITE), entry(READ, "Deny")
ANY_TOPIC, FOO_PREFIX = literal("*"), prefixed("foo")
CLUSTER = literal(CLUSTER_NAME, "Cluster")
RESOURCE = literal(f"foo-{uuid.UUID(int=7)}")


@pytest.fixture
async def world() -> AsyncIterator[Authorizers]:
    async with authorizers() as made:
        yield made


@pytest.fixture
async def authorizer(world: Authorizers) -> AclAuthorizer:
    return await world.start()


@pytest.mark.kafka("AUT-1")
async def test_only_literal_resources_are_authorized(authorizer: AclAuthorizer) -> None:
    """What is asked about is a type and a name: a pattern cannot be given, so that the name is taken literally."""
    await add(authorizer, prefixed("something"), DENY_READ)
    await add(authorizer, literal("something"), ALLOW_READ)
    assert not allows(authorizer, ALICES, READ, literal("something"))
    with pytest.raises(AssertionError):
        allows(authorizer, ALICES, READ, prefixed("something"))


@pytest.mark.kafka("AUT-2")
async def test_an_empty_name(authorizer: AclAuthorizer) -> None:
    assert not allows(authorizer, ALICES, READ, literal("", "Group"))
    await add(authorizer, literal("*", "Group"), ALLOW_READ)
    assert allows(authorizer, ALICES, READ, literal("", "Group"))


@pytest.mark.kafka("AUT-3")
async def test_no_acl_for_an_empty_name(authorizer: AclAuthorizer) -> None:
    with pytest.raises(ApiException):
        await add(authorizer, literal("", "Group"), ALLOW_READ)


@pytest.mark.kafka("AUT-4")
async def test_topic_acl(authorizer: AclAuthorizer) -> None:  # rules B9.30, B9.32, B9.33
    host1, host2 = "192.168.1.1", "192.168.1.2"
    await add(
        authorizer, RESOURCE,
        entry(READ, "Allow", ALICE, host1), entry(READ, "Allow", ALICE, host2), entry(READ, "Deny", ALICE, host1),
        entry(WRITE, "Allow", ALICE, host1), entry(DESCRIBE, "Allow", ALICE),
        entry(READ, "Allow", "User:rob"), entry(WRITE, "Allow", "User:batman"),
    )  # fmt: skip
    assert len(known(authorizer, RESOURCE)) == 7
    from1, from2 = requester(ALICE, host1), requester(ALICE, host2)
    assert allows(authorizer, from2, READ, RESOURCE)
    assert not allows(authorizer, from1, READ, RESOURCE)
    assert allows(authorizer, from1, WRITE, RESOURCE)
    assert not allows(authorizer, from2, WRITE, RESOURCE)
    assert allows(authorizer, from1, DESCRIBE, RESOURCE)
    assert allows(authorizer, from2, DESCRIBE, RESOURCE)
    assert not allows(authorizer, from1, ALTER, RESOURCE)
    assert not allows(authorizer, from2, ALTER, RESOURCE)
    rob, batman = requester("rob", host1), requester("batman", host1)
    assert allows(authorizer, rob, DESCRIBE, RESOURCE)
    assert allows(authorizer, batman, DESCRIBE, RESOURCE)
    assert allows(authorizer, rob, READ, RESOURCE)
    assert allows(authorizer, batman, WRITE, RESOURCE)


class Custom(KafkaPrincipal):
    """A principal of another class."""

    __hash__ = KafkaPrincipal.__hash__


@pytest.mark.kafka("AUT-5")
async def test_a_custom_principal(authorizer: AclAuthorizer) -> None:  # by type and name
    host1, host2 = "192.168.1.1", "192.168.1.2"
    await add(authorizer, RESOURCE, entry(READ, "Deny", ALICE, host1), entry(READ, "Allow", ALICE, host2))
    custom = Custom("User", "alice")
    assert allows(authorizer, requester(custom, host2), READ, RESOURCE)
    assert not allows(authorizer, requester(custom, host1), READ, RESOURCE)
    assert not allows(authorizer, requester(Custom("Role", "alice"), host2), READ, RESOURCE)


@pytest.mark.kafka("AUT-6")
async def test_deny_takes_precedence(authorizer: AclAuthorizer) -> None:
    await add(authorizer, RESOURCE, entry(ALL), entry(ALL, "Deny", ALICE, "192.168.2.1"))
    assert not allows(authorizer, requester(ALICE, "192.168.2.1"), READ, RESOURCE)
    assert allows(authorizer, requester(ALICE, "192.168.2.2"), READ, RESOURCE)


@pytest.mark.kafka("AUT-7")
async def test_allow_all_access(authorizer: AclAuthorizer) -> None:
    await add(authorizer, RESOURCE, entry(ALL))
    assert allows(authorizer, requester("random", "192.0.4.4"), READ, RESOURCE)


@pytest.mark.kafka("AUT-8")
@pytest.mark.kafka("AUT-9")
@pytest.mark.parametrize("principal", [KafkaPrincipal, Custom])
async def test_super_users_have_access(authorizer: AclAuthorizer, principal: type[KafkaPrincipal]) -> None:
    await add(authorizer, RESOURCE, entry(ALL, "Deny"))
    assert allows(authorizer, requester(principal("User", "superuser1"), "192.0.4.4"), READ, RESOURCE)
    assert allows(authorizer, requester(principal("User", "superuser2"), "192.0.4.4"), READ, RESOURCE)
    assert not allows(authorizer, ALICES, READ, RESOURCE)


@pytest.mark.kafka("AUT-10")
async def test_wildcard_acls(authorizer: AclAuthorizer) -> None:
    assert not allows(authorizer, ALICES, READ, RESOURCE)
    host = "192.168.3.1"
    await add(authorizer, ANY_TOPIC, entry(READ, "Allow", ALICE, host))
    assert allows(authorizer, requester(ALICE, host), READ, RESOURCE)
    await add(authorizer, RESOURCE, entry(WRITE, "Allow", ALICE, host))
    await add(authorizer, ANY_TOPIC, entry(WRITE, "Deny", ALICE, host))
    assert not allows(authorizer, requester(ALICE, host), WRITE, RESOURCE)


@pytest.mark.kafka("AUT-11")
async def test_no_acl_found(authorizer: AclAuthorizer) -> None:
    assert not allows(authorizer, ALICES, READ, RESOURCE)


@pytest.mark.kafka("AUT-12")
@pytest.mark.kafka("AUT-13")
@pytest.mark.parametrize("text", ["true", "  true "])
async def test_no_acl_found_override(world: Authorizers, text: str) -> None:  # rule B9.31
    authorizer = await world.start(allow_everyone_if_no_acl_found=text, super_users="  User:superuser1 ")
    assert allows(authorizer, ALICES, READ, RESOURCE)
    await add(authorizer, RESOURCE, entry(WRITE, "Allow", "User:somebody"))
    assert not allows(authorizer, ALICES, READ, RESOURCE)


@pytest.mark.kafka("AUT-14")
async def test_acl_management(world: Authorizers, authorizer: AclAuthorizer) -> None:
    acls = {
        entry(operation, "Allow", who, host)
        for who, host in (("User:alice", "host1"), ("User:bob", "host2"))
        for operation in (READ, WRITE)
    }
    await add(authorizer, RESOURCE, *acls)
    assert known(authorizer, RESOURCE) == acls
    more = entry(READ, "Allow", "User:bob")
    await add(authorizer, RESOURCE, more)
    acls.add(more)
    assert known(authorizer, RESOURCE) == acls
    for who in ("User:alice", "User:bob"):
        found = set(authorizer.acls(AclBindingFilter(principal=who)))
        assert found == bindings(RESOURCE, [one for one in acls if one.principal == who])
    others = {
        ANY_TOPIC: {entry(READ, "Allow", "User:bob")},
        literal("*", "Cluster"): {entry(READ, "Allow", "User:bob", "host1")},
        literal("*", "Group"): acls,
        literal("test-ConsumerGroup", "Group"): acls,
    }
    for resource, entries in others.items():
        await add(authorizer, resource, *entries)
    everything = set().union(*(bindings(r, e) for r, e in (*others.items(), (RESOURCE, acls))))
    assert set(authorizer.acls(AclBindingFilter())) == everything
    gone = {entry(READ, "Allow", "User:alice", "host1"), more}
    await remove(authorizer, RESOURCE, *gone)
    assert known(authorizer, RESOURCE) == acls - gone
    await remove(authorizer, RESOURCE)
    assert known(authorizer, RESOURCE) == set()
    assert not await world.exists(RESOURCE)
    one = entry(READ, "Allow", "User:alice", "host1")
    await add(authorizer, RESOURCE, one)
    assert await world.exists(RESOURCE)
    await remove(authorizer, RESOURCE, one)
    assert not await world.exists(RESOURCE)


@pytest.mark.kafka("AUT-15")
async def test_load_cache(world: Authorizers, authorizer: AclAuthorizer) -> None:
    acl1, acl2 = entry(READ, "Allow", ALICE, "host-1"), entry(READ, "Deny", "User:bob", "host3")
    await add(authorizer, RESOURCE, acl1)
    await add(authorizer, literal("test-2"), acl2)
    for pattern in PatternType:
        for name in await world.zk.get_children(pattern.changes):
            value((await world.zk.store.write([Delete(f"{pattern.changes}/{name}")]))[0])
    late = await world.start()
    assert known(late, RESOURCE) == {acl1}
    assert known(late, literal("test-2")) == {acl2}


@pytest.mark.kafka("AUT-16")
async def test_nothing_is_missed_between_load_and_watch(world: Authorizers, authorizer: AclAuthorizer) -> None:
    """Rule B9.29: whenever another authorizer writes while this one starts, it learns of it."""
    late = world.make()
    client = late._store._zk  # type: ignore[attr-defined]
    starting = AclChanges(client, late)
    acl = entry(READ, "Deny", ALICE, "host-1")
    get_children = client.get_children
    held = iter([True])

    async def written_meanwhile(path: str) -> list[str]:
        if path == PatternType.LITERAL.changes and next(held, False):
            await add(authorizer, RESOURCE, acl)
        return await get_children(path)  # type: ignore[no-any-return]

    client.get_children = written_meanwhile
    await world.nursery.start(starting.run)
    assert known(late, RESOURCE) == {acl}


@pytest.mark.kafka("AUT-17")
async def test_local_concurrent_modification(world: Authorizers, authorizer: AclAuthorizer) -> None:
    common = literal("test")
    acl1, acl2 = entry(READ, "Allow", ALICE), entry(READ, "Deny", "User:bob")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, authorizer, common, acl1)
        nursery.start_soon(add, authorizer, common, acl2)
    assert known(authorizer, common) == {acl1, acl2}


@pytest.mark.kafka("AUT-18")
async def test_distributed_concurrent_modification(world: Authorizers, authorizer: AclAuthorizer) -> None:
    other = await world.start()
    common = literal("test")
    acl1, acl2, acl3 = entry(READ, "Allow", ALICE), entry(READ, "Deny", "User:bob"), entry(READ, "Deny", "User:joe")
    await add(authorizer, common, acl1)
    await add(other, common, acl2)
    await world.propagated()
    assert known(authorizer, common) == known(other, common) == {acl1, acl2}
    await add(authorizer, common, acl3)
    assert await remove(other, common, acl3)
    await world.propagated()
    assert known(authorizer, common) == known(other, common) == {acl1, acl2}


@pytest.mark.kafka("AUT-19")
async def test_high_concurrency_modification(
    world: Authorizers, authorizer: AclAuthorizer, autojump_clock: trio.testing.MockClock
) -> None:
    """Rule B9.28: a conflict is tried again after a pause."""
    other = await world.start()
    common = literal("test")
    acls = [entry(READ, "Allow", f"User:{i}") for i in range(51)]

    async def work(i: int) -> None:
        await add(authorizer if i % 2 == 0 else other, common, acls[i])
        if i % 10 == 0:
            await remove(other, common, acls[i])

    async with trio.open_nursery() as nursery:
        for i in range(51):
            nursery.start_soon(work, i)
    await world.propagated()
    expected = {acl for i, acl in enumerate(acls) if i % 10}
    assert known(authorizer, common) == known(other, common) == expected


IMPLIED = {
    ALL: set(REAL), READ: {DESCRIBE}, WRITE: {DESCRIBE}, DELETE: {DESCRIBE}, ALTER: {DESCRIBE},
    Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS},
}  # fmt: skip


@pytest.mark.kafka("AUT-20")
async def test_acl_inheritance(authorizer: AclAuthorizer) -> None:  # rule B9.33
    who = requester(ALICE, "192.168.3.1")
    for parent, implied in IMPLIED.items():
        acl = entry(parent, "Allow", ALICE)
        await add(authorizer, CLUSTER, acl)
        for operation in REAL:
            expected = operation in implied or operation == parent
            assert allows(authorizer, who, operation, CLUSTER) == expected, (parent, operation)
        await remove(authorizer, CLUSTER, acl)
    for parent, denied in ((ALL, set(REAL)), (DESCRIBE, set()), (Operation.DESCRIBE_CONFIGS, set())):
        acls = entry(parent, "Deny", ALICE), entry(ALL, "Allow", ALICE)
        await add(authorizer, CLUSTER, *acls)
        for operation in REAL:
            expected = operation not in denied and operation != parent
            assert allows(authorizer, who, operation, CLUSTER) == expected, (parent, operation)
        await remove(authorizer, CLUSTER, *acls)


@pytest.mark.kafka("AUT-21")
async def test_high_concurrency_deletion(
    world: Authorizers, authorizer: AclAuthorizer, autojump_clock: trio.testing.MockClock
) -> None:
    other = await world.start()
    acl = entry(ALL, "Allow", ALICE)

    async def work() -> None:
        await add(authorizer, RESOURCE, acl)
        await remove(other, RESOURCE, acl)

    async with trio.open_nursery() as nursery:
        for _ in range(51):
            nursery.start_soon(work)
    await world.propagated()
    assert known(authorizer, RESOURCE) == known(other, RESOURCE) == set()
    assert not await world.exists(RESOURCE)


@pytest.mark.kafka("AUT-22")
@pytest.mark.kafka("AUT-25")
@pytest.mark.parametrize("resource", [ANY_TOPIC, FOO_PREFIX])
async def test_an_acl_of_a_pattern_allows(authorizer: AclAuthorizer, resource: ResourcePattern) -> None:
    await add(authorizer, resource, ALLOW_READ)
    assert allows(authorizer, ALICES, READ, RESOURCE)


@pytest.mark.kafka("AUT-23")
@pytest.mark.kafka("AUT-26")
@pytest.mark.parametrize("resource", [ANY_TOPIC, FOO_PREFIX])
async def test_deletes_one_acl_of_a_pattern(authorizer: AclAuthorizer, resource: ResourcePattern) -> None:
    await add(authorizer, resource, ALLOW_READ, ALLOW_WRITE)
    await remove(authorizer, resource, ALLOW_READ)
    assert known(authorizer, resource) == {ALLOW_WRITE}


@pytest.mark.kafka("AUT-24")
@pytest.mark.kafka("AUT-27")
@pytest.mark.parametrize("resource", [ANY_TOPIC, FOO_PREFIX])
async def test_deletes_all_acls_of_a_pattern(authorizer: AclAuthorizer, resource: ResourcePattern) -> None:
    await add(authorizer, resource, ALLOW_READ)
    await remove(authorizer, resource)
    assert known(authorizer) == set()


@pytest.mark.kafka("AUT-28")
@pytest.mark.kafka("AUT-29")
@pytest.mark.kafka("AUT-30")
@pytest.mark.parametrize("resource", [RESOURCE, ANY_TOPIC, FOO_PREFIX])
async def test_adds_acls_on_one_resource(authorizer: AclAuthorizer, resource: ResourcePattern) -> None:
    await add(authorizer, resource, ALLOW_READ, ALLOW_WRITE)
    await add(authorizer, resource, ALLOW_WRITE, DENY_READ)
    assert known(authorizer, resource) == {ALLOW_READ, ALLOW_WRITE, DENY_READ}
    for other in {RESOURCE, ANY_TOPIC, FOO_PREFIX} - {resource}:
        assert known(authorizer, other) == set()


@pytest.mark.kafka("AUT-31")
async def test_authorize_with_prefixed_resource(authorizer: AclAuthorizer) -> None:
    ids = [uuid.UUID(int=i) for i in (100, 101, 102, 103, 104, 105, 106)]
    await add(authorizer, literal("a_other"), DENY_READ)
    for name in (
        "a_other", f"foo-{ids[0]}", f"foo-{ids[1]}", f"foo-{ids[2]}-zzz", f"fooo-{ids[3]}", f"fo-{ids[4]}",
        f"fop-{ids[5]}", f"fon-{ids[6]}", "fon-", "z_other",
    ):  # fmt: skip
        await add(authorizer, prefixed(name), DENY_READ)
    await add(authorizer, literal("z_other"), DENY_READ)
    await add(authorizer, FOO_PREFIX, ALLOW_READ)
    assert allows(authorizer, ALICES, READ, RESOURCE)


@pytest.mark.kafka("AUT-32")
async def test_single_character_resources(authorizer: AclAuthorizer) -> None:
    await add(authorizer, literal("f"), ALLOW_READ)
    assert allows(authorizer, ALICES, READ, literal("f"))
    assert not allows(authorizer, ALICES, READ, literal("foo"))
    await add(authorizer, prefixed("_"), ALLOW_READ)
    assert allows(authorizer, ALICES, READ, literal("_foo"))
    assert allows(authorizer, ALICES, READ, literal("_"))
    assert not allows(authorizer, ALICES, READ, literal("foo_"))


@pytest.mark.kafka("AUT-33")
async def test_acls_of_a_principal(authorizer: AclAuthorizer) -> None:
    def of(principal: str) -> int:
        return len(authorizer.acls(AclBindingFilter(principal=principal)))

    await add(authorizer, RESOURCE, entry(WRITE, "Allow", ALICE))
    assert (of(ANY_USER), of(str(ALICE)), of(str(KafkaPrincipal("User", "alice")))) == (0, 1, 1)
    await remove(authorizer, RESOURCE)
    await add(authorizer, RESOURCE, entry(WRITE))
    assert (of(ANY_USER), of(str(ALICE))) == (1, 0)


@pytest.mark.kafka("AUT-34")
async def test_acls_filter(authorizer: AclAuthorizer) -> None:
    resource1, resource2, bars = literal("foo-1"), literal("bar-2"), prefixed("bar-")
    acl1 = AclBinding(resource1, entry(READ, "Allow", ALICE))
    acl2 = AclBinding(resource1, entry(WRITE, "Allow", ALICE, HOST))
    acl3 = AclBinding(resource2, entry(DESCRIBE, "Allow", ALICE))
    acl4 = AclBinding(bars, entry(READ))
    assert await authorizer.create_acls([acl1, acl2, acl3, acl4]) == [None] * 4
    exactly, prefixes, match = PatternTypeFilter.LITERAL, PatternTypeFilter.PREFIXED, PatternTypeFilter.MATCH

    def found(wanted: AclBindingFilter) -> set[AclBinding]:
        return set(authorizer.acls(wanted))

    assert found(AclBindingFilter()) == {acl1, acl2, acl3, acl4}
    assert found(AclBindingFilter(TOPIC, "foo-1", exactly)) == {acl1, acl2}
    assert found(AclBindingFilter(TOPIC, "bar-", prefixes)) == {acl4}
    matching = AclBindingFilter(name="bar-2", pattern=match)
    assert found(matching) == {acl3, acl4}
    filters = [
        matching,
        AclBindingFilter(TOPIC, "foo-1", exactly, str(ALICE), "*", READ),
        AclBindingFilter(TOPIC, "bar-2", exactly),
        AclBindingFilter(TOPIC, "baz"),
    ]
    deleted = await authorizer.delete_acls(filters)
    assert all(one.error is None for of_filter in deleted for one in of_filter)
    assert [{one.binding for one in of_filter} for of_filter in deleted] == [{acl3, acl4}, {acl1}, set(), set()]
    assert found(AclBindingFilter()) == {acl2}


@pytest.mark.kafka("AUT-35")
async def test_no_prefixed_acl_with_an_old_inter_broker_protocol(world: Authorizers) -> None:
    authorizer = await world.start(has_prefixed=False)
    with pytest.raises(InvalidRequest, match="prefixed"):
        await add(authorizer, prefixed("z_other"), DENY_READ)
    assert known(authorizer) == set()


@pytest.mark.kafka("AUT-36")
async def test_no_acl_for_an_invalid_name(authorizer: AclAuthorizer) -> None:
    with pytest.raises(ApiException):
        await add(authorizer, literal("test/1"), ALLOW_READ)
    assert known(authorizer) == set()


@pytest.mark.kafka("AUT-37")
@pytest.mark.kafka("AUT-38")
@pytest.mark.kafka("AUT-39")
@pytest.mark.kafka("AUT-40")
@pytest.mark.parametrize(
    ("resource", "has_prefixed"),
    [(prefixed("z_other"), True), (literal("z_other"), False), (literal("z_other"), True)],
)
async def test_writes_a_change_event(world: Authorizers, resource: ResourcePattern, has_prefixed: bool) -> None:
    authorizer = await world.start(has_prefixed=has_prefixed)
    await add(authorizer, resource, DENY_READ)
    assert await world.changes(resource.pattern) == [encode_acl_change(resource)]
    text = (
        b"TOPIC:z_other"
        if resource.pattern is PatternType.LITERAL
        else b'{"version":1,"resourceType":"TOPIC","name":"z_other","patternType":"PREFIXED"}'
    )
    assert encode_acl_change(resource) == text


@pytest.mark.kafka("AUT-45")
@pytest.mark.parametrize("resource", [literal("foo-1"), prefixed("bar-"), ANY_TOPIC])
async def test_create_delete_timing(world: Authorizers, authorizer: AclAuthorizer, resource: ResourcePattern) -> None:
    """A filter that names a resource deletes what is stored; MATCH only what this authorizer knows by now."""
    other = await world.start()
    acl = AclBinding(resource, entry(READ, "Allow", ALICE))
    exact = PatternTypeFilter[resource.pattern.name]
    hold, held = trio.Lock(), other.reload

    async def reload(changed: ResourcePattern) -> None:
        async with hold:
            await held(changed)

    other.reload = reload  # type: ignore[method-assign]

    async def delete(pattern: PatternTypeFilter) -> list[AclBinding]:
        (deleted,) = await other.delete_acls([AclBindingFilter(TOPIC, resource.name, pattern)])
        return [one.binding for one in deleted]

    for pattern in (exact, PatternTypeFilter.ANY, PatternTypeFilter.MATCH):
        is_match = pattern is PatternTypeFilter.MATCH
        async with hold:
            assert other.acls(AclBindingFilter()) == []
            assert await authorizer.create_acls([acl]) == [None]
            assert await delete(pattern) == ([] if is_match else [acl])
        await world.propagated()
        if is_match:
            assert other.acls(AclBindingFilter()) == [acl]
            assert await delete(pattern) == [acl]
        await world.propagated()
        assert other.acls(AclBindingFilter()) == []


def any_of(authorizer: AclAuthorizer, who: str, host: str, operation: Operation, kind: ResourceType = TOPIC) -> bool:
    return authorizer.authorize_by_resource_type(requester(who, host), operation, kind)


HOST1, HOST2 = "192.168.1.1", "192.168.1.2"
USER1, USER2 = "User:user1", "User:user2"


@pytest.mark.kafka("AUT-46")
async def test_any_of_a_type_if_no_acl_is_found(world: Authorizers) -> None:  # rule B9.34
    authorizer = await world.start(allow_everyone_if_no_acl_found="true")
    assert any_of(authorizer, "alice", HOST, READ)
    assert any_of(authorizer, "alice", HOST, WRITE)


@pytest.mark.kafka("AUT-47")
async def test_any_of_a_type_after_many_changes(authorizer: AclAuthorizer) -> None:
    one = literal("sb1")
    deny, allow = entry(READ, "Deny", USER1, HOST1), entry(READ, "Allow", USER1, HOST1)
    for _ in range(10):
        assert not any_of(authorizer, "user1", HOST1, READ)
        await add(authorizer, one, allow)
        assert any_of(authorizer, "user1", HOST1, READ)
        for _ in range(10):
            await add(authorizer, one, deny)
            assert not any_of(authorizer, "user1", HOST1, READ)
            (gone,) = await authorizer.delete_acls(
                [AclBindingFilter(TOPIC, "sb1", PatternTypeFilter.LITERAL, permission=PermissionType.DENY)]
            )
            assert [acl.binding.entry for acl in gone] == [deny]
            await add(authorizer, one, allow)
            assert any_of(authorizer, "user1", HOST1, READ)
        await remove(authorizer, one, allow)
        assert not any_of(authorizer, "user1", HOST1, READ)


@pytest.mark.kafka("AUT-48")
async def test_an_unrelated_deny_does_not_dominate(authorizer: AclAuthorizer) -> None:
    await add(
        authorizer, literal("sb1"),
        entry(READ, "Deny", USER1, HOST1), entry(READ, "Deny", USER2, HOST1), entry(WRITE, "Deny", USER1, HOST2),
        entry(READ, "Deny", USER2, HOST2), entry(READ, "Allow", USER1, HOST2),
    )  # fmt: skip
    await add(authorizer, literal("sb2"), entry(READ, "Deny", USER1, HOST2))
    await add(authorizer, prefixed("s", "Group"), entry(READ, "Deny", USER1, HOST2))
    for kind in (TOPIC, GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER):
        assert not any_of(authorizer, "user1", HOST1, READ, kind)
    assert any_of(authorizer, "user1", HOST2, READ)


@pytest.mark.kafka("AUT-49")
async def test_any_of_a_type_deny_takes_precedence(authorizer: AclAuthorizer) -> None:
    await add(authorizer, literal("sb1"), entry(WRITE, "Allow", USER1, HOST1))
    assert any_of(authorizer, "user1", HOST1, WRITE)
    await add(authorizer, literal("sb1"), entry(WRITE, "Deny", USER1, HOST1))
    assert not any_of(authorizer, "user1", HOST1, WRITE)


@pytest.mark.kafka("AUT-50")
async def test_a_shorter_prefix_dominates(authorizer: AclAuthorizer) -> None:
    for name, permission, allowed in (
        ("abcde", "Allow", True), ("abcd", "Deny", False), ("abc", "Allow", True), ("a", "Deny", False),
        ("ab", "Allow", False),
    ):  # fmt: skip
        await add(authorizer, prefixed(name, "Group"), entry(READ, permission, USER1, HOST1))
        assert any_of(authorizer, "user1", HOST1, READ, GROUP) == allowed, name


@pytest.mark.kafka("AUT-51")
async def test_a_wildcard_deny_dominates(authorizer: AclAuthorizer) -> None:
    allow, deny = entry(WRITE, "Allow", USER1, HOST1), entry(WRITE, "Deny", USER1, HOST1)
    for resource, acl, allowed in (
        (prefixed("hello", "Group"), allow, True), (literal("*", "Group"), deny, False),
        (literal("*", "Group"), allow, False), (literal("aloha", "Group"), allow, False),
    ):  # fmt: skip
        await add(authorizer, resource, acl)
        assert any_of(authorizer, "user1", HOST1, WRITE, GROUP) == allowed


@pytest.mark.kafka("AUT-52")
async def test_any_of_a_type_with_all_operations(authorizer: AclAuthorizer) -> None:
    assert not any_of(authorizer, "user1", HOST1, READ)
    await add(authorizer, literal("sb1"), entry(WRITE, "Deny", USER1, HOST1), entry(ALL, "Allow", USER1, HOST1))
    assert any_of(authorizer, "user1", HOST1, READ)
    await add(authorizer, literal("sb1"), entry(ALL, "Deny", USER1, HOST1))
    assert not any_of(authorizer, "user1", HOST1, READ)


@pytest.mark.kafka("AUT-53")
@pytest.mark.kafka("AUT-54")
@pytest.mark.parametrize("by_host", [True, False])
async def test_any_of_a_type_with_wildcards(authorizer: AclAuthorizer, by_host: bool) -> None:
    """All hosts of a user, or all users of a host."""

    def acl(permission: str, *, everyone: bool):  # type: ignore[no-untyped-def]
        if by_host:
            return entry(READ, permission, USER1, "*" if everyone else HOST1)
        return entry(READ, permission, ANY_USER if everyone else USER1, HOST1)

    one, two = literal("sb1"), literal("sb2")
    other = ("user1", HOST2) if by_host else ("user2", HOST1)
    assert not any_of(authorizer, "user1", HOST1, READ)
    await add(authorizer, one, acl("Allow", everyone=False))
    assert any_of(authorizer, "user1", HOST1, READ)
    await add(authorizer, one, acl("Deny", everyone=True))
    assert not any_of(authorizer, "user1", HOST1, READ)
    await add(authorizer, two, acl("Deny", everyone=False))
    assert not any_of(authorizer, "user1", HOST1, READ)
    assert not any_of(authorizer, *other, READ)
    await add(authorizer, two, acl("Allow", everyone=True))
    assert any_of(authorizer, *other, READ)
    await add(authorizer, two, acl("Deny", everyone=True))
    assert not any_of(authorizer, *other, READ)


@pytest.mark.kafka("AUT-55")
async def test_any_of_a_type_for_a_super_user(authorizer: AclAuthorizer) -> None:
    kinds = TOPIC, ResourceType.CLUSTER, GROUP, ResourceType.TRANSACTIONAL_ID
    for kind in kinds:
        await add(authorizer, literal("*", kind.label), entry(ALL, "Deny"))
    for kind in kinds:
        assert any_of(authorizer, "superuser1", "192.0.4.4", READ, kind)
