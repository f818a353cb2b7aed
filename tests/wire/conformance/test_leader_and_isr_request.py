"""LAIREQ and LAIRES: LeaderAndIsr (section 14 of docs/controller-semantics.md; rules of sections 13b and 13c)."""

from __future__ import annotations

import uuid

import pytest

import wire
from tests.wire.conformance.support import T_ID, U_ID, assert_unsupported, error_response, size, through_bytes
from wire import ErrorCode

NO_ID = uuid.UUID(int=0)
VERSIONS = range(8)


def state(partition: int, topic: str = "", *, recovery: int = 0) -> wire.LeaderAndIsrPartitionState:
    return wire.LeaderAndIsrPartitionState(
        topic_name=topic,
        partition_index=partition,
        controller_epoch=2,
        leader=1,
        leader_epoch=10,
        isr=(0, 1),
        partition_epoch=7,
        replicas=(0, 1, 2),
        adding_replicas=(2,),
        removing_replicas=(0,),
        is_new=True,
        leader_recovery_state=recovery,
    )


def request(version: int) -> wire.LeaderAndIsrRequest:
    """Partitions 0 and 1 of topic t, partition 0 of topic u; everything said that the version can say."""
    recovery = 1 if version >= 6 else 0
    leaders = (wire.LeaderAndIsrLiveLeader(broker_id=1, host_name="host1", port=9090),)
    if version < 2:
        return wire.LeaderAndIsrRequest(
            controller_id=3,
            controller_epoch=4,
            broker_epoch=5,
            ungrouped_partition_states=(state(0, "t"), state(1, "t"), state(0, "u")),
            live_leaders=leaders,
        )
    return wire.LeaderAndIsrRequest(
        controller_id=3,
        controller_epoch=4,
        broker_epoch=5,
        topic_states=(
            wire.LeaderAndIsrTopicState(
                topic_name="t",
                topic_id=T_ID,
                partition_states=(state(0, recovery=recovery), state(1, recovery=recovery)),
            ),
            wire.LeaderAndIsrTopicState(topic_name="u", topic_id=U_ID, partition_states=(state(0, recovery=recovery),)),
        ),
        live_leaders=leaders,
    )


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


@pytest.mark.kafka("LAIRES-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_counts_of_an_error_response(version: int) -> None:
    answer = error_response(request(version), version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
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
    assert "LeaderAndIsrResponse" in text
    assert ("topic_name='t'" if version < 5 else repr(T_ID)) in text
    assert f"error_code={ErrorCode.CLUSTER_AUTHORIZATION_FAILED!r}" in text
