"""LAIRES: LeaderAndIsr responses (section 14 of docs/controller-semantics.md; rules of section 13c)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.wire import ErrorCode
from tests.wire.conformance.built import leader_and_isr
from tests.wire.conformance.support import T_ID, error_response

VERSIONS = range(8)


def partition_error(partition: int, code: ErrorCode, topic: str = "") -> wire.LeaderAndIsrPartitionError:
    return wire.LeaderAndIsrPartitionError(topic_name=topic, partition_index=partition, error_code=code)


def response(version: int, *codes: ErrorCode, top: ErrorCode = ErrorCode.NONE) -> wire.LeaderAndIsrResponse:
    """Partition N of topic t answered with the Nth code."""
    if version < 5:
        flat = tuple(partition_error(p, code, "t") for p, code in enumerate(codes))
        return wire.LeaderAndIsrResponse(error_code=top, partition_errors=flat)
    by_id = wire.LeaderAndIsrTopicError(
        topic_id=T_ID, partition_errors=tuple(partition_error(p, code) for p, code in enumerate(codes))
    )
    return wire.LeaderAndIsrResponse(error_code=top, topics=(by_id,))


@pytest.mark.kafka("LAIRES-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_counts_of_an_error_response(version: int) -> None:
    answer = error_response(leader_and_isr(version), version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert wire.error_counts(answer) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 4}


@pytest.mark.kafka("LAIRES-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_counts_with_an_error_at_the_top(version: int) -> None:
    answer = response(version, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, top=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert wire.error_counts(answer) == {ErrorCode.UNKNOWN_SERVER_ERROR: 3}


@pytest.mark.kafka("LAIRES-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_counts_without_error_at_the_top(version: int) -> None:
    answer = response(
        version, ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )
    assert wire.error_counts(answer) == {ErrorCode.NONE: 2, ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 2}


@pytest.mark.kafka("LAIRES-4")
@pytest.mark.parametrize("version", VERSIONS)
def test_text(version: int) -> None:
    text = repr(response(version, ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert text.startswith(f"LeaderAndIsrResponse(error_code={ErrorCode.NONE!r}")
    topic = "topic_name='t'" if version < 5 else "topic_name=''"
    assert f"{topic}, partition_index=0, error_code={ErrorCode.NONE!r}" in text
    assert f"{topic}, partition_index=1, error_code={ErrorCode.CLUSTER_AUTHORIZATION_FAILED!r}" in text
    assert (repr(T_ID) in text) is (version >= 5)
