"""Which changes a running broker makes, and which it refuses (B10, rules B1.10, B1.57, B7.29)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from kce.broker_stub import BrokerConfig
from kce.broker_stub.dynamic_config import DynamicConfig
from kce.broker_stub.security.config import ListenerSecurity
from kce.wire.configuration import ConfigError

FILE = {
    "broker.id": "1",
    "listeners": "CONTROL://127.0.0.1:0,DATA://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT,EXTERNAL:PLAINTEXT,NEW:PLAINTEXT",
    "control.plane.listener.name": "CONTROL",
    "inter.broker.listener.name": "DATA",
    "num.io.threads": "6",
    "num.network.threads": "6",
    "num.replica.fetchers": "6",
    "background.threads": "6",
    "num.recovery.threads.per.data.dir": "6",
    "log.cleaner.threads": "6",
}
INVALID = (
    "Invalid value org.apache.kafka.common.config.ConfigException: {} for configuration Invalid dynamic configuration"
)
POOLS = (
    "num.io.threads", "num.network.threads", "num.replica.fetchers", "background.threads",
    "num.recovery.threads.per.data.dir",
)  # fmt: skip


def started(**more: str) -> DynamicConfig:
    made = DynamicConfig(BrokerConfig.from_properties(FILE | more), Random(1))
    made.is_started = True
    return made


def refusal(dynamic: DynamicConfig, settings: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        dynamic.check(settings)
    return refused.value.words


@pytest.mark.parametrize("name", [*POOLS, "listener.name.external.num.network.threads"])
@pytest.mark.parametrize(("threads", "is_accepted"), [(2, False), (3, True), (6, True), (12, True), (13, False)])
def test_threads_change_by_half_or_double_at_most(name: str, threads: int, is_accepted: bool) -> None:  # rule B1.10
    dynamic = started()
    if is_accepted:
        dynamic.check({name: str(threads)})
        return
    limit = "should not be greater than double" if threads > 6 else "should be at least half"
    assert refusal(dynamic, {name: str(threads)}) == INVALID.format(
        f"Dynamic thread count update validation failed for {name.removeprefix('listener.name.external.')}={threads}, "
        f"value {limit} the current value 6"
    )


@pytest.mark.parametrize(("threads", "is_accepted"), [(2, False), (3, True), (12, True), (13, False)])
def test_threads_of_the_cleaner(threads: int, is_accepted: bool) -> None:
    dynamic, change = started(), {"log.cleaner.threads": str(threads)}
    if is_accepted:
        dynamic.check(change)
        return
    limit = "increased to more than double" if threads > 6 else "reduced to less than half"
    assert refusal(dynamic, change) == INVALID.format(f"Log cleaner threads cannot be {limit} the current value 6")


@pytest.mark.kafka("CQ-15")
@pytest.mark.parametrize("prefix", ["", "listener.name.external."])
@pytest.mark.parametrize("name", ["max.connection.creation.rate", "max.connections"])
def test_limits_of_a_listener_are_positive(name: str, prefix: str) -> None:  # rules B1.47, B1.50
    dynamic = started()
    assert refusal(dynamic, {prefix + name: "0"}) == INVALID.format(f"Invalid {name} 0")
    dynamic.check({prefix + name: "1"})
    dynamic.check({f"listener.name.new.{name}": "0"})  # of no listener


def test_threads_change_from_those_that_there_are_now() -> None:
    dynamic = started()
    dynamic.change({"num.replica.fetchers": "12"})
    dynamic.change({"num.replica.fetchers": "24"})
    assert "at least half the current value 24" in refusal(dynamic, {})  # to the file's 6 in one go
    assert dynamic.current.num_replica_fetchers == 24
    dynamic.change({})  # as somebody has written into ZooKeeper
    assert dynamic.current.num_replica_fetchers == 6
    assert refusal(started(), {"num.replica.fetchers": "0"}).endswith(
        "num.replica.fetchers=0, value should be at least 1 for configuration Invalid dynamic configuration"
    )


def test_before_the_broker_has_started_nothing_is_a_change() -> None:
    dynamic = DynamicConfig(BrokerConfig.from_properties(FILE), Random(1))
    dynamic.check({"num.io.threads": "60"})
    dynamic.change({"num.io.threads": "60", "listener.name.data.ssl.client.auth": "required"})
    assert dynamic.current.num_io_threads == 60


def test_settings_that_exclude_each_other_are_refused() -> None:  # rule B7.29
    words = refusal(started(), {"log.retention.ms": "0"})
    assert words.startswith("requirement failed: log.retention.ms must be unlimited")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ms": "-1"}, "-1 for configuration log.local.retention.ms: Value must not be -1 as log.retention.ms value is "
                       "set as 3600000."),
        ({"ms": "3600001"}, "3600001 for configuration log.local.retention.ms: Value must not be more than "
                            "log.retention.ms property value: 3600000"),
        ({"bytes": "-1"}, "-1 for configuration log.local.retention.bytes: Value must not be -1 as log.retention.bytes "
                          "value is set as 9."),
        ({"bytes": "10"}, "10 for configuration log.local.retention.bytes: Value must not be more than "
                          "log.retention.bytes property value: 9"),
    ],
)  # fmt: skip
def test_what_is_kept_locally_is_not_more_than_all(changes: dict[str, str], problem: str) -> None:
    """In the words of 3.9.1."""
    limits = {"log.retention.hours": "1", "log.retention.bytes": "9"}
    local = {f"log.local.retention.{unit}": value for unit, value in changes.items()}
    assert refusal(started(**limits), local) == INVALID.format(f"Invalid value {problem}")
    unlimited = {"log.retention.ms": "-1", "log.retention.bytes": "-1"}
    started(**limits).check({**local, **unlimited})
    started(**limits, **local).check({"num.io.threads": "7"})  # what the file has is not judged
    started(**limits).check({f"log.local.retention.{unit}": "-2" for unit in changes})


def test_listeners_come_and_go() -> None:  # rule B1.57
    dynamic = started()
    dynamic.change({"listeners": "CONTROL://127.0.0.1:0,DATA://127.0.0.1:0,NEW://127.0.0.1:0"})
    assert [e.listener for e in dynamic.current.listeners] == ["CONTROL", "DATA", "NEW"]
    dynamic.change({})
    assert [e.listener for e in dynamic.current.listeners] == ["CONTROL", "DATA", "EXTERNAL"]
    assert dynamic.current.broker_id == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"listeners": "CONTROL://127.0.0.1:0,EXTERNAL://127.0.0.1:0"}, "inter.broker.listener.name=DATA"),
        ({"listeners": "DATA://127.0.0.1:0,EXTERNAL://127.0.0.1:0"}, "control.plane.listener.name=CONTROL"),
        ({"advertised.listeners": "CONTROL://a:1,DATA://a:2,NEW://a:3"}, "listener NEW is not in listeners"),
        ({"listeners": "CONTROL://127.0.0.1:0,DATA://127.0.0.1:0,OTHER://127.0.0.1:0"}, "listener OTHER has no entry"),
        (
            {"listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT",
             "sasl.enabled.mechanisms": "SCRAM-SHA-256", "listener.name.external.scram-sha-256.sasl.jaas.config":
             "org.apache.kafka.common.security.scram.ScramLoginModule required;"},
            "Configs cannot be updated dynamically for existing listener ListenerName(EXTERNAL), restart broker or "
            "create a new listener for update",
        ),
        (
            {"listener.name.external.ssl.client.auth": "required"},
            "Configs cannot be updated dynamically for existing listener ListenerName(EXTERNAL), restart broker or "
            "create a new listener for update",
        ),
    ],
)  # fmt: skip
def test_listeners_that_cannot_be(change: dict[str, str], words: str) -> None:
    dynamic = started()
    before = dynamic.current
    assert words in refusal(dynamic, change)
    with pytest.raises(ConfigError):
        dynamic.change(change)
    assert dynamic.current is before


def test_a_listener_keeps_its_protocol() -> None:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    dynamic = started(**{
        "sasl.enabled.mechanisms": "SCRAM-SHA-256", "listener.name.external.scram-sha-256.sasl.jaas.config": login,
    })  # fmt: skip
    secured = {"listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT"}
    assert refusal(dynamic, secured) == INVALID.format(
        "Security protocol cannot be updated for existing listener ListenerName(EXTERNAL)"
    )


class Stores:
    """Notes what is asked of the stores, and refuses as told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses = False

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.refuses:
            raise ConfigError("unusable")

    def check(self, security: Mapping[str, ListenerSecurity]) -> None:
        self._ask(f"check {' '.join(security)}")

    def use(self, security: Mapping[str, ListenerSecurity]) -> None:
        self._ask(f"use {' '.join(security)}")

    def reload(self) -> None:
        self._ask("reload")


