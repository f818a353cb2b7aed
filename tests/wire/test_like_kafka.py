"""What a decoder refuses and Kafka's brokers read (rule B1.35). That Kafka does is in tests/interop/test_twins.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.wire.steps import finish
from tests.wire.strategies import messages
from tests.wire.test_steps import REQUESTS


def request(message: wire.Message, version: int, client_id: str | None = "c") -> bytes:
    return wire.encode_request(message, api_version=version, correlation_id=7, client_id=client_id)


def read(frame: bytes, most: int = 1000) -> tuple[wire.Header, wire.Message]:
    """As Kafka reads it."""
    with pytest.raises(wire.DecodeError) as refused:
        wire.decode_request(frame)
    return finish(wire.decode_like_kafka(frame, refused.value, most))


@given(st.data())
def test_what_is_not_refused_is_the_same(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(REQUESTS))
    frame = request(data.draw(messages(cls, version)), version)
    assert finish(wire.decode_request_in_steps(frame, like_kafka=True)) == wire.decode_request(frame)


def test_every_negative_length_of_what_may_be_null_is_null() -> None:
    frame = request(wire.MetadataRequest(topics=None), 1)
    assert read(frame[:-4] + b"\xff\0\0\0")[1] == wire.MetadataRequest(topics=None)
    produced = wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=5)
    frame = request(produced, 0)
    assert read(frame.replace(b"\xff\xff", b"\x80\0"))[1] == produced
    header, _ = read(request(wire.MetadataRequest(), 1, None).replace(b"\xff\xff", b"\xff\xfe", 1))
    assert header.client_id is None


def test_of_what_may_not_be_null_it_is_refused() -> None:
    frame = request(wire.FindCoordinatorRequest(key=""), 0)
    for length in (b"\xff\xff", b"\xff\xfe"):
        with pytest.raises(wire.DecodeError, match="at key"):
            read(frame[:-2] + length)


def fetch(tags: bytes) -> bytes:
    """A request with these tagged fields in its body."""
    return request(wire.FetchRequest(), 12)[:-1] + tags


@pytest.mark.parametrize(
    ("message", "version", "tag"),
    [(wire.FetchRequest(), 12, 1), (wire.FetchRequest(), 14, 1), (wire.UpdateMetadataRequest(), 7, 0)],
)
def test_tags_of_another_version_are_refused(message: wire.Message, version: int, tag: int) -> None:
    """Of this one, or of none, they are not. That Kafka does so is in tests/interop/test_twins.py."""

    def tagged(version: int, tag: int) -> bytes:
        return request(message, version)[:-1] + bytes((1, tag, 1, 0))

    with pytest.raises(wire.DecodeError, match=f"tag {tag} is of another version"):
        wire.decode_request(tagged(version, tag))
    for read_frame in (read, lambda frame: finish(wire.decode_request_in_steps(frame))):
        with pytest.raises(wire.DecodeError):
            read_frame(tagged(version, tag))
    unknown = wire.decode_request(tagged(version, 9))[1]._unknown_tagged_fields
    assert unknown == (wire.TaggedField(9, b"\0"),)


@pytest.mark.parametrize(
    ("tags", "cluster_id", "unknown"),
    [
        (b"\2\x09\1a\x08\1b", None, (wire.TaggedField(9, b"a"), wire.TaggedField(8, b"b"))),
        (b"\2\x09\1a\x09\1b", None, (wire.TaggedField(9, b"a"), wire.TaggedField(9, b"b"))),
        (b"\2\0\2\2x\0\2\2y", "y", ()),
        (b"\1\0\1\2x", "x", ()),  # a known field is as long as its value
        (b"\1\0\x7f\2x", "x", ()),
        (b"\xff\xff\xff\xff\x4e", None, ()),  # a negative number of fields, whose fifth byte has too many bits
    ],
)
def test_tagged_fields_that_are_not_quite_right(
    tags: bytes, cluster_id: str | None, unknown: tuple[wire.TaggedField, ...]
) -> None:
    message = read(fetch(tags))[1]
    assert isinstance(message, wire.FetchRequest)
    assert (message.cluster_id, message._unknown_tagged_fields) == (cluster_id, unknown)


@pytest.mark.parametrize(
    "tags",
    [
        b"\1\x09\x7fa",  # an unknown one is as long as it says
        b"\1\x09\xff\xff\xff\xff\x4e",
        b"\3\x09\1a",
        b"\xff\xff\xff\xff\xff\1",  # longer than five bytes
    ],
)
def test_tagged_fields_that_kafka_refuses_too(tags: bytes) -> None:
    with pytest.raises(wire.DecodeError, match="tagged_fields"):
        read(fetch(tags))


def test_tagged_fields_of_a_header_in_any_order() -> None:
    frame = request(wire.MetadataRequest(), 9)
    header, message = read(frame[:11] + b"\2\2\0\1\0" + frame[12:])
    assert (header.client_id, message) == ("c", wire.MetadataRequest())


def test_all_of_it_together_and_bytes_behind() -> None:
    frame = request(wire.FetchRequest(), 12, "\ufffd")[:-1] + b"\2\x09\0\x08\0"
    header, message = read(frame.replace("\ufffd".encode(), b"\xed\xa0\x80") + b"rest")
    assert header.client_id == "\ufffd"
    assert isinstance(message, wire.FetchRequest)


def test_the_first_refusal_is_raised_if_kafka_refuses_too() -> None:
    frame = request(wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name="a"),) * 2), 1)
    with pytest.raises(wire.InvalidValue, match=r"not UTF-8.*topics\[0\]"):
        read(frame.replace(b"\1a", b"\1\xff", 1)[:-1])


def test_it_makes_no_more_elements_than_wanted() -> None:
    topics = tuple(wire.MetadataRequestTopic(name="\ufffd") for _ in range(100))
    frame = request(wire.MetadataRequest(topics=topics), 1).replace("\ufffd".encode(), b"\xff\xff\xff")
    with pytest.raises(wire.TooManyElements):
        read(frame, 99)
    message = read(frame, 100)[1]
    assert isinstance(message, wire.MetadataRequest)
    assert {topic.name for topic in message.topics or ()} == {"\ufffd" * 3}
