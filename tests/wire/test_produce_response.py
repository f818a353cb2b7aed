"""The response to a Produce request whose records were all appended has the bytes that the general codec makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.wire import produce_response
from kce.wire.vocabulary import TopicPartition, by_topic

_INT64 = st.integers(-1, 2**63 - 1)
_NAMES = st.sampled_from(["t", "u", "x" * 126, "x" * 127, "x" * 249])
_PARTITIONS = st.builds(TopicPartition, _NAMES, st.integers(0, 2**31 - 1))


@pytest.mark.parametrize("version", produce_response.RESPONSES)
@given(
    appended=st.dictionaries(_PARTITIONS, st.tuples(_INT64, _INT64, _INT64), max_size=produce_response.MOST),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
)
def test_a_response(version: int, appended: dict[TopicPartition, tuple[int, int, int]], correlation_id: int) -> None:
    message = wire.ProduceResponse(
        responses=tuple(
            wire.TopicProduceResponse(
                name=topic,
                partition_responses=tuple(
                    wire.PartitionProduceResponse(
                        index=partition, error_code=0, base_offset=base, log_append_time_ms=time, log_start_offset=start
                    )
                    for partition, (base, time, start) in partitions.items()
                ),
            )
            for topic, partitions in by_topic(appended).items()
        )
    )
    made = produce_response.encode_response(correlation_id, [(*partition, *row) for partition, row in appended.items()])
    assert made == wire.encode_response(message, api_version=version, correlation_id=correlation_id)


def test_the_most_partitions() -> None:
    rows = [("t", partition, 0, 0, 0) for partition in range(produce_response.MOST)]
    message = wire.ProduceResponse(
        responses=(
            wire.TopicProduceResponse(
                name="t",
                partition_responses=tuple(
                    wire.PartitionProduceResponse(
                        index=partition, error_code=0, base_offset=0, log_append_time_ms=0, log_start_offset=0
                    )
                    for _, partition, *_ in rows
                ),
            ),
        )
    )
    assert produce_response.encode_response(1, rows) == wire.encode_response(message, api_version=9, correlation_id=1)
