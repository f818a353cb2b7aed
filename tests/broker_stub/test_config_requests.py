"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (rules B7.25-B7.30).

Covers: broker_stub/handlers/describe_configs.py, broker_stub/handlers/alter_configs.py.
"""

from __future__ import annotations

import pytest

from kce import wire
from kce.broker_stub.config_operations import OpType
from kce.wire import ErrorCode
from tests.broker_stub.support import Node
from tests.broker_stub.test_admin_handlers import node, nursery

__all__ = ["node", "nursery"]  # fixtures

TOPIC, BROKER = 2, 4


def resource(kind: int, name: str, *keys: str) -> wire.DescribeConfigsResource:
    return wire.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)


@pytest.mark.parametrize("version", range(5))
async def test_describe_configs(version: int, node: Node) -> None:  # rule B7.25
    node.services.admin.configs["topics", "a"] = {"retention.ms": "7"}
    node.services.admin.configs["brokers", "<default>"] = {"num.io.threads": "5"}
    resources = (
        resource(TOPIC, "a", "retention.ms", "segment.bytes"), resource(TOPIC, "b"), resource(TOPIC, "?"),
        resource(BROKER, "1", "num.io.threads"), resource(BROKER, ""), resource(BROKER, "2"), resource(32, "group"),
    )  # fmt: skip
    synonyms = version > 0
    results = (
        await node.ask(wire.DescribeConfigsRequest(resources=resources, include_synonyms=synonyms), version)
    ).results
    assert [r.error_code for r in results] == [
        ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    assert [(r.resource_type, r.resource_name) for r in results] == [
        (r.resource_type, r.resource_name) for r in resources
    ]
    topic = {entry.name: entry for entry in results[0].configs}
    assert {name: entry.value for name, entry in topic.items()} == {"retention.ms": "7", "segment.bytes": "1073741824"}
    assert topic["segment.bytes"].is_default == (version == 0)
    assert [(s.name, s.value, s.source) for s in topic["retention.ms"].synonyms] == (
        [("retention.ms", "7", 1), ("log.retention.hours", "168", 5)] if synonyms else []
    )
    assert [(e.name, e.value) for e in results[3].configs] == [("num.io.threads", "5")]
    assert [(e.name, e.value) for e in results[4].configs] == [("num.io.threads", "5")]


def alter(kind: int, name: str, **values: str | None) -> wire.AlterConfigsRequestAlterConfigsResource:
    configs = tuple(
        wire.AlterConfigsRequestAlterableConfig(name=key.replace("_", "."), value=value)
        for key, value in values.items()
    )
    return wire.AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def test_alter_configs_replaces_all_settings(node: Node) -> None:  # rule B7.27
    stored = node.services.admin.configs
    stored["topics", "a"] = {"retention.ms": "7"}
    resources = (
        alter(TOPIC, "a", segment_bytes="100"), alter(TOPIC, "b"), alter(TOPIC, ""), alter(BROKER, "2"),
        alter(BROKER, "", num_io_threads="5"), alter(BROKER, "1", num_io_threads="6"), alter(16, "x"), alter(16, "x"),
    )  # fmt: skip
    tried = await node.ask(wire.AlterConfigsRequest(resources=resources, validate_only=True), 2)
    assert stored == {("topics", "a"): {"retention.ms": "7"}}
    answer = await node.ask(wire.AlterConfigsRequest(resources=resources), 2)
    assert answer == tried
    assert [(r.resource_type, r.resource_name, r.error_code) for r in answer.responses] == [
        (TOPIC, "a", ErrorCode.NONE), (TOPIC, "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST), (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "", ErrorCode.NONE), (BROKER, "1", ErrorCode.NONE), (16, "x", ErrorCode.INVALID_REQUEST),
    ]  # fmt: skip
    assert stored == {
        ("topics", "a"): {"segment.bytes": "100"},
        ("brokers", "<default>"): {"num.io.threads": "5"},
        ("brokers", "1"): {"num.io.threads": "6"},
    }


async def test_incremental_alter_configs_changes_single_settings(node: Node) -> None:  # rule B7.28
    node.services.admin.configs["topics", "a"] = {"retention.ms": "7", "segment.bytes": "100"}
    changes = (("retention.ms", OpType.DELETE, None), ("cleanup.policy", OpType.APPEND, "compact"))
    resources = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC,
        resource_name="a",
        configs=tuple(
            wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=op, value=value)
            for name, op, value in changes
        ),
    )
    answer = await node.ask(wire.IncrementalAlterConfigsRequest(resources=(resources,)), 1)
    assert [r.error_code for r in answer.responses] == [ErrorCode.NONE]
    assert node.services.admin.configs["topics", "a"] == {"segment.bytes": "100", "cleanup.policy": "delete,compact"}


async def test_a_store_error_fails_only_its_resource(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(kind: str, name: str, config: object) -> None:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(node.services.admin, "change_config", fail)
    answer = await node.ask(wire.AlterConfigsRequest(resources=(alter(TOPIC, "a"), alter(TOPIC, "b"))), 2)
    assert [(r.error_code, r.error_message) for r in answer.responses] == [
        (ErrorCode.UNKNOWN_SERVER_ERROR, "the store is gone"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic b does not exist"),
    ]
