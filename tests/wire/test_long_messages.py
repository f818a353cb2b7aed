"""Messages of very many elements (wire/long_messages.py, wire/error_counts.py)."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire.codegen import Encoded
from kce.wire.error_counts import error_counts_in_steps
from kce.wire.long_messages import SHORT, encoded_in_steps, freed, is_long, joined, parts
from kce.wire.registry import API_KEYS, message_class
from kce.wire.steps import finish
from tests.wire.strategies import messages
from tests.wire.test_steps import pauses

RESPONSES = [cls for api in API_KEYS if (cls := message_class(api.key, "response")) is not None]
REQUESTS = [cls for api in API_KEYS if (cls := message_class(api.key, "request")) is not None]


@settings(deadline=None)
@given(st.data())
def test_a_response_encoded_in_steps_is_the_same(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(RESPONSES))
    version = data.draw(st.integers(*cls.__versions__))
    message: Any = data.draw(messages(cls, version))
    encoded, errors = finish(encoded_in_steps(message, api_version=version))
    assert wire.encode_response(encoded, api_version=version, correlation_id=1) == wire.encode_response(
        message, api_version=version, correlation_id=1
    )
    assert errors == wire.error_counts(message) == finish(error_counts_in_steps(message))


@settings(deadline=None)
@given(st.data())
def test_parts_make_up_the_message(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(REQUESTS))
    message: Any = data.draw(messages(cls, cls.__versions__.last))
    size = data.draw(st.integers(1, 5))
    cut = list(parts(message, size))
    assert cut[0][1] == 0
    assert finish(joined(iter(cut))) == message


def _elections(topics: int, partitions: int) -> wire.ElectLeadersResponse:
    results = tuple(wire.PartitionResult(partition_id=number) for number in range(partitions))
    topic = wire.ReplicaElectionResult(topic="t", partition_result=results)
    return wire.ElectLeadersResponse(replica_election_results=(topic,) * topics)


@pytest.mark.parametrize(("topics", "partitions", "least"), [(1, 20_000, 150), (20_000, 0, 150), (100, 200, 150)])
def test_long_ones_are_encoded_with_pauses(topics: int, partitions: int, least: int) -> None:
    message = _elections(topics, partitions)
    (encoded, _), count = pauses(encoded_in_steps(message, api_version=2))
    assert type(encoded.replica_election_results) is Encoded
    assert count > least


@pytest.mark.parametrize(("topics", "partitions"), [(1, 20_000), (20_000, 0), (100, 200)])
def test_parts_are_short(topics: int, partitions: int) -> None:
    cut = [part for part, _ in parts(_elections(topics, partitions))]
    assert len(cut) > 100
    assert not any(map(is_long, cut))
    sizes = [sum(1 + len(t.partition_result) for t in part.replica_election_results) for part in cut]
    assert max(sizes) <= 129


@pytest.mark.parametrize(
    ("topics", "partitions", "long"), [(1, SHORT - 1, False), (1, SHORT, True), (SHORT, 0, False), (SHORT + 1, 0, True)]
)
def test_nested_elements_count(topics: int, partitions: int, long: bool) -> None:
    assert is_long(_elections(topics, partitions)) == long


def living(seen: Iterable[weakref.ref[_Text]]) -> int:
    return sum(ref() is not None for ref in seen)


class _Text(str):
    """Knows when it is freed."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("topics", [1, 3])
def test_elements_are_freed_with_pauses(topics: int) -> None:
    texts = [[_Text("x") for _ in range(3_000)] for _ in range(topics)]
    seen = [weakref.ref(one) for of_topic in texts for one in of_topic]
    message = wire.ElectLeadersResponse(
        replica_election_results=tuple(
            wire.ReplicaElectionResult(
                topic="t", partition_result=tuple(wire.PartitionResult(error_message=text) for text in of_topic)
            )
            for of_topic in texts
        )
    )
    del texts
    steps = freed(message)
    del message
    gc.disable()
    try:
        alive = [len(seen), *(living(seen) for _ in steps), living(seen)]
    finally:
        gc.enable()
    assert alive[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(alive)) <= 128
