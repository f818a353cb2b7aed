"""The response to a Produce request of one partition has the bytes that the general codec makes."""

from __future__ import annotations

import pytest

from kce import wire
from kce.wire import single_produce


@pytest.mark.parametrize("version", single_produce.RESPONSES)
@pytest.mark.parametrize("topic", ["t", "x" * 127, "x" * 249])
def test_a_response(version: int, topic: str) -> None:
    data = wire.PartitionProduceResponse(
        index=7, error_code=0, base_offset=2**40, log_append_time_ms=-1, log_start_offset=2**33
    )
    topics = (wire.TopicProduceResponse(name=topic, partition_responses=(data,)),)
    message = wire.ProduceResponse(responses=topics)
    made = single_produce.encode_response(9, topic, 7, 2**40, -1, 2**33)
    assert made == wire.encode_response(message, api_version=version, correlation_id=9)
    assert wire.error_counts(message) == single_produce.ERRORS
