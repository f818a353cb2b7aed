"""Changes of AlterConfigs and IncrementalAlterConfigs (rules B7.27-B7.29)."""

from __future__ import annotations

import pytest

from kce.broker_stub.config_entries import BrokerSettings
from kce.broker_stub.config_operations import Change, OpType, changed_broker_config, changed_topic_config
from kce.broker_stub.errors import ApiException
from kce.wire import ErrorCode

NOW = BrokerSettings({"num.io.threads": "6"})


def test_append_and_subtract_start_from_the_default() -> None:  # rule B7.28
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
def test_invalid_topic_changes_are_refused(changes, code) -> None:  # rules B7.27, B7.28
    with pytest.raises(ApiException) as refused:
        changed_topic_config({}, changes)
    assert refused.value.code is code


def test_invalid_broker_changes_are_refused() -> None:  # rules B7.27, B7.29
    def code(name: str, value: str, *, for_all_brokers: bool = False) -> ErrorCode:
        with pytest.raises(ApiException) as refused:
            changed_broker_config({}, [Change(name, OpType.SET, value)], NOW, for_all_brokers=for_all_brokers)
        return refused.value.code

    assert code("broker.id", "3") is ErrorCode.INVALID_REQUEST
    assert code("zookeeper.clientCnxnSocket", "x") is ErrorCode.INVALID_REQUEST
    assert code("ssl.client.auth", "none", for_all_brokers=True) is ErrorCode.INVALID_REQUEST
    assert code("sasl.jaas.config", "x") is ErrorCode.INVALID_REQUEST
    assert code("num.io.threads", "many") is ErrorCode.INVALID_REQUEST  # KAFKA-13609
    assert code("num.io.threads", "0") is ErrorCode.INVALID_REQUEST
    accepted = [Change("ssl.client.auth", OpType.SET, "none"), Change("my.plugin.key", OpType.SET, "1")]
    assert changed_broker_config({}, accepted, NOW, for_all_brokers=False) == {
        "ssl.client.auth": "none",
        "my.plugin.key": "1",
    }


@pytest.mark.kafka("CQ-15")
@pytest.mark.parametrize("name", ["max.connection.creation.rate", "max.connections"])
def test_limits_of_a_listener_are_positive(name: str) -> None:  # rules B1.47, B1.50
    def changed(limit: str) -> dict[str, str]:
        change = Change(f"listener.name.external.{name}", OpType.SET, limit)
        return changed_broker_config({}, [change], NOW, for_all_brokers=False)

    with pytest.raises(ApiException, match=f"Invalid {name} 0") as refused:
        changed("0")
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert list(changed("1").values()) == ["1"]


@pytest.mark.parametrize(("threads", "is_accepted"), [(2, False), (3, True), (6, True), (12, True), (13, False)])
def test_threads_change_by_half_or_double_at_most(threads: int, is_accepted: bool) -> None:  # rule B1.10
    changes = [Change("num.io.threads", OpType.SET, str(threads))]
    if is_accepted:
        changed = changed_broker_config({}, changes, NOW, for_all_brokers=True)
        assert changed == {"num.io.threads": str(threads)}
        return
    with pytest.raises(ApiException) as refused:
        changed_broker_config({}, changes, NOW, for_all_brokers=True)
    limit = "should not be greater than double" if threads > 6 else "should be at least half"
    assert str(refused.value) == (
        "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation failed "
        f"for num.io.threads={threads}, value {limit} the current value 6 "
        "for configuration Invalid dynamic configuration"
    )


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
        changed_topic_config({}, [Change(name, OpType.SET, value)])
    assert str(refused.value) == text


def test_settings_that_exclude_each_other_are_refused() -> None:  # rule B7.29
    with pytest.raises(ApiException, match=r"requirement failed: log\.retention\.ms must be unlimited") as refused:
        changed_broker_config({}, [Change("log.retention.ms", OpType.SET, "0")], NOW, for_all_brokers=True)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
