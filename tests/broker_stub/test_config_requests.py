"""Settings described and changed (rules B7.25-B7.30), and where their values come from."""

from __future__ import annotations

from typing import Any

import pytest

import wire
from broker_stub.config_changes import Change, OpType, changed_broker_config, changed_topic_config
from broker_stub.config_defs import BROKER_CONFIGS, TOPIC_CONFIGS, topic_config_problem
from broker_stub.config_entries import BrokerSettings, ConfigSource, broker_entries, topic_entries
from broker_stub.config_keys import is_known
from broker_stub.errors import ApiError
from tests.broker_stub.support import Node
from tests.broker_stub.test_admin_handlers import node, nursery
from wire import ErrorCode

__all__ = ["node", "nursery"]  # fixtures

TOPIC, BROKER = 2, 4
NO_BROKER_SETTINGS = BrokerSettings({})


def test_every_default_is_a_value_that_may_be_set() -> None:
    for entry in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        assert entry.default is None or entry.problem(entry.default) is None, entry.name
    assert all(is_known(name) for name in BROKER_CONFIGS)
    assert all(is_known(name) for entry in TOPIC_CONFIGS.values() for name, _ in entry.synonyms)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"retention.ms": "-2"}, "at least -1"),
        ({"retention.ms": "1.5"}, "no whole number"),
        ({"retention.ms": str(2**63)}, "does not fit into 64 bits"),
        ({"segment.bytes": str(2**31)}, "does not fit into 32 bits"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "0 to 1"),
        ({"preallocate": "yes"}, "neither true nor false"),
        ({"cleanup.policy": "compact,shred"}, "one of compact, delete"),
        ({"compression.type": "rar"}, "one of uncompressed"),
        ({"leader.replication.throttled.replicas": "0:1,2"}, "partition:broker"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "is above"),
        ({"retention.days": "1"}, "no setting of topics"),
    ],
)
def test_what_a_topic_may_not_be_set_to(config, why) -> None:  # rule 10.5
    problem = topic_config_problem(config)
    assert problem is not None
    assert why in problem


def test_what_a_topic_may_be_set_to() -> None:
    good = {
        "cleanup.policy": "compact, delete", "leader.replication.throttled.replicas": "*", "retention.ms": "-1",
        "follower.replication.throttled.replicas": "0:1,1:2", "preallocate": "TRUE", "compression.type": "zstd",
    }  # fmt: skip
    assert topic_config_problem(good) is None


def entries(config: dict[str, str], broker: BrokerSettings) -> dict[str, Any]:
    return {entry.name: entry for entry in topic_entries(config, broker)}


