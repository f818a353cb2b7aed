"""Messages as plain data and as JSON, and summaries of record sets.

Covers: kce.wire.json_text
"""

from __future__ import annotations

import json
import random
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.wire.json_text import json_text
from kce.wire.outline import outline
from tests.wire import seeded
from tests.wire.strategies import MESSAGES


def batch(base_offset: int, count: int, payload: bytes = b"") -> bytes:
    """A batch of magic 2, as far as an outline looks at it."""
    rest = struct.pack(">iBIhiqqqhii", 0, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count) + payload
    return struct.pack(">qi", base_offset, len(rest)) + rest


def message(offset: int, magic: int, attributes: int = 0, payload: bytes = b"") -> bytes:
    rest = struct.pack(">IBB", 0, magic, attributes) + bytes(8 * magic) + struct.pack(">ii", -1, len(payload)) + payload
    return struct.pack(">qi", offset, len(rest)) + rest


def summary(**values: object) -> dict[str, object]:
    return {"batches": 0, "records": 0, "base_offset": None, "last_offset": None, "cut_bytes": 0, **values}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, None),
        (b"", summary(bytes=0)),
        (batch(5, 3, b"x" * 30), summary(bytes=91, batches=1, records=3, base_offset=5, last_offset=7)),
        (
            batch(5, 3) + batch(9, 1) + batch(10, 2, b"y" * 20)[:-1],  # rule B4.16
            summary(bytes=202, batches=2, records=4, base_offset=5, last_offset=9, cut_bytes=80),
        ),
        (
            message(0, 0, payload=b"a") + message(1, 1),
            summary(bytes=61, batches=2, records=2, base_offset=0, last_offset=1),
        ),
        (
            message(7, 1, attributes=2, payload=b"snappy"),
            summary(bytes=40, batches=1, records=None, base_offset=None, last_offset=7),
        ),
        (bytes(11), summary(bytes=11, cut_bytes=11)),
        (bytes(100), summary(bytes=100, cut_bytes=100)),  # a length of nothing
        (struct.pack(">qi", 0, -5) + bytes(100), summary(bytes=112, cut_bytes=112)),
        (batch(0, 1)[:16] + b"\x03" + bytes(60), summary(bytes=77, cut_bytes=77)),  # a magic that is none
    ],
)
def test_outline_matches_batch_headers(data: bytes | None, expected: dict[str, object] | None) -> None:
    assert outline(data) == expected
    if data is not None:
        assert outline(memoryview(data)) == expected


@given(st.binary(max_size=200), st.integers(0, 3))
def test_outline_never_raises(noise: bytes, batches: int) -> None:
    held = outline(b"".join(batch(i, 1) for i in range(batches)) + noise)
    assert held is not None
    assert held["batches"] >= batches
    assert 0 <= held["cut_bytes"] <= len(noise)


def test_as_dict_returns_fields_of_the_version() -> None:
    state = wire.LeaderAndIsrPartitionState(leader=2, isr=(2, 3), replicas=(2, 3), is_new=True)
    topic = wire.LeaderAndIsrTopicState(topic_name="orders", topic_id=uuid.UUID(int=9), partition_states=(state,))
    sample = wire.LeaderAndIsrRequest(controller_id=1, topic_states=(topic,))
    plain = wire.as_dict(sample, 4)
    assert plain["topic_states"][0]["partition_states"][0]["isr"] == [2, 3]
    assert plain["topic_states"][0]["partition_states"][0]["is_new"] is True
    assert "topic_id" not in plain["topic_states"][0]
    assert wire.as_dict(sample, 5)["topic_states"][0]["topic_id"] == str(uuid.UUID(int=9))


def test_as_dict_hides_records_and_credentials() -> None:
    partition = wire.PartitionProduceData(records=batch(0, 2, b"payload"))
    request = wire.ProduceRequest(topic_data=(wire.TopicProduceData(name="t", partition_data=(partition,)),))
    plain = wire.as_dict(request, 9)["topic_data"][0]["partition_data"][0]
    assert plain["records"] == summary(bytes=68, batches=1, records=2, base_offset=0, last_offset=1)
    assert wire.as_dict(wire.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2) == {"auth_bytes": {"bytes": 13}}
    assert wire.as_dict(wire.EnvelopeResponse(), 0)["response_data"] is None
    assert wire.as_dict(wire.SyncGroupResponse(assignment=b"\0\1"), 3)["assignment"] == "0001"


@pytest.mark.parametrize("payloads", [False, True])
def test_json_text_is_that_of_as_dict(payloads: bool) -> None:
    """Every message in every version, with random values."""
    for cls, version in MESSAGES:
        chance = random.Random(f"{cls.__name__} {version}")
        for message in (cls(), *(seeded.message(chance, cls, version) for _ in range(4))):
            plain = wire.as_dict(message, version, payloads=payloads)
            expected = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
            assert json_text(message, version, payloads=payloads) == expected, (cls.__name__, version)
