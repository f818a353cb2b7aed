"""ZKCT: ACLs of nodes, ACLs of an authorizer, delegation tokens (section 14 of docs/controller-semantics.md; rules 1.5,
1.44, 1.45). The bytes are those of Kafka 3.9.1's own classes, but for the order of keys and of entries.

Covers: kce.zookeeper.security_nodes.
"""

from __future__ import annotations

import json

import pytest

from kce.zookeeper import security_nodes, znodes
from kce.zookeeper.client import UNFENCED
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import (
    NO_ACLS,
    NO_VERSION,
    AccessControlEntry,
    PatternType,
    ResourcePattern,
    TokenInformation,
    VersionedAcls,
)
from kce.zookeeper.store import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL, NoAuth, NoNode, value
from kce.zookeeper.store.memory import MemoryZooKeeper
from kce.zookeeper.znodes import BadZNode

ALICE = AccessControlEntry("User:alice", "*", "Read", "Allow")
BOB = AccessControlEntry("User:bob", "h", "DescribeConfigs", "Deny")
KAFKAS_ACLS = (
    b'{"acls":[{"principal":"User:bob","permissionType":"Deny","host":"h","operation":"DescribeConfigs"},'
    b'{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"Read"}],"version":1}'
)
TOKEN = TokenInformation("id1", "User:alice", "User:bob", ("User:bob", "User:alice"), 1, 3, 2)
KAFKAS_TOKEN = (
    b'{"issueTimestamp":1,"renewers":["User%3Abob","User%3Aalice"],"tokenRequester":"User%3Abob","tokenId":"id1",'
    b'"owner":"User%3Aalice","expiryTimestamp":2,"maxTimestamp":3,"version":3}'
)


@pytest.fixture
def zk() -> KafkaZkClient:
    return KafkaZkClient(MemoryZooKeeper().connect(), now_ms=lambda: 0)


@pytest.mark.kafka("ZKCT-54")
async def test_acls_of_nodes() -> None:  # rule 1.5
    server = MemoryZooKeeper()
    auth = [("digest", "kafka:secret")]
    zk = KafkaZkClient(server.connect(auth=auth, acls_of=znodes.secure_acls), now_ms=lambda: 0)
    assert isinstance((await zk.store.get_acl(["/foo"]))[0], NoNode)
    assert isinstance((await zk.store.set_acl(["/foo"], OPEN_ACL))[0], NoNode)
    await zk.ensure_paths(["/foo"])
    await zk.store.set_acl(["/foo"], READ_ACL)
    assert await zk.store.get_acl(["/foo"]) == [READ_ACL]
    await zk.create_top_level_paths()
    await security_nodes.create_token_paths(zk)
    await zk.put_config("users", "alice", {"password": "hidden"})
    acls = dict(zip(paths := [*znodes.TOP_LEVEL, "/delegation_token/tokens", "/config/users/alice"],
                    await zk.store.get_acl(paths), strict=True))  # fmt: skip
    secret = {"/config/users", "/config/users/alice", "/config/brokers", "/delegation_token/tokens"}
    assert acls.pop("/consumers") == OPEN_ACL
    for path, found in acls.items():
        assert isinstance(found, tuple)
        everything, *more = found
        assert (everything.permissions, everything.scheme) == (31, "digest"), path
        assert tuple(more) == (() if path in secret else READ_ACL), path
    other = server.connect()
    assert isinstance((await other.get_data(["/config/users/alice"]))[0], NoAuth)
    await zk.store.set_acl(["/config/users/alice"], CREATOR_ALL_ACL + READ_ACL)
    assert b"hidden" in value((await other.get_data(["/config/users/alice"]))[0]).data
    assert isinstance((await other.set_acl(["/config/users/alice"], OPEN_ACL))[0], NoAuth)


@pytest.mark.kafka("ZKCT-24")
async def test_acls_of_resources(zk: KafkaZkClient) -> None:  # rule 1.44
    paths = ["/kafka-acl", "/kafka-acl-changes", "/kafka-acl-extended/prefixed", "/kafka-acl-extended-changes"]
    assert await zk.exists(paths) == [None] * 4
    await security_nodes.create_acl_paths(zk)
    assert None not in await zk.exists(paths)
    for pattern, root in ((PatternType.LITERAL, "/kafka-acl"), (PatternType.PREFIXED, "/kafka-acl-extended/prefixed")):
        assert await zk.get_children(root) == sorted(security_nodes.RESOURCE_TYPES)
        assert await security_nodes.get_resources(zk, pattern) == []
        one = ResourcePattern("Topic", "t", pattern)
        other = ResourcePattern("TransactionalId", "x y", pattern)
        assert other.path == f"{root}/TransactionalId/x y"
        assert await security_nodes.get_acls(zk, one) == NO_ACLS
        assert await security_nodes.set_acls(zk, one, [ALICE], 0) is None  # not there yet
        assert await security_nodes.set_acls(zk, one, [ALICE], NO_VERSION) == 0
        assert await security_nodes.set_acls(zk, one, [BOB], NO_VERSION) is None  # there already
        assert await security_nodes.set_acls(zk, one, [ALICE, BOB], 0) == 1
        assert await security_nodes.set_acls(zk, one, [], 0) is None  # another was faster
        assert await security_nodes.get_acls(zk, one) == VersionedAcls(frozenset({ALICE, BOB}), 1)
        assert await security_nodes.set_acls(zk, other, [BOB], NO_VERSION) == 0
        assert await security_nodes.set_acls(zk, other, [ALICE], NO_VERSION) is None
        assert await security_nodes.get_acls(zk, other) == VersionedAcls(frozenset({BOB}), 0)
        assert await security_nodes.get_resources(zk, pattern) == [one, other]
        assert not await security_nodes.delete_acls(zk, one, 0)
        assert await security_nodes.delete_acls(zk, one, 1)
        assert not await security_nodes.delete_acls(zk, one)
        assert await security_nodes.delete_acls(zk, other)
        assert await security_nodes.get_resources(zk, pattern) == []
        changes = "/kafka-acl-changes" if pattern is PatternType.LITERAL else "/kafka-acl-extended-changes"
        made = [await security_nodes.notify_acl_change(zk, resource) for resource in (one, other)]
        assert await zk.get_children(changes) == [path.removeprefix(f"{changes}/") for path in made]
        await zk.delete_all_notifications(changes, UNFENCED)
        assert await zk.get_children(changes) == []


