"""SRREQ: StopReplica requests (section 14 of docs/controller-semantics.md; rules of section 13e)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kce import wire
from kce.broker_stub.control_requests import StopReplica, stop_replica_states
from kce.controller.control_requests import StopReplicaState
from kce.wire import ErrorCode
from kce.wire.control import partition_states
from kce.wire.steps import finish
from kce.wire.vocabulary import TopicPartition
from tests.wire.conformance.built import T0, T1, U0, stop_replica
from tests.wire.conformance.support import assert_unsupported, error_response, through_bytes

VERSIONS = range(5)
#: epochs of the partitions; -2: the topic is being deleted
EPOCHS: Mapping[TopicPartition, int] = {T0: 0, T1: 4, U0: 5, TopicPartition("u", 1): -2, TopicPartition("t", 2): -2}


def built(version: int, *, delete: bool) -> wire.StopReplicaRequest:
    return stop_replica(version, {tp: StopReplicaState(epoch, delete) for tp, epoch in EPOCHS.items()})


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
    """Topics and partitions are in the order of Scala's hash tables."""
    if version == 0:
        return [("t", 2), ("t", 1), ("t", 0), ("u", 1), ("u", 0)], [], [], delete
    if version < 3:
        return [], [("t", (2, 1, 0)), ("u", (1, 0))], [], delete
    t = ("t", [(2, -2, delete), (1, 4, delete), (0, 0, delete)])
    return [], [], [t, ("u", [(1, -2, delete), (0, 5, delete)])], False


@pytest.mark.kafka("SRREQ-1")
def test_unsupported_version() -> None:
    assert_unsupported(wire.StopReplicaRequest())


@pytest.mark.kafka("SRREQ-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_response(version: int) -> None:  # rule 9.4
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = error_response(built(version, delete=True), version, code)
    assert answer.error_code == code
    assert {(e.topic_name, e.partition_index, e.error_code) for e in answer.partition_errors} == {
        (*tp, code) for tp in EPOCHS
    }


@pytest.mark.kafka("SRREQ-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_layout_when_all_are_deleted(version: int) -> None:  # rules 8.22, 13.23
    assert layout(through_bytes(built(version, delete=True), version)) == expected_layout(version, True)


@pytest.mark.kafka("SRREQ-4")
@pytest.mark.parametrize("version", VERSIONS)
def test_layout_when_none_is_deleted(version: int) -> None:  # rules 8.22, 13.23
    assert layout(through_bytes(built(version, delete=False), version)) == expected_layout(version, False)


@pytest.mark.kafka("SRREQ-5")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_as_states(version: int) -> None:  # rule 13.24
    read = through_bytes(built(version, delete=True), version)
    assert {(s.topic, s.partition, s.leader_epoch, s.delete) for s in partition_states(read)} == {
        (*tp, epoch if version >= 3 else None, True) for tp, epoch in EPOCHS.items()
    }


@pytest.mark.kafka("SRREQ-6")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("delete", [True, False])
def test_every_version_reads_as_a_map(version: int, delete: bool) -> None:  # rule 13.24
    read = through_bytes(built(version, delete=delete), version)
    assert finish(stop_replica_states(read)) == {
        tp: StopReplica(epoch if version >= 3 else -1, delete) for tp, epoch in EPOCHS.items()
    }
