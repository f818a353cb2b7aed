"""All that nodes say to each other and to clients, and how their partitions are, in days of a whole cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, partition_for
from tests import transcripts
from tests.broker_stub.days import Day, a_day
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import produce_request

FOLDER = Path(__file__).parent / "transcripts"


def creation(topic: str, assignment: Mapping[int, Sequence[int]], **config: str) -> wire.CreateTopicsRequest:
    return wire.CreateTopicsRequest(
        topics=(
            wire.CreatableTopic(
                name=topic,
                num_partitions=-1,
                replication_factor=-1,
                assignments=tuple(
                    wire.CreatableReplicaAssignment(partition_index=p, broker_ids=tuple(replicas))
                    for p, replicas in assignment.items()
                ),
                configs=tuple(
                    wire.CreatableTopicConfig(name=name.replace("_", "."), value=value)
                    for name, value in config.items()
                ),
            ),
        )
    )


def fetching(
    *positions: tuple[int, int], epoch: int = -1, topic: str = "t", rack: str = "", isolation: int = 0
) -> wire.FetchRequest:
    """``positions``: (partition, offset)."""
    partitions = tuple(
        wire.FetchPartition(partition=p, current_leader_epoch=epoch, fetch_offset=o, partition_max_bytes=1 << 20)
        for p, o in positions
    )
    return wire.FetchRequest(
        max_wait_ms=10, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation, session_epoch=-1, rack_id=rack,
        topics=(wire.FetchTopic(topic=topic, partitions=partitions),),
    )  # fmt: skip


def reassignment(targets: Mapping[int, Sequence[int] | None]) -> wire.AlterPartitionReassignmentsRequest:
    asked = tuple(
        wire.ReassignablePartition(partition_index=p, replicas=None if r is None else tuple(r))
        for p, r in targets.items()
    )
    return wire.AlterPartitionReassignmentsRequest(topics=(wire.ReassignableTopic(name="t", partitions=asked),))


def alteration(kind: int, name: str, **config: str) -> wire.IncrementalAlterConfigsRequest:
    changes = tuple(
        wire.IncrementalAlterConfigsRequestAlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in config.items()
    )
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=changes
    )
    return wire.IncrementalAlterConfigsRequest(resources=(resource,))


async def records(day: Day) -> None:
    """Records are produced, copied and read while nodes come and go, and replicas move."""
    await day.ask(1, creation("t", {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}, min_insync_replicas="2"), 7)
    for partition, leader, acks in ((0, 1, -1), (1, 2, 1), (2, 3, 0), (1, 1, -1), (9, 1, 1)):
        if acks:
            await day.ask(leader, produce_request(batch(b"a", b"b"), acks, 1000, "t", partition), 9)
    await day.ask(1, fetching((0, 0), (1, 0), (9, 0)), 12)
    await day.ask(1, fetching((0, 0), epoch=7), 12)
    await day.ask(1, fetching((0, 99)), 12)
    await day.ask(1, fetching((0, 0), rack="b"), 12)
    await day.kill(3)
    await day.ask(1, produce_request(batch(b"c"), -1, 1000, "t", 0), 9)
    await day.ask(2, produce_request(batch(b"c"), -1, 1000, "t", 1), 9)
    await day.start(3)
    await day.stop(2)
    await day.ask(3, produce_request(batch(b"d"), 1, 1000, "t", 1), 9)
    await day.start(2)
    asked = tuple(
        wire.ListOffsetsPartition(partition_index=p, timestamp=at, current_leader_epoch=-1)
        for p, at in ((0, -1), (0, -2), (0, -3), (1, -1), (9, -1))
    )
    await day.ask(
        1, wire.ListOffsetsRequest(replica_id=-1, topics=(wire.ListOffsetsTopic(name="t", partitions=asked),)), 7
    )
    epochs = tuple(
        wire.OffsetForLeaderPartition(partition=p, current_leader_epoch=-1, leader_epoch=e)
        for p, e in ((0, 0), (0, 1), (1, 0), (1, 9))
    )
    topics = (wire.OffsetForLeaderTopic(topic="t", partitions=epochs),)
    for node_id in (1, 3):
        await day.ask(node_id, wire.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4)
    await day.ask(1, reassignment({0: [3, 2], 1: [1], 2: [1, 2]}), 0)
    await day.ask(1, wire.ListPartitionReassignmentsRequest(topics=None), 0)
    elected = (wire.ElectLeadersRequestTopicPartitions(topic="t", partitions=(0, 1, 2)),)
    await day.ask(1, wire.ElectLeadersRequest(election_type=0, topic_partitions=elected), 2)
    await day.ask(3, wire.DescribeLogDirsRequest(topics=None), 4)
    moved = wire.AlterReplicaLogDir(path="/more-3", topics=(wire.AlterReplicaLogDirTopic(name="t", partitions=(0,)),))
    await day.ask(3, wire.AlterReplicaLogDirsRequest(dirs=(moved,)), 2)
    await day.ask(3, wire.DescribeLogDirsRequest(topics=None), 4)
    deleted = wire.DeleteRecordsPartition(partition_index=0, offset=1)
    await day.ask(3, wire.DeleteRecordsRequest(topics=(wire.DeleteRecordsTopic(name="t", partitions=(deleted,)),)), 2)
    await day.ask(1, alteration(2, "t", retention_ms="1000", min_insync_replicas="1"), 1)
    await day.ask(2, wire.MetadataRequest(topics=None), 12)
    async with day.step("cut 3 from ZooKeeper"):
        await day.cluster.cut_from_zookeeper(3)
    await day.ask(1, produce_request(batch(b"e"), -1, 1000, "t", 2), 9)
    async with day.step("heal 3"):
        await day.cluster.heal(3)
    async with day.step("another controller"):
        await day.cluster.delete_controller()
    await day.kill(1)
    await day.start(1)
    for node_id in (1, 2, 3):
        day.metrics(node_id)
    await day.ask(await day.controller(), wire.DeleteTopicsRequest(topic_names=("t",), timeout_ms=5000), 5)


def joining(member: str) -> wire.JoinGroupRequest:
    return wire.JoinGroupRequest(
        group_id="readers",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="consumer",
        protocols=(wire.JoinGroupRequestProtocol(name="range", metadata=b"wanted"),),
    )


async def coordinators(day: Day) -> None:
    """A group and a transaction, whose coordinator moves."""
    await day.ask(1, creation("t", {0: [1, 2], 1: [2, 3]}), 7)
    group = await found(day, "readers", 0)
    member = (await day.ask(group, joining(""), 9)).member_id
    joined = await day.ask(group, joining(member), 9)
    generation = joined.generation_id
    await day.ask(
        group,
        wire.SyncGroupRequest(
            group_id="readers", generation_id=generation, member_id=member, protocol_type="consumer",
            protocol_name="range",
            assignments=(wire.SyncGroupRequestAssignment(member_id=member, assignment=b"given"),),
        ),
        5,
    )  # fmt: skip
    beat = wire.HeartbeatRequest(group_id="readers", generation_id=generation, member_id=member)
    await day.ask(group, beat, 4)
    offsets = (wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=5),)
    await day.ask(
        group,
        wire.OffsetCommitRequest(
            group_id="readers", generation_id_or_member_epoch=generation, member_id=member,
            topics=(wire.OffsetCommitRequestTopic(name="t", partitions=offsets),),
        ),
        8,
    )  # fmt: skip
    fetched = wire.OffsetFetchRequest(
        groups=(
            wire.OffsetFetchRequestGroup(
                group_id="readers", topics=(wire.OffsetFetchRequestTopics(name="t", partition_indexes=(0, 1)),)
            ),
        )
    )
    await day.ask(group, fetched, 8)
    await day.ask(group, wire.DescribeGroupsRequest(groups=("readers", "others")), 5)
    coordinator = await found(day, "copier", 1)
    wanted = wire.InitProducerIdRequest(
        transactional_id="copier", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    await day.ask(coordinator, wanted, 4)  # it has no block of ids yet
    begun = await day.ask(coordinator, wanted, 4)
    producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    of_txn = {f"v3_and_below_{name}": value for name, value in producer.items()}
    added = (wire.AddPartitionsToTxnTopic(name="t", partitions=(0, 1)),)
    await day.ask(
        coordinator,
        wire.AddPartitionsToTxnRequest(v3_and_below_transactional_id="copier", v3_and_below_topics=added, **of_txn),
        3,
    )
    written = batch(b"x", base_sequence=0, is_transactional=True, **producer)
    for partition, leader in ((0, 1), (1, 2)):
        data = wire.PartitionProduceData(index=partition, records=written)
        await day.ask(
            leader,
            wire.ProduceRequest(
                transactional_id="copier", acks=-1, timeout_ms=1000,
                topic_data=(wire.TopicProduceData(name="t", partition_data=(data,)),),
            ),
            9,
        )  # fmt: skip
    stray = batch(b"y", base_sequence=0, is_transactional=True, producer_id=77, producer_epoch=0)
    data = wire.PartitionProduceData(index=0, records=stray)
    await day.ask(
        1,
        wire.ProduceRequest(
            transactional_id="stray", acks=-1, timeout_ms=1000,
            topic_data=(wire.TopicProduceData(name="t", partition_data=(data,)),),
        ),
        9,
    )  # fmt: skip
    await day.ask(1, fetching((0, 0), isolation=1), 12)
    await day.ask(coordinator, wire.DescribeTransactionsRequest(transactional_ids=("copier", "others")), 0)
    end = wire.EndTxnRequest(transactional_id="copier", committed=True, **producer)
    await day.ask(coordinator, end, 3)
    await day.ask(1, fetching((0, 0), isolation=1), 12)
    for stopped in (group, coordinator):
        await day.kill(stopped)
        alive = 1 + stopped % 3
        moved = await found(day, "readers", 0, of=alive)
        await day.ask(moved, beat, 4)
        await day.ask(moved, fetched, 8)
        moved = await found(day, "copier", 1, of=alive)
        await day.ask(moved, wire.ListTransactionsRequest(), 0)
        await day.start(stopped)
    left = (wire.MemberIdentity(member_id=member),)
    moved = await found(day, "readers", 0)
    await day.ask(moved, wire.LeaveGroupRequest(group_id="readers", members=left), 5)
    await day.ask(moved, wire.DeleteGroupsRequest(groups_names=("readers",)), 2)
    for node_id in (1, 2, 3):
        day.metrics(node_id)


async def found(day: Day, key: str, kind: int, of: int = 1) -> int:
    """The coordinator's id, asked for until there is one."""
    asked = wire.FindCoordinatorRequest(coordinator_keys=(key,), key_type=kind)
    await day.ask(of, asked, 4)
    answer = await day.ask(of, asked, 4)
    topic = TRANSACTION_STATE_TOPIC if kind else GROUP_METADATA_TOPIC
    day.lines.append(f"{key} is in {topic}-{partition_for(key, 2)}")
    return int(answer.coordinators[0].node_id)


DAYS: Mapping[str, tuple[Callable[[Day], Awaitable[None]], Mapping[str, str]]] = {
    "records": (records, {}),
    "coordinators": (coordinators, {}),
    "old": (records, {"inter.broker.protocol.version": "2.6"}),
}


@pytest.mark.parametrize("name", DAYS)
async def test_a_day(name: str) -> None:
    live, properties = DAYS[name]
    async with a_day(properties) as day:
        await live(day)
    transcripts.check(FOLDER / f"{name}.txt", day.lines)