async def test_changes_of_acls(zk: KafkaZkClient) -> None:  # rule 1.44
    await security_nodes.create_acl_paths(zk)
    literal = await security_nodes.notify_acl_change(zk, ResourcePattern("Topic", "t"))
    prefixed = ResourcePattern("TransactionalId", "x y", PatternType.PREFIXED)
    extended = [await security_nodes.notify_acl_change(zk, prefixed) for _ in range(2)]
    assert literal == "/kafka-acl-changes/acl_changes_0000000000"
    assert extended[1] == "/kafka-acl-extended-changes/acl_changes_0000000001"
    data = [value(answer).data for answer in await zk.get_data([literal, extended[0]])]
    assert data[0] == b"TOPIC:t"
    assert data[1] == b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"x y","patternType":"PREFIXED"}'


def test_acls_are_kafkas() -> None:
    assert security_nodes.decode_acls("/p", KAFKAS_ACLS) == {ALICE, BOB}
    mine, theirs = json.loads(security_nodes.encode_acls({ALICE, BOB})), json.loads(KAFKAS_ACLS)
    assert {"version": 1, "acls": theirs["acls"][::-1]} == mine
    no_principal = KAFKAS_ACLS.replace(b"User:", b"")
    for bad in (b"", b"[]", b'{"version":2,"acls":[]}', b'{"version":1}', b'{"version":1,"acls":[{}]}', no_principal):
        with pytest.raises(BadZNode, match="/p: malformed ACLs"):
            security_nodes.decode_acls("/p", bad)


@pytest.mark.kafka("ZKCT-28")
async def test_changes_of_tokens(zk: KafkaZkClient) -> None:  # rule 1.45
    with pytest.raises(NoNode):
        await security_nodes.notify_token_change(zk, "id1")
    await security_nodes.create_token_paths(zk)
    made = [await security_nodes.notify_token_change(zk, token_id) for token_id in ("id1", "id2")]
    assert made == [f"/delegation_token/token_changes/token_change_000000000{i}" for i in range(2)]
    assert [value(answer).data for answer in await zk.get_data(made)] == [b"id1", b"id2"]


@pytest.mark.kafka("ZKCT-52")
async def test_delegation_tokens(zk: KafkaZkClient) -> None:  # rule 1.45
    paths = ["/delegation_token/tokens", "/delegation_token/token_changes"]
    assert await zk.exists(paths) == [None, None]
    await security_nodes.create_token_paths(zk)
    assert None not in await zk.exists(paths)
    assert await security_nodes.get_token(zk, "id1") is None
    assert not await security_nodes.delete_token(zk, "id1")
    await security_nodes.set_or_create_token(zk, TOKEN)
    assert await security_nodes.get_token(zk, "id1") == TOKEN
    found = await zk.get_one("/delegation_token/tokens/id1")
    assert found is not None
    assert json.loads(found.data) == json.loads(KAFKAS_TOKEN)
    renewed = TokenInformation("id1", "User:alice", "User:bob", (), 1, 3, 3)
    await security_nodes.set_or_create_token(zk, renewed)
    assert await security_nodes.get_token(zk, "id1") == renewed
    assert await security_nodes.delete_token(zk, "id1")
    assert not await security_nodes.delete_token(zk, "id1")
    assert await security_nodes.get_token(zk, "id1") is None


def test_tokens_of_older_versions() -> None:
    old = (
        b'{"version":1,"owner":"User:alice","renewers":["User:bob"],"issueTimestamp":1,"maxTimestamp":3,'
        b'"expiryTimestamp":2,"tokenId":"x"}'
    )
    expected = TokenInformation("x", "User:alice", "User:alice", ("User:bob",), 1, 3, 2)
    assert security_nodes.decode_token("/p", old) == expected
    for bad in (b"", b"[]", old.replace(b'"version":1', b'"version":4'), old.replace(b'"owner"', b'"other"')):
        with pytest.raises(BadZNode, match="/p: malformed delegation token"):
            security_nodes.decode_token("/p", bad)
