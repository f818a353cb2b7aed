"""Keys and values of the records in `__transaction_state` (rules T9.1 to T9.4)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.transactions.metadata import TransactionState, Values
from kce.broker_stub.versioned_records import decode, decode_value, encode, version_of
from kce.wire.errors import DecodeError, EncodeError
from kce.wire.primitives import INT8, INT16, INT32, INT64, STRING
from kce.wire.schema import Struct, field
from kce.wire.schema import struct as table
from kce.wire.vocabulary import TopicPartition, by_topic

_KEY_VERSION: Final = 0
_WRITTEN_VERSION: Final = 0
_LAST_VALUE_VERSION: Final = 1
_FIRST_FLEXIBLE_VALUE: Final = 1
_STATES: Final = {state.id: state for state in TransactionState}


@table
class TransactionLogKey(Struct):
    transactional_id: str = field(STRING, "0+")


@table
class TransactionLogPartitions(Struct):
    topic: str = field(STRING, "0+")
    partition_ids: tuple[int, ...] = field([INT32], "0+")


@table
class TransactionLogValue(Struct):
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    transaction_timeout_ms: int = field(INT32, "0+")
    transaction_status: int = field(INT8, "0+")
    transaction_partitions: tuple[TransactionLogPartitions, ...] | None = field(
        [TransactionLogPartitions], "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64, "0+")
    transaction_start_timestamp_ms: int = field(INT64, "0+")


def write_key(transactional_id: str) -> bytes:
    """Raises EncodeError."""
    return encode(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def read_key(data: bytes) -> str | None:
    """The transactional id; None for a record of a type that Kafka 3.9 does not have. Raises DecodeError."""
    if version_of(data, "a key") != _KEY_VERSION:
        return None
    return decode(TransactionLogKey, data, _KEY_VERSION).transactional_id


def write_value(values: Values) -> bytes:
    """Rule T9.3. Raises EncodeError."""
    partitions = None
    if values.state is not TransactionState.EMPTY:
        grouped = by_topic(dict.fromkeys(sorted(values.partitions)))
        partitions = tuple(
            TransactionLogPartitions(topic=topic, partition_ids=tuple(numbers)) for topic, numbers in grouped.items()
        )
    elif values.partitions:
        raise EncodeError(f"TransactionLogValue: an empty transaction has {len(values.partitions)} partitions")
    value = TransactionLogValue(
        producer_id=values.producer_id,
        producer_epoch=values.producer_epoch,
        transaction_timeout_ms=values.timeout_ms,
        transaction_status=values.state.id,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=values.last_update_ms,
        transaction_start_timestamp_ms=values.start_ms,
    )
    return encode(value, _WRITTEN_VERSION)


def read_value(data: bytes) -> Values:
    """Raises DecodeError, also without the partitions that every state but Empty needs (rule T9.3)."""
    value = decode_value(TransactionLogValue, data, _LAST_VALUE_VERSION, _FIRST_FLEXIBLE_VALUE)
    state = _STATES.get(value.transaction_status)
    if state is None:
        raise DecodeError(f"TransactionLogValue: no transaction has state {value.transaction_status}")
    partitions = () if state is TransactionState.EMPTY else value.transaction_partitions
    if partitions is None:
        raise DecodeError(f"TransactionLogValue: a transaction in state {state.name} has no partitions")
    return Values(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(entry.topic, number) for entry in partitions for number in entry.partition_ids
        ),
        last_update_ms=value.transaction_last_update_timestamp_ms,
        start_ms=value.transaction_start_timestamp_ms,
    )
