"""Typed reading of server.properties."""

from __future__ import annotations

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
    accepted = {"zookeeper.ssl.cipher.suites": "", "zookeeper.ssl.crl.enable": "FALSE"}
    Properties(accepted).check_refused("")
    refused = {"zookeeper.ssl.ocsp.enable": "true"}
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.ocsp\.enable=true: not supported here"):
        Properties(refused).check_refused("zookeeper.ssl")
    Properties(refused).check_refused("max.connection")


def test_unknown_settings_are_listed_with_the_nearest_known_one() -> None:
    read = Properties({"num.io.thread": "1", "qqqqq": "1", "num.io.threads": "1", "kce.metrics.port": "0"})
    assert list(read.unknown()) == [("num.io.thread", "num.io.threads"), ("qqqqq", None)]
