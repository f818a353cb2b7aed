"""LAIREQ: LeaderAndIsr requests (section 14 of docs/controller-semantics.md; rules of section 13b)."""

from __future__ import annotations

import uuid

import pytest

from kce import wire
from kce.wire import ErrorCode
from tests.wire.conformance.leader_and_isr import request, state
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
    answer = error_response(request(version), version, code)
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
def test_version_logic(version: int) -> None:  # rules 13.7-13.9
    read = through_bytes(request(version), version)
    assert (read.controller_id, read.controller_epoch) == (3, 4)
    assert read.broker_epoch == (5 if version >= 2 else -1)
    assert [(b.broker_id, b.host_name, b.port) for b in read.live_leaders] == [(1, "host1", 9090)]
    if version < 2:
        assert read.topic_states == ()
        found = {(p.topic_name, p.partition_index): p for p in read.ungrouped_partition_states}
    else:
        assert read.ungrouped_partition_states == ()
        found = {(t.topic_name, p.partition_index): p for t in read.topic_states for p in t.partition_states}
        ids = (T_ID, U_ID) if version >= 5 else (NO_ID, NO_ID)
        assert tuple(t.topic_id for t in read.topic_states) == ids
    assert set(found) == {("t", 0), ("t", 1), ("u", 0)}
    for said in found.values():
        assert (said.controller_epoch, said.leader, said.leader_epoch, said.isr) == (2, 1, 10, (0, 1))
        assert (said.partition_epoch, said.replicas) == (7, (0, 1, 2))
        moving = ((2,), (0,)) if version >= 3 else ((), ())
        assert (said.adding_replicas, said.removing_replicas) == moving
        assert said.is_new is (version >= 1)
        assert said.leader_recovery_state == (1 if version >= 6 else 0)


@pytest.mark.kafka("LAIREQ-4")
def test_grouping_by_topic_makes_it_smaller() -> None:  # rule 13.8
    topic = "a.topic.with.some.name"
    flat = wire.LeaderAndIsrRequest(ungrouped_partition_states=tuple(state(p, topic) for p in range(10)))
    grouped = wire.LeaderAndIsrRequest(
        topic_states=(
            wire.LeaderAndIsrTopicState(topic_name=topic, partition_states=tuple(state(p) for p in range(10))),
        )
    )
    assert size(grouped, 2) < size(flat, 1)
