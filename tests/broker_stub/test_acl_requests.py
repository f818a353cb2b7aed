"""DescribeAcls, CreateAcls and DeleteAcls: codes of the protocol to ACLs and back, and what is refused (rule B9.28).

Covers: broker_stub/handlers/acls.py, broker_stub/handlers/describe_acls.py, broker_stub/handlers/create_acls.py,
broker_stub/handlers/delete_acls.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import trio

from kce import wire
from kce.broker_stub.handlers import describe_acls
from kce.broker_stub.reactor.request import Action
from kce.broker_stub.security import KafkaPrincipal
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.operations import Operation, PermissionType, ResourceType
from kce.wire import ErrorCode
from kce.wire.steps import STEP_MASK
from kce.zookeeper.security_nodes import ResourcePattern, VersionedAcls
from tests.broker_stub.security.authorizers import Authorizers, add, authorizers, entry, known, literal, prefixed
from tests.broker_stub.support import Node

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
NO_SUCH_CODE: Final = 99


def creation(**changed: Any) -> wire.AclCreation:
    """Of `User:alice` to read topic a."""
    usual: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": "a",
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": PermissionType.ALLOW,
    }
    return wire.AclCreation(**usual | changed)


def everything(**changed: Any) -> dict[str, Any]:
    """The fields of a filter that matches all."""
    usual: dict[str, Any] = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return usual | changed


def deletion(**changed: Any) -> wire.DeleteAclsFilter:
    return wire.DeleteAclsFilter(**everything(**changed))


@pytest.fixture
async def world() -> AsyncIterator[Authorizers]:
    async with authorizers() as made:
        yield made


@pytest.fixture
async def authorizer(world: Authorizers) -> AclAuthorizer:
    return await world.start(allow_everyone_if_no_acl_found="true")


@pytest.fixture
async def node(world: Authorizers, authorizer: AclAuthorizer) -> Node:
    made = Node(nursery=world.nursery, authorizer=authorizer)
    made.principal = KafkaPrincipal("User", "superuser1")
    return made


async def create(node: Node, *creations: wire.AclCreation, version: int = 3) -> list[tuple[ErrorCode, str | None]]:
    answer = await node.ask(wire.CreateAclsRequest(creations=creations), version)
    return [(ErrorCode(result.error_code), result.error_message) for result in answer.results]


def entry_of(acl: wire.AclDescription | wire.DeleteAclsMatchingAcl) -> tuple[Any, ...]:
    return acl.principal, acl.host, acl.operation, acl.permission_type


async def described(node: Node, version: int = 3, **changed: Any) -> set[tuple[Any, ...]]:
    """(type, name, pattern, principal, host, operation, permission) of what a filter finds."""
    answer = await node.ask(wire.DescribeAclsRequest(**everything(**changed)), version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, "")
    found = [
        (one.resource_type, one.resource_name, one.pattern_type, *entry_of(acl))
        for one in answer.resources
        for acl in one.acls
    ]
    assert len(found) == len(set(found))
    assert all(one.acls for one in answer.resources)
    return set(found)


ACLS: Final = {
    (ResourceType.TOPIC, "a", LITERAL, "User:alice", "*", Operation.READ, PermissionType.ALLOW),
    (ResourceType.TOPIC, "a", LITERAL, "User:bob", "10.0.0.1", Operation.WRITE, PermissionType.DENY),
    (ResourceType.TOPIC, "ab", PREFIXED, "User:alice", "*", Operation.ALL, PermissionType.ALLOW),
    (ResourceType.TOPIC, "*", LITERAL, "User:*", "*", Operation.DESCRIBE, PermissionType.ALLOW),
    (ResourceType.GROUP, "a", LITERAL, "User:alice", "*", Operation.READ, PermissionType.ALLOW),
    (ResourceType.CLUSTER, "kafka-cluster", LITERAL, "User:bob", "*", Operation.IDEMPOTENT_WRITE, PermissionType.ALLOW),
    (ResourceType.TRANSACTIONAL_ID, "t", PREFIXED, "User:bob", "*", Operation.DESCRIBE_CONFIGS, PermissionType.DENY),
    (ResourceType.DELEGATION_TOKEN, "id", LITERAL, "User:bob", "*", Operation.DESCRIBE, PermissionType.ALLOW),
    (ResourceType.USER, "User:eve", LITERAL, "User:bob", "*", Operation.CREATE_TOKENS, PermissionType.ALLOW),
}
FIELDS: Final = (
    "resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation", "permission_type",
)  # fmt: skip


async def filled(node: Node) -> Node:
    given = [creation(**dict(zip(FIELDS, acl, strict=True))) for acl in sorted(ACLS)]
    assert await create(node, *given) == [(ErrorCode.NONE, "")] * len(given)
    return node


async def test_what_is_created_is_described(node: Node, authorizer: AclAuthorizer) -> None:
    await filled(node)
    assert await described(node) == ACLS
    resource = ResourcePattern("TransactionalId", "t", prefixed("t").pattern)
    assert known(authorizer, resource) == {entry("DescribeConfigs", "Deny", "User:bob")}
    assert known(authorizer, literal("kafka-cluster", "Cluster")) == {entry("IdempotentWrite", "Allow", "User:bob")}


def those(*names: str, kind: ResourceType = ResourceType.TOPIC) -> set[tuple[Any, ...]]:
    return {acl for acl in ACLS if acl[1] in names and acl[0] == kind}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"resource_type_filter": 2}, those("a", "ab", "*")),
        ({"resource_type_filter": 3}, those("a", kind=ResourceType.GROUP)),
        ({"resource_name_filter": "a"}, {acl for acl in ACLS if acl[1] == "a"}),
        ({"resource_name_filter": ""}, set()),
        ({"pattern_type_filter": PREFIXED}, {acl for acl in ACLS if acl[2] == PREFIXED}),
        ({"pattern_type_filter": MATCH, "resource_name_filter": "abc"}, those("ab", "*")),
        ({"pattern_type_filter": MATCH, "resource_name_filter": "a", "resource_type_filter": 2}, those("a", "*")),
        ({"pattern_type_filter": NO_SUCH_CODE}, set()),
        ({"principal_filter": "User:bob"}, {acl for acl in ACLS if acl[3] == "User:bob"}),
        ({"host_filter": "10.0.0.1"}, {acl for acl in ACLS if acl[4] == "10.0.0.1"}),
        ({"operation": Operation.ALL}, those("ab")),
        ({"operation": NO_SUCH_CODE}, set()),
        ({"permission_type": PermissionType.DENY}, {acl for acl in ACLS if acl[6] == PermissionType.DENY}),
        ({"permission_type": PermissionType.ALLOW, "principal_filter": "User:eve"}, set()),
    ],
)
async def test_a_filter_describes_and_deletes_the_same(
    node: Node, authorizer: AclAuthorizer, wanted: dict[str, Any], found: set[tuple[Any, ...]]
) -> None:
    await filled(node)
    assert await described(node, **wanted) == found
    answer = await node.ask(wire.DeleteAclsRequest(filters=(deletion(**wanted),)))
    (result,) = answer.filter_results
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert all((acl.error_code, acl.error_message) == (ErrorCode.NONE, None) for acl in result.matching_acls)
    assert {
        (acl.resource_type, acl.resource_name, acl.pattern_type, *entry_of(acl)) for acl in result.matching_acls
    } == found
    assert await described(node) == ACLS - found


async def test_what_several_filters_match_is_deleted_by_the_first(node: Node) -> None:
    await filled(node)
    filters = deletion(resource_name_filter="a"), deletion(principal_filter="User:alice"), deletion(host_filter="none")
    answer = await node.ask(wire.DeleteAclsRequest(filters=filters))
    assert [[acl.resource_name for acl in r.matching_acls] for r in answer.filter_results] == [["a"] * 3, ["ab"], []]


async def test_each_creation_has_its_own_error_in_its_place(node: Node, authorizer: AclAuthorizer) -> None:
    results = await create(
        node,
        creation(resource_name=""),
        creation(resource_name="good"),
        creation(resource_type=ResourceType.CLUSTER, resource_name="cluster"),
        creation(operation=NO_SUCH_CODE),
        creation(resource_name="a/b"),
        creation(resource_name="better"),
        creation(resource_pattern_type=NO_SUCH_CODE),
        creation(resource_type=NO_SUCH_CODE),
        creation(permission_type=NO_SUCH_CODE),
        creation(resource_type=ResourceType.CLUSTER, resource_name="kafka-cluster"),
    )
    wrong, right = ErrorCode.INVALID_REQUEST, ErrorCode.NONE
    assert [code for code, _ in results] == [wrong, right, wrong, wrong, wrong, right, wrong, wrong, wrong, right]
    assert all((text == "") == (code is right) for code, text in results)
    assert {one.name for one in authorizer.cache.resources()} == {"good", "better", "kafka-cluster"}


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type": ANY}, {"operation": ANY}, {"permission_type": ANY}, {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
    ],
)  # fmt: skip
async def test_what_only_a_filter_can_say_fails_the_whole_request(
    node: Node, authorizer: AclAuthorizer, changed: dict[str, Any]
) -> None:
    results = await create(node, creation(), creation(**changed))
    assert [code for code, _ in results] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert authorizer.cache.resources() == []


@pytest.mark.parametrize("unknown", ["pattern", "type", "operation", "permission"])
@pytest.mark.parametrize("api", ["describe", "create", "delete"])
async def test_the_code_of_unknown_closes_the_connection(node: Node, api: str, unknown: str) -> None:
    """Kafka takes the request for one that it cannot parse."""
    fields = {"pattern": "pattern_type", "type": "resource_type", "operation": "operation"}
    name = fields.get(unknown, "permission_type")
    if api == "create":
        name = "resource_pattern_type" if unknown == "pattern" else name
        message: wire.Message = wire.CreateAclsRequest(creations=(creation(), creation(**{name: 0})))
    else:
        name += "_filter" if unknown in ("pattern", "type") else ""
        message = wire.DescribeAclsRequest(**everything(**{name: 0}))
        if api == "delete":
            message = wire.DeleteAclsRequest(filters=(deletion(), deletion(**{name: 0})))
    request, captured = node.request(message, 3)
    assert node.apis.handle(request) is None
    assert captured.response is not None
    assert captured.response.action is Action.CLOSE_CONNECTION


@pytest.mark.parametrize(
    "message",
    [
        wire.DescribeAclsRequest(**everything()),
        wire.CreateAclsRequest(creations=(creation(),)),
        wire.DeleteAclsRequest(filters=(deletion(),)),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_without_an_authorizer(world: Authorizers, message: wire.Message) -> None:  # rule B9.26
    answer = await Node(nursery=world.nursery).ask(message)
    (error,) = getattr(answer, "results", getattr(answer, "filter_results", (answer,)))
    assert (error.error_code, error.error_message) == (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


@pytest.mark.parametrize("version", range(4))
async def test_patterns_since_version_one(node: Node, authorizer: AclAuthorizer, version: int) -> None:
    assert await create(node, creation(), version=version) == [(ErrorCode.NONE, "")]
    await add(authorizer, prefixed("a"), entry("Write"))
    pattern = ANY if version else LITERAL  # which is what version 0 says
    found = await described(node, version, pattern_type_filter=pattern, resource_name_filter="a")
    assert {acl[2] for acl in found} == ({LITERAL, PREFIXED} if version else {LITERAL})


async def test_an_acl_that_cannot_be_deleted_says_why(node: Node, authorizer: AclAuthorizer) -> None:
    class Failing:
        async def write(self, *args: Any) -> int:
            raise OSError("no store")

    await create(node, creation())
    authorizer._store = Failing()  # type: ignore[assignment]
    (result,) = (await node.ask(wire.DeleteAclsRequest(filters=(deletion(),)))).filter_results
    (acl,) = result.matching_acls
    assert (result.error_code, acl.error_code, acl.error_message) == (0, ErrorCode.UNKNOWN_SERVER_ERROR, "no store")
    assert await create(node, creation(resource_name="b"), creation(operation=Operation.WRITE)) == [
        (ErrorCode.UNKNOWN_SERVER_ERROR, "'Failing' object has no attribute 'read'"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "no store"),
    ]
    assert len(await described(node)) == 1


async def test_many_acls_are_described_in_steps(node: Node, authorizer: AclAuthorizer) -> None:
    """Others have their turns meanwhile."""
    acls = VersionedAcls(frozenset({entry("Read")}), 0)
    names = {f"topic-{i}" for i in range(20 * (STEP_MASK + 1))}
    for name in names:
        authorizer.cache.put(literal(name), acls)
    request, captured = node.request(wire.DescribeAclsRequest(**everything()), 3)
    waits = describe_acls.HANDLER.handle(request, request.message, node.services)
    assert waits is not None
    assert captured.response is None
    with trio.fail_after(60):
        await waits
    assert {one[1] for one in await described(node)} == names
