"""The value of every setting of a topic or a broker, and its source (rules B7.25, B7.26). Pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from kce.wire.configuration import (
    BROKER_CONFIGS,
    ONLY_DYNAMIC,
    TOPIC_CONFIGS,
    UNDEFINED,
    UNTYPED,
    BrokerConfigDef,
    ConfigType,
    Dynamic,
    TopicConfigDef,
    broker_config,
)
from kce.wire.metadata_version import MetadataVersion

UNKNOWN_TYPE: Final = 0

#: settings of a broker for the same, the one that counts first
_SYNONYMS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)

_TIMESTAMP_LIMITS: Final = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")
#: the limit for both of them, if they have none
_TIMESTAMP_DIFFERENCE: Final = "log.message.timestamp.difference.max.ms"
_FORMAT: Final = "message.format.version"
_RETENTION: Final = "retention.ms"


class ConfigSource(enum.IntEnum):
    """Rule B7.26."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting's effective value, and its values from all sources in order of precedence."""

    name: str
    value: str | None
    source: ConfigSource
    type: int
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, eq=False)
class BrokerSettings:
    """A broker's settings by source: its file, its entry in ZooKeeper, the default entry in ZooKeeper. Changed ones are
    another object."""

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
        if known is not None and name not in UNDEFINED and known.default is not None:
            yield Synonym(name, known.default, ConfigSource.DEFAULT_CONFIG)

    @cached_property
    def inherited(self) -> tuple[ConfigEntry, ...]:
        """The settings of a topic that has none of its own."""
        return tuple(topic_entries({}, self))

    @cached_property
    def entries(self) -> tuple[ConfigEntry, ...]:
        """All settings of the broker."""
        return tuple(broker_entries(self))

    @cached_property
    def inherited_values(self) -> Mapping[str, str]:
        return {entry.name: entry.value for entry in self.inherited if entry.value is not None}


def topic_entries(config: Mapping[str, str], broker: BrokerSettings) -> Iterator[ConfigEntry]:
    """Every setting of a topic: its own value, else the broker's, else Kafka's default."""
    for known in TOPIC_CONFIGS.values():
        inherited = [(synonym, factor) for name, factor in known.synonyms for synonym in broker.synonyms(name)]
        synonyms = _listed([synonym for synonym, _ in inherited], known.synonyms[0][0] if known.synonyms else "")
        if known.name in config:
            value: str | None = known.written(config[known.name])
            synonyms.insert(0, Synonym(known.name, value, ConfigSource.TOPIC_CONFIG))
        else:
            value = _inherited(known, inherited, broker)
        yield ConfigEntry(
            known.name,
            value,
            synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            known.type,
            read_only=False,
            is_sensitive=False,
            synonyms=tuple(synonyms),
        )


def _listed(synonyms: Iterable[Synonym], name: str) -> list[Synonym]:
    """By source; those of coarser units before the first of ``name`` itself are not listed (rule B7.26)."""
    by_source = sorted(synonyms, key=lambda synonym: synonym.source)
    return list(itertools.dropwhile(lambda synonym: synonym.name != name, by_source))


def _inherited(known: TopicConfigDef, synonyms: Sequence[tuple[Synonym, int]], broker: BrokerSettings) -> str | None:
    """What the broker's settings make of a setting that the topic has not."""
    value = _scaled(known, *synonyms[0]) if synonyms else known.default
    if known.name in _TIMESTAMP_LIMITS and value == known.default:  # rule B3.28
        return known.written(_value(broker, _TIMESTAMP_DIFFERENCE))
    if known.name == _FORMAT and value is not None:  # rule B3.23
        protocol = MetadataVersion.parse(_value(broker, "inter.broker.protocol.version"))
        only = MetadataVersion.parse(known.default or "")
        return str(only if protocol >= only else MetadataVersion.parse(value))
    return value


def _value(broker: BrokerSettings, name: str) -> str:
    """Of a setting that has a default."""
    return next(broker.synonyms(name)).value or ""


def _scaled(known: TopicConfigDef, synonym: Synonym, factor: int) -> str | None:
    """Convert to the topic's unit; any negative time to retain means "no limit"."""
    if synonym.value is None:
        return None
    if factor == 1 and known.name != _RETENTION:
        return known.written(synonym.value)
    return str(max(-1, int(synonym.value) * factor))


def broker_entries(broker: BrokerSettings) -> Iterator[ConfigEntry]:
    """Every described setting, and everything else that is set (rule B7.25)."""
    known = (definition.name for definition in BROKER_CONFIGS.values() if definition.described)
    for name in dict.fromkeys([*known, *broker.static, *broker.dynamic, *broker.dynamic_default]):
        synonyms = [synonym for each in _names(name) for synonym in broker.synonyms(each)]
        definition = broker_config_def(name)
        entry = _broker_entry(name, tuple(_listed(synonyms, name)))
        if definition is not None and entry.value is not None:
            entry = replace(entry, value=definition.written(entry.value))
        yield entry


def _names(name: str) -> tuple[str, ...]:
    """Of a broker's setting, and of those that apply where it has no value (rule B7.26)."""
    known = broker_config(name)
    if known is not None and known.name != name:  # that of a listener
        return name, known.name
    return next((group for group in _SYNONYMS if name in group), (name,))


def dynamic_default_entries(broker: BrokerSettings) -> Iterator[ConfigEntry]:
    """The settings in the default entry (rule B7.25)."""
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
        # Kafka looks for the whole name among those that may change: one of a listener is not there
        read_only=known is None or known.dynamic is Dynamic.STATIC or name in ONLY_DYNAMIC or name != known.name,
        is_sensitive=sensitive,
        synonyms=synonyms,
    )


def broker_config_def(name: str) -> BrokerConfigDef | None:
    """The definition of a setting whose type Kafka knows; None for any other."""
    known = broker_config(name)
    return None if known is None or known.name in UNTYPED or known.name.startswith("kce.") else known
