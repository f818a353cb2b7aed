"""Changes of AlterConfigs and IncrementalAlterConfigs (rules B7.27-B7.29)."""

from __future__ import annotations

import pytest

from kce.broker_stub.config_entries import BrokerSettings
from kce.broker_stub.config_operations import (
    Change,
    OpType,
    changed_broker_config,
    changed_topic_config,
    check_changes,
    check_topic_values,
)
from kce.broker_stub.errors import ApiException
from kce.wire import ErrorCode
from kce.wire.steps import finish


def test_append_and_subtract_start_from_the_default() -> None:  # rule B7.28
    def changed(op: OpType, value: str, now: dict[str, str]) -> str:
        return finish(changed_topic_config(now, [Change("cleanup.policy", op, value)]))["cleanup.policy"]

    assert changed(OpType.APPEND, "compact", {}) == "delete,compact"
    assert changed(OpType.APPEND, "compact", {"cleanup.policy": "compact"}) == "compact"
    assert changed(OpType.SUBTRACT, "delete", {"cleanup.policy": "compact,delete"}) == "compact"
    assert finish(changed_topic_config({"retention.ms": "1"}, [Change("retention.ms", OpType.DELETE, None)])) == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([Change("retention.ms", OpType.APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([Change("retention.ms", OpType.SET, None)], ErrorCode.INVALID_REQUEST),
        ([Change("retention.ms", 9, "1")], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([Change("nothing.such", OpType.APPEND, "x")], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([Change("retention.ms", OpType.SET, "x")], ErrorCode.INVALID_CONFIG),
        ([Change("nothing.such", OpType.SET, "x")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_topic_changes_are_refused(changes, code) -> None:  # rules B7.27, B7.28
    with pytest.raises(ApiException) as refused:
        check_topic_values(finish(changed_topic_config({}, changes)), BrokerSettings({}))
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([Change("a", OpType.SET, "1"), Change("a", OpType.DELETE, None)], "Error due to duplicate config keys"),
        ([Change("a", OpType.SET, None), Change("b", 9, None), Change("c", OpType.DELETE, None)],
         "Null value not supported for : a, b"),
    ],
)  # fmt: skip
def test_changes_that_no_resource_takes(changes, text) -> None:  # rule B7.27
    with pytest.raises(ApiException) as refused:
        finish(check_changes(changes))
    assert (refused.value.code, str(refused.value)) == (ErrorCode.INVALID_REQUEST, text)


def test_invalid_broker_changes_are_refused() -> None:  # rules B7.27, B7.29
    def refusal(name: str, value: str, *, for_all_brokers: bool = False) -> str:
        with pytest.raises(ApiException) as refused:
            finish(changed_broker_config({}, [Change(name, OpType.SET, value)], for_all_brokers=for_all_brokers))
        assert refused.value.code is ErrorCode.INVALID_REQUEST  # KAFKA-13609
        return str(refused.value)

    static = "Cannot update these configs dynamically: Set({})"
    assert refusal("broker.id", "3") == static.format("broker.id")
    assert refusal("zookeeper.clientCnxnSocket", "x") == static.format("zookeeper.clientCnxnSocket")
    of_broker = "Cannot update these configs at default cluster level, broker id must be specified: Set({})"
    for name in ("ssl.client.auth", "listener.name.data.ssl.keystore.location", "listener.name.data.ssl.client.auth"):
        assert refusal(name, "none", for_all_brokers=True) == of_broker.format(name)
    assert refusal("ssl.keystore.location", "x") == (
        "These security configs can be dynamically updated only per-listener using the listener prefix: "
        "HashSet(ssl.keystore.location)"
    )
    assert refusal("num.io.threads", "many").startswith("Invalid value many")
    assert refusal("num.io.threads", "0").startswith("Invalid value 0")
    assert refusal("leader.replication.throttled.rate", "-1").endswith("Value must be at least 0")
    required = "requirement failed: log.roll{} must be greater than or equal to {}"
    assert refusal("log.roll.ms", "-1") == required.format(".ms", 1)
    assert refusal("log.roll.jitter.ms", "-1") == required.format(".jitter.ms", 0)
    assert refusal("log.roll.ms", "x") == "Invalid value x for configuration log.roll.ms: Not a number of type LONG"
    # what is not there afterwards is not looked at
    assert finish(changed_broker_config({}, [Change("broker.id", OpType.DELETE, None)], for_all_brokers=False)) == {}


def test_what_may_change() -> None:  # rule B7.29
    for_all = {
        "listener.name.data.max.connections": "1", "num.network.threads": "4", "my.plugin.key": "1",
        "super.users": "User:a", "leader.replication.throttled.rate": "0",
    }  # fmt: skip
    own = {
        **for_all, "ssl.client.auth": "none", "listener.name.data.ssl.keystore.location": "/a",
        "listener.name.data.connections.max.reauth.ms": "1", "listener.name.a.ssl.principal.mapping.rules": "DEFAULT",
    }  # fmt: skip
    for wanted, for_all_brokers in ((for_all, True), (own, False)):
        changes = [Change(name, OpType.SET, value) for name, value in wanted.items()]
        assert finish(changed_broker_config({}, changes, for_all_brokers=for_all_brokers)) == wanted


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "x", "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            "min.cleanable.dirty.ratio", "1.5",
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "min.cleanable.dirty.ratio", "0x1p1",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "min.insync.replicas", "2147483648",
            "Invalid value 2147483648 for configuration min.insync.replicas: Not a number of type INT",
        ),
        (
            "compression.gzip.level", "10",
            "Invalid value 10 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "cleanup.policy", "delete,",
            "Invalid value  for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "leader.replication.throttled.replicas", "0:1,x",
            "Invalid value [0:1, x] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
        (
            "preallocate", "maybe",
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "cleanup.policy", "shred",
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("nothing.such", "1", "Unknown topic config name: nothing.such"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_in_kafkas_words(name: str, value: str, text: str) -> None:
    with pytest.raises(ApiException) as refused:
        check_topic_values(finish(changed_topic_config({}, [Change(name, OpType.SET, value)])), BrokerSettings({}))
    assert str(refused.value) == text


def test_a_topics_lags_go_with_those_of_the_broker() -> None:  # rule B7.27
    broker = BrokerSettings({}, {"log.cleaner.max.compaction.lag.ms": "1000"})
    with pytest.raises(ApiException) as refused:
        check_topic_values({"min.compaction.lag.ms": "2000"}, broker)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert str(refused.value).endswith("min.compaction.lag.ms (2000) > max.compaction.lag.ms (1000)")
    check_topic_values({"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "3000"}, broker)
