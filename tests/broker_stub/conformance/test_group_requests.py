"""Kafka's request tests of groups, in every version: JoinGroupRequestTest, SyncGroupRequestTest and their like.

Requests and responses are encoded, and the records go through the log of a broker without sockets.

Covers: broker_stub/handlers/offset_commit.py, broker_stub/handlers/offset_fetch.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.ports import AdminPort
from kce.broker_stub.zookeeper.admin_manager import ZkAdminManager
from kce.wire import ErrorCode
from kce.wire.metadata_version import LATEST
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.broker_stub.support import Node, lai_state, leader_and_isr, stop_replica, umr_state, update_metadata

kafka = pytest.mark.kafka

NONE, UNKNOWN, ILLEGAL = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
GROUP, CONSUMER = "grp", "consumer"
SUBSCRIBED = b"\0\0" + (1).to_bytes(4) + b"\0\3foo" + b"\xff\xff\xff\xff"


class Later:
    """A request that may be parked."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    @property
    def is_parked(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> Any:
        (answer,) = self.answers
        return answer


class Client:
    """Sends each request in ``version``, or the newest that the API has."""

    def __init__(self, node: Node, nursery: trio.Nursery, version: int) -> None:
        self.node = node
        self.version = version
        self._nursery = nursery

    def has(self, message: type[wire.Message], version: int) -> bool:
        return min(self.version, message.__versions__.last) >= version

    async def ask(self, message: wire.Message) -> Any:
        return await self.node.ask(message, min(self.version, message.__versions__.last))

    async def later(self, message: wire.Message) -> Later:
        """What does not wait for others has happened."""
        found = Later()

        async def ask() -> None:
            found.answers.append(await self.ask(message))

        self._nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        return found

    async def join(self, member_id: str = "", **more: Any) -> Later:
        """A newcomer gets its id, and comes again (from version 4 on)."""
        is_static = self.has(wire.JoinGroupRequest, 5) and "group_instance_id" in more
        if not is_static:
            more.pop("group_instance_id", None)
        request = wire.JoinGroupRequest(
            **{
                "group_id": GROUP, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "member_id": member_id,
                "protocol_type": CONSUMER, **more,
                "protocols": (wire.JoinGroupRequestProtocol(name="consumer-range", metadata=SUBSCRIBED),),
            }
        )  # fmt: skip
        if not self.has(wire.JoinGroupRequest, 1):
            request = wire.JoinGroupRequest(
                group_id=request.group_id, session_timeout_ms=10_000, member_id=member_id,
                protocol_type=request.protocol_type, protocols=request.protocols,
            )  # fmt: skip
        found = await self.later(request)
        if found.answers and found.answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            assert self.has(wire.JoinGroupRequest, 4)
            assert (found.answer.generation_id, is_static) == (-1, False)
            return await self.join(found.answer.member_id, **more)
        return found

    async def joined(self, member_id: str = "", **more: Any) -> Any:
        found = await self.join(member_id, **more)
        await trio.sleep(0.01)  # the initial delay
        await wait_all_tasks_blocked()
        return found.answer

    async def sync(self, member_id: str, generation: int, **more: Any) -> Later:
        names: dict[str, Any] = {}
        if self.has(wire.SyncGroupRequest, 5):
            names = {"protocol_type": CONSUMER, "protocol_name": "consumer-range"}
        assignments = tuple(
            wire.SyncGroupRequestAssignment(member_id=other, assignment=data)
            for other, data in more.pop("assignments", {}).items()
        )
        request = wire.SyncGroupRequest(
            **{
                "group_id": GROUP, "member_id": member_id, "generation_id": generation, "assignments": assignments,
                **names, **more,
            }
        )  # fmt: skip
        return await self.later(request)

    async def stable(self, **more: Any) -> tuple[str, int]:
        """A group of one: member id and generation."""
        joined = await self.joined(**more)
        assert joined.error_code == NONE
        found = await self.sync(
            joined.member_id, joined.generation_id, assignments={joined.member_id: b"\1"},
            group_id=more.get("group_id", GROUP),
        )  # fmt: skip
        assert (found.answer.error_code, found.answer.assignment) == (NONE, b"\1")
        return joined.member_id, joined.generation_id

    async def heartbeat(self, member_id: str, generation: int, group_id: str = GROUP) -> int:
        request = wire.HeartbeatRequest(group_id=group_id, member_id=member_id, generation_id=generation)
        return int((await self.ask(request)).error_code)

    async def leave(self, member_id: str, group_id: str = GROUP, instance_id: str | None = None) -> int:
        """The member's code, or that of the group."""
        if not self.has(wire.LeaveGroupRequest, 3):
            request = wire.LeaveGroupRequest(group_id=group_id, member_id=member_id)
            return int((await self.ask(request)).error_code)
        member = wire.MemberIdentity(member_id=member_id, group_instance_id=instance_id)
        answer = await self.ask(wire.LeaveGroupRequest(group_id=group_id, members=(member,)))
        if answer.members:
            (echo,) = answer.members
            assert (answer.error_code, echo.member_id, echo.group_instance_id) == (NONE, member_id, instance_id)
            return int(echo.error_code)
        return int(answer.error_code)

    async def commit(
        self, offset: int, member_id: str = "", generation: int = -1, group_id: str = GROUP, partition: int = 0,
        topic: str = "foo",
    ) -> int:  # fmt: skip
        data = wire.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="metadata"
        )
        request = wire.OffsetCommitRequest(
            group_id=group_id, member_id=member_id, generation_id_or_member_epoch=generation,
            topics=(wire.OffsetCommitRequestTopic(name=topic, partitions=(data,)),),
        )  # fmt: skip
        return int((await self.ask(request)).topics[0].partitions[0].error_code)

    async def describe(self, group_id: str = GROUP) -> Any:
        (group,) = (await self.ask(wire.DescribeGroupsRequest(groups=(group_id,)))).groups
        return group


