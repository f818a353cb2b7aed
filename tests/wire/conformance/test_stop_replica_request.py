"""SRREQ: StopReplica requests (section 14 of docs/controller-semantics.md; rules of section 13e)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.broker_stub.control_requests import StopReplica, stop_replica_states
from kce.wire import ErrorCode
from tests.wire.conformance.stop_replica import T0, T1, U0, built
from tests.wire.conformance.support import assert_unsupported, error_response, through_bytes

VERSIONS = range(5)


def layout(request: wire.StopReplicaRequest) -> tuple[object, ...]:
    """The three places where partitions may stand, and the flag that is for all of them."""
    return (
        [(p.topic_name, p.partition_index) for p in request.ungrouped_partitions],
        [(t.name, t.partition_indexes) for t in request.topics],
        [
            (t.topic_name, [(p.partition_index, p.leader_epoch, p.delete_partition) for p in t.partition_states])
            for t in request.topic_states
        ],
        request.delete_partitions,
    )


def expected_layout(version: int, delete: bool) -> tuple[object, ...]:
    if version == 0:
        return [("t", 0), ("t", 1), ("u", 0)], [], [], delete
    if version < 3:
        return [], [("t", (0, 1)), ("u", (0,))], [], delete
    return [], [], [("t", [(0, 3, delete), (1, 4, delete)]), ("u", [(0, 5, delete)])], False


@pytest.mark.kafka("SRREQ-1")
def test_unsupported_version() -> None:
    assert_unsupported(wire.StopReplicaRequest())


@pytest.mark.kafka("SRREQ-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_response(version: int) -> None:  # rule 9.4
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = error_response(built(version, t0=True, t1=True, u0=True), version, code)
    assert answer.error_code == code
    assert {(e.topic_name, e.partition_index, e.error_code) for e in answer.partition_errors} == {
        ("t", 0, code),
        ("t", 1, code),
        ("u", 0, code),
    }


@pytest.mark.kafka("SRREQ-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_layout_when_all_are_deleted(version: int) -> None:  # rules 8.22, 13.23
    assert layout(through_bytes(built(version, t0=True, t1=True, u0=True), version)) == expected_layout(version, True)


@pytest.mark.kafka("SRREQ-4")
@pytest.mark.parametrize("version", VERSIONS)
def test_layout_when_none_is_deleted(version: int) -> None:  # rules 8.22, 13.23
    assert layout(through_bytes(built(version, t0=False, t1=False, u0=False), version)) == expected_layout(
        version, False
    )


@pytest.mark.kafka("SRREQ-5")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_as_states(version: int) -> None:  # rule 13.24
    read = through_bytes(built(version, t0=True, t1=True, u0=True), version)
    by_topic: dict[str, list[tuple[int, int, bool]]] = {}
    for tp, state in stop_replica_states(read).items():
        by_topic.setdefault(tp.topic, []).append((tp.partition, state.leader_epoch, state.delete_partition))
    epochs = (3, 4, 5) if version >= 3 else (-1, -1, -1)
    assert by_topic == {"t": [(0, epochs[0], True), (1, epochs[1], True)], "u": [(0, epochs[2], True)]}


@pytest.mark.kafka("SRREQ-6")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_as_a_map(version: int) -> None:  # rule 13.24
    old = version < 3
    read = through_bytes(built(version, t0=False, t1=not old, u0=False), version)
    assert stop_replica_states(read) == {
        T0: StopReplica(-1 if old else 3, False),
        T1: StopReplica(-1 if old else 4, not old),
        U0: StopReplica(-1 if old else 5, False),
    }
