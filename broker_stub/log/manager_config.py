"""The configuration of ``LogManager``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kce.wire.configuration import Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig:
    """Each setting has Kafka's name, with underscores."""

    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    message_max_bytes: int
    log_initial_task_delay_ms: int
    log_retention_check_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_segment_delete_delay_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LogManagerConfig:
        """Raises ConfigError."""
        read = Properties(properties)
        return cls(
            log_cleaner_backoff_ms=read.integer("log.cleaner.backoff.ms"),
            log_cleaner_dedupe_buffer_size=read.integer("log.cleaner.dedupe.buffer.size"),
            log_cleaner_enable=read.boolean("log.cleaner.enable"),
            log_cleaner_io_buffer_load_factor=read.number("log.cleaner.io.buffer.load.factor"),
            log_cleaner_io_buffer_size=read.integer("log.cleaner.io.buffer.size"),
            log_cleaner_io_max_bytes_per_second=read.number("log.cleaner.io.max.bytes.per.second"),
            log_cleaner_threads=read.integer("log.cleaner.threads"),
            message_max_bytes=read.integer("message.max.bytes"),
            log_initial_task_delay_ms=read.integer("log.initial.task.delay.ms"),
            log_retention_check_interval_ms=read.integer("log.retention.check.interval.ms"),
            log_flush_scheduler_interval_ms=read.integer("log.flush.scheduler.interval.ms"),
            log_flush_offset_checkpoint_interval_ms=read.integer("log.flush.offset.checkpoint.interval.ms"),
            log_flush_start_offset_checkpoint_interval_ms=read.integer("log.flush.start.offset.checkpoint.interval.ms"),
            log_segment_delete_delay_ms=read.integer("log.segment.delete.delay.ms"),
            replica_high_watermark_checkpoint_interval_ms=read.integer("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_ms=read.integer("producer.id.expiration.ms"),
            producer_id_expiration_check_interval_ms=read.integer("producer.id.expiration.check.interval.ms"),
        )

    @property
    def of_cleaner(self) -> tuple[float, ...]:
        """What may change while the broker runs; Kafka's cleaner then starts anew (rule B6.22)."""
        return (
            self.log_cleaner_backoff_ms,
            self.log_cleaner_dedupe_buffer_size,
            self.log_cleaner_io_buffer_load_factor,
            self.log_cleaner_io_buffer_size,
            self.log_cleaner_io_max_bytes_per_second,
            self.log_cleaner_threads,
            self.message_max_bytes,
        )
