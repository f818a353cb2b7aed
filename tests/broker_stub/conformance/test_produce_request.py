"""unit/kafka/server/ProduceRequestTest.scala, DeleteRecordsRequestTest.scala (PRT, DRR)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.wire import Codec, ErrorCode
from tests.broker_stub.log.support import batch
from tests.broker_stub.logs import now_ms
from tests.broker_stub.replication.support import RecordNode, a_node
from tests.broker_stub.support import stop_replica, umr_state, update_metadata

kafka = pytest.mark.kafka
FIVE_HOURS_MS = 5 * 60 * 60 * 1000


@kafka("PRT-2")
@pytest.mark.parametrize(
    ("setting", "late"),
    [
        ("message.timestamp.difference.max.ms", False),
        ("message.timestamp.before.max.ms", False),
        ("message.timestamp.after.max.ms", True),
    ],
)
async def test_invalid_timestamps(setting: str, late: bool) -> None:  # rules B3.28, B3.29
    async with a_node({setting: "1000"}) as node:
        await node.lead(replicas=(1,))
        timestamp = now_ms() + (FIVE_HOURS_MS if late else -FIVE_HOURS_MS)
        records = batch(b"hello", b"there", b"beautiful", timestamp=timestamp, codec=Codec.GZIP)
        answer = await node.produce(records, acks=-1, timeout_ms=3000)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in answer.record_errors] == [0, 1, 2]
        assert all(error.batch_index_error_message is not None for error in answer.record_errors)
        assert answer.error_message
        assert node.log.log_end_offset == 0


@kafka("PRT-3")
async def test_a_broker_without_a_replica() -> None:  # rule B3.11
    async with a_node() as node:
        await node.ask(update_metadata(umr_state(leader=2, isr=(2,), replicas=(2,))))
        answer = await node.produce(batch(b"value"), acks=-1, timeout_ms=3000)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await node.lead(replicas=(1,))
        await node.ask(stop_replica((0, -2, True)))
        assert (await node.produce(batch(b"value"), acks=-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@kafka("PRT-5")
async def test_zstd() -> None:  # rule B3.33
    async with a_node({"compression.type": "zstd"}) as node:
        await node.lead(replicas=(1,))
        records = batch(b"value", codec=Codec.ZSTD)
        answer = await node.produce(records, acks=-1, version=7)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (ErrorCode.NONE, 0, -1)
        refused = await node.produce(records, acks=-1, version=3)
        assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# DeleteRecords


async def delete(node: RecordNode, offset: int, topic: str = "a") -> tuple[ErrorCode, int]:
    """Code and low watermark."""
    entry = wire.DeleteRecordsPartition(partition_index=0, offset=offset)
    requested = wire.DeleteRecordsTopic(name=topic, partitions=(entry,))
    answer = await node.ask(wire.DeleteRecordsRequest(topics=(requested,), timeout_ms=1000))
    (data,) = answer.topics[0].partitions
    return ErrorCode(data.error_code), data.low_watermark


@pytest.mark.parametrize(
    ("offset", "topic", "expected", "start"),
    [
        pytest.param(2, "a", (ErrorCode.NONE, 2), 2, marks=kafka("DRR-1")),
        pytest.param(15, "a", (ErrorCode.OFFSET_OUT_OF_RANGE, -1), 0, marks=kafka("DRR-2")),
        pytest.param(1, "invalid-topic", (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1), 0, marks=kafka("DRR-3")),
    ],
)
async def test_deletion_of_records(offset: int, topic: str, expected: tuple[ErrorCode, int], start: int) -> None:
    """Rules B6.20, B2.24."""
    async with a_node() as node:
        await node.lead(replicas=(1,))
        for i in range(10):
            await node.produce(batch(b"value %d" % i), acks=-1)
        assert await delete(node, offset, topic) == expected
        assert node.log.log_start_offset == start
