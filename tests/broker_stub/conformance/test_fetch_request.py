"""FRT, FRX: fetch requests, beside tests/broker_stub/replication/ (sections 4 and 12c of docs/broker-semantics.md)."""

from __future__ import annotations

from typing import Any

import pytest

from kce import wire
from kce.wire import Codec, ErrorCode
from tests.broker_stub.conformance.test_fetch_session import Consumer, learn
from tests.broker_stub.replication.support import RecordNode, a_node, batch, fetch_request, values_of
from tests.broker_stub.support import umr_state, update_metadata

kafka = pytest.mark.kafka


@kafka("FRT-2")
async def test_version_4_reads_what_is_committed() -> None:
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"x" * 201, key=b"key"))
        data = await node.fetch(0, version=4, isolation=1, partition_max_bytes=200)
        assert (data.error_code, data.last_stable_offset) == (0, 1)
        assert data.records


@kafka("FRT-3")
@pytest.mark.parametrize("version", [12, 17])
async def test_a_broker_without_a_replica(version: int) -> None:
    async with a_node() as node:
        await node.ask(update_metadata(umr_state(leader=2, isr=(2,), replicas=(2,))))
        assert (await node.fetch(0, version=version)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [pytest.param(17, marks=kafka("FRT-8")), pytest.param(12, marks=kafka("FRT-9"))])
@pytest.mark.parametrize("leader", [1, 2])
async def test_epochs_within_a_session(version: int, leader: int) -> None:
    """On the leader, and on a follower."""
    async with a_node() as node:
        await node.lead(leader=leader, isr=(1, 2), epoch=5)

        async def ask(session_id: int, session_epoch: int, epoch: int) -> Any:
            return await node.ask(
                fetch_request(0, version=version, session_id=session_id, session_epoch=session_epoch, epoch=epoch),
                version,
            )

        session_id = (await ask(0, 0, 5)).session_id
        assert session_id > 0
        for session_epoch, epoch, code in (
            (1, 4, ErrorCode.FENCED_LEADER_EPOCH),
            (2, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            (topic,) = (await ask(session_id, session_epoch, epoch)).responses
            assert topic.partitions[0].error_code == code


@kafka("FRT-11")
@pytest.mark.parametrize(
    ("offset", "version", "first", "batches", "magic"),
    [(3, 1, 3, 22, 0), (15, 1, 15, 10, 0), (3, 3, 3, 22, 1), (15, 3, 15, 10, 1), (3, 4, 0, 2, 2), (15, 4, 10, 1, 2),
     (10, 4, 10, 1, 2)],
)  # fmt: skip
async def test_old_formats_begin_at_the_offset(offset: int, version: int, first: int, batches: int, magic: int) -> None:
    """Their batches have one message each."""
    async with a_node() as node:
        await node.lead()
        for numbers in (range(10), range(10, 25)):
            await node.produce(batch(*[b"value-%d" % i for i in numbers]))
        next_offset, received = offset, 0
        while received < batches:
            data = await node.fetch(next_offset, version=version)
            assert (data.error_code, data.high_watermark) == (0, 25)
            found = wire.read_records(data.records or b"").batches
            assert {one.magic for one in found} == {magic}
            assert found[0].base_offset == first
            first = next_offset = found[-1].last_offset + 1
            received += len(found)
        assert received == batches


@kafka("FRT-12")
async def test_partitions_in_error_are_told_each_time() -> None:
    async with a_node() as node:
        await learn(node, "foo")
        consumer = Consumer(node, 12)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await consumer.fetch("foo", "bar") == {"foo": 0, "bar": unknown}
        session_id = consumer.session_id
        assert session_id > 0
        assert await consumer.fetch() == {"bar": unknown}
        assert consumer.session_id == session_id
        await learn(node, "bar")
        assert await consumer.fetch() == {"bar": 0}
        assert await consumer.fetch() == {}


@kafka("FRT-13")
async def test_an_unknown_id_concerns_its_topic_only() -> None:
    async with a_node() as node:
        await learn(node, "foo")
        assert await Consumer(node).fetch("foo", "bar") == {"foo": 0, "bar": ErrorCode.UNKNOWN_TOPIC_ID}


async def versions_with_zstd(node: RecordNode, *versions: int) -> list[tuple[int, list[bytes | None]]]:
    found = []
    for version in versions:
        data = await node.fetch(0, version=version, partition_max_bytes=300, max_bytes=800)
        found.append((data.error_code, values_of(data)))
    return found


@kafka("FRT-14")
async def test_a_topic_with_zstd() -> None:
    async with a_node({"compression.type": "zstd"}) as node:
        await node.lead()
        values = [b"value1", b"value2", b"value3"]
        await node.produce(batch(*values))
        refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert await versions_with_zstd(node, 9, 10, 17) == [(refused, []), (0, values), (0, values)]


@kafka("FRT-15")
async def test_records_with_zstd_after_others() -> None:
    """What comes before them is served; the next fetch begins with them."""
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"value1", codec=Codec.GZIP))
        await node.produce(batch(b"value2", b"value3", codec=Codec.ZSTD))
        refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        for version in (1, 3):
            data = await node.fetch(0, version=version)
            assert (data.error_code, values_of(data)) == (0, [b"value1"])
            assert (await node.fetch(1, version=version)).error_code == refused
        for version in (10, 17):
            data = await node.fetch(0, version=version)
            assert (data.error_code, values_of(data)) == (0, [b"value1", b"value2", b"value3"])