def test_the_precedence_of_a_topics_settings() -> None:  # rule B7.26
    all_set = BrokerSettings(
        {"log.retention.hours": "1", "log.retention.minutes": "3"},
        {"log.segment.bytes": "100"},
        {"log.segment.bytes": "200", "message.max.bytes": "300"},
    )
    found = entries({"retention.ms": "5"}, all_set)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("5", ConfigSource.TOPIC_CONFIG)
    assert (found["segment.bytes"].value, found["segment.bytes"].source) == ("100", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert found["max.message.bytes"].source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert [s.source for s in found["segment.bytes"].synonyms] == [2, 3, 5]
    found = entries({}, all_set)
    assert found["retention.ms"].value == "180000"  # the finer unit wins: minutes before hours
    assert found["retention.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    found = entries({}, NO_BROKER_SETTINGS)
    assert (found["retention.ms"].value, found["segment.ms"].value) == ("604800000", "604800000")
    assert {entry.source for entry in found.values()} == {ConfigSource.DEFAULT_CONFIG}
    assert entries({}, BrokerSettings({"log.retention.hours": "-1"}))["retention.ms"].value == "-1"


def test_a_brokers_settings() -> None:  # rule B7.25
    given = BrokerSettings(
        {"num.io.threads": "3", "my.plugin.key": "secret", "listener.name.data.sasl.jaas.config": "password"},
        {"num.io.threads": "4"},
    )
    found = {entry.name: entry for entry in broker_entries(given)}
    assert (found["num.io.threads"].value, found["num.io.threads"].read_only) == ("4", False)
    assert found["broker.rack"].value is None
    assert found["broker.id"].read_only
    for hidden in ("my.plugin.key", "listener.name.data.sasl.jaas.config"):
        assert (found[hidden].is_sensitive, found[hidden].value) == (True, None)
        assert all(synonym.value is None for synonym in found[hidden].synonyms)


def test_lists_grow_and_shrink_from_their_default() -> None:  # rule B7.28
    def changed(op: OpType, value: str, now: dict[str, str]) -> str:
        return changed_topic_config(now, [Change("cleanup.policy", op, value)])["cleanup.policy"]

    assert changed(OpType.APPEND, "compact", {}) == "delete,compact"
    assert changed(OpType.APPEND, "compact", {"cleanup.policy": "compact"}) == "compact"
    assert changed(OpType.SUBTRACT, "delete", {"cleanup.policy": "compact,delete"}) == "compact"
    assert changed_topic_config({"retention.ms": "1"}, [Change("retention.ms", OpType.DELETE, None)]) == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([Change("retention.ms", OpType.APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([Change("retention.ms", OpType.SET, None)], ErrorCode.INVALID_REQUEST),
        ([Change("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([Change("retention.ms", OpType.SET, "1")] * 2, ErrorCode.INVALID_REQUEST),
        ([Change("retention.ms", OpType.SET, "x")], ErrorCode.INVALID_CONFIG),
        ([Change("nothing.such", OpType.SET, "x")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_changes_that_a_topic_refuses(changes, code) -> None:  # rules B7.27, B7.28
    with pytest.raises(ApiError) as refused:
        changed_topic_config({}, changes)
    assert refused.value.code is code


def test_changes_that_a_broker_refuses() -> None:  # rules B7.27, B7.29
    def code(name: str, value: str, *, for_all_brokers: bool = False) -> ErrorCode:
        with pytest.raises(ApiError) as refused:
            changed_broker_config({}, [Change(name, OpType.SET, value)], for_all_brokers=for_all_brokers)
        return refused.value.code

    assert code("broker.id", "3") is ErrorCode.INVALID_REQUEST
    assert code("zookeeper.clientCnxnSocket", "x") is ErrorCode.INVALID_REQUEST
    assert code("ssl.client.auth", "none", for_all_brokers=True) is ErrorCode.INVALID_REQUEST
    assert code("sasl.jaas.config", "x") is ErrorCode.INVALID_REQUEST
    assert code("num.io.threads", "many") is ErrorCode.INVALID_CONFIG
    accepted = [Change("ssl.client.auth", OpType.SET, "none"), Change("my.plugin.key", OpType.SET, "1")]
    assert changed_broker_config({}, accepted, for_all_brokers=False) == {
        "ssl.client.auth": "none",
        "my.plugin.key": "1",
    }


def resource(kind: int, name: str, *keys: str) -> wire.DescribeConfigsResource:
    return wire.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)


@pytest.mark.parametrize("version", range(5))
async def test_descriptions(version: int, node: Node) -> None:  # rule B7.25
    node.services.admin.configs["topics", "a"] = {"retention.ms": "7"}
    node.services.admin.configs["brokers", "<default>"] = {"num.io.threads": "5"}
    asked = (
        resource(TOPIC, "a", "retention.ms", "segment.bytes"), resource(TOPIC, "b"), resource(TOPIC, "?"),
        resource(BROKER, "1", "num.io.threads"), resource(BROKER, ""), resource(BROKER, "2"), resource(32, "group"),
    )  # fmt: skip
    synonyms = version > 0
    results = (await node.ask(wire.DescribeConfigsRequest(resources=asked, include_synonyms=synonyms), version)).results
    assert [r.error_code for r in results] == [
        ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    topic = {entry.name: entry for entry in results[0].configs}
    assert {name: entry.value for name, entry in topic.items()} == {"retention.ms": "7", "segment.bytes": "1073741824"}
    assert topic["segment.bytes"].is_default == (version == 0)
    assert bool(topic["retention.ms"].synonyms) == synonyms
    assert [(e.name, e.value) for e in results[3].configs] == [("num.io.threads", "5")]
    assert [(e.name, e.value) for e in results[4].configs] == [("num.io.threads", "5")]


def alter(kind: int, name: str, **values: str | None) -> wire.AlterConfigsRequestAlterConfigsResource:
    configs = tuple(
        wire.AlterConfigsRequestAlterableConfig(name=key.replace("_", "."), value=value)
        for key, value in values.items()
    )
    return wire.AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def test_all_settings_replaced(node: Node) -> None:  # rule B7.27
    stored = node.services.admin.configs
    stored["topics", "a"] = {"retention.ms": "7"}
    asked = (
        alter(TOPIC, "a", segment_bytes="100"), alter(TOPIC, "b"), alter(TOPIC, ""), alter(BROKER, "2"),
        alter(BROKER, "", num_io_threads="5"), alter(BROKER, "1", num_io_threads="6"), alter(16, "x"), alter(16, "x"),
    )  # fmt: skip
    tried = await node.ask(wire.AlterConfigsRequest(resources=asked, validate_only=True), 2)
    assert stored == {("topics", "a"): {"retention.ms": "7"}}
    answer = await node.ask(wire.AlterConfigsRequest(resources=asked), 2)
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


async def test_settings_changed_one_by_one(node: Node) -> None:  # rule B7.28
    node.services.admin.configs["topics", "a"] = {"retention.ms": "7", "segment.bytes": "100"}
    changes = (("retention.ms", OpType.DELETE, None), ("cleanup.policy", OpType.APPEND, "compact"))
    asked = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC,
        resource_name="a",
        configs=tuple(
            wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=op, value=value)
            for name, op, value in changes
        ),
    )
    answer = await node.ask(wire.IncrementalAlterConfigsRequest(resources=(asked,)), 1)
    assert [r.error_code for r in answer.responses] == [ErrorCode.NONE]
    assert node.services.admin.configs["topics", "a"] == {"segment.bytes": "100", "cleanup.policy": "delete,compact"}


async def test_a_store_that_fails_fails_its_resource_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(kind: str, name: str, config: object) -> None:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(node.services.admin, "change_config", fail)
    answer = await node.ask(wire.AlterConfigsRequest(resources=(alter(TOPIC, "a"), alter(TOPIC, "b"))), 2)
    assert [(r.error_code, r.error_message) for r in answer.responses] == [
        (ErrorCode.UNKNOWN_SERVER_ERROR, "the store is gone"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic b"),
    ]
