"""Values of settings and their sources (rules B7.25, B7.26)."""

from __future__ import annotations

from typing import Any

from kce.broker_stub.config_entries import BrokerSettings, ConfigSource, broker_entries, topic_entries
from kce.broker_stub.log.config import LogConfig

NO_BROKER_SETTINGS = BrokerSettings({})


def entries(config: dict[str, str], broker: BrokerSettings) -> dict[str, Any]:
    return {entry.name: entry for entry in topic_entries(config, broker)}


def test_topic_settings_have_precedence_over_broker_settings() -> None:  # rule B7.26
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
    # of the values in coarser units only those behind the first of log.retention.ms are listed: there is none
    assert (found["retention.ms"].source, found["retention.ms"].synonyms) == (ConfigSource.DEFAULT_CONFIG, ())
    in_ms = BrokerSettings({"log.retention.hours": "1"}, {"log.retention.ms": "7"})
    assert entries({}, in_ms)["retention.ms"].synonyms == (
        ("log.retention.ms", "7", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    )
    found = entries({}, NO_BROKER_SETTINGS)
    assert (found["retention.ms"].value, found["segment.ms"].value) == ("604800000", "604800000")
    assert {entry.source for entry in found.values()} == {ConfigSource.DEFAULT_CONFIG}
    for key, value in (("hours", "-1"), ("minutes", "-7"), ("ms", "-1"), ("ms", "-2")):
        negative = BrokerSettings({}, {f"log.retention.{key}": value})
        assert entries({}, negative)["retention.ms"].value == "-1"
        assert LogConfig.effective({}, negative).retention_ms is None


def test_all_described_and_configured_broker_settings_are_listed() -> None:  # rule B7.25
    given = BrokerSettings(
        {
            "num.io.threads": "3", "my.plugin.key": "secret", "listener.name.data.sasl.jaas.config": "password",
            "super.users": "User:a", "group.initial.rebalance.delay.ms": "0", "log.initial.task.delay.ms": "5",
        },
        {"num.io.threads": "4", "leader.replication.throttled.rate": "7"},
    )  # fmt: skip
    found = {entry.name: entry for entry in broker_entries(given)}
    assert (found["num.io.threads"].value, found["num.io.threads"].read_only) == ("4", False)
    assert found["broker.rack"].value is None
    assert found["broker.id"].read_only
    assert (found["group.max.size"].value, found["group.max.size"].source) == (str(2**31 - 1), 5)
    for name, value, default in (
        ("group.initial.rebalance.delay.ms", "0", "3000"),
        ("log.initial.task.delay.ms", "5", "30000"),  # Kafka's own, listed because it is set
    ):
        assert found[name].value == value
        assert found[name].synonyms == ((name, value, 4), (name, default, 5))
    throttle = found["leader.replication.throttled.rate"]
    assert (throttle.value, throttle.read_only, len(throttle.synonyms)) == ("7", True, 1)
    not_set = {"follower.replication.throttled.rate", "producer.id.expiration.check.interval.ms", "kce.metrics.port"}
    assert not not_set & found.keys()
    for hidden in ("my.plugin.key", "listener.name.data.sasl.jaas.config", "super.users"):
        assert (found[hidden].is_sensitive, found[hidden].value) == (True, None)
        assert all(synonym.value is None for synonym in found[hidden].synonyms)


def test_values_are_written_as_kafka_writes_them() -> None:  # rule B7.25
    broker = BrokerSettings(
        {"broker.id": "1", "log.flush.scheduler.interval.ms": "9"},
        {
            "log.cleaner.min.cleanable.ratio": " 1 ", "log.roll.ms": "+5", "log.preallocate": "TRUE",
            "log.flush.interval.ms": "7", "listener.name.data.max.connections": "08", "max.connections": "3",
        },
        {"log.cleaner.io.max.bytes.per.second": "1234567890"},
    )  # fmt: skip
    found = {entry.name: entry for entry in broker_entries(broker)}
    assert {name: found[name].value for name in broker.dynamic} == {
        "log.cleaner.min.cleanable.ratio": "1.0", "log.roll.ms": "5", "log.preallocate": "true",
        "log.flush.interval.ms": "7", "listener.name.data.max.connections": "8", "max.connections": "3",
    }  # fmt: skip
    assert found["log.cleaner.io.max.bytes.per.second"].value == "1.23456789E9"
    in_order = [synonym[:2] for synonym in found["log.roll.ms"].synonyms]
    assert in_order == [("log.roll.ms", "+5"), ("log.roll.hours", "168")]
    # those that count where it has no value, rule B7.26
    assert [synonym[:2] for synonym in found["log.flush.interval.ms"].synonyms] == [
        ("log.flush.interval.ms", "7"), ("log.flush.scheduler.interval.ms", "9"),
        ("log.flush.scheduler.interval.ms", str(2**63 - 1)),
    ]  # fmt: skip
    assert [synonym[:2] for synonym in found["listener.name.data.max.connections"].synonyms] == [
        ("listener.name.data.max.connections", "08"), ("max.connections", "3"), ("max.connections", str(2**31 - 1)),
    ]  # fmt: skip
    topic = entries({"cleanup.policy": " compact , delete", "index.interval.bytes": "05"}, broker)
    assert topic["cleanup.policy"].value == topic["cleanup.policy"].synonyms[0].value == "compact,delete"
    assert (topic["index.interval.bytes"].value, topic["segment.ms"].value) == ("5", "5")
    assert topic["segment.ms"].synonyms[0].value == "+5"


def test_what_the_broker_makes_of_limits_of_timestamps() -> None:  # rule B3.28
    names = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
    broker = BrokerSettings({"log.message.timestamp.difference.max.ms": "5", "log.message.timestamp.after.max.ms": "7"})
    found = entries({"message.timestamp.difference.max.ms": "3"}, broker)
    assert [found[name].value for name in names] == ["5", "7"]  # the topic's difference does not count any more
    assert [synonym.name for synonym in found[names[0]].synonyms] == ["log.message.timestamp.before.max.ms"]
    found = entries({names[0]: "1"}, broker)
    assert [found[name].value for name in names] == ["1", "7"]
    assert entries({}, NO_BROKER_SETTINGS)[names[0]].value == str(2**63 - 1)


def test_a_format_that_does_not_count_is_not_described() -> None:  # rule B3.23
    given = {"log.message.format.version": "2.8"}
    name = "message.format.version"
    assert entries({}, BrokerSettings(given))[name].value == "3.0-IV1"
    assert entries({}, BrokerSettings(given | {"inter.broker.protocol.version": "2.8"}))[name].value == "2.8-IV1"
    assert entries({name: "2.7"}, BrokerSettings(given))[name].value == "2.7"


def test_settings_of_listeners_are_read_only() -> None:  # rule B7.25
    found = {e.name: e for e in broker_entries(BrokerSettings({"listener.name.data.max.connections": "7"}))}
    read_only = {name: found[name].read_only for name in ("listener.name.data.max.connections", "max.connections")}
    assert read_only == {"listener.name.data.max.connections": True, "max.connections": False}


def test_sources_have_kafkas_numbers() -> None:  # rule B7.26
    assert [(source.name, source.value) for source in ConfigSource] == [
        ("TOPIC_CONFIG", 1), ("DYNAMIC_BROKER_CONFIG", 2), ("DYNAMIC_DEFAULT_BROKER_CONFIG", 3),
        ("STATIC_BROKER_CONFIG", 4), ("DEFAULT_CONFIG", 5), ("DYNAMIC_BROKER_LOGGER_CONFIG", 6),
    ]  # fmt: skip
