"""The settings of topics, and the broker's settings that apply to topics without their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from kce.wire.configuration.broker_configs import BROKER_CONFIGS
from kce.wire.configuration.definitions import (
    Allowed,
    Anything,
    ConfigError,
    ConfigType,
    Matching,
    Support,
    TopicConfigDef,
    allowed_values,
)
from kce.wire.metadata_version import MetadataVersion

_FACTORS: Final = {"minutes": 60_000, "hours": 3_600_000}

# A setting, then its synonyms among the broker's settings, the finer unit first. Type, default and allowed values are
# those of the first synonym, unless a default follows "=", or the values are in _ALLOWED.
_FROM_BROKER: Final = """
cleanup.policy log.cleanup.policy
compression.gzip.level compression.gzip.level
compression.lz4.level compression.lz4.level
compression.type compression.type
compression.zstd.level compression.zstd.level
delete.retention.ms log.cleaner.delete.retention.ms
file.delete.delay.ms log.segment.delete.delay.ms
flush.messages log.flush.interval.messages
flush.ms=9223372036854775807 log.flush.interval.ms log.flush.scheduler.interval.ms
index.interval.bytes log.index.interval.bytes
local.retention.bytes log.local.retention.bytes
local.retention.ms log.local.retention.ms
max.compaction.lag.ms log.cleaner.max.compaction.lag.ms
max.message.bytes message.max.bytes
message.downconversion.enable log.message.downconversion.enable
message.format.version log.message.format.version
message.timestamp.after.max.ms log.message.timestamp.after.max.ms
message.timestamp.before.max.ms log.message.timestamp.before.max.ms
message.timestamp.difference.max.ms log.message.timestamp.difference.max.ms
message.timestamp.type log.message.timestamp.type
min.cleanable.dirty.ratio log.cleaner.min.cleanable.ratio
min.compaction.lag.ms log.cleaner.min.compaction.lag.ms
min.insync.replicas min.insync.replicas
preallocate log.preallocate
retention.bytes log.retention.bytes
retention.ms=604800000 log.retention.ms log.retention.minutes log.retention.hours
segment.bytes log.segment.bytes
segment.index.bytes log.index.size.max.bytes
segment.jitter.ms=0 log.roll.jitter.ms log.roll.jitter.hours
segment.ms=604800000 log.roll.ms log.roll.hours
unclean.leader.election.enable unclean.leader.election.enable
"""
#: values of a topic's own, where those of the broker's setting are others
_ALLOWED: Final = {"retention.ms": "-1.."}
_BOOLEANS: Final = ("remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable")
_THROTTLED: Final = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
_REPLICAS: Final = Matching(
    re.compile(r"\*|([0-9]+:[0-9]+)?"),
    "* or partition:broker",
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
)
#: settings with an effect: one of the controller's, and those of the logs of nodes that keep records
_LIVE: Final = frozenset(
    (
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    )
)


def _definitions() -> Iterator[TopicConfigDef]:
    for line in _FROM_BROKER.strip().splitlines():
        setting, *names = line.split(" ")
        name, equals, default = setting.partition("=")
        broker = BROKER_CONFIGS[names[0]]
        yield TopicConfigDef(
            name=name,
            type=broker.type,
            default=default if equals else broker.default,
            allowed=allowed_values(_ALLOWED[name], broker.type) if name in _ALLOWED else broker.allowed,
            support=Support.LIVE if name in _LIVE else Support.IGNORED,
            synonyms=tuple((synonym, _FACTORS.get(synonym.rpartition(".")[2], 1)) for synonym in names),
        )
    for name in _BOOLEANS:
        yield _without_synonyms(name, ConfigType.BOOLEAN, "false", Anything())
    for name in _THROTTLED:
        yield _without_synonyms(name, ConfigType.LIST, "", _REPLICAS)


def _without_synonyms(name: str, kind: ConfigType, default: str, allowed: Allowed) -> TopicConfigDef:
    support = Support.LIVE if name in _LIVE else Support.IGNORED
    return TopicConfigDef(name=name, type=kind, default=default, allowed=allowed, support=support, synonyms=())


#: by name, in alphabetical order
TOPIC_CONFIGS: Final[Mapping[str, TopicConfigDef]] = {
    definition.name: definition for definition in sorted(_definitions(), key=lambda definition: definition.name)
}

_VERSION: Final = "message.format.version"
_NOT_WITH_ZOOKEEPER: Final = (
    "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable` under Zookeeper's mode."
)
#: what Kafka says to true
_NO_TIERED_STORAGE: Final = {
    "remote.log.delete.on.disable": _NOT_WITH_ZOOKEEPER,
    "remote.log.copy.disable": _NOT_WITH_ZOOKEEPER,
    "remote.storage.enable": "Tiered Storage functionality is disabled in the broker. "
    "Topic cannot be configured with remote log storage.",
}
_COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def check_topic_config(config: Mapping[str, str], inherited: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises ConfigError for a configuration that a topic cannot have (rule 10.5).

    ``inherited``: what the broker gives to settings that the topic has not; else they have their defaults.
    """
    for name, value in config.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise ConfigError(f"topics have no setting {name}", f"Unknown topic config name: {name}")
        definition.parse(value)
    if _VERSION in config:
        _check_version(config[_VERSION].strip())
    all_lags = {name: str(TOPIC_CONFIGS[name].default) for name in _COMPACTION_LAGS} | {**inherited, **config}
    least, most = (int(all_lags[name]) for name in _COMPACTION_LAGS)
    if least > most:
        raise ConfigError(
            f"{_COMPACTION_LAGS[0]}={least}: must be at most {_COMPACTION_LAGS[1]}, which is {most}",
            f"conflict topic config setting {_COMPACTION_LAGS[0]} ({least}) > {_COMPACTION_LAGS[1]} ({most})",
        )
    for name, words in _NO_TIERED_STORAGE.items():
        if name in config and TOPIC_CONFIGS[name].parse(config[name]):
            raise ConfigError(f"{name}={config[name]}: must be false, as there is no tiered storage", words)


def _check_version(text: str) -> None:
    try:
        MetadataVersion.parse(text)
    except ValueError as e:
        raise ConfigError(
            f"{_VERSION}={text}: {e}",
            f"Invalid value {text} for configuration {_VERSION}: Version {text} is not a valid version",
        ) from None
