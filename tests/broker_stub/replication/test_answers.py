"""Whole answers about records, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from kce import wire
from kce.wire import Codec, ErrorCode
from tests.broker_stub.replication.support import a_node, batch, fetch_request
from tests.broker_stub.support import ID_A, lai_state, leader_and_isr, umr_state, update_metadata

ZSTD = {"compression.type": "zstd"}


async def test_what_producing_answers() -> None:  # rules B3.38, B3.43
    async with a_node({"message.timestamp.type": "LogAppendTime"}) as node:
        await node.lead(epoch=4, replicas=(1,))
        await node.ask(leader_and_isr(lai_state(1, leader_epoch=0, is_new=True, replicas=(1,), isr=(1,))))
        await node.ask(update_metadata(umr_state(1, leader=1, isr=(1,), replicas=(1,))))
        await node.produce(batch(b"x"), partition=1)
        answer = await node.produce(batch(b"y", b"z"), partition=1, version=11)
        assert answer == wire.PartitionProduceResponse(
            index=1, error_code=0, base_offset=1, log_append_time_ms=answer.log_append_time_ms, log_start_offset=0
        )
        assert answer.log_append_time_ms > 0
        refused = await node.produce(b"", partition=1, version=11)
        assert refused == wire.PartitionProduceResponse(
            index=1, error_code=ErrorCode.INVALID_RECORD, log_start_offset=-1, base_offset=-1
        )


async def test_a_batch_without_records_is_refused() -> None:
    """Also one that has to be compressed again."""
    for topic in ({}, ZSTD):
        async with a_node(topic) as node:
            await node.lead()
            empty = wire.write_records(
                wire.RecordBatch(base_offset=0, last_offset=0, base_timestamp=1, max_timestamp=1, records=())
            )
            assert (await node.produce(empty)).error_code == ErrorCode.INVALID_RECORD


async def test_producers_and_consumers_learn_the_leader_and_its_address() -> None:  # KIP-951
    async with a_node() as node:
        await node.ask(update_metadata(umr_state(leader=2, leader_epoch=7), alive=(1, 2, 3)))
        await node.ask(leader_and_isr(lai_state(leader=2, leader_epoch=7)))
        answer = await node.ask(fetch_request(version=17, epoch=3), 17)
        (data,) = answer.responses[0].partitions
        assert (data.error_code, data.current_leader) == (
            ErrorCode.FENCED_LEADER_EPOCH, wire.FetchResponseLeaderIdAndEpoch(leader_id=2, leader_epoch=7),
        )  # fmt: skip
        assert answer.responses[0].topic_id == ID_A
        assert answer.node_endpoints == (
            wire.FetchResponseNodeEndpoint(node_id=2, host="host2", port=9021, rack=None),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "version", "replica", "expected"),
    [
        (ZSTD, 9, -1, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (ZSTD, 10, -1, ErrorCode.NONE),
        ({}, 3, -1, ErrorCode.NONE),
        ({"message.downconversion.enable": "false"}, 3, -1, ErrorCode.UNSUPPORTED_VERSION),
        ({"message.downconversion.enable": "false"}, 4, -1, ErrorCode.NONE),
        ({"message.downconversion.enable": "false"}, 3, 2, ErrorCode.NONE),  # a follower may
    ],
)
async def test_old_versions_of_fetch(
    topic: dict[str, str], version: int, replica: int, expected: ErrorCode
) -> None:  # rule B4.20
    async with a_node(topic) as node:
        await node.lead(replicas=(1, 2), isr=(1, 2))
        await node.produce(batch(b"a"))
        node.log.set_high_watermark(1)
        data = await node.fetch(version=version, replica=replica)
        assert data.error_code == expected
        assert bool(data.records) == (expected is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("stored", "version", "expected"), [("0.10.2", 1, 0), ("0.10.2", 2, 1), ("0.10.2", 11, 1), ("0.9.0", 3, 0)]
)
async def test_logs_of_old_formats_are_converted_from_theirs(
    stored: str, version: int, expected: int
) -> None:  # rule B4.20
    """`message.downconversion.enable` only forbids what would be done."""
    topic = {"message.format.version": stored, "message.downconversion.enable": str(version == 1).lower()}
    async with a_node(topic, inter_broker_protocol_version="2.8") as node:
        await node.lead()
        await node.produce(batch(b"a", b"b", codec=Codec.GZIP))
        data = await node.fetch(version=version)
        assert data.error_code == ErrorCode.NONE
        (found,) = wire.read_records(bytes(data.records)).batches
        assert (found.magic, [record.value for record in found.records]) == (expected, [b"a", b"b"])


async def test_old_offsets_are_those_a_consumer_may_see() -> None:  # rules B7.20, B7.21
    async with a_node({"segment.bytes": "200"}) as node:
        await node.lead()
        for _ in range(4):
            await node.produce(batch(b"a" * 50, b"b" * 50))

        async def offsets(replica: int, count: int = 9, repeated: bool = False) -> Any:
            entry = wire.ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=count)
            topic = wire.ListOffsetsTopic(name="a", partitions=(entry,) * (2 if repeated else 1))
            answer = await node.ask(wire.ListOffsetsRequest(replica_id=replica, topics=(topic,)), 0)
            return answer.topics[0].partitions[-1]

        everything = (await offsets(2)).old_style_offsets
        assert everything == (8, 6, 4, 2, 0)
        assert (await offsets(2, count=2)).old_style_offsets == (8, 6)
        for replica in (2, -1):
            assert (await offsets(replica, count=0)).old_style_offsets == ()
            assert (await offsets(replica, count=-1)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        for high_watermark, visible in ((0, (0,)), (4, (4, 2, 0)), (5, (5, 4, 2, 0)), (8, everything)):
            node.log.set_high_watermark(high_watermark)
            assert (await offsets(-1)).old_style_offsets == visible
        assert (await offsets(-1, repeated=True)).error_code == ErrorCode.NONE  # only later versions refuse that


async def test_a_partition_that_is_asked_for_twice() -> None:  # rule B7.19
    async with a_node() as node:
        await node.lead()
        for times, expected in ((1, ErrorCode.NONE), (2, ErrorCode.INVALID_REQUEST)):
            entry = wire.ListOffsetsPartition(partition_index=0, timestamp=-2)
            topic = wire.ListOffsetsTopic(name="a", partitions=(entry,) * times)
            answer = await node.ask(wire.ListOffsetsRequest(replica_id=-1, topics=(topic,)), 1)
            assert [p.error_code for p in answer.topics[0].partitions] == [expected] * times


async def test_records_of_codecs_that_an_old_version_lacks() -> None:  # rule B4.20
    async with a_node() as node:
        await node.lead(replicas=(1,))
        await node.produce(batch(b"a", codec=Codec.ZSTD))
        assert (await node.fetch(version=3)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
