"""Changes of AlterConfigs and IncrementalAlterConfigs (rules B7.27-B7.29)."""

from __future__ import annotations

import pytest

from kce.broker_stub.config_operations import Change, OpType, changed_broker_config, changed_topic_config
from kce.broker_stub.errors import ApiException
from kce.wire import ErrorCode


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
            changed_broker_config({}, [Change(name, OpType.SET, value)], for_all_brokers=for_all_brokers)
        return refused.value.code

    assert code("broker.id", "3") is ErrorCode.INVALID_REQUEST
    assert code("zookeeper.clientCnxnSocket", "x") is ErrorCode.INVALID_REQUEST
    assert code("ssl.client.auth", "none", for_all_brokers=True) is ErrorCode.INVALID_REQUEST
    assert code("sasl.jaas.config", "x") is ErrorCode.INVALID_REQUEST
    assert code("num.io.threads", "many") is ErrorCode.INVALID_CONFIG
    assert code("num.io.threads", "0") is ErrorCode.INVALID_CONFIG
    accepted = [Change("ssl.client.auth", OpType.SET, "none"), Change("my.plugin.key", OpType.SET, "1")]
    assert changed_broker_config({}, accepted, for_all_brokers=False) == {
        "ssl.client.auth": "none",
        "my.plugin.key": "1",
    }
