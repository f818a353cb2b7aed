"""Messages with parts that are not in memory."""

from __future__ import annotations

from typing import Any

import pytest

from kce import wire
from kce.wire.payload import Parts, Stored


class Elsewhere(Stored):
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads = 0

    def __len__(self) -> int:
        return len(self.data)

    def read(self) -> bytes:
        self.reads += 1
        return self.data


def fetched(*records: Any) -> wire.FetchResponse:
    partitions = tuple(wire.FetchResponsePartitionData(high_watermark=7, records=each) for each in records)
    return wire.FetchResponse(responses=(wire.FetchableTopicResponse(partitions=partitions),))


@pytest.mark.parametrize("version", range(18))
def test_records_that_are_stored_stay_where_they_are(version: int) -> None:
    first, second = Elsewhere(b"abc" * 100), Elsewhere(b"de")
    payload = wire.encode_payload(fetched(first, b"x", second, first), api_version=version, correlation_id=5)
    expected = wire.encode_response(
        fetched(first.data, b"x", second.data, first.data), api_version=version, correlation_id=5
    )
    assert isinstance(payload, Parts)
    assert (len(payload), first.reads, second.reads) == (len(expected), 0, 0)
    assert [isinstance(part, Stored) for part in payload.parts][:6] == [False, True, False, True, False, True]
    assert payload.read() == expected


def test_a_message_in_memory_is_bytes() -> None:
    message = fetched(b"abc", memoryview(b"de"))
    payload = wire.encode_payload(message, api_version=12, correlation_id=5)
    assert payload == wire.encode_response(message, api_version=12, correlation_id=5)


def test_each_payload_has_its_length_before_it() -> None:
    stored = Elsewhere(b"abc")
    parts = wire.frame_parts([b"x", Parts([b"1", memoryview(b"2"), stored, stored]), b"", Parts([stored])])
    assert parts == [
        b"\0\0\0\1x\0\0\0\x0812", stored, stored, b"\0\0\0\0\0\0\0\3", stored,
    ]  # fmt: skip
    assert wire.frame_parts([]) == []


def test_what_is_stored_cannot_be_bytes() -> None:
    with pytest.raises(wire.EncodeError, match="FetchResponse has records that are not in memory"):
        wire.encode_response(fetched(Elsewhere(b"x")), api_version=12, correlation_id=5)
    with pytest.raises(wire.EncodeError, match="bytes expected, not Elsewhere"):
        wire.encode_payload(wire.SaslAuthenticateResponse(auth_bytes=Elsewhere(b"x")), api_version=0, correlation_id=5)  # type: ignore[arg-type]
