"""LAIREQ: LeaderAndIsr requests (section 14 of docs/controller-semantics.md; rules of section 13b)."""

from __future__ import annotations

import uuid

import pytest

from kce import wire
from kce.broker_stub.control_requests import leader_and_isr_states, leader_and_isr_topic_ids
from kce.wire import ErrorCode
from tests.wire.conformance.built import ASSIGNMENTS, BROKER_EPOCH, EPOCH, LEADERSHIP, MANY, SENDER, T1, leader_and_isr
from tests.wire.conformance.support import T_ID, U_ID, assert_unsupported, error_response, size, through_bytes

VERSIONS = range(8)
NO_ID = uuid.UUID(int=0)


@pytest.mark.kafka("LAIREQ-1")
def test_unsupported_version() -> None:
    assert_unsupported(wire.LeaderAndIsrRequest())


@pytest.mark.kafka("LAIREQ-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_response(version: int) -> None:  # rules 9.4, 13.13
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = error_response(leader_and_isr(version), version, code)
    assert answer.error_code == code
    flat = {(e.topic_name, e.partition_index, e.error_code) for e in answer.partition_errors}
    by_id = {(t.topic_id, e.partition_index, e.error_code) for t in answer.topics for e in t.partition_errors}
    if version < 5:
        assert flat == {("t", 0, code), ("t", 1, code), ("u", 0, code)}
        assert by_id == set()
    else:
        assert flat == set()
        assert by_id == {(T_ID, 0, code), (T_ID, 1, code), (U_ID, 0, code)}


@pytest.mark.kafka("LAIREQ-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_version_logic(version: int) -> None:  # rules 13.7-13.11
    read = through_bytes(leader_and_isr(version), version)
    assert (read.controller_id, read.controller_epoch) == (SENDER, EPOCH)
    assert read.broker_epoch == (BROKER_EPOCH if version >= 2 else -1)
    assert [(b.broker_id, b.host_name, b.port) for b in read.live_leaders] == [(0, "host0", 9090), (1, "host1", 9090)]
    assert bool(read.ungrouped_partition_states) is (version < 2)
    expected = {
        tp: wire.LeaderAndIsrPartitionState(
            topic_name=tp.topic if version < 2 else "",
            partition_index=tp.partition,
            controller_epoch=decided_in,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            replicas=ASSIGNMENTS[tp].replicas,
            adding_replicas=ASSIGNMENTS[tp].adding if version >= 3 else (),
            removing_replicas=ASSIGNMENTS[tp].removing if version >= 3 else (),
            is_new=version >= 1 and tp == T1,
            leader_recovery_state=state.recovery_state if version >= 6 else 0,
        )
        for tp, (state, decided_in) in LEADERSHIP.items()
    }
    assert dict(leader_and_isr_states(read)) == expected
    no_ids = {"t": NO_ID, "u": NO_ID} if version >= 2 else {}
    ids = {"t": T_ID, "u": U_ID}
    assert {t.topic_name: t.topic_id for t in read.topic_states} == (ids if version >= 5 else no_ids)
    assert leader_and_isr_topic_ids(read) == (ids if version >= 5 else {})


@pytest.mark.kafka("LAIREQ-4")
def test_grouping_by_topic_makes_it_smaller() -> None:  # rule 13.8
    assert size(leader_and_isr(2, MANY), 2) < size(leader_and_isr(1, MANY), 1)