@asynccontextmanager
async def served(version: int = 99, admin: AdminPort | None = None, **properties: str) -> AsyncIterator[Client]:
    """A broker that leads the only partition of __consumer_offsets, and knows foo with three partitions."""
    async with trio.open_nursery() as nursery:
        node = Node(
            nursery=nursery, admin=admin, offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="0",
            **properties,
        )  # fmt: skip
        nursery.start_soon(node.replication.timer.run)
        nursery.start_soon(node.groups.manager.run)
        node.cache.update(update_metadata(umr_state(0, isr=(1,), replicas=(1,)), topic=GROUP_METADATA_TOPIC))
        node.cache.update(update_metadata(*(umr_state(i) for i in range(3)), topic="foo"))
        state = lai_state(0, isr=(1,), replicas=(1,))
        await node.ask(leader_and_isr(state, topic=GROUP_METADATA_TOPIC))
        await wait_all_tasks_blocked()
        yield Client(node, nursery, version)
        nursery.cancel_scope.cancel()


def versions(message: type[wire.Message], first: int = 0) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("version", range(first, message.__versions__.last + 1))


@kafka("JGR-2")
@versions(wire.JoinGroupRequest)
async def test_join_group(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        unknown = await client.join("member-id-unknown")
        assert unknown.answer.error_code == UNKNOWN
        first = await client.joined()
        assert (first.error_code, first.generation_id, first.leader) == (NONE, 1, first.member_id)
        assert [m.metadata for m in first.members] == [SUBSCRIBED]
        assert first.protocol_name == "consumer-range"
        assert first.protocol_type == (CONSUMER if version >= 7 else None)
        await client.sync(first.member_id, 1, assignments={first.member_id: b"\1"})
        assert (await client.join("member-id-unknown")).answer.error_code == UNKNOWN
        inconsistent = await client.join(protocol_type="connect")
        assert inconsistent.answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert inconsistent.answer.protocol_name == (None if version >= 7 else "")
        # a second one, which is static if the version has that
        second = await client.join(group_instance_id="instance")
        assert second.is_parked
        assert await client.heartbeat(first.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        leader = (await client.join(first.member_id)).answer
        follower = second.answer
        assert (leader.generation_id, follower.generation_id) == (2, 2)
        instance = "instance" if version >= 5 else None
        assert {(m.member_id, m.group_instance_id) for m in leader.members} == {
            (first.member_id, None), (follower.member_id, instance),
        }  # fmt: skip
        assert (follower.members, follower.leader) == ((), first.member_id)
        await client.sync(first.member_id, 2)
        await client.sync(follower.member_id, 2)
        # the follower comes again, unchanged
        assert (await client.join(follower.member_id, group_instance_id="instance")).answer.generation_id == 2
        if version < 5:
            return
        # its duplicate replaces it, without a rebalance: a leader's rejoin then makes generation 3
        duplicate = (await client.join(group_instance_id="instance")).answer
        assert (duplicate.error_code, duplicate.generation_id) == (NONE, 2)
        assert duplicate.member_id != follower.member_id
        fenced = await client.join(follower.member_id, group_instance_id="instance")
        assert fenced.answer.error_code == ErrorCode.FENCED_INSTANCE_ID
        again = await client.join(first.member_id)
        assert (await client.join(duplicate.member_id, group_instance_id="instance")).answer.generation_id == 3
        assert again.answer.generation_id == 3


@kafka("SGR-2")
@versions(wire.SyncGroupRequest)
async def test_sync_group(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        assert (await client.sync("member-id", -1)).answer.error_code == UNKNOWN
        leader = await client.joined()
        if version >= 5:
            for wrong in ({"protocol_name": "unknown"}, {"protocol_type": "unknown"}, {"protocol_type": None}):
                refused = await client.sync(leader.member_id, 1, **wrong)
                assert refused.answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
                assert (refused.answer.protocol_type, refused.answer.protocol_name) == (None, None)
        assert (await client.sync("member-id-unknown", 1)).answer.error_code == UNKNOWN
        assert (await client.sync(leader.member_id, 2)).answer.error_code == ILLEGAL
        alone = (await client.sync(leader.member_id, 1, assignments={leader.member_id: b"\1"})).answer
        assert (alone.error_code, alone.assignment) == (NONE, b"\1")
        expected = (CONSUMER, "consumer-range") if version >= 5 else (None, None)
        assert (alone.protocol_type, alone.protocol_name) == expected
        second = await client.join()
        leads = (await client.join(leader.member_id)).answer
        follower = second.answer
        waits = await client.sync(follower.member_id, 2)
        assert waits.is_parked
        both = {leader.member_id: b"\1", follower.member_id: b"\2"}
        assert (await client.sync(leader.member_id, leads.generation_id, assignments=both)).answer.assignment == b"\1"
        assert waits.answer.assignment == b"\2"
        assert (await client.sync(follower.member_id, 2)).answer.assignment == b"\2"


@kafka("HBR-2")
@versions(wire.HeartbeatRequest)
async def test_heartbeat(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        assert await client.heartbeat("member-id", -1) == UNKNOWN
        leader = await client.joined()
        assert await client.heartbeat("member-id-unknown", -1) == UNKNOWN
        assert await client.heartbeat(leader.member_id, -1) == ILLEGAL
        assert await client.heartbeat(leader.member_id, 1) == NONE
        await client.sync(leader.member_id, 1)
        assert await client.heartbeat(leader.member_id, 1) == NONE
        await client.join()
        assert await client.heartbeat(leader.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        assert await client.leave(leader.member_id) == NONE
        assert await client.heartbeat(leader.member_id, 1) == UNKNOWN


@kafka("LGR-2")
@versions(wire.LeaveGroupRequest)
async def test_leave_group(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        assert await client.leave("member-id", group_id="") == ErrorCode.INVALID_GROUP_ID
        assert await client.leave("member-id", group_id="unknown") == UNKNOWN
        member_id, _ = await client.stable()
        assert await client.leave("unknown") == UNKNOWN
        assert await client.leave(member_id) == NONE
        assert (await client.describe()).group_state == "Empty"
        if version < 3:
            return
        client.version = 99
        await client.stable(group_instance_id="instance")
        client.version = version
        assert await client.leave("unknown", instance_id="instance") == ErrorCode.FENCED_INSTANCE_ID
        assert await client.leave("", instance_id="instance") == NONE
        assert (await client.describe()).group_state == "Empty"


@kafka("OCR-3")
@versions(wire.OffsetCommitRequest, 1)
async def test_offset_commit(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        member_id, generation = await client.stable()
        assert await client.commit(100, member_id, generation) == NONE
        for group_id in ("unknown", ""):
            assert await client.commit(100, member_id, generation, group_id=group_id) == ILLEGAL
        assert await client.commit(100, "", generation) == UNKNOWN
        assert await client.commit(100, member_id, generation + 1) == ILLEGAL
        assert await client.commit(100, "", -1, group_id="grp2") == NONE
        assert await client.commit(100, member_id, generation, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def offsets_of(topics: Any) -> dict[tuple[str, int], int]:
    for topic in topics:
        for partition in topic.partitions:
            assert partition.error_code == NONE
            assert partition.metadata == ("" if partition.committed_offset < 0 else "metadata")
    return {(t.name, p.partition_index): p.committed_offset for t in topics for p in t.partitions}


async def fetched(client: Client, group_id: str, topics: dict[str, tuple[int, ...]] | None) -> dict[Any, int]:
    """One group, in any version; None for all."""
    if client.has(wire.OffsetFetchRequest, 8):
        asked: Any = None
        if topics is not None:
            asked = tuple(wire.OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in topics.items())
        group = wire.OffsetFetchRequestGroup(group_id=group_id, topics=asked)
        (found,) = (await client.ask(wire.OffsetFetchRequest(groups=(group,)))).groups
        assert found.group_id == group_id
    else:
        asked = None
        if topics is not None:
            asked = tuple(wire.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics.items())
        found = await client.ask(wire.OffsetFetchRequest(group_id=group_id, topics=asked))
    assert found.error_code == NONE
    return offsets_of(found.topics)


async def three_commits(client: Client, group_id: str = GROUP) -> None:
    before, client.version = client.version, 99
    for partition in range(3):
        assert await client.commit(100 + partition, group_id=group_id, partition=partition) == NONE
    client.version = before


@kafka("OFR-3")
@versions(wire.OffsetFetchRequest, 1)
async def test_single_group_offset_fetch(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        await three_commits(client)
        found = await fetched(client, GROUP, {"foo": (0, 1, 5)})
        assert found == {("foo", 0): 100, ("foo", 1): 101, ("foo", 5): -1}
        assert await fetched(client, "unknown", {"foo": (0, 1, 5)}) == {("foo", i): -1 for i in (0, 1, 5)}
        found = await fetched(client, GROUP, {"foo": (0,), "foo-unknown": (0,)})
        assert found == {("foo", 0): 100, ("foo-unknown", 0): -1}


@kafka("OFR-6")
@versions(wire.OffsetFetchRequest, 2)
async def test_single_group_all_offset_fetch(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        await three_commits(client)
        assert await fetched(client, GROUP, None) == {("foo", i): 100 + i for i in range(3)}
        assert await fetched(client, "unknown", None) == {}


@kafka("OFR-9")
@versions(wire.OffsetFetchRequest, 8)
async def test_multi_groups_offset_fetch(autojump_clock: MockClock, version: int) -> None:
    async with served(version) as client:
        for i in range(3):
            await three_commits(client, f"grp-{i}")

        def topics(name: str, *partitions: int) -> tuple[wire.OffsetFetchRequestTopics, ...]:
            return (wire.OffsetFetchRequestTopics(name=name, partition_indexes=partitions),)

        asked: dict[str, Any] = {
            "grp-0": topics("foo", 0, 1, 5), "grp-1": None, "grp-2": (), "grp-unknown": topics("foo", 0),
            "grp-3": topics("foo-unknown", 0),
        }  # fmt: skip
        groups = tuple(wire.OffsetFetchRequestGroup(group_id=g, topics=t) for g, t in asked.items())
        answer = await client.ask(wire.OffsetFetchRequest(groups=groups))
        assert {group.group_id: (group.error_code, offsets_of(group.topics)) for group in answer.groups} == {
            "grp-0": (NONE, {("foo", 0): 100, ("foo", 1): 101, ("foo", 5): -1}),
            "grp-1": (NONE, {("foo", i): 100 + i for i in range(3)}),
            "grp-2": (NONE, {}),
            "grp-unknown": (NONE, {("foo", 0): -1}),
            "grp-3": (NONE, {("foo-unknown", 0): -1}),
        }


@versions(wire.OffsetFetchRequest, 1)
async def test_offset_fetch_of_another_broker(autojump_clock: MockClock, version: int) -> None:  # rule G7.28
    async with served(version) as client:
        client.node.groups.manager.unload(0, None)
        await wait_all_tasks_blocked()
        topics = (wire.OffsetFetchRequestTopic(name="foo", partition_indexes=(0,)),)
        request = wire.OffsetFetchRequest(group_id=GROUP, topics=topics)
        if version >= 8:
            request = wire.OffsetFetchRequest(groups=(wire.OffsetFetchRequestGroup(group_id=GROUP, topics=()),))
        answer = await client.ask(request)
        if version >= 8:
            (answer,) = answer.groups
        assert answer.topics == ()
        assert answer.error_code == (ErrorCode.NOT_COORDINATOR if version >= 2 else NONE)


@kafka("ODR-3")
async def test_offset_delete(autojump_clock: MockClock) -> None:
    async with served() as client:

        async def delete(group_id: str, topic: str, *partitions: int) -> tuple[int, dict[int, int]]:
            entries = tuple(wire.OffsetDeleteRequestPartition(partition_index=i) for i in partitions)
            topics = (wire.OffsetDeleteRequestTopic(name=topic, partitions=entries),)
            answer = await client.ask(wire.OffsetDeleteRequest(group_id=group_id, topics=topics))
            return answer.error_code, {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}

        member_id, generation = await client.stable()
        for partition in range(3):
            await client.commit(100, member_id, generation, partition=partition)
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert await delete(GROUP, "foo", 0, 1) == (NONE, {0: subscribed, 1: subscribed})
        await client.leave(member_id)
        assert await delete(GROUP, "foo", 0, 1) == (NONE, {0: NONE, 1: NONE})
        assert await fetched(client, GROUP, None) == {("foo", 2): 100}
        assert await delete(GROUP, "foo", 5) == (NONE, {5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        for group_id, code in (("unknown", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)):
            for topic, partition in (("foo", 2), ("foo", 5), ("foo-unknown", 1)):
                assert await delete(group_id, topic, partition) == (code, {})


@kafka("DGR-3")
@versions(wire.DeleteGroupsRequest)
async def test_delete_groups(autojump_clock: MockClock, version: int) -> None:
    async with served() as client:
        await client.stable()
        other, _ = await client.stable(group_id="grp-empty")
        await client.leave(other, group_id="grp-empty")
        client.version = version
        answer = await client.ask(wire.DeleteGroupsRequest(groups_names=(GROUP, "grp-empty", GROUP)))
        codes = [(result.group_id, result.error_code) for result in answer.results]
        assert codes == [(GROUP, ErrorCode.NON_EMPTY_GROUP), ("grp-empty", NONE)]
        assert (await client.describe("grp-empty")).group_state == "Dead"


@kafka("DSR-2")
@versions(wire.DescribeGroupsRequest)
async def test_describe_groups(autojump_clock: MockClock, version: int) -> None:
    async with served() as client:
        member_id, _ = await client.stable()
        waiting = await client.joined(group_id="grp-2")
        client.version = version
        answer = await client.ask(wire.DescribeGroupsRequest(groups=(GROUP, "grp-2", "grp-unknown")))
        stable, completing, unknown = answer.groups
        assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (
            "Stable",
            CONSUMER,
            "consumer-range",
        )
        (member,) = stable.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (SUBSCRIBED, b"\1")
        assert (completing.group_state, completing.protocol_data) == ("CompletingRebalance", "")
        (member,) = completing.members
        assert (member.member_id, member.member_metadata) == (waiting.member_id, b"")
        assert (unknown.error_code, unknown.group_state, unknown.members) == (NONE, "Dead", ())
        assert [group.authorized_operations for group in answer.groups] == [-(2**31)] * 3
        if version >= 3:
            request = wire.DescribeGroupsRequest(groups=(GROUP, ""), include_authorized_operations=True)
            assert [g.authorized_operations for g in (await client.ask(request)).groups] == [0b101001000] * 2  # B9


@kafka("LSR-3")
@versions(wire.ListGroupsRequest)
async def test_list_groups(autojump_clock: MockClock, version: int) -> None:
    async with served() as client:
        await client.stable()
        await client.joined(group_id="grp-completing")
        other, _ = await client.stable(group_id="grp-empty")
        await client.leave(other, group_id="grp-empty")

        async def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
            answer = await client.ask(wire.ListGroupsRequest(states_filter=states, types_filter=types))
            assert answer.error_code == NONE
            return {(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups}

        client.version = version
        states = {GROUP: "Stable", "grp-completing": "CompletingRebalance", "grp-empty": "Empty"}
        kind = "classic" if version >= 5 else ""
        everything = {(g, CONSUMER, state if version >= 4 else "", kind) for g, state in states.items()}
        assert await listed() == everything
        if version >= 4:
            assert {g for g, *_ in await listed(("stable", "EMPTY"))} == {GROUP, "grp-empty"}
            assert await listed(("Dead",)) == set()
        if version >= 5:
            assert await listed((), ("Classic",)) == everything
            assert await listed((), ("consumer",)) == set()
        await client.ask(wire.DeleteGroupsRequest(groups_names=("grp-empty",)))
        assert {g for g, *_ in await listed()} == {GROUP, "grp-completing"}


# settings of the broker, and what other requests do


async def test_instance_ids_need_a_newer_inter_broker_protocol(autojump_clock: MockClock) -> None:  # rule G1.17
    async with served(inter_broker_protocol_version="2.2") as client:
        refused = ErrorCode.UNSUPPORTED_VERSION
        assert (await client.join(group_instance_id="instance")).answer.error_code == refused
        assert (await client.sync("m", 1, group_instance_id="instance")).answer.error_code == refused
        request = wire.HeartbeatRequest(group_id=GROUP, member_id="m", generation_id=1, group_instance_id="instance")
        assert (await client.ask(request)).error_code == refused
        data = wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
        topics = (wire.OffsetCommitRequestTopic(name="foo", partitions=(data,)),)
        request = wire.OffsetCommitRequest(group_id=GROUP, group_instance_id="instance", topics=topics)
        assert (await client.ask(request)).topics[0].partitions[0].error_code == refused
        assert (await client.joined()).error_code == NONE


@pytest.mark.parametrize("version", range(1, 5))
async def test_old_commits_say_when_they_expire(autojump_clock: MockClock, version: int) -> None:  # G7.14, G7.15
    async with served(version) as client:
        data = wire.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=None, commit_timestamp=77 if version == 1 else -1
        )
        request = wire.OffsetCommitRequest(
            group_id=GROUP, retention_time_ms=-1 if version == 1 else 1000,
            topics=(wire.OffsetCommitRequestTopic(name="foo", partitions=(data,)),),
        )  # fmt: skip
        assert (await client.ask(request)).topics[0].partitions[0].error_code == NONE
        manager = client.node.groups.manager
        committed = manager.groups[GROUP].offsets.get(TopicPartition("foo", 0))
        assert committed is not None
        now = manager.now_ms()
        expected = (77, None) if version == 1 else (now, now + 1000)
        assert (committed.commit_timestamp, committed.expire_timestamp) == expected
        assert committed.metadata == ""


async def test_offsets_expire_by_themselves(autojump_clock: MockClock) -> None:  # rules G8.1, G8.5
    async with served(offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000") as client:
        await client.commit(5)
        await trio.sleep(59)
        assert await fetched(client, GROUP, None) == {("foo", 0): 5}
        await trio.sleep(2)
        assert await fetched(client, GROUP, None) == {}
        assert client.node.groups.manager.groups == {}


async def restarted(client: Client) -> None:
    """The partition is led again, with what is in its log."""
    for epoch, leader in ((1, 2), (2, 1)):
        state = lai_state(0, leader=leader, leader_epoch=epoch, isr=(1,), replicas=(1, 2), partition_epoch=epoch)
        await client.node.ask(leader_and_isr(state, topic=GROUP_METADATA_TOPIC))
        await wait_all_tasks_blocked()
        if leader == 2:
            assert await client.heartbeat("m", 1) == ErrorCode.NOT_COORDINATOR
            assert client.node.groups.manager.groups == {}


@pytest.mark.parametrize("codec", range(5))
async def test_what_was_written_is_loaded(autojump_clock: MockClock, codec: int) -> None:  # rules G9.14, G13.1, G13.2
    async with served(offsets_topic_compression_codec=str(codec)) as client:
        member_id, generation = await client.stable()
        for offset in range(40):
            assert await client.commit(offset, member_id, generation, partition=offset % 3) == NONE
        await restarted(client)
        assert await fetched(client, GROUP, None) == {("foo", 0): 39, ("foo", 1): 37, ("foo", 2): 38}
        assert await client.heartbeat(member_id, generation) == NONE
        assert (await client.sync(member_id, generation)).answer.assignment == b"\1"


@kafka("GMM-20")
async def test_a_record_larger_than_the_load_buffer_is_loaded(autojump_clock: MockClock) -> None:
    async with served(offsets_load_buffer_size="10") as client:
        member_id, generation = await client.stable()
        await restarted(client)
        assert await client.heartbeat(member_id, generation) == NONE


@pytest.mark.parametrize(
    ("leader_epoch", "delete", "resigned"),
    [
        pytest.param(2, True, [(0, 2)], marks=kafka("KAT-10")),
        pytest.param(-2, True, [(0, None)], marks=kafka("KAT-11")),
        pytest.param(-1, True, [(0, None)], marks=kafka("KAT-12")),
        pytest.param(2, False, [], marks=kafka("KAT-13")),
    ],
)
async def test_stop_replica_with_deletion_resigns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, leader_epoch: int, delete: bool, resigned: list[Any]
) -> None:  # rule G13.4
    async with served() as client:
        member_id, generation = await client.stable()
        unloaded = []
        unload = client.node.groups.manager.unload
        monkeypatch.setattr(
            client.node.groups.manager, "unload", lambda *what: unloaded.append(what) or unload(*what)  # type: ignore[func-returns-value]
        )  # fmt: skip
        for topic in (GROUP_METADATA_TOPIC, "foo"):
            await client.node.ask(stop_replica((0, leader_epoch, delete), topic=topic))
        await wait_all_tasks_blocked()
        assert unloaded == resigned
        expected = ErrorCode.NOT_COORDINATOR if resigned else NONE
        assert await client.heartbeat(member_id, generation) == expected


async def test_update_metadata_removes_offsets_of_deleted_topics(autojump_clock: MockClock) -> None:  # rule G13.5
    async with served() as client:
        await three_commits(client)
        await client.node.ask(update_metadata(umr_state(1, leader=-2), topic="foo"))
        assert await fetched(client, GROUP, None) == {("foo", 0): 100, ("foo", 2): 102}


async def test_version_0_keeps_offsets_in_zookeeper(autojump_clock: MockClock) -> None:  # rules G7.16, G7.29
    store = MemoryZooKeeper().connect()
    zk = KafkaZkClient(store, now_ms=lambda: 0, new_uuid=uuid.uuid4)
    async with served(0, admin=ZkAdminManager(zk, LATEST, Random(1))) as client:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        async def fetch(group_id: str = GROUP) -> dict[tuple[str, int], tuple[int, int]]:
            topics = tuple(wire.OffsetFetchRequestTopic(name=n, partition_indexes=(0, 1)) for n in ("foo", "nowhere"))
            answer = await client.ask(wire.OffsetFetchRequest(group_id=group_id, topics=topics))
            found = {(t.name, p.partition_index): p for t in answer.topics for p in t.partitions}
            return {key: (p.committed_offset, p.error_code) for key, p in found.items()}

        assert await client.commit(37) == NONE
        assert await client.commit(38, topic="nowhere") == unknown
        assert (await zk.get_one("/consumers/grp/offsets/foo/0")).data == b"37"
        expected = {("foo", 0): (37, NONE), ("foo", 1): (-1, unknown)}
        assert await fetch() == {**expected, ("nowhere", 0): (-1, unknown), ("nowhere", 1): (-1, unknown)}
        assert client.node.groups.manager.groups == {}
        await zk.set_or_create("/consumers/grp/offsets/foo/0", b"no number")
        assert (await fetch())["foo", 0] == (-1, ErrorCode.UNKNOWN_SERVER_ERROR)
        for bad in ("", "..", "a/../b", "."):
            assert await client.commit(37, group_id=bad) == ErrorCode.UNKNOWN_SERVER_ERROR
