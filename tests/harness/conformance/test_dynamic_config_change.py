"""DCC, AZC: settings of a topic that change while its log is open (section 14 of docs/controller-semantics.md)."""

from __future__ import annotations

import json

import pytest

from kce import wire
from kce.broker_stub.log import Isolation, LogConfig
from kce.wire import Codec, ErrorCode
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import znodes
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
        await c.create({0: [1]}, config={"flush.messages": "100000"})
        await wait_for(c, "flush_messages", 100_000)
        await c.change_config(flush_messages="200000")
        await wait_for(c, "flush_messages", 200_000)


@kafka("DCC-2")
async def test_the_next_segment_has_the_new_size() -> None:
    async with clients(1) as c:
        await c.create({0: [1]}, config={"segment.bytes": "1000"})
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
        await c.create({0: [1]}, config={"message.format.version": "0.10.2"})
        await produce_format_1(c)
        await c.change_config(message_format_version="0.11.0", compression_type="lz4")
        await wait_for(c, "compression_type", Codec.LZ4)
        await produce_format_1(c)
        batches = wire.read_records(bytes(c.log(1).read(0, 10_000, Isolation.LOG_END).records)).batches
        assert [(batch.magic, batch.codec) for batch in batches] == [(2, Codec.NONE), (2, Codec.LZ4)]


@kafka("AZC-7")
async def test_settings_of_a_topic_in_zookeeper_and_in_its_logs() -> None:  # rules 1.34, 1.35
    def settings(size: int, retention_ms: int, leaders: str, followers: str) -> dict[str, str]:
        return {
            "max.message.bytes": str(size),
            "retention.ms": str(retention_ms),
            "leader.replication.throttled.replicas": leaders,
            "follower.replication.throttled.replicas": followers,
        }

    one = settings(1024, 1_000_000, "0:1,1:1,2:1", "0:2,1:2,2:2")
    async with clients(1) as c:
        zk = c.cluster.zk

        async def applied(size: int, retention_ms: int, *, throttled: bool = True) -> None:
            async def everywhere() -> bool:
                configs = [c.log(1, partition).config for partition in range(3)]
                quota = c.node(1).broker.replication.quotas.leader
                return [(it.max_message_bytes, it.retention_ms) for it in configs] == [(size, retention_ms)] * 3 and [
                    quota.is_throttled(TopicPartition(TOPIC, n)) for n in range(3)
                ] == [throttled] * 3

            await c.cluster.wait_until(everywhere, "all logs to have the settings")

        await c.create({0: [1], 1: [1], 2: [1]}, config=one)
        await applied(1024, 1_000_000, throttled=False)  # quotas learn of changes only
        await zk.change_config("topics", TOPIC, one)
        await applied(1024, 1_000_000)
        (notification,) = await zk.get_children(znodes.CONFIG_CHANGES)
        changed = await zk.get_one(f"{znodes.CONFIG_CHANGES}/{notification}")
        assert changed is not None
        assert json.loads(changed.data) == {"version": 2, "entity_path": f"topics/{TOPIC}"}
        two = settings(2048, 2_000_000, "*", "*")
        await zk.change_config("topics", TOPIC, two)
        await applied(2048, 2_000_000)
        assert await zk.get_config("topics", TOPIC) == two
        default = LogConfig.of({})
        assert default.retention_ms is not None
        await zk.change_config("topics", TOPIC, {})
        await applied(default.max_message_bytes, default.retention_ms, throttled=False)
        await zk.change_config("topics", TOPIC, one)
        await applied(1024, 1_000_000)
        nobody = {key: "" for key in one if key.endswith("throttled.replicas")}
        await zk.change_config("topics", TOPIC, nobody)
        await applied(default.max_message_bytes, default.retention_ms, throttled=False)


async def produce_format_1(c: Clients) -> None:
    answer = await c.ask(1, produce_request(batch(b"x", magic=1), topic=TOPIC), 2)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
