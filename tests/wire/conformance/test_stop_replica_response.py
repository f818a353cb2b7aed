"""SRRES: StopReplica responses (section 14 of docs/controller-semantics.md; rules of section 13e)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.controller.control_requests import StopReplicaState
from kce.wire import ErrorCode
from tests.wire.conformance.built import T0, T1, stop_replica
from tests.wire.conformance.support import error_response

VERSIONS = range(5)


def response(*codes: ErrorCode, top: ErrorCode = ErrorCode.NONE) -> wire.StopReplicaResponse:
    return wire.StopReplicaResponse(
        error_code=top,
        partition_errors=tuple(
            wire.StopReplicaPartitionError(topic_name="t", partition_index=p, error_code=code)
            for p, code in enumerate(codes)
        ),
    )


@pytest.mark.kafka("SRRES-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_counts_of_an_error_response(version: int) -> None:
    request = stop_replica(version, {T0: StopReplicaState(3, False), T1: StopReplicaState(4, False)})
    answer = error_response(request, version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert wire.error_counts(answer) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 3}


@pytest.mark.kafka("SRRES-2")
def test_error_counts_with_an_error_at_the_top() -> None:
    answer = response(ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, top=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert wire.error_counts(answer) == {ErrorCode.UNKNOWN_SERVER_ERROR: 3}


@pytest.mark.kafka("SRRES-3")
def test_error_counts_without_error_at_the_top() -> None:
    answer = response(ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert wire.error_counts(answer) == {ErrorCode.NONE: 2, ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 2}


@pytest.mark.kafka("SRRES-4")
def test_text() -> None:
    text = repr(response(ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert text.startswith(f"StopReplicaResponse(error_code={ErrorCode.NONE!r}")
    assert f"topic_name='t', partition_index=0, error_code={ErrorCode.NONE!r}" in text
    assert f"topic_name='t', partition_index=1, error_code={ErrorCode.CLUSTER_AUTHORIZATION_FAILED!r}" in text
