"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (rules B7.25-B7.30).

Covers: broker_stub/handlers/describe_configs.py, broker_stub/handlers/alter_configs.py.
"""

from __future__ import annotations

import logging

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
        resource(BROKER, "1", "num.io.threads"), resource(BROKER, ""), resource(BROKER, "2"), resource(16, "x"),
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
    assert not topic["segment.bytes"].is_default  # Kafka 3.9 never sets it
    assert [(s.name, s.value, s.source) for s in topic["retention.ms"].synonyms] == (
        [("retention.ms", "7", 1)] if synonyms else []
    )
    assert [(e.name, e.value) for e in results[3].configs] == [("num.io.threads", "5")]
    assert [(e.name, e.value) for e in results[4].configs] == [("num.io.threads", "5")]
    groups = (resource(TOPIC, "a"), resource(32, "group"))
    refused = (await node.ask(wire.DescribeConfigsRequest(resources=groups), version)).results
    assert [r.error_code for r in refused] == [ErrorCode.INVALID_REQUEST] * 2


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
        (BROKER, "", ErrorCode.NONE), (BROKER, "1", ErrorCode.NONE), *[(16, "x", ErrorCode.INVALID_REQUEST)] * 2,
    ]  # fmt: skip
    assert stored == {
        ("topics", "a"): {"segment.bytes": "100"},
        ("brokers", "<default>"): {"num.io.threads": "5"},
        ("brokers", "1"): {"num.io.threads": "6"},
    }


@pytest.mark.parametrize(
    ("name", "op", "of_topic", "of_broker"),
    [
        ("retention.ms", 9, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST),
        ("nothing.such", OpType.APPEND, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
        ("retention.ms", OpType.APPEND, ErrorCode.INVALID_CONFIG, ErrorCode.UNKNOWN_SERVER_ERROR),
        ("num.io.threads", OpType.SUBTRACT, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_CONFIG),
        ("group.max.size", OpType.APPEND, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_operations_come_before_the_existence_of_a_topic(
    node: Node, name: str, op: int, of_topic: ErrorCode, of_broker: ErrorCode
) -> None:  # rule B7.28
    change = wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=op, value="1")
    resources = tuple(
        wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=resource_name, configs=(change,)
        )
        for kind, resource_name in ((TOPIC, "a"), (TOPIC, "nowhere"), (BROKER, "1"), (BROKER, ""))
    )
    answer = await node.ask(wire.IncrementalAlterConfigsRequest(resources=resources), 1)
    assert [r.error_code for r in answer.responses] == [of_topic, of_topic, of_broker, of_broker]


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


async def test_what_needs_tiered_storage_is_refused_in_kafkas_words(node: Node) -> None:
    request = wire.AlterConfigsRequest(resources=(alter(TOPIC, "a", remote_storage_enable="true"),))
    (answer,) = (await node.ask(request, 2)).responses
    assert answer.error_message == (
        "Invalid config value for resource ConfigResource(type=TOPIC, name='a'): Tiered Storage functionality is "
        "disabled in the broker. Topic cannot be configured with remote log storage."
    )


@pytest.mark.parametrize("name", [".", "..", "a//b", "a/", "\ufffd"])
async def test_a_topic_that_is_no_path_in_zookeeper_is_refused_where_kafka_reads_it(node: Node, name: str) -> None:
    change = wire.IncrementalAlterConfigsRequestAlterableConfig(name="segment.bytes", config_operation=0, value="1000")
    changed = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name=name, configs=(change,)
    )
    (answer,) = (await node.ask(wire.IncrementalAlterConfigsRequest(resources=(changed,)), 1)).responses
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_CONFIG,
        f"Invalid config value for resource ConfigResource(type=TOPIC, name='{name}'): "
        f'Invalid path string "/config/topics/{name}"',
    )
    (replaced,) = (await node.ask(wire.AlterConfigsRequest(resources=(alter(TOPIC, name),)), 2)).responses
    assert replaced.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_store_error_fails_only_its_resource(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(kind: str, name: str, config: object) -> None:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(node.services.admin, "change_config", fail)
    answer = await node.ask(wire.AlterConfigsRequest(resources=(alter(TOPIC, "a"), alter(TOPIC, "b"))), 2)
    assert [(r.error_code, r.error_message) for r in answer.responses] == [
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'b' does not exist."),
    ]


@pytest.mark.parametrize("name", ["1", "01", "+1"])
async def test_a_broker_is_named_by_any_text_of_its_number(node: Node, name: str) -> None:  # rule B7.27
    change = alter(4, name, log_cleaner_threads="2")
    (altered,) = (await node.ask(wire.AlterConfigsRequest(resources=(change,)), 2)).responses
    assert (altered.error_code, altered.resource_name) == (0, name)
    assert await node.services.admin.config("brokers", "1") == {"log.cleaner.threads": "2"}
    for kind in (4, 8):
        (described,) = (await node.ask(wire.DescribeConfigsRequest(resources=(resource(kind, name),)), 4)).results
        assert (described.error_code, described.resource_name) == (0, name)


async def test_resources_that_are_no_topics(node: Node) -> None:  # rules B7.27 to B7.29
    only = "Unknown resource type "
    unexpected, integer = "Unexpected broker id, expected 1, but received ", "Node id must be an integer, but it is: "
    logger, invalid = "8", ErrorCode.INVALID_REQUEST
    cases = (
        (8, "1", invalid, only + logger, ErrorCode.NONE, None),
        (8, "2", invalid, only + logger, invalid, unexpected + "2"),
        (8, "", invalid, only + logger, invalid, integer),
        (4, "x", invalid, integer + "x", invalid, integer + "x"),
        (4, "-7", invalid, unexpected + "-7", invalid, unexpected + "-7"),
        (4, " 1", invalid, integer + " 1", invalid, integer + " 1"),
        (4, "4294967297", invalid, integer + "4294967297", invalid, integer + "4294967297"),
        (4, "1", ErrorCode.NONE, None, ErrorCode.NONE, None),
        (4, "", ErrorCode.NONE, None, ErrorCode.NONE, None),
        (0, "y", invalid, only + "0", invalid, only + "0"),
    )
    altered = await node.ask(
        wire.AlterConfigsRequest(
            resources=tuple(
                wire.AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name)
                for kind, name, *_ in cases
            )
        ), 2,
    )  # fmt: skip
    made = wire.AlterConfigsResponseAlterConfigsResourceResponse
    assert altered.responses == tuple(
        made(error_code=code, error_message=text, resource_type=kind, resource_name=name)
        for kind, name, code, text, *_ in cases
    )
    changed = await node.ask(
        wire.IncrementalAlterConfigsRequest(
            resources=tuple(
                wire.IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name)
                for kind, name, *_ in cases
            )
        ), 1,
    )  # fmt: skip
    one = wire.IncrementalAlterConfigsResponseAlterConfigsResourceResponse
    assert changed.responses == tuple(
        one(error_code=code, error_message=text, resource_type=kind, resource_name=name)
        for kind, name, _, _, code, text in cases
    )


@pytest.mark.parametrize(("validate_only", "level"), [(True, logging.NOTSET), (False, logging.CRITICAL)])
async def test_the_level_of_a_logger_is_set(node: Node, validate_only: bool, level: int) -> None:  # KIP-412
    name = __name__
    logger = logging.getLogger(name)
    change = wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value="FATAL")
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=8, resource_name="1", configs=(change,)
    )
    request = wire.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    try:
        answer = await node.ask(request, 1)
        assert [r.error_code for r in answer.responses] == [ErrorCode.NONE]
        assert logger.level == level
    finally:
        logger.setLevel(logging.NOTSET)
