"""What a broker says of its log directories, and of the producers of a log (rules B7.22, B7.24)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kce import wire
from kce.harness.world.real_disk import RealDisk
from kce.wire import ErrorCode
from tests.broker_stub.log.support import produced
from tests.broker_stub.replication.support import A0, a_node, batch
from tests.broker_stub.support import ID_A, lai_state, leader_and_isr, umr_state, update_metadata


@pytest.mark.parametrize("version", range(5))
async def test_log_directories(version: int) -> None:
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"x"))

        async def ask(topics: dict[str, tuple[int, ...]] | None) -> wire.DescribeLogDirsResponse:
            given = topics and tuple(wire.DescribableLogDirTopic(topic=t, partitions=p) for t, p in topics.items())
            answer = await node.ask(wire.DescribeLogDirsRequest(topics=() if topics == {} else given), version)
            assert isinstance(answer, wire.DescribeLogDirsResponse)
            return answer

        size = node.log.size
        assert size > 60
        expected = wire.DescribeLogDirsTopic(
            name="a", partitions=(wire.DescribeLogDirsPartition(partition_index=0, partition_size=size),)
        )
        for wanted in (None, {"a": (0, 7), "b": (0,)}):
            (found,) = (await ask(wanted)).results
            assert (found.error_code, found.log_dir, found.topics) == (ErrorCode.NONE, "/logs", (expected,))
            assert (found.total_bytes, found.usable_bytes) == (-1, -1)
        for wanted in ({}, {"a": (1,)}):
            assert (await ask(wanted)).results[0].topics == ()
        node.record_logs.directories[0].failed(OSError("broken"))
        (found,) = (await ask(None)).results
        assert (found.error_code, found.log_dir, found.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, "/logs", ())


def test_the_space_of_a_volume(tmp_path: Path) -> None:
    total, usable = RealDisk().space(str(tmp_path))
    assert total >= usable > 0


async def test_producers_of_a_log() -> None:
    async with a_node() as node:
        await node.lead(isr=(1,), replicas=(1, 2))
        assert (await node.produce(produced(7, 0, 3))).error_code == 0
        assert (await node.produce(produced(7, 3, 2))).error_code == 0

        async def ask(topic: str, number: int = 0) -> wire.PartitionResponse:
            wanted = wire.TopicRequest(name=topic, partition_indexes=(number,))
            answer = await node.ask(wire.DescribeProducersRequest(topics=(wanted,)), 0)
            assert isinstance(answer, wire.DescribeProducersResponse)
            assert answer.topics[0].name == topic
            (data,) = answer.topics[0].partitions
            assert data.partition_index == number
            return data

        known = node.log.producers.producers[7]
        expected = wire.ProducerState(
            producer_id=7, producer_epoch=0, last_sequence=4, last_timestamp=known.last_timestamp, coordinator_epoch=-1,
            current_txn_start_offset=-1,
        )  # fmt: skip
        assert (await ask("a")).active_producers == (expected,)
        await node.lead(leader=2, epoch=1, partition_epoch=1, isr=(2,), replicas=(1, 2))  # any replica answers
        assert (await ask("a")).active_producers == (expected,)
        assert (await ask("a/b")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await ask("b")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await node.ask(update_metadata(umr_state(1, leader=2, replicas=(2,))))
        assert (await ask("a", 1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await node.ask(update_metadata(umr_state(2)))
        await node.ask(leader_and_isr(lai_state(2, is_new=True), topic_id=ID_A))
        assert await ask("a", 2) == wire.PartitionResponse(partition_index=2)
        node.replicas.mark_offline(A0)
        assert (await ask("a")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
