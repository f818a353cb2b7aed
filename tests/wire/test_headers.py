"""Headers against their Construct definition, damaged ones, and the time that tagged fields take (rules 13.3, 13.4)."""

from __future__ import annotations

import io
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.wire.codegen import write_uvarint
from kce.wire.headers import Header, read_request_header, request_header, skip_tagged_fields
from kce.wire.primitives import STRING, Refused, TaggedFields
from kce.wire.registry import BY_NAME

METADATA = BY_NAME["Metadata"]
REFERENCE = TaggedFields({})
CLIENT_ID = STRING.construct_for(compact=False, nullable=True)


def tagged(fields: dict[int, bytes]) -> bytes:
    parts = [write_uvarint(len(fields))]
    for tag, data in sorted(fields.items()):
        parts += [write_uvarint(tag), write_uvarint(len(data)), data]
    return b"".join(parts)


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=200), max_size=5), st.binary(max_size=3))
def test_tagged_fields_are_skipped(fields: dict[int, bytes], after: bytes) -> None:
    section = tagged(fields)
    assert skip_tagged_fields(b"ab" + section + after, 2) == 2 + len(section)


@given(st.binary(max_size=40))
def test_tagged_fields_are_refused_like_the_reference_refuses_them(section: bytes) -> None:
    stream = io.BytesIO(section)
    try:
        REFERENCE._parse(stream, None, "")
    except Refused as e:
        with pytest.raises(e.kind):
            skip_tagged_fields(section, 0)
    else:
        assert skip_tagged_fields(section, 0) == stream.tell()


@given(st.one_of(st.none(), st.text(max_size=40)), st.integers(-(2**31), 2**31 - 1), st.integers(0, 12))
def test_a_request_header_is_its_definition(client_id: str | None, correlation_id: int, version: int) -> None:
    header = Header(METADATA.key, version, correlation_id, client_id)
    expected = io.BytesIO()
    expected.write(struct.pack(">hhi", METADATA.key, version, correlation_id))
    CLIENT_ID._build(client_id, expected, None, "")
    expected.write(b"\0" if version >= 9 else b"")
    assert request_header(METADATA, header) == expected.getvalue()
    assert read_request_header(expected.getvalue() + b"body") == (METADATA, header, expected.tell())


@pytest.mark.parametrize(
    ("rest", "kind", "text"),
    [
        (b"\0", wire.Truncated, "the frame ends inside the field at client_id"),
        (b"\xff\xf9", wire.LimitExceeded, "negative length -7 at client_id"),
        (b"\0\5me", wire.Truncated, "5 bytes announced, 2 left at client_id"),
        (b"\0\1\xff", wire.InvalidValue, "not UTF-8: invalid start byte at byte 0 at client_id"),
        (b"\xff\xff", wire.Truncated, "the frame ends inside the tagged fields"),
        (b"\xff\xff\x7f\0\0", wire.LimitExceeded, "127 tagged fields announced, at most 1 can follow"),
        (b"\xff\xff\2\5\0\5\0", wire.InvalidValue, "tag 5 follows tag 5"),
        (b"\xff\xff\1\5\3ab", wire.Truncated, "the frame ends inside the tagged fields"),
    ],
)
def test_a_damaged_header_is_explained(rest: bytes, kind: type[wire.DecodeError], text: str) -> None:
    with pytest.raises(kind) as caught:
        wire.decode_request(struct.pack(">hhi", METADATA.key, 12, 7) + rest)
    assert str(caught.value) == f"request header of Metadata 12: {text}"
    assert (caught.value.api_key, caught.value.api_version, caught.value.correlation_id) == (METADATA.key, 12, 7)


@pytest.mark.parametrize("client_id", ["x" * 32768, "\ud800", 7])
def test_a_client_id_that_does_not_fit_is_refused(client_id: str) -> None:
    with pytest.raises(wire.EncodeError, match=r"header of Metadata 12: .* at client_id"):
        request_header(METADATA, Header(METADATA.key, 12, 1, client_id))


@pytest.mark.heavy
def test_a_million_tagged_fields_take_time_linear_in_their_number() -> None:
    def seconds(count: int) -> float:
        section = tagged(dict.fromkeys(range(count), b""))
        begin = time.perf_counter()
        assert skip_tagged_fields(section, 0) == len(section)
        return time.perf_counter() - begin

    few, many = min(seconds(100_000) for _ in range(3)), min(seconds(1_000_000) for _ in range(3))
    assert many < 30 * few
    assert many < 2


def test_elements_can_be_limited() -> None:
    request = wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name="") for _ in range(100)))
    frame = wire.encode_request(request, api_version=12, correlation_id=1, client_id=None)
    assert wire.decode_request(frame, 100)[1] == request
    with pytest.raises(wire.TooManyElements, match="array of 100 elements"):
        wire.decode_request(frame, 99)
    header = struct.pack(">hhih", METADATA.key, 12, 1, -1) + tagged(dict.fromkeys(range(100), b"x"))
    body = frame[len(struct.pack(">hhih", 3, 12, 1, -1)) + 1 :]
    assert wire.decode_request(header + body, 100)[1] == request
    with pytest.raises(wire.TooManyElements, match="100 tagged fields"):
        wire.decode_request(header + body, 99)


def test_elements_of_nested_arrays_count_together() -> None:
    states = tuple(wire.StopReplicaPartitionState(partition_index=i) for i in range(6))
    topics = tuple(wire.StopReplicaTopicState(topic_name=str(i), partition_states=states) for i in range(4))
    frame = wire.encode_request(
        wire.StopReplicaRequest(topic_states=topics), api_version=4, correlation_id=1, client_id=None
    )
    wire.decode_request(frame, 4 + 24)
    with pytest.raises(wire.TooManyElements):
        wire.decode_request(frame, 4 + 23)


def test_a_long_damaged_request_is_refused_without_a_search_for_the_place() -> None:
    request = wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name="topic") for _ in range(4000)))
    frame = wire.encode_request(request, api_version=12, correlation_id=1, client_id=None)
    damaged = bytearray(frame)
    damaged[-7] = 0xFF  # in the last name
    with pytest.raises(wire.InvalidValue, match="MetadataRequest 12: damaged, and too long to say where"):
        wire.decode_request(bytes(damaged))
