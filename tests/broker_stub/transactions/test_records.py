"""Records of __transaction_state: Kafka's bytes, and any bytes (rules T9.1 to T9.4)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce.broker_stub.transactions.metadata import TransactionState, Values
from kce.broker_stub.transactions.records import read_key, read_value, write_key, write_value
from kce.wire.errors import DecodeError, EncodeError
from kce.wire.vocabulary import TopicPartition

EMPTY = Values(producer_id=5, producer_epoch=0, timeout_ms=60000, last_update_ms=7)
ONGOING = EMPTY._replace(state=TransactionState.ONGOING, partitions=frozenset({TopicPartition("a", 1)}), start_ms=6)
EMPTY_BYTES = bytes.fromhex("0000 0000000000000005 0000 0000EA60 00 FFFFFFFF 0000000000000007 FFFFFFFFFFFFFFFF")
ONGOING_BYTES = bytes.fromhex(
    "0000 0000000000000005 0000 0000EA60 01 00000001 0001 61 00000001 00000001 0000000000000007 0000000000000006"
)
#: version 1 of the same: compact arrays and strings, and an unknown tagged field
FLEXIBLE_BYTES = bytes.fromhex(
    "0001 0000000000000005 0000 0000EA60 01 02 02 61 02 00000001 00 0000000000000007 0000000000000006 01 09 02 FFFF"
)


def test_kafkas_bytes() -> None:  # rule T9.4
    assert write_key("t") == bytes.fromhex("0000 0001 74")
    assert read_key(write_key("t")) == "t"
    assert write_value(EMPTY) == EMPTY_BYTES
    assert write_value(ONGOING) == ONGOING_BYTES
    assert (read_value(EMPTY_BYTES), read_value(ONGOING_BYTES)) == (EMPTY, ONGOING)


def test_the_flexible_version_is_read() -> None:  # rules T9.2, T9.3
    assert read_value(FLEXIBLE_BYTES) == ONGOING


def test_a_completed_transaction_has_an_empty_array() -> None:  # rule T9.3
    done = EMPTY._replace(state=TransactionState.COMPLETE_COMMIT)
    assert write_value(done)[17:21] == bytes(4)
    assert read_value(write_value(done)) == done


def test_partitions_that_do_not_belong_to_a_state() -> None:
    """In Kafka, too, an empty transaction has none, whatever is written, and no other is read without (rule T9.3)."""
    assert read_value(ONGOING_BYTES[:16] + b"\0" + ONGOING_BYTES[17:]) == EMPTY._replace(start_ms=6)
    for state in range(1, 8):
        with pytest.raises(DecodeError, match="no partitions"):
            read_value(EMPTY_BYTES[:16] + bytes([state]) + EMPTY_BYTES[17:])


def test_what_is_unknown() -> None:  # rules T9.1, T9.3
    assert read_key(bytes.fromhex("0001 0001 74")) is None
    with pytest.raises(DecodeError, match="versions 0-1, not 2"):
        read_value(b"\0\2" + EMPTY_BYTES[2:])
    with pytest.raises(DecodeError, match="no transaction has state 8"):
        read_value(EMPTY_BYTES[:16] + b"\x08" + EMPTY_BYTES[17:])
    with pytest.raises(EncodeError):
        write_key("x" * 40_000)


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    for read in (read_key, read_value):
        with contextlib.suppress(DecodeError):
            read(data)  # type: ignore[operator]


@given(st.integers(0, len(FLEXIBLE_BYTES) - 1), st.sampled_from([EMPTY_BYTES, ONGOING_BYTES, FLEXIBLE_BYTES]))
def test_a_value_that_was_cut_is_refused(length: int, data: bytes) -> None:
    with pytest.raises(DecodeError):
        read_value(data[: min(length, len(data) - 1)])


PARTITIONS = st.frozensets(st.builds(TopicPartition, st.text("abc", min_size=1), st.integers(0, 2**31 - 1)), max_size=5)


@given(
    st.builds(
        Values,
        producer_id=st.integers(0, 2**63 - 1), producer_epoch=st.integers(0, 2**15 - 1),
        timeout_ms=st.integers(1, 2**31 - 1), last_update_ms=st.integers(0, 2**63 - 1),
        start_ms=st.integers(-1, 2**63 - 1), partitions=PARTITIONS, last_producer_id=st.just(-1),
        last_producer_epoch=st.just(-1),
        state=st.sampled_from([s for s in TransactionState if s is not TransactionState.EMPTY]),
    )
)  # fmt: skip
def test_what_is_written_is_read(values: Values) -> None:
    assert read_value(write_value(values)) == values