def test_stores_are_checked_then_used() -> None:
    stores = Stores()
    dynamic = DynamicConfig(BrokerConfig.from_properties(FILE), Random(1), stores)
    dynamic.is_started = True
    dynamic.check({"num.io.threads": "7"})
    dynamic.change({"num.io.threads": "7"})
    dynamic.reload_stores()
    listeners, before = "CONTROL DATA EXTERNAL", dynamic.current
    assert stores.asked == [f"check {listeners}", f"use {listeners}", "reload"]
    stores.refuses = True
    assert refusal(dynamic, {}) == INVALID.format("unusable")
    with pytest.raises(ConfigError, match="unusable"):
        dynamic.change({})
    assert dynamic.current is before


PASSWORD = "listener.name.new.ssl.keystore.password"


def test_passwords_are_stored_encoded() -> None:
    dynamic, plain = started(**{"password.encoder.secret": "s"}), {PASSWORD: "p,:=", "num.io.threads": "7"}
    stored = dynamic.encoded(plain)
    assert stored["num.io.threads"] == "7"
    assert "p,:=" not in stored[PASSWORD]
    assert stored != dynamic.encoded(plain)  # each time with another salt
    assert dynamic.decoded(stored) == plain


def test_values_that_cannot_be_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody has written them into ZooKeeper."""
    stored = {"num.io.threads": "many", "listener.name.new.max.connections": "-1", "my.plugin": "x", "log.roll.ms": "9"}
    assert started().decoded(stored) == {"my.plugin": "x", "log.roll.ms": "9"}
    assert "num.io.threads=many" in caplog.text


def test_passwords_that_cannot_be_decoded_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    stored = started(**{"password.encoder.secret": "s"}).encoded({PASSWORD: "p", "num.io.threads": "7"})
    for other in (started(), started(**{"password.encoder.secret": "t"})):
        assert other.decoded(stored) == {"num.io.threads": "7"}
    assert caplog.text.count(f"the dynamic setting {PASSWORD} is ignored") == 2
    with pytest.raises(ConfigError, match="Password encoder secret not configured"):
        started().encoded({PASSWORD: "p"})
