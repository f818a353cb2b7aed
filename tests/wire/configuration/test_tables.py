"""The tables of settings and the generated document.

Covers: wire/configuration/broker_configs.py, wire/configuration/topic_configs.py, wire/configuration/document.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kce.wire.configuration import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigError,
    Support,
    broker_config,
    check_topic_config,
    nearest,
)
from kce.wire.configuration.document import configuration_markdown

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_every_default_is_allowed() -> None:
    for definition in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        if definition.default is not None:
            definition.parse(definition.default)


def test_the_synonyms_of_topic_settings_are_settings_of_brokers() -> None:
    for definition in TOPIC_CONFIGS.values():
        assert all(BROKER_CONFIGS[name].described for name, _ in definition.synonyms)
    assert TOPIC_CONFIGS["retention.ms"].synonyms == (
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    )


def test_settings_that_take_effect_are_read_and_those_that_are_refused_are_not() -> None:
    for definition in BROKER_CONFIGS.values():
        if definition.support in (Support.LIVE, Support.HONOURED):
            assert definition.readers, definition.name
        if definition.support in (Support.REFUSED, Support.PROTECTION):
            assert not definition.readers, definition.name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("num.io.threads", "num.io.threads"),
        ("listener.name.data.num.network.threads", "num.network.threads"),
        ("listener.name.data.plain.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.data.foo", None),
        ("listener.name.data", None),
        ("num.io.thread", None),
    ],
)
def test_settings_are_found_below_the_prefix_of_a_listener(key: str, name: str | None) -> None:
    found = broker_config(key)
    assert (None if found is None else found.name) == name


def test_a_misspelt_setting_has_a_nearest_one() -> None:
    assert nearest("num.io.thread") == "num.io.threads"
    assert nearest("qqqqq") is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"retention.ms": "-2"}, "from -1 to"),
        ({"retention.ms": "1.5"}, "a whole number"),
        ({"retention.ms": str(2**63)}, f"to {2**63 - 1}"),
        ({"segment.bytes": str(2**31)}, f"to {2**31 - 1}"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "0 to 1"),
        ({"preallocate": "yes"}, "true or false"),
        ({"cleanup.policy": "compact,shred"}, "one of compact, delete"),
        ({"compression.type": "rar"}, "one of uncompressed"),
        ({"compression.gzip.level": "0"}, "-1 or from 1 to 9"),
        ({"leader.replication.throttled.replicas": "0:1,2"}, "partition:broker"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "must be at most max.compaction.lag.ms"),
        ({"retention.days": "1"}, "no setting retention.days"),
        ({"message.format.version": "2.9"}, "is not a version"),
        ({"message.format.version": ""}, "is not a version"),
        ({"remote.storage.enable": "TRUE"}, "no tiered storage"),
        ({"remote.storage.enable": "false", "remote.log.copy.disable": "true"}, "no tiered storage"),
        ({"remote.log.delete.on.disable": "true"}, "no tiered storage"),
    ],
)
def test_invalid_topic_configurations_are_refused(config: dict[str, str], why: str) -> None:  # rule 10.5
    with pytest.raises(ConfigError) as refused:
        check_topic_config(config)
    assert why in str(refused.value)


def test_valid_topic_configurations_are_accepted() -> None:
    good = {
        "cleanup.policy": "compact, delete", "leader.replication.throttled.replicas": "*", "retention.ms": "-1",
        "follower.replication.throttled.replicas": "0:1,1:2", "preallocate": "TRUE", "compression.type": "zstd",
        "message.format.version": " 0.10.2 ", "remote.storage.enable": "false", "remote.log.copy.disable": "false",
    }  # fmt: skip
    check_topic_config(good)


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == configuration_markdown(), "run: make docs"
