"""DCC: settings of a topic that change while its log is open (section 14 of docs/controller-semantics.md; B8.9)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.broker_stub.log import Isolation
from kce.wire import Codec, ErrorCode
from tests.broker_stub.replication.support import batch, produce_request
from tests.harness.conformance.records import TOPIC, Clients, clients

kafka = pytest.mark.kafka


async def wait_for(c: Clients, setting: str, value: object) -> None:
    async def is_applied() -> bool:
        return getattr(c.log(1).config, setting) == value

    await c.cluster.wait_until(is_applied, f"{setting} to be {value}")


@kafka("DCC-1")
async def test_a_change_reaches_the_log() -> None:
    async with clients(1) as c:
        await c.cluster.create_topic(TOPIC, config={"flush.messages": "100000"})
        await wait_for(c, "flush_messages", 100_000)
        await c.change_config(flush_messages="200000")
        await wait_for(c, "flush_messages", 200_000)


@kafka("DCC-2")
async def test_the_next_segment_has_the_new_size() -> None:
    async with clients(1) as c:
        await c.cluster.create_topic(TOPIC, config={"segment.bytes": "1000"})
        await wait_for(c, "segment_bytes", 1000)
        await c.change_config(segment_bytes="2000")
        await wait_for(c, "segment_bytes", 2000)
        for i in range(1, 51):
            assert await c.produce(1, b"%d" % i) == ErrorCode.NONE
        segments = list(c.log(1).segments)
        assert len(segments) > 1
        assert all(segment.size > 1000 for segment in segments[:-1])


@kafka("DCC-3")
async def test_the_message_format_version_has_no_effect() -> None:  # rule B3.23
    """What comes as format 1 is kept as format 2."""
    async with clients(1) as c:
        await c.cluster.create_topic(TOPIC, config={"message.format.version": "0.10.2"})
        await c.wait_for_leader(1)
        await produce_format_1(c)
        await c.change_config(message_format_version="0.11.0", compression_type="lz4")
        await wait_for(c, "compression_type", Codec.LZ4)
        await produce_format_1(c)
        batches = wire.read_records(bytes(c.log(1).read(0, 10_000, Isolation.LOG_END).records)).batches
        assert [(batch.magic, batch.codec) for batch in batches] == [(2, Codec.NONE), (2, Codec.LZ4)]


async def produce_format_1(c: Clients) -> None:
    answer = await c.ask(1, produce_request(batch(b"x", magic=1), topic=TOPIC), 2)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
