"""Typed reading of server.properties."""

from __future__ import annotations

import re

import pytest

from kce.wire.configuration import ConfigError, Properties


def test_defaults_apply_to_settings_that_are_missing() -> None:
    read = Properties({})
    assert read.integer("num.io.threads") == 8
    assert read.boolean("delete.topic.enable")
    assert read.text("broker.rack") is None
    assert read.optional_integer("zookeeper.connection.timeout.ms") is None
    assert read.elements("listeners") == ["PLAINTEXT://:9092"]
    assert read.given("num.io.threads") is None


def test_given_values_win_over_defaults() -> None:
    read = Properties({"num.io.threads": " 4 ", "delete.topic.enable": "FALSE", "listeners": "A://:1, B://:2"})
    assert read.integer("num.io.threads") == 4
    assert not read.boolean("delete.topic.enable")
    assert read.elements("listeners") == ["A://:1", "B://:2"]


def test_a_listener_has_its_own_value_or_the_common_one() -> None:  # rule B1.2
    read = Properties({"listener.name.data.num.network.threads": "7", "listener.name.odd.num.network.threads": "0"})
    assert read.listener_integer("DATA", "num.network.threads") == 7
    assert read.listener_integer("OTHER", "num.network.threads") == 3
    with pytest.raises(ConfigError, match=r"listener\.name\.odd\.num\.network\.threads=0: must be"):
        read.listener_integer("ODD", "num.network.threads")


@pytest.mark.parametrize("properties", [{}, {"zookeeper.connect": ""}])
def test_a_required_setting_is_missing(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"the setting zookeeper\.connect is missing"):
        Properties(properties).required("zookeeper.connect")


def test_a_setting_that_is_not_supported_is_refused_unless_it_is_at_its_default() -> None:
    assert Properties({"zookeeper.ssl.crl.enable": "FALSE"}).check() == []
    with pytest.raises(ConfigError, match=r"alter\.config\.policy\.class\.name=: must be the name of a class"):
        Properties({"alter.config.policy.class.name": ""}).check()
    with pytest.raises(ConfigError, match=r"client\.quota\.callback\.class=a: not supported here"):
        Properties({"client.quota.callback.class": "a"}).check()
    tls = Properties({"zookeeper.ssl.crl.enable": "true"})
    assert tls.check() == []
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.crl\.enable=true: not supported here"):
        tls.check_zookeeper_tls()


@pytest.mark.parametrize(
    "setting",
    [
        "ssl.cipher.suites=TLS_AES_256_GCM_SHA384", "listener.name.data.ssl.cipher.suites=TLS_AES_256_GCM_SHA384",
        "sasl.server.callback.handler.class=a.B",
    ],
)  # fmt: skip
def test_a_protection_that_does_not_exist_is_an_error(setting: str) -> None:
    key, _, text = setting.partition("=")
    with pytest.raises(ConfigError, match=f"^{re.escape(setting)}: .*leave the setting out$"):
        Properties({key: text}).check()


def test_settings_without_effect_are_warnings() -> None:
    read = Properties(
        {
            "num.io.thread": "1", "qqqqq": "1", "num.io.threads": "1", "kce.metrics.port": "0",
            "log.cleaner.threads": "2", "background.threads": "10", "listener.name.data.num.io.threads": "2",
            "listener.name.data.num.network.threads": "2", "leader.replication.throttled.rate": "5",
        }
    )  # fmt: skip
    assert read.check() == [
        "num.io.thread has no effect: Kafka has no such setting; did you mean num.io.threads?",
        "qqqqq has no effect: Kafka has no such setting",
        "log.cleaner.threads=2 has no effect: Kafka has this setting, this project ignores it",
        "listener.name.data.num.io.threads has no effect: num.io.threads applies to all listeners here",
        "leader.replication.throttled.rate has no effect: like Kafka's, it only counts when it is set while the broker "
        "runs",  # rule B8.18
    ]
