"""Kafka's settings as DescribeConfigs and AlterConfigs see them: types, defaults, what may be changed while running.

`TOPIC_CONFIGS` are those a topic may override, with the broker's settings that stand behind each, the finer unit first;
`BROKER_CONFIGS` are a broker's own (section 10 of docs/broker-semantics.md). Values are Kafka's strings throughout.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_MAX: Final = {"int": 2**31 - 1, "long": 2**63 - 1}


class ConfigType(enum.IntEnum):
    """By the numbers in DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(enum.Enum):
    """Whether a broker's setting may be changed while it runs, and for whom (rule B7.29)."""

    NO = enum.auto()
    BROKER = enum.auto()
    CLUSTER = enum.auto()  # for one broker, and for all by default


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One setting. ``allowed`` says in words what ``check`` wants of the parsed value."""

    name: str
    type: ConfigType
    default: str | None
    allowed: str = ""
    check: Callable[[float | str], bool] | None = None

    def problem(self, value: str) -> str | None:
        """What is wrong with a value, in a line; None if nothing."""
        try:
            parsed = _PARSERS.get(self.type, _text)(value.strip())
        except ValueError as e:
            return f"{self.name}={value}: {e}"
        if self.check is not None and not all(self.check(one) for one in parsed):
            return f"{self.name}={value}: {self.allowed} is needed"
        return None


@dataclass(frozen=True, slots=True)
class TopicConfigDef(ConfigDef):
    #: settings of the broker that apply where the topic has none, with what turns their unit into the topic's
    synonyms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerConfigDef(ConfigDef):
    dynamic: Dynamic = Dynamic.NO


def list_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _text(text: str) -> list[float | str]:
    return [text]


def _whole(bits: int) -> Callable[[str], list[float | str]]:
    def parse(text: str) -> list[float | str]:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("no whole number") from None
        if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise ValueError(f"does not fit into {bits} bits")
        return [number]

    return parse


def _boolean(text: str) -> list[float | str]:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return []


#: to the values that are checked one by one; everything else is text
_PARSERS: Final[Mapping[ConfigType, Callable[[str], list[float | str]]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.SHORT: _whole(16),
    ConfigType.INT: _whole(32),
    ConfigType.LONG: _whole(64),
    ConfigType.DOUBLE: lambda text: [float(text)],
    ConfigType.LIST: lambda text: [*list_of(text)],
}


def _between(least: float, most: float) -> Callable[[float | str], bool]:
    return lambda value: isinstance(value, (int, float)) and least <= value <= most


def _one_of(*values: str) -> Callable[[float | str], bool]:
    return lambda value: value in values


def _is_throttled_replica(value: float | str) -> bool:
    partition, colon, broker = str(value).partition(":")
    return value == "*" or bool(colon and partition.isdigit() and broker.isdigit())


def _topic(
    name: str,
    kind: str,
    default: object,
    *synonyms: str | tuple[str, int],
    least: float | None = None,
    most: float | None = None,
    values: tuple[str, ...] = (),
    check: Callable[[float | str], bool] | None = None,
    allowed: str = "",
) -> TopicConfigDef:
    text = str(_MAX[kind] if default == "max" else default)
    if values:
        check, allowed = _one_of(*values), f"one of {', '.join(values)}"
    elif least is not None:
        check = _between(least, float("inf") if most is None else most)
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
    pairs = tuple(s if isinstance(s, tuple) else (s, 1) for s in synonyms)
    return TopicConfigDef(name, ConfigType[kind.upper()], text, allowed, check, pairs)


_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_THROTTLED: Final = "* or a list of partition:broker"

TOPIC_CONFIGS: Final[Mapping[str, TopicConfigDef]] = {
    entry.name: entry
    for entry in (
        _topic("cleanup.policy", "list", "delete", "log.cleanup.policy", values=("compact", "delete")),
        _topic("compression.gzip.level", "int", -1, "compression.gzip.level", least=-1, most=9),
        _topic("compression.lz4.level", "int", 9, "compression.lz4.level", least=1, most=17),
        _topic("compression.type", "string", "producer", "compression.type", values=_CODECS),
        _topic("compression.zstd.level", "int", 3, "compression.zstd.level", least=-131072, most=22),
        _topic("delete.retention.ms", "long", 86400000, "log.cleaner.delete.retention.ms", least=0),
        _topic("file.delete.delay.ms", "long", 60000, "log.segment.delete.delay.ms", least=0),
        _topic("flush.messages", "long", "max", "log.flush.interval.messages", least=1),
        _topic("flush.ms", "long", "max", "log.flush.interval.ms", "log.flush.scheduler.interval.ms", least=0),
        _topic("follower.replication.throttled.replicas", "list", "", check=_is_throttled_replica, allowed=_THROTTLED),
        _topic("index.interval.bytes", "int", 4096, "log.index.interval.bytes", least=0),
        _topic("leader.replication.throttled.replicas", "list", "", check=_is_throttled_replica, allowed=_THROTTLED),
        _topic("local.retention.bytes", "long", -2, "log.local.retention.bytes", least=-2),
        _topic("local.retention.ms", "long", -2, "log.local.retention.ms", least=-2),
        _topic("max.compaction.lag.ms", "long", "max", "log.cleaner.max.compaction.lag.ms", least=1),
        _topic("max.message.bytes", "int", 1048588, "message.max.bytes", least=0),
        _topic("message.downconversion.enable", "boolean", "true", "log.message.downconversion.enable"),
        _topic("message.format.version", "string", "3.0-IV1", "log.message.format.version"),
        _topic("message.timestamp.after.max.ms", "long", "max", "log.message.timestamp.after.max.ms", least=0),
        _topic("message.timestamp.before.max.ms", "long", "max", "log.message.timestamp.before.max.ms", least=0),
        _topic(
            "message.timestamp.difference.max.ms", "long", "max", "log.message.timestamp.difference.max.ms", least=0,
        ),
        _topic(
            "message.timestamp.type", "string", "CreateTime", "log.message.timestamp.type",
            values=("CreateTime", "LogAppendTime"),
        ),
        _topic("min.cleanable.dirty.ratio", "double", 0.5, "log.cleaner.min.cleanable.ratio", least=0, most=1),
        _topic("min.compaction.lag.ms", "long", 0, "log.cleaner.min.compaction.lag.ms", least=0),
        _topic("min.insync.replicas", "int", 1, "min.insync.replicas", least=1),
        _topic("preallocate", "boolean", "false", "log.preallocate"),
        _topic("remote.log.copy.disable", "boolean", "false"),
        _topic("remote.log.delete.on.disable", "boolean", "false"),
        _topic("remote.storage.enable", "boolean", "false"),
        _topic("retention.bytes", "long", -1, "log.retention.bytes"),
        _topic(
            "retention.ms", "long", 604800000,
            "log.retention.ms", ("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS), least=-1,
        ),
        _topic("segment.bytes", "int", 1073741824, "log.segment.bytes", least=14),
        _topic("segment.index.bytes", "int", 10485760, "log.index.size.max.bytes", least=4),
        _topic("segment.jitter.ms", "long", 0, "log.roll.jitter.ms", ("log.roll.jitter.hours", _HOUR_MS), least=0),
        _topic("segment.ms", "long", 604800000, "log.roll.ms", ("log.roll.hours", _HOUR_MS), least=1),
        _topic("unclean.leader.election.enable", "boolean", "false", "unclean.leader.election.enable"),
    )
}  # fmt: skip


def topic_config_problem(config: Mapping[str, str]) -> str | None:
    """What is wrong with a topic's configuration (rule 10.5); None if nothing."""
    for name, value in config.items():
        known = TOPIC_CONFIGS.get(name)
        if known is None:
            return f"{name} is no setting of topics"
        if (problem := known.problem(value)) is not None:
            return problem
    lags = [int(config.get(name, str(TOPIC_CONFIGS[name].default))) for name in _COMPACTION_LAGS]
    if lags[0] > lags[1]:
        return f"{_COMPACTION_LAGS[0]}={lags[0]} is above {_COMPACTION_LAGS[1]}={lags[1]}"
    return None


_COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")

#: name, type, default (- is none), dynamic: b for one broker, c also for all
_BROKER_TABLE: Final = """
advertised.listeners string - b
authorizer.class.name class -
auto.create.topics.enable boolean true
auto.leader.rebalance.enable boolean true
background.threads int 10 c
broker.id int -1
broker.id.generation.enable boolean true
broker.rack string -
compression.gzip.level int -1 c
compression.lz4.level int 9 c
compression.type string producer c
compression.zstd.level int 3 c
connection.failed.authentication.delay.ms int 100
connections.max.idle.ms long 600000
connections.max.reauth.ms long 0
control.plane.listener.name string -
controlled.shutdown.enable boolean true
controlled.shutdown.max.retries int 3
controlled.shutdown.retry.backoff.ms long 5000
controller.quota.window.num int 11
controller.quota.window.size.seconds int 1
controller.socket.timeout.ms int 30000
default.replication.factor int 1
delete.records.purgatory.purge.interval.requests int 1
delete.topic.enable boolean true
fetch.max.bytes int 57671680
fetch.purgatory.purge.interval.requests int 1000
follower.replication.throttled.rate long max b
inter.broker.listener.name string -
inter.broker.protocol.version string 3.9-IV0
leader.imbalance.check.interval.seconds long 300
leader.imbalance.per.broker.percentage int 10
leader.replication.throttled.rate long max b
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT b
listeners string PLAINTEXT://:9092 b
log.cleaner.dedupe.buffer.size long 134217728 c
log.cleaner.delete.retention.ms long 86400000 c
log.cleaner.enable boolean true
log.cleaner.max.compaction.lag.ms long max c
log.cleaner.min.cleanable.ratio double 0.5 c
log.cleaner.min.compaction.lag.ms long 0 c
log.cleaner.threads int 1 c
log.cleanup.policy list delete c
log.dir string /tmp/kafka-logs
log.dirs string -
log.flush.interval.messages long max c
log.flush.interval.ms long - c
log.flush.offset.checkpoint.interval.ms int 60000
log.flush.scheduler.interval.ms long max
log.flush.start.offset.checkpoint.interval.ms int 60000
log.index.interval.bytes int 4096 c
log.index.size.max.bytes int 10485760 c
log.local.retention.bytes long -2 c
log.local.retention.ms long -2 c
log.message.downconversion.enable boolean true c
log.message.format.version string 3.0-IV1
log.message.timestamp.after.max.ms long max c
log.message.timestamp.before.max.ms long max c
log.message.timestamp.difference.max.ms long max c
log.message.timestamp.type string CreateTime c
log.preallocate boolean false c
log.retention.bytes long -1 c
log.retention.check.interval.ms long 300000
log.retention.hours int 168
log.retention.minutes int -
log.retention.ms long - c
log.roll.hours int 168
log.roll.jitter.hours int 0
log.roll.jitter.ms long - c
log.roll.ms long - c
log.segment.bytes int 1073741824 c
log.segment.delete.delay.ms long 60000 c
max.connection.creation.rate int max c
max.connections int max c
max.connections.per.ip int max c
max.connections.per.ip.overrides string  c
max.incremental.fetch.session.cache.slots int 1000
message.max.bytes int 1048588 c
min.insync.replicas int 1 c
num.io.threads int 8 c
num.network.threads int 3 c
num.partitions int 1
num.recovery.threads.per.data.dir int 1 c
num.replica.fetchers int 1 c
offsets.topic.num.partitions int 50
offsets.topic.replication.factor short 3
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder b
producer.id.expiration.ms int 86400000 c
producer.purgatory.purge.interval.requests int 1000
queued.max.request.bytes long -1
queued.max.requests int 500
quota.window.num int 11
quota.window.size.seconds int 1
replica.alter.log.dirs.io.max.bytes.per.second long max b
replica.fetch.backoff.ms int 1000
replica.fetch.max.bytes int 1048576
replica.fetch.min.bytes int 1
replica.fetch.response.max.bytes int 10485760
replica.fetch.wait.max.ms int 500
replica.high.watermark.checkpoint.interval.ms long 5000
replica.lag.time.max.ms long 30000
replica.selector.class string -
replica.socket.receive.buffer.bytes int 65536
replica.socket.timeout.ms int 30000
request.timeout.ms int 30000
reserved.broker.max.id int 1000
sasl.enabled.mechanisms list GSSAPI b
sasl.jaas.config password - b
sasl.mechanism.inter.broker.protocol string GSSAPI b
sasl.server.max.receive.size int 524288
security.inter.broker.protocol string PLAINTEXT
socket.listen.backlog.size int 50
socket.receive.buffer.bytes int 102400
socket.request.max.bytes int 104857600
socket.send.buffer.bytes int 102400
ssl.client.auth string none b
transaction.max.timeout.ms int 900000
transaction.partition.verification.enable boolean true c
transaction.state.log.num.partitions int 50
transaction.state.log.replication.factor short 3
unclean.leader.election.enable boolean false c
zookeeper.connect string -
zookeeper.connection.timeout.ms int -
zookeeper.max.in.flight.requests int 10
zookeeper.session.timeout.ms int 18000
zookeeper.set.acl boolean false
"""
_DYNAMIC: Final = {"": Dynamic.NO, "b": Dynamic.BROKER, "c": Dynamic.CLUSTER}


def _broker(line: str) -> BrokerConfigDef:
    name, kind, default, *dynamic = line.split(" ")
    text = None if default == "-" else str(_MAX[kind]) if default == "max" else default
    scope = _DYNAMIC["".join(dynamic)]
    known = next((t for t in TOPIC_CONFIGS.values() if (name, 1) in t.synonyms), None)
    if known is not None:  # its limits are those of the topic's
        return BrokerConfigDef(name, ConfigType[kind.upper()], text, known.allowed, known.check, scope)
    return BrokerConfigDef(name, ConfigType[kind.upper()], text, dynamic=scope)


BROKER_CONFIGS: Final[Mapping[str, BrokerConfigDef]] = {
    entry.name: entry for entry in map(_broker, _BROKER_TABLE.strip().splitlines())
}
