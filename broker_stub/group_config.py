"""The settings of the group coordinator, under Kafka's names (section 11 of the group rules)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kce.wire.configuration import Properties
from kce.wire.record import Codec

_MS_PER_MINUTE: Final = 60_000
_CLASSIC: Final = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Each setting has Kafka's name, with underscores; the retention is in milliseconds."""

    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    offset_metadata_max_bytes: int
    offsets_commit_required_acks: int
    offsets_commit_timeout_ms: int
    offsets_load_buffer_size: int
    offsets_retention_check_interval_ms: int
    offsets_retention_ms: int
    offsets_topic_compression_codec: Codec
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    @classmethod
    def from_properties(cls, read: Properties) -> GroupConfig:
        """Raises ConfigError."""
        _check_protocols(read)
        return cls(
            group_initial_rebalance_delay_ms=read.integer("group.initial.rebalance.delay.ms"),
            group_max_session_timeout_ms=read.integer("group.max.session.timeout.ms"),
            group_max_size=read.integer("group.max.size"),
            group_min_session_timeout_ms=read.integer("group.min.session.timeout.ms"),
            offset_metadata_max_bytes=read.integer("offset.metadata.max.bytes"),
            offsets_commit_required_acks=_required_acks(read),
            offsets_commit_timeout_ms=read.integer("offsets.commit.timeout.ms"),
            offsets_load_buffer_size=read.integer("offsets.load.buffer.size"),
            offsets_retention_check_interval_ms=read.integer("offsets.retention.check.interval.ms"),
            offsets_retention_ms=read.integer("offsets.retention.minutes") * _MS_PER_MINUTE,
            offsets_topic_compression_codec=_codec(read),
            offsets_topic_num_partitions=read.integer("offsets.topic.num.partitions"),
            offsets_topic_replication_factor=read.integer("offsets.topic.replication.factor"),
            offsets_topic_segment_bytes=read.integer("offsets.topic.segment.bytes"),
        )


def _required_acks(read: Properties) -> int:
    key, other = "offsets.commit.required.acks", "offsets.topic.replication.factor"
    acks, most = read.integer(key), read.integer(other)
    if not -1 <= acks <= most:
        raise read.refusal(key, f"must be from -1 to {most}, which is {other}")
    return acks


def _codec(read: Properties) -> Codec:
    key = "offsets.topic.compression.codec"
    try:
        return Codec(read.integer(key))
    except ValueError:
        known = ", ".join(f"{codec.value} ({codec.name.lower()})" for codec in Codec)
        raise read.refusal(key, f"must be one of {known}") from None


def _check_protocols(read: Properties) -> None:
    """Kafka in ZooKeeper mode has the classic protocol only."""
    key = "group.coordinator.rebalance.protocols"
    if set(read.elements(key)) != {_CLASSIC}:
        raise read.refusal(key, f"must be {_CLASSIC}: a broker in ZooKeeper mode has no other protocol")
