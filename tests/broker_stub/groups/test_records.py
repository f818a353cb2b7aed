"""Records of __consumer_offsets: Kafka's bytes, and any bytes (rules G9.1 to G9.8)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.broker_stub.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadataValue,
    MemberMetadataValue,
    OffsetKey,
    UnknownKey,
    group_key,
    group_version,
    offset_key,
    offset_version,
    read_group,
    read_key,
    read_offset,
    write_group,
    write_offset,
)
from kce.wire import DecodeError, EncodeError
from kce.wire.metadata_version import LATEST
from kce.wire.vocabulary import TopicPartition

GROUP_VERSION, OFFSET_VERSION = group_version(LATEST), offset_version(LATEST)
TEXT = st.text(max_size=9)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
COMMITTED = st.builds(
    CommittedOffset, offset=INT64, commit_timestamp=INT64, metadata=TEXT, leader_epoch=INT32, expire_timestamp=st.none()
)
MEMBERS = st.builds(
    MemberMetadataValue, member_id=TEXT, group_instance_id=st.none() | TEXT, client_id=TEXT, client_host=TEXT,
    rebalance_timeout=INT32, session_timeout=INT32, subscription=st.binary(max_size=9),
    assignment=st.binary(max_size=9),
)  # fmt: skip
GROUPS = st.builds(
    GroupMetadataValue, protocol_type=TEXT, generation=INT32, protocol=st.none() | TEXT, leader=st.none() | TEXT,
    current_state_timestamp=INT64, members=st.lists(MEMBERS, max_size=3).map(tuple),
)  # fmt: skip


def test_the_bytes_of_an_offset() -> None:  # rule G9.11
    assert offset_key("g", TopicPartition("t", 1)) == bytes.fromhex("0001 0001 67 0001 74 00000001")
    written = write_offset(CommittedOffset(offset=5, commit_timestamp=7), OFFSET_VERSION)
    assert written == bytes.fromhex("0003 0000000000000005 FFFFFFFF 0000 0000000000000007")


def test_the_bytes_of_a_key_of_a_group() -> None:  # rule G9.2
    assert group_key("g") == bytes.fromhex("0002 0001 67")
    assert group_key("\u00e9") == bytes.fromhex("0002 0002 C3A9")


def test_names_of_groups_that_are_too_long() -> None:
    for longest in ("g" * (2**15 - 1), "\u00e9" * (2**14 - 1)):
        assert read_key(group_key(longest)) == GroupKey(longest)
        with pytest.raises(EncodeError):
            group_key(longest + longest[0])


def test_text_that_is_not_utf_8_is_read_as_kafka_reads_it() -> None:
    key = bytes.fromhex("0001 0002 67FF 0003 74EDA0 00000001")
    assert read_key(key) == OffsetKey("g\ufffd", TopicPartition("t\ufffd", 1))
    value = bytes.fromhex("0003 0000000000000005 FFFFFFFF 0001 FC 0000000000000007")
    assert read_offset(value).metadata == "\ufffd"
    with pytest.raises(DecodeError, match="OffsetCommitValue 3"):
        read_offset(value[:-1])


@given(TEXT, TEXT, INT32)
def test_keys(group: str, topic: str, partition: int) -> None:
    key = OffsetKey(group, TopicPartition(topic, partition))
    assert read_key(offset_key(*key)) == key
    assert read_key(b"\0\0" + offset_key(*key)[2:]) == key  # version 0
    assert read_key(group_key(group)) == GroupKey(group)


@given(COMMITTED)
def test_offsets(committed: CommittedOffset) -> None:
    assert read_offset(write_offset(committed, OFFSET_VERSION)) == committed


@given(GROUPS)
def test_groups(value: GroupMetadataValue) -> None:
    assert read_group(write_group(value, GROUP_VERSION)) == value


#: some with a version that exists
VERSIONED = st.builds(lambda version, rest: bytes([0, version]) + rest, st.integers(0, 5), st.binary(max_size=80))
ANY_BYTES = st.binary(max_size=60) | VERSIONED


@pytest.mark.parametrize("read", [read_key, read_offset, read_group])
@given(data=ANY_BYTES)
def test_any_bytes_are_read_or_refused(read: object, data: bytes) -> None:
    try:
        found = read(data)  # type: ignore[operator]
    except DecodeError:
        return
    assert isinstance(found, (OffsetKey, GroupKey, UnknownKey, CommittedOffset, GroupMetadataValue))


@settings(deadline=None)
@given(GROUPS, st.data())
def test_a_record_that_was_cut_is_refused(value: GroupMetadataValue, data: st.DataObject) -> None:
    written = write_group(value, GROUP_VERSION)
    with pytest.raises(DecodeError):
        read_group(written[: data.draw(st.integers(0, len(written) - 1))])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(EncodeError):
        offset_key("g" * 40_000, TopicPartition("t", 0))
    with pytest.raises(EncodeError):
        write_offset(CommittedOffset(offset=2**63, commit_timestamp=0), OFFSET_VERSION)