@kafka("FRX-2")
async def test_without_down_conversion_an_old_consumer_is_refused() -> None:
    async with a_node({"message.downconversion.enable": "false"}) as node:
        await node.lead()
        await node.produce(batch(b"value"))
        assert (await node.fetch(0, version=1)).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [pytest.param(17, marks=kafka("FRX-3")), pytest.param(12, marks=kafka("FRX-4"))])
async def test_without_down_conversion_others_are_served(version: int) -> None:
    async with a_node({"message.downconversion.enable": "false"}) as node:
        await node.lead()
        await node.produce(batch(b"value"))
        data = await node.fetch(0, version=version)
        assert (data.error_code, values_of(data)) == (0, [b"value"])


@pytest.mark.parametrize("replica", [pytest.param(-1, marks=kafka("FRX-5")), pytest.param(2, marks=kafka("FRX-6"))])
@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_the_setting_of_a_topic_is_for_consumers(replica: int, enabled: str) -> None:
    async with a_node({"message.downconversion.enable": enabled}) as node:
        await node.lead(isr=(1, 2))
        await node.produce(batch(b"value", codec=Codec.GZIP))
        await node.fetch(1, replica=2, version=4)  # the high watermark
        data = await node.fetch(0, replica=replica, version=1)
        refused = enabled == "false" and replica == -1
        assert data.error_code == (ErrorCode.UNSUPPORTED_VERSION if refused else 0)
        assert values_of(data) == ([] if refused else [b"value"])
        assert node.replication.data_plane.stats.total("fetch_conversions") == (0 if refused else 1)


@kafka("FRX-1")
async def test_an_answer_is_limited_by_the_broker_and_goes_on() -> None:  # rule B4.15
    """What alone is larger than `fetch.max.bytes` is returned as a whole."""
    sizes = (1, 500, 1040, 500, 50)
    async with a_node(fetch_max_bytes="1024") as node:
        await node.lead(replicas=(1,))
        for i, size in enumerate(sizes):
            data = wire.write_records(
                wire.RecordBatch.of(wire.Record(offset=0, timestamp=1, key=bytes([i]), value=bytes(size)))
            )
            assert (await node.produce(data)).error_code == 0
        for offset, expected in ((0, sizes[:2]), (2, sizes[2:3]), (3, sizes[3:])):
            data = await node.fetch(offset, version=3, max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
            batches = wire.read_records(bytes(data.records)).batches
            assert [len(record.value or b"") for one in batches for record in one.records] == list(expected)


@kafka("FRX-7")
async def test_version_2_gets_a_part_of_what_is_too_large() -> None:
    topic = {"message.format.version": "0.10.2"}
    async with a_node(topic, inter_broker_protocol_version="2.8") as node:
        await node.lead(replicas=(1,))
        await node.produce(batch(bytes(201), key=b"key"))
        data = await node.fetch(0, version=2, max_bytes=2**31 - 1, partition_max_bytes=200)
        assert data.error_code == 0
        assert data.high_watermark > 0
        assert len(data.records) == 200
        assert wire.read_records(bytes(data.records)).batches == ()
