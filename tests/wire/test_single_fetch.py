"""Fetch of a single topic: the same bytes and messages as those of the general codec, and nothing else is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kce import wire
from kce.wire import single_fetch
from kce.wire.single_fetch import MOST, Answered, Asked, Found

ID = UUID(int=2**127 + 5)
ASKED = Asked(3, 8, 2**40, 6, 12, 4_000)
PARTITION = wire.FetchPartition(
    partition=3, current_leader_epoch=8, fetch_offset=2**40, last_fetched_epoch=6, log_start_offset=12,
    partition_max_bytes=4_000,
)  # fmt: skip
REQUEST = wire.FetchRequest(
    replica_state=wire.ReplicaState(replica_id=2, replica_epoch=2**35), max_wait_ms=500, min_bytes=1, max_bytes=10_000,
    session_id=44, session_epoch=7, topics=(wire.FetchTopic(topic_id=ID, partitions=(PARTITION,)),),
)  # fmt: skip
DATA = wire.FetchResponsePartitionData(
    partition_index=3, error_code=0, high_watermark=2**41, last_stable_offset=2**40, log_start_offset=12,
    aborted_transactions=None, records=b"x" * 200,
)  # fmt: skip


def encoded(request: wire.FetchRequest, version: int = 17, client_id: str | None = "me") -> bytes:
    return wire.encode_request(request, api_version=version, correlation_id=9, client_id=client_id)


def with_partition(**changes: Any) -> wire.FetchRequest:
    topic = wire.FetchTopic(topic_id=ID, partitions=(replace(PARTITION, **changes),))
    return replace(REQUEST, topics=(topic,))


def messages(frame: bytes) -> tuple[wire.Header, wire.FetchRequest]:
    found = single_fetch.decode_request(frame)
    assert found is not None
    return found[0], found[1].message()


@pytest.mark.parametrize("version", single_fetch.REQUESTS)
@pytest.mark.parametrize("count", [1, 2, MOST])
def test_a_request(version: int, count: int) -> None:
    frame = single_fetch.encode_request(
        500, 1, 10_000, 44, 7, ID.bytes, [ASKED._replace(partition=3 + i) for i in range(count)], 2, 2**35,
        api_version=version, correlation_id=9, client_id=b"me",
    )  # fmt: skip
    partitions = tuple(replace(PARTITION, partition=3 + i) for i in range(count))
    assert frame == encoded(replace(REQUEST, topics=(wire.FetchTopic(topic_id=ID, partitions=partitions),)), version)


@pytest.mark.parametrize("version", single_fetch.REQUESTS)
@pytest.mark.parametrize("request_", [REQUEST, replace(REQUEST, isolation_level=1)])
@pytest.mark.parametrize("client_id", ["me", ""])
def test_a_request_for_one_partition_is_decoded(version: int, request_: wire.FetchRequest, client_id: str) -> None:
    frame = encoded(request_, version, client_id)
    assert messages(frame) == wire.decode_request(frame)


@pytest.mark.parametrize(
    "frame",
    [
        encoded(replace(REQUEST, topics=())),
        encoded(replace(REQUEST, topics=REQUEST.topics * 2)),
        encoded(replace(REQUEST, topics=(replace(REQUEST.topics[0], partitions=(PARTITION, PARTITION)),))),
        encoded(replace(REQUEST, rack_id="r")),
        encoded(replace(REQUEST, cluster_id="c")),
        encoded(replace(REQUEST, replica_state=wire.ReplicaState())),
        encoded(replace(REQUEST, forgotten_topics_data=(wire.ForgottenTopic(topic_id=ID, partitions=(1,)),))),
        encoded(with_partition(replica_directory_id=ID)),
        encoded(REQUEST, client_id=None),
        encoded(replace(REQUEST, replica_id=2, replica_state=wire.ReplicaState()), 14),
        encoded(REQUEST)[:-1],
        encoded(REQUEST) + b"\0",
        encoded(REQUEST)[:-1] + b"\1",
        encoded(REQUEST).replace(b"me\0", b"me\1"),
        encoded(REQUEST).replace(b"me\0", b"\xff\xff\0"),
        b"",
        b"\0" * 9,
    ],
)
def test_another_request(frame: bytes) -> None:
    assert single_fetch.decode_request(frame) is None


def response(data: wire.FetchResponsePartitionData = DATA, **changes: Any) -> wire.FetchResponse:
    topic = wire.FetchableTopicResponse(topic_id=ID, partitions=(data,))
    return replace(wire.FetchResponse(session_id=44, responses=(topic,)), **changes)


def as_bytes(message: wire.FetchResponse, version: int = 17) -> bytes:
    return wire.encode_response(message, api_version=version, correlation_id=9)


class InFile(wire.Stored):
    def __len__(self) -> int:
        return 200

    def read(self) -> bytes:
        return b"x" * 200


FOUND = Found(3, 2**41, 2**40, 12, b"x" * 200)


@pytest.mark.parametrize("version", single_fetch.RESPONSES)
@pytest.mark.parametrize("aborted", [None, ()])
@pytest.mark.parametrize("records", [b"", b"x" * 126, b"x" * 127, b"x" * 70_000, memoryview(b"abc")])
@pytest.mark.parametrize("count", [1, 2, MOST])
def test_a_response(version: int, aborted: tuple[()] | None, records: bytes, count: int) -> None:
    found = [Found(3 + i, 2**41, 2**40, 12, records, aborted is not None, 5) for i in range(count)]
    made = single_fetch.encode_response(9, 44, ID.bytes, found)
    data = replace(DATA, aborted_transactions=aborted, preferred_read_replica=5, records=records)
    partitions = tuple(replace(data, partition_index=3 + i) for i in range(count))
    message = response(responses=(wire.FetchableTopicResponse(topic_id=ID, partitions=partitions),))
    assert made == as_bytes(message, version)
    assert isinstance(made, bytes)
    decoded = single_fetch.decode_response(made, ID.bytes)
    if aborted is None:
        assert decoded is not None
        assert decoded[0] == 44
        for answered, partition in zip(decoded[1], partitions, strict=True):
            assert answered._asdict() == {name: getattr(partition, name) for name in Answered._fields}
    else:
        assert decoded is None
    assert wire.error_counts(message) == single_fetch.errors_of(count)


def test_a_response_from_a_file() -> None:
    made = single_fetch.encode_response(9, 44, ID.bytes, [FOUND._replace(records=InFile()), FOUND])
    assert isinstance(made, wire.Parts)
    both = replace(response().responses[0], partitions=(DATA, DATA))
    assert made.read() == as_bytes(response(responses=(both,)))


@pytest.mark.parametrize(
    "frame",
    [
        as_bytes(response(responses=())),
        as_bytes(response(error_code=1)),
        as_bytes(response(throttle_time_ms=1)),
        as_bytes(response(replace(DATA, error_code=1))),
        as_bytes(response(replace(DATA, records=None))),
        as_bytes(response(replace(DATA, diverging_epoch=wire.FetchResponseEpochEndOffset(epoch=1, end_offset=2)))),
        as_bytes(response(responses=response().responses * 2)),
        as_bytes(response(responses=(replace(response().responses[0], partitions=()),))),
        as_bytes(response(responses=(replace(response().responses[0], partitions=(DATA,) * (MOST + 1)),))),
        as_bytes(
            response(responses=(replace(response().responses[0], partitions=(DATA, replace(DATA, error_code=1))),))
        ),
        as_bytes(response(responses=(replace(response().responses[0], topic_id=UUID(int=6)),))),
        as_bytes(response())[:-1],
        as_bytes(response()) + b"\0",
        as_bytes(response())[:4] + b"\1" + as_bytes(response())[5:],
        as_bytes(response(replace(DATA, records=b"")))[:-4] + b"\xff" * 6,
        b"",
    ],
)
def test_another_response(frame: bytes) -> None:
    assert single_fetch.decode_response(frame, ID) is None
