"""EDR: leader epochs in the logs (section 12d of docs/broker-semantics.md; rules B5.7 to B5.29).

Brokers 1 and 2 have replicas of t-0, and the last node is the controller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from kce import wire
from kce.broker_stub.log import Log
from kce.wire import ErrorCode
from kce.wire.compression import Codec
from kce.wire.record import RecordBatch
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import produce_request
from tests.harness.conformance.records import T0, TOPIC, Clients, clients

kafka = pytest.mark.kafka
#: before 2.7 followers ask where epochs end
by_fetch_and_by_request = pytest.mark.parametrize("protocol", ["3.9", "2.6"])

MESSAGE, BIGGER = bytes(1000), bytes(10_000)


class Replicas(Clients):
    """Their logs are files in memory, which outlive nodes."""

    def path(self, node_id: int) -> str:
        return f"/logs-{node_id}/t-0/{0:020}.log"

    def content(self, node_id: int) -> bytes:
        found = self.world.disks[f"node-{node_id}"].read(self.path(node_id))
        assert found is not None
        return found

    def batches(self, node_id: int) -> list[RecordBatch]:
        return list(wire.read_records(self.content(node_id)).batches)

    def last_epoch(self, node_id: int) -> int:
        return self.batches(node_id)[-1].partition_leader_epoch

    def epochs(self, node_id: int) -> list[tuple[int, int]]:
        """(epoch, start offset)."""
        return list(self.log(node_id)._epochs.entries)

    def lose(self, node_id: int, size: int) -> None:
        """A stopped node has crashed, and lost bytes at the end of its log."""
        disk = self.world.disks[f"node-{node_id}"]
        disk.delete(f"/logs-{node_id}/.kafka_cleanshutdown")
        file = disk.open(self.path(node_id))
        file.truncate(file.size - size)
        file.close()

    async def send(self, *values: bytes, codec: Codec = Codec.NONE, acks: int = -1) -> None:
        """A batch, to the leader."""
        leader, _ = await self.leadership()
        await self.wait_for_leader(leader)
        answer = await self.ask(leader, produce_request(batch(*values, codec=codec), acks, 5000, TOPIC), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    async def roles(self) -> tuple[int, int]:
        """Leader and follower."""
        leader, _ = await self.leadership()
        return leader, 3 - leader

    async def bounce(self, node_id: int) -> None:
        """And wait until it is in the ISR."""
        await self.cluster.stop(node_id)
        await self.cluster.start(node_id)

        async def are_in_sync() -> bool:
            leader, isr = await self.leadership()
            hosted = self.node(leader).broker.replica_manager.partitions.get(T0)
            return len(isr) == 2 and hosted is not None and hosted.is_leader

        await self.cluster.wait_until(are_in_sync, "two replicas in sync")

    async def wait_for_logs_to_match(self) -> None:
        async def do_match() -> bool:
            logs = [self.node(i).logs for i in (1, 2)]
            ends = {found.logs[T0].log_end_offset for found in logs if found is not None and T0 in found.logs}
            return len(ends) == 1 and all(found is not None and T0 in found.logs for found in logs)

        await self.cluster.wait_until(do_match, "logs to match")


@asynccontextmanager
async def replicas(brokers: int = 2, **properties: str) -> AsyncIterator[Replicas]:
    given = {name.replace("_", "."): text for name, text in properties.items()}
    async with clients(brokers, controllers=1, properties=given) as c:
        yield Replicas(c.cluster, c.world)


@kafka("EDR-1")
@by_fetch_and_by_request
async def test_epochs_follow_with_records(protocol: str) -> None:  # rules B5.21, B5.22, 9.26
    async with replicas(inter_broker_protocol_version=protocol) as c:
        await c.create({0: [1, 2]})
        await c.send(MESSAGE)
        for node_id in (1, 2):
            assert (c.last_epoch(node_id), c.epochs(node_id)) == (0, [(0, 0)])

        await c.bounce(2)
        leader, follower = await c.roles()
        assert (c.epochs(leader), c.epochs(follower)) == ([(0, 0), (1, 1)], [(0, 0)])
        await c.send(MESSAGE)
        for node_id in (1, 2):
            assert (c.last_epoch(node_id), c.epochs(node_id)) == (1, [(0, 0), (1, 1)])

        await c.bounce(leader)
        leader, follower = await c.roles()
        assert (c.epochs(leader), c.epochs(follower)) == ([(0, 0), (1, 1), (2, 2)], [(0, 0), (1, 1)])
        await c.send(MESSAGE)
        for node_id in (1, 2):
            assert (c.last_epoch(node_id), c.epochs(node_id)) == (2, [(0, 0), (1, 1), (2, 2)])


async def both_stopped_and_1_lost(c: Replicas, size: int) -> None:
    """2 first, so that 1 is the leader."""
    await c.cluster.stop(2)
    await c.cluster.stop(1)
    c.lose(1, size)
    await c.cluster.start(1)
    await c.wait_for_leader(1)


@kafka("EDR-2")
@by_fetch_and_by_request
async def test_logs_do_not_diverge_after_a_leader_lost_records(protocol: str) -> None:
    async with replicas(inter_broker_protocol_version=protocol) as c:
        await c.create({0: [1, 2]})
        for _ in range(10):
            await c.send(MESSAGE)
        await both_stopped_and_1_lost(c, 5 * len(MESSAGE))
        for _ in range(9):
            await c.send(MESSAGE)
        await c.cluster.start(2)
        await c.wait_for_logs_to_match()
        assert c.content(1) == c.content(2)


@kafka("EDR-3")
@by_fetch_and_by_request
async def test_offsets_do_not_go_backwards(protocol: str) -> None:
    async with replicas(inter_broker_protocol_version=protocol) as c:
        await c.create({0: [1, 2]})
        for _ in range(100):
            await c.send(MESSAGE, codec=Codec.SNAPPY)
        await both_stopped_and_1_lost(c, len(c.content(1)) // 2)
        for _ in range(2):  # the end of the follower's log is within a batch
            await c.send(*[MESSAGE] * 77, codec=Codec.SNAPPY)
        await c.cluster.start(2)
        await c.wait_for_logs_to_match()
        await c.cluster.stop(1)
        offsets = [record.offset for found in c.batches(2) for record in found.records]
        assert len(offsets) >= 100
        assert offsets == sorted(set(offsets))
        assert c.content(1) == c.content(2)


@kafka("EDR-4")
@by_fetch_and_by_request
async def test_fast_changes_of_the_leader_lose_nothing(protocol: str) -> None:
    async with replicas(inter_broker_protocol_version=protocol) as c:
        await c.create({0: [1, 2]})
        await c.send(MESSAGE)
        for written in range(2, 7):
            leader, follower = await c.roles()
            await c.send(MESSAGE)
            await c.bounce(follower)
            await c.bounce(leader)
            assert [c.log(node_id).log_end_offset for node_id in (1, 2)] == [written, written]


@kafka("EDR-5")
@by_fetch_and_by_request
async def test_logs_do_not_diverge_after_unclean_elections(protocol: str) -> None:
    async with replicas(inter_broker_protocol_version=protocol, unclean_leader_election_enable="true") as c:
        await c.create({0: [1, 2]}, {"min.insync.replicas": "1"})
        await c.send(MESSAGE, acks=1)
        await c.wait_for_logs_to_match()
        await c.cluster.stop(1)
        await c.wait_for_leader(2)
        await c.send(MESSAGE, acks=1)
        for leader, value, count in ((1, BIGGER, 3), (2, MESSAGE, 1), (1, BIGGER, 2)):
            await c.cluster.stop(3 - leader)
            await c.cluster.start(leader)
            await c.wait_for_leader(leader)
            for _ in range(count):
                await c.send(value, acks=1)
        await c.cluster.start(2)
        await c.wait_for_logs_to_match()
        assert c.content(1) == c.content(2)


async def end_offsets(
    c: Clients, node_id: int, asked: Iterable[tuple[TopicPartition, int]]
) -> list[tuple[int, int, int]]:
    """What a broker says to a follower about ends of epochs: code, epoch, offset."""
    found = []
    for partition, epoch in asked:
        entry = wire.OffsetForLeaderPartition(partition=partition.partition, leader_epoch=epoch)
        topic = wire.OffsetForLeaderTopic(topic=partition.topic, partitions=(entry,))
        answer = await c.ask(node_id, wire.OffsetForLeaderEpochRequest(replica_id=9, topics=(topic,)), 4)
        end = answer.topics[0].partitions[0]
        found.append((end.error_code, end.leader_epoch, end.end_offset))
    return found


@kafka("EDR-6")
async def test_records_have_the_epoch_of_their_leader() -> None:
    topics = (TOPIC, "u")

    def epochs(log: Log) -> list[int]:
        return [log.epoch_at(offset) for offset in range(log.log_end_offset)]

    async with replicas() as c:
        await c.create({0: [1, 2]})
        await c.cluster.create_topic("u", assignment={0: [1, 2]})

        async def send(leader: int) -> None:
            for topic in topics:
                for _ in range(4):
                    answer = await c.ask(leader, produce_request(batch(MESSAGE), -1, 5000, topic), 9)
                    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

        async def leads_u() -> bool:
            hosted = c.node(1).broker.replica_manager.partitions.get(TopicPartition("u", 0))
            return hosted is not None and hosted.is_leader

        def written() -> list[list[int]]:
            logs = c.node(1).logs
            assert logs is not None
            return [epochs(logs.logs[TopicPartition(topic, 0)]) for topic in topics]

        await c.cluster.wait_until(leads_u, "1 to lead u")
        await send(1)
        assert written() == [[0] * 4] * 2
        await c.bounce(1)

        async def has_epoch_1() -> bool:
            snapshot = c.node(1).broker.metadata_cache.snapshot
            cached = [snapshot.partition(TopicPartition(topic, 0)) for topic in topics]
            return all(one is not None and one.leader_epoch == 1 and len(one.isr) == 2 for one in cached)

        await c.cluster.wait_until(has_epoch_1, "epoch 1")
        await send(2)

        async def are_replicated() -> bool:
            return written() == [[0] * 4 + [1] * 4] * 2

        await c.cluster.wait_until(are_replicated, "records of epoch 1")


@kafka("EDR-7")
async def test_leaders_tell_where_epochs_end() -> None:  # rule B5.23
    async with replicas(3) as c:
        await c.create({0: [1], 1: [2]})
        await c.cluster.create_topic("u", assignment={0: [1]})
        t0, t1, u0, u2 = T0, TopicPartition(TOPIC, 1), TopicPartition("u", 0), TopicPartition("u", 2)
        for node_id, partition, count in ((1, t0, 10), (2, t1, 20), (1, u0, 30)):
            request = produce_request(batch(*[b"x"] * count), -1, 5000, partition.topic, partition.partition)
            answer = await c.ask(node_id, request, 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        asked = [(t0, 0), (t1, 0), (u0, 0), (u2, 0)]
        at_1 = await end_offsets(c, 1, asked)
        assert at_1[0] == (ErrorCode.NONE, 0, 10)
        assert at_1[1] == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        assert at_1[2] == (ErrorCode.NONE, 0, 30)
        assert (await end_offsets(c, 2, asked))[1] == (ErrorCode.NONE, 0, 20)


@kafka("EDR-8")
async def test_epochs_grow_when_a_leader_restarts() -> None:  # rule B5.23
    async with replicas() as c:

        async def ends(*epochs: int) -> list[tuple[int, int]]:
            """(epoch, end offset)."""
            return [end[1:] for end in await end_offsets(c, 2, [(T0, epoch) for epoch in epochs])]

        async def bounce() -> None:
            await c.cluster.stop(2)
            await c.cluster.start(2)
            await c.wait_for_leader(2)

        await c.create({0: [2]})
        await c.send(b"IHeartLogs")
        assert await ends(0) == [(0, 1)]
        assert c.log(2).log_end_offset == 1
        await bounce()
        await c.send(b"IHeartLogs")
        assert await ends(0, 1, 2) == [(0, 1), (0, 1), (2, 2)]
        assert c.log(2).log_end_offset == 2
        await bounce()
        await c.send(b"IHeartLogs")
        assert [offset for _, offset in await ends(0, 2, 4)] == [1, 2, 3]
        assert c.log(2).log_end_offset == 3
        assert [offset for _, offset in await ends(1, 3, 5)] == [1, 2, -1]
