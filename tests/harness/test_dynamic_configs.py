"""Settings of brokers that change while they run, in a cluster in memory (B10, rules B1.10, B7.29, B7.30).

Covers: broker_stub/topic_configs.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kce import wire
from kce.harness import Cluster
from kce.harness.node import Node
from kce.harness.world import memory
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.clusters import node

BROKER = 4
SET, DELETE = 0, 1


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    properties = {"log.retention.hours": "2", "log.segment.bytes": "5000"}
    async with Cluster(2, world=memory(seed=5), properties=properties) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("plain", assignment={0: [1, 2]})
        await cluster.create_topic("own", assignment={0: [1, 2]}, config={"segment.bytes": "7000"})
        await until(cluster, "segment_bytes", "plain", (5000, 5000))
        await until(cluster, "segment_bytes", "own", (7000, 7000))
        yield cluster


async def ask(at: Node, message: wire.Message, version: int) -> Any:
    host, _, port = at.addresses()["DATA"].rpartition(":")
    link = await at.links.dial(host, int(port), to=-1, listener="")
    await link.send_frame(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))
    answer = wire.decode_response(await link.receive_frame(), api_key=message.__api_key__, api_version=version)[1]
    await link.aclose()
    return answer


async def alter(cluster: Cluster, broker: str, at: int = 1, /, **changes: str | None) -> tuple[ErrorCode, str | None]:
    """Of one broker, or of all (""); None deletes. Underscores become dots."""
    configs = tuple(
        wire.IncrementalAlterConfigsRequestAlterableConfig(
            name=name.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for name, value in changes.items()
    )
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=BROKER, resource_name=broker, configs=configs
    )
    answer = await ask(node(cluster, at), wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
    return ErrorCode(answer.responses[0].error_code), answer.responses[0].error_message


def log_config(cluster: Cluster, topic: str, at: int = 1) -> Any:
    logs = node(cluster, at).logs
    assert logs is not None
    return logs.logs[TopicPartition(topic, 0)].config


async def until(cluster: Cluster, name: str, topic: str, wanted: tuple[Any, Any]) -> None:
    """Wait until the setting of the topic's logs is that at brokers 1 and 2."""

    async def reached() -> bool:
        return all(  # a node that has just started has no logs yet
            (logs := node(cluster, at).logs) is not None
            and (found := logs.logs.get(TopicPartition(topic, 0))) is not None
            and getattr(found.config, name) == value
            for at, value in zip((1, 2), wanted, strict=True)
        )

    await cluster.wait_until(reached, f"{name} of {topic} to be {wanted}")


async def test_the_defaults_of_logs_change_by_broker_before_cluster_before_file(cluster: Cluster) -> None:
    assert (log_config(cluster, "plain").segment_bytes, log_config(cluster, "own").segment_bytes) == (5000, 7000)
    assert await alter(cluster, "", log_segment_bytes="6000") == (ErrorCode.NONE, None)
    await until(cluster, "segment_bytes", "plain", (6000, 6000))
    assert await alter(cluster, "2", 2, log_segment_bytes="6500") == (ErrorCode.NONE, None)
    await until(cluster, "segment_bytes", "plain", (6000, 6500))
    assert (log_config(cluster, "own").segment_bytes, log_config(cluster, "own", 2).segment_bytes) == (7000, 7000)
    await alter(cluster, "", log_segment_bytes=None)
    await until(cluster, "segment_bytes", "plain", (5000, 6500))
    await alter(cluster, "2", 2, log_segment_bytes=None)
    await until(cluster, "segment_bytes", "plain", (5000, 5000))


@pytest.mark.parametrize(
    ("setting", "value", "name", "wanted"),
    [
        ("message_max_bytes", "999", "max_message_bytes", 999),
        ("min_insync_replicas", "2", "min_insync_replicas", 2),
        ("log_retention_ms", "77", "retention_ms", 77),  # finer than the file's hours
        ("log_retention_ms", "-1", "retention_ms", None),
        ("log_retention_bytes", "88", "retention_bytes", 88),
        ("log_cleanup_policy", "compact", "is_compact", True),
        ("log_cleaner_min_cleanable_ratio", "0.25", "min_cleanable_dirty_ratio", 0.25),
        ("log_message_downconversion_enable", "false", "message_downconversion_enable", False),
        ("log_roll_ms", "1234", "segment_ms", 1234),
    ],
)
async def test_settings_that_the_logs_take_over(
    cluster: Cluster, setting: str, value: str, name: str, wanted: object
) -> None:
    before = getattr(log_config(cluster, "own"), name)
    assert await alter(cluster, "", **{setting: value}) == (ErrorCode.NONE, None)
    for topic in ("plain", "own"):
        await until(cluster, name, topic, (wanted, wanted))
    await alter(cluster, "", **{setting: None})
    await until(cluster, name, "own", (before, before))


async def test_a_new_topic_and_a_changed_one_have_the_dynamic_defaults(cluster: Cluster) -> None:
    await alter(cluster, "", message_max_bytes="999")
    await until(cluster, "max_message_bytes", "plain", (999, 999))
    await cluster.create_topic("new", assignment={0: [1, 2]}, config={"segment.bytes": "7000"})
    await until(cluster, "max_message_bytes", "new", (999, 999))
    assert log_config(cluster, "new").segment_bytes == 7000


async def test_a_node_that_starts_has_them(cluster: Cluster) -> None:
    await alter(cluster, "", log_segment_bytes="6000")
    await until(cluster, "segment_bytes", "plain", (6000, 6000))
    await cluster.restart(2)
    await until(cluster, "segment_bytes", "plain", (6000, 6000))


async def test_the_cleaner_and_the_handlers_change(cluster: Cluster) -> None:
    running = node(cluster, 1)
    channel = running.broker.socket_server.planes[-1].channel
    assert running.logs is not None
    assert channel.handlers == 8
    changes = {"num_io_threads": "5", "log_cleaner_backoff_ms": "7", "log_cleaner_dedupe_buffer_size": "2000000"}
    capacity = running.logs._cleaner._capacity
    assert await alter(cluster, "1", **changes) == (ErrorCode.NONE, None)

    async def changed() -> bool:
        return channel.handlers == 5

    await cluster.wait_until(changed, "5 handlers")
    assert running.logs._config.log_cleaner_backoff_ms == 7
    assert running.logs._cleaner._capacity < capacity
    assert node(cluster, 2).broker.socket_server.planes[-1].channel.handlers == 8


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"log_retention_ms": "0"},
         "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ({"log_cleaner_dedupe_buffer_size": "1048576"},
         "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."),
        ({"log_segment_bytes": "13"},
         "Invalid value 13 for configuration log.segment.bytes: Value must be at least 14"),
        ({"log_retention_hours": "1"}, "Cannot update these configs dynamically: Set(log.retention.hours)"),
    ],
)  # fmt: skip
async def test_refusals_change_nothing(cluster: Cluster, changes: dict[str, str], why: str) -> None:
    before = log_config(cluster, "plain")
    assert await alter(cluster, "1", **changes) == (ErrorCode.INVALID_REQUEST, why)
    assert log_config(cluster, "plain") == before
