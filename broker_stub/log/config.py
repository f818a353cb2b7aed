"""The settings of one log: its topic's, else the broker's (rule B7.30)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

from kce.broker_stub.config_entries import BrokerSettings, topic_entries
from kce.wire.configuration import TOPIC_CONFIGS, ConfigError
from kce.wire.metadata_version import MetadataVersion
from kce.wire.record import Codec, TimestampType

_CODECS = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}

_NO_LIMIT_MS = 2**63 - 1

#: the format of records is always the newest under these protocols between brokers (rule B3.23)
_ONE_FORMAT_SINCE = MetadataVersion.parse("3.0-IV1")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Each setting has the name of the topic's setting in Kafka. None: no limit, or as the producer has it."""

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    flush_messages: int
    flush_ms: int
    retention_bytes: int | None
    retention_ms: int | None
    file_delete_delay_ms: int
    max_message_bytes: int
    is_compact: bool
    is_delete: bool
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    compression_type: Codec | None
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    message_downconversion_enable: bool
    #: the magic of what a leader appends
    record_version: int = 2

    @cached_property
    def max_segment_ms(self) -> int:
        """``segment_ms``; what is compacted must not wait in the active segment for longer than its lag allows."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compact else self.segment_ms

    @cached_property
    def keeps_batches(self) -> bool:
        """Whether a leader neither converts nor stamps batches of magic 2 that have the type CreateTime."""
        return self.record_version == 2 and self.message_timestamp_type is TimestampType.CREATE_TIME

    @cached_property
    def has_record_checks(self) -> bool:
        """Whether a leader must read the records that it appends: their keys, or their timestamps."""
        limits = (self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms)
        checks_timestamps = self.message_timestamp_type is TimestampType.CREATE_TIME and limits != (_NO_LIMIT_MS,) * 2
        return self.is_compact or checks_timestamps

    def jitter_ms(self, random: Random) -> int:
        """How much earlier one segment is rolled by time."""
        return random.randrange(min(self.segment_jitter_ms, self.segment_ms)) if self.segment_jitter_ms else 0

    @classmethod
    def of(cls, topic: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None) -> LogConfig:
        """From the settings of a topic and of its broker, defaults included. Raises ConfigError."""
        return cls.effective(topic or {}, BrokerSettings(broker or {}))

    @classmethod
    def effective(cls, topic: Mapping[str, str], broker: BrokerSettings) -> LogConfig:
        """Raises ConfigError."""
        values = {
            entry.name: TOPIC_CONFIGS[entry.name].parse(entry.value)
            for entry in topic_entries(topic, broker)
            if entry.value is not None
        }

        def number(name: str) -> int:
            value = values[name]
            assert isinstance(value, int)
            return value

        def limit(name: str) -> int | None:
            return None if number(name) < 0 else number(name)

        def timestamp_limit(name: str) -> int:
            """Rule B3.28: the deprecated setting counts where this one has its default."""
            own = number(name)
            return number("message.timestamp.difference.max.ms") if own == _NO_LIMIT_MS else own

        policies, dirty_ratio = values["cleanup.policy"], values["min.cleanable.dirty.ratio"]
        assert isinstance(policies, tuple)
        assert isinstance(dirty_ratio, float)
        return cls(
            segment_bytes=number("segment.bytes"),
            segment_ms=number("segment.ms"),
            segment_jitter_ms=number("segment.jitter.ms"),
            segment_index_bytes=number("segment.index.bytes"),
            index_interval_bytes=number("index.interval.bytes"),
            flush_messages=number("flush.messages"),
            flush_ms=number("flush.ms"),
            retention_bytes=limit("retention.bytes"),
            retention_ms=limit("retention.ms"),
            file_delete_delay_ms=number("file.delete.delay.ms"),
            max_message_bytes=number("max.message.bytes"),
            is_compact="compact" in policies,
            is_delete="delete" in policies,
            delete_retention_ms=number("delete.retention.ms"),
            min_cleanable_dirty_ratio=dirty_ratio,
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            max_compaction_lag_ms=number("max.compaction.lag.ms"),
            compression_type=_CODECS.get(str(values["compression.type"])),
            message_timestamp_type=_TIMESTAMP_TYPES[str(values["message.timestamp.type"])],
            message_timestamp_before_max_ms=timestamp_limit("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms=timestamp_limit("message.timestamp.after.max.ms"),
            min_insync_replicas=number("min.insync.replicas"),
            message_downconversion_enable=bool(values["message.downconversion.enable"]),
            record_version=_record_version(topic, broker),
        )


def _record_version(topic: Mapping[str, str], broker: BrokerSettings) -> int:
    """Rule B3.23. A topic's format that the protocol between brokers does not know is ignored. Raises ConfigError."""
    protocol = _metadata_version(next(broker.synonyms("inter.broker.protocol.version")).value)
    if protocol >= _ONE_FORMAT_SINCE:
        return 2
    own = topic.get("message.format.version")
    if own is not None and (found := _metadata_version(own)) <= protocol:
        return found.record_version
    return _metadata_version(next(broker.synonyms("log.message.format.version")).value).record_version


def _metadata_version(text: str | None) -> MetadataVersion:
    try:
        return MetadataVersion.parse(text or "")
    except ValueError as e:
        raise ConfigError(str(e)) from None
