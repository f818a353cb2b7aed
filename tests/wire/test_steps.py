"""Decoding in steps gives what decoding gives, and pauses often; arrays that are encoded already (wire/steps.py)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.wire.codegen import write_uvarint
from kce.wire.registry import API_KEYS, message_class
from kce.wire.steps import STEP_MASK, Steps, T, finish
from tests.wire.strategies import messages


def pauses(steps: Steps[T]) -> tuple[T, int]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return e.value, count
        count += 1


REQUESTS = [
    (cls, version)
    for api in API_KEYS
    if (cls := message_class(api.key, "request")) is not None
    for version in (cls.__versions__.first, cls.__versions__.last)
]


@given(st.data())
def test_a_request_decoded_in_steps_is_the_same(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(REQUESTS))
    message = data.draw(messages(cls, version))
    frame = wire.encode_request(message, api_version=version, correlation_id=7, client_id="c")
    assert finish(wire.decode_request_in_steps(frame)) == wire.decode_request(frame)
    for damaged in (frame[:-1], frame + b"\0"):
        with pytest.raises(wire.DecodeError) as expected:
            wire.decode_request(damaged)
        with pytest.raises(wire.DecodeError) as found:
            finish(wire.decode_request_in_steps(damaged))
        assert found.value.api_key == expected.value.api_key == cls.__api_key__
        assert isinstance(found.value, wire.TrailingBytes) == isinstance(expected.value, wire.TrailingBytes)


def test_an_unknown_version_of_api_versions_has_an_empty_body() -> None:  # rule B1.37
    frame = struct.pack(">hhih", 18, 99, 1, -1) + b"\0whatever"
    assert finish(wire.decode_request_in_steps(frame)) == wire.decode_request(frame)
    with pytest.raises(wire.UnsupportedVersion):
        finish(wire.decode_request_in_steps(struct.pack(">hhih", 3, 99, 1, -1) + b"\0whatever"))


def test_long_arrays_pause_often() -> None:
    for version in (1, 12):
        topics = tuple(wire.MetadataRequestTopic(name=f"t{i}") for i in range(50_000))
        message = wire.MetadataRequest(topics=topics)
        frame = wire.encode_request(message, api_version=version, correlation_id=1, client_id=None)
        (_, decoded), count = pauses(wire.decode_request_in_steps(frame))
        assert decoded == message
        assert count >= 50_000 // (STEP_MASK + 1)


def test_long_arrays_of_arrays_and_uniform_arrays_pause_often() -> None:
    states = tuple(wire.StopReplicaPartitionState(partition_index=i) for i in range(100))
    topics = tuple(wire.StopReplicaTopicState(topic_name=str(i), partition_states=states) for i in range(500))
    stop = wire.StopReplicaRequest(topic_states=topics)
    uniform = tuple(wire.LeaderAndIsrPartitionState(partition_index=i, isr=(1, 2)) for i in range(50_000))
    lead = wire.LeaderAndIsrRequest(topic_states=(wire.LeaderAndIsrTopicState(partition_states=uniform),))
    for message, version in ((stop, 4), (lead, 7)):
        frame = wire.encode_request(message, api_version=version, correlation_id=1, client_id=None)
        (_, decoded), count = pauses(wire.decode_request_in_steps(frame))
        assert decoded == message
        assert count >= 45


def test_long_sections_of_tags_pause_often() -> None:
    section = write_uvarint(50_000) + b"".join(write_uvarint(tag) + b"\0" for tag in range(50_000))
    body = wire.encode_request(wire.MetadataRequest(), api_version=12, correlation_id=1, client_id=None)[11:]
    leading = struct.pack(">hhih", 3, 12, 1, -1)
    for frame in (leading + section + body, leading + b"\0" + body[:-1] + section):
        (_, message), count = pauses(wire.decode_request_in_steps(frame))
        assert isinstance(message, wire.MetadataRequest)
        assert count >= 50_000 // (STEP_MASK + 1)


def test_encoded_elements_take_the_place_of_an_array() -> None:
    topics = tuple(wire.MetadataResponseTopic(name=name, error_code=3) for name in "abc")
    for version in (0, 8, 12):
        expected = wire.encode_response(wire.MetadataResponse(topics=topics), api_version=version, correlation_id=1)
        a, b, c = [wire.encode_part(topic, api_key=3, api_version=version) for topic in topics]
        encoded = wire.Encoded(3, [a + b, c])
        message = wire.MetadataResponse(topics=encoded)  # type: ignore[arg-type]
        assert wire.encode_response(message, api_version=version, correlation_id=1) == expected
    with pytest.raises(wire.EncodeError, match="MetadataResponseTopic 12"):
        wire.encode_part(wire.MetadataResponseTopic(error_code=1 << 20), api_key=3, api_version=12)
