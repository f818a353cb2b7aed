"""What a setting is and where it comes from, for a topic or a broker (rules B7.25, B7.26). Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker_stub.config_defs import BROKER_CONFIGS, TOPIC_CONFIGS, BrokerConfigDef, ConfigType, Dynamic

UNKNOWN_TYPE: Final = 0
_LISTENER_PREFIX: Final = "listener.name."


class ConfigSource(enum.IntEnum):
    """Rule B7.26."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting's value in force, and all values that could be, those of higher precedence first."""

    name: str
    value: str | None
    source: ConfigSource
    type: int
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker's settings by where they are set: its file, ZooKeeper for it, ZooKeeper for all."""

    static: Mapping[str, str]
    dynamic: Mapping[str, str] = field(default_factory=dict)
    dynamic_default: Mapping[str, str] = field(default_factory=dict)

    def synonyms(self, name: str) -> Iterator[Synonym]:
        for source, values in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default),
            (ConfigSource.STATIC_BROKER_CONFIG, self.static),
        ):
            if name in values:
                yield Synonym(name, values[name], source)
        known = BROKER_CONFIGS.get(name)
        if known is not None and known.default is not None:
            yield Synonym(name, known.default, ConfigSource.DEFAULT_CONFIG)


def topic_entries(config: Mapping[str, str], broker: BrokerSettings) -> Iterator[ConfigEntry]:
    """Every setting of a topic: what it overrides, what the broker gives, or Kafka's default."""
    for known in TOPIC_CONFIGS.values():
        behind = [(synonym, factor) for name, factor in known.synonyms for synonym in broker.synonyms(name)]
        synonyms = [synonym for synonym, _ in behind]
        if known.name in config:
            value: str | None = config[known.name]
            synonyms.insert(0, Synonym(known.name, value, ConfigSource.TOPIC_CONFIG))
        else:
            value = _scaled(*behind[0]) if behind else known.default
        yield ConfigEntry(
            known.name,
            value,
            synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            known.type,
            read_only=False,
            is_sensitive=False,
            synonyms=tuple(synonyms),
        )


def _scaled(synonym: Synonym, factor: int) -> str | None:
    """A value in the topic's unit; a negative one (no limit) stays."""
    if factor == 1 or synonym.value is None or int(synonym.value) < 0:
        return synonym.value
    return str(int(synonym.value) * factor)


def broker_entries(broker: BrokerSettings) -> Iterator[ConfigEntry]:
    """Every setting a broker has: those Kafka knows, and whatever else stands in its file (rule B7.25)."""
    names: Iterable[str] = dict.fromkeys([*BROKER_CONFIGS, *broker.static, *broker.dynamic, *broker.dynamic_default])
    for name in names:
        yield _broker_entry(name, tuple(broker.synonyms(name)))


def dynamic_default_entries(broker: BrokerSettings) -> Iterator[ConfigEntry]:
    """Only what is set for all brokers (rule B7.25)."""
    for name, value in broker.dynamic_default.items():
        yield _broker_entry(name, (Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),))


def _broker_entry(name: str, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    known = broker_config_def(name)
    sensitive = known is None or known.type is ConfigType.PASSWORD
    if sensitive:
        synonyms = tuple(synonym._replace(value=None) for synonym in synonyms)
    return ConfigEntry(
        name,
        synonyms[0].value if synonyms else None,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        UNKNOWN_TYPE if known is None else known.type,
        read_only=known is None or known.dynamic is Dynamic.NO,
        is_sensitive=sensitive,
        synonyms=synonyms,
    )


def broker_config_def(name: str) -> BrokerConfigDef | None:
    """Also below `listener.name.<listener>.`; None for what Kafka's brokers do not have."""
    if name.startswith(_LISTENER_PREFIX):
        name = name.removeprefix(_LISTENER_PREFIX).partition(".")[2]
    return BROKER_CONFIGS.get(name)
