"""The settings of the transaction coordinator, under Kafka's names (section 14 of the transaction rules)."""

from __future__ import annotations

from dataclasses import dataclass

from kce.wire.configuration import Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Each setting has Kafka's name, with underscores, but for the three long ones."""

    transaction_max_timeout_ms: int
    transaction_state_log_load_buffer_size: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int
    #: `transaction.partition.verification.enable`, which may change later
    partition_verification_enable: bool
    #: `transaction.abort.timed.out.transaction.cleanup.interval.ms`
    abort_interval_ms: int
    #: `transaction.remove.expired.transaction.cleanup.interval.ms`
    expiry_interval_ms: int

    @classmethod
    def from_properties(cls, read: Properties) -> TransactionConfig:
        """Raises ConfigError."""
        return cls(
            transaction_max_timeout_ms=read.integer("transaction.max.timeout.ms"),
            transaction_state_log_load_buffer_size=read.integer("transaction.state.log.load.buffer.size"),
            transaction_state_log_min_isr=read.integer("transaction.state.log.min.isr"),
            transaction_state_log_num_partitions=read.integer("transaction.state.log.num.partitions"),
            transaction_state_log_replication_factor=read.integer("transaction.state.log.replication.factor"),
            transaction_state_log_segment_bytes=read.integer("transaction.state.log.segment.bytes"),
            partition_verification_enable=read.boolean("transaction.partition.verification.enable"),
            transactional_id_expiration_ms=read.integer("transactional.id.expiration.ms"),
            abort_interval_ms=read.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            expiry_interval_ms=read.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )
