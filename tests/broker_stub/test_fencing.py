"""Fencing by broker epoch, then by controller epoch (rules 9.1-9.12). Requests are encoded and decoded."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest

from kce import wire
from kce.broker_stub import TopicPartition
from kce.broker_stub.control_requests import leader_and_isr_topic_ids
from kce.wire import ErrorCode
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    NO_ID,
    Node,
    codes,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    ungrouped_leader_and_isr,
    update_metadata,
)

BUILT = ((leader_and_isr, (lai_state(),)), (update_metadata, (umr_state(),)), (stop_replica, ((0, -1, False),)))


def control_requests(*cases: str) -> list[Any]:
    """Parameters for LeaderAndIsr, UpdateMetadata and StopReplica, each marked with its upstream case if it has one."""
    return [
        pytest.param(build, states, id=build.__name__, marks=[pytest.mark.kafka(case)] if case else [])
        for (build, states), case in zip_longest(BUILT, cases, fillvalue="")
    ]


CONTROL_REQUESTS = control_requests()


EPOCH = 70


@pytest.mark.parametrize(("build", "states"), control_requests("KAT-4", "KAT-1", "KAT-7"))
async def test_the_current_broker_epoch_is_accepted(build, states) -> None:  # rule 9.5
    node = Node()
    node.broker_epoch = EPOCH
    assert (await node.ask(build(*states, broker_epoch=EPOCH))).error_code == ErrorCode.NONE
    assert node.replicas.controller_epoch == 1


@pytest.mark.parametrize(("build", "states"), control_requests("KAT-5", "KAT-2", "KAT-8"))
async def test_a_newer_broker_epoch_is_accepted(build, states) -> None:  # rule 9.5
    node = Node()
    node.broker_epoch = EPOCH
    assert (await node.ask(build(*states, broker_epoch=EPOCH + 1))).error_code == ErrorCode.NONE
    assert node.replicas.controller_epoch == 1


@pytest.mark.parametrize(("build", "states"), control_requests("KAT-6", "KAT-3", "KAT-9"))
async def test_a_stale_broker_epoch_is_fenced_and_changes_nothing(build, states) -> None:  # rules 9.5, 9.6
    node = Node()
    node.broker_epoch = EPOCH
    answer = await node.ask(build(*states, broker_epoch=EPOCH - 1, controller_epoch=8))
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert node.replicas.controller_epoch == 0
    assert not node.replicas.partitions
    assert not node.cache.snapshot.alive_brokers
    assert codes(answer) == ({(ID_A, 0): 77} if isinstance(answer, wire.LeaderAndIsrResponse) else {})  # rule 9.6


@pytest.mark.parametrize(
    ("broker_epoch", "is_stale"),
    [
        pytest.param(EPOCH, False, marks=pytest.mark.kafka("BEP-3")),
        pytest.param(EPOCH - 1, True, marks=pytest.mark.kafka("BEP-4")),
        pytest.param(EPOCH + 1, False, marks=pytest.mark.kafka("BEP-5")),
    ],
)
async def test_control_requests_take_effect_unless_the_broker_epoch_is_stale(broker_epoch, is_stale) -> None:
    """The broker follows a partition; the requests, all with the same broker epoch, make it leader and delete it."""
    node = Node()
    node.broker_epoch = EPOCH
    await node.ask(update_metadata(umr_state(leader=2)))
    await node.ask(leader_and_isr(lai_state(leader=2)))

    async def is_accepted(request) -> None:
        answer = await node.ask(request)
        expected = ErrorCode.STALE_BROKER_EPOCH if is_stale else ErrorCode.NONE
        assert set(wire.error_counts(answer)) == {expected}

    await is_accepted(leader_and_isr(lai_state(leader_epoch=1), broker_epoch=broker_epoch))
    assert node.partition().leader == (2 if is_stale else 1)
    await is_accepted(update_metadata(umr_state(leader_epoch=1), broker_epoch=broker_epoch))
    known = node.cache.snapshot.partition(TopicPartition("a", 0))
    assert known is not None
    assert known.leader == (2 if is_stale else 1)
    await is_accepted(stop_replica((0, 2, True), broker_epoch=broker_epoch))
    assert (TopicPartition("a", 0) in node.replicas.partitions) is is_stale


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (ungrouped_leader_and_isr(lai_state(topic="a")), 1),
        (leader_and_isr(lai_state()), 7),
        (update_metadata(umr_state()), 8),
        (stop_replica((0, -1, False)), 4),
        (wire.StopReplicaRequest(controller_epoch=1), 0),
        (wire.UpdateMetadataRequest(controller_epoch=1), 4),
    ],
)
async def test_requests_without_broker_epoch_are_accepted(message, version) -> None:  # rule 9.5
    node = Node()
    node.broker_epoch = 70
    assert (await node.ask(message, version)).error_code == ErrorCode.NONE


async def test_the_broker_epoch_is_that_of_the_latest_registration() -> None:  # rule 9.7
    node = Node()
    node.broker_epoch = 70
    request = leader_and_isr(lai_state(), broker_epoch=70)
    assert (await node.ask(request)).error_code == ErrorCode.NONE
    node.broker_epoch = 80
    assert (await node.ask(request)).error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(("build", "states"), CONTROL_REQUESTS)
async def test_the_broker_epoch_is_checked_before_the_controller_epoch(build, states) -> None:  # rule 9.1
    node = Node()
    node.broker_epoch = 70
    node.replicas.controller_epoch = 5
    answer = await node.ask(build(*states, broker_epoch=69, controller_epoch=4))
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", [4, 7])
async def test_a_partition_that_is_there_twice_is_refused_twice(version: int) -> None:  # rule 9.9
    node = Node()
    node.broker_epoch = 70
    answer = await node.ask(leader_and_isr(lai_state(1), lai_state(1), broker_epoch=69), version)
    errors = answer.partition_errors or answer.topics[0].partition_errors
    assert [(e.partition_index, e.error_code) for e in errors] == [(1, ErrorCode.STALE_BROKER_EPOCH)] * 2


@pytest.mark.parametrize(("build", "states"), control_requests("LE-2", "", "RMT-11"))
async def test_a_stale_controller_epoch_is_fenced(build, states) -> None:  # rules 9.8, 9.9
    node = Node()
    await node.ask(update_metadata(umr_state(1), controller_epoch=5))
    before = node.cache.snapshot
    answer = await node.ask(build(*states, controller_epoch=4))
    assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert node.replicas.controller_epoch == 5
    assert node.cache.snapshot is before
    assert not node.replicas.partitions
    assert codes(answer) == ({(ID_A, 0): 11} if isinstance(answer, wire.LeaderAndIsrResponse) else {})


@pytest.mark.parametrize(("build", "states"), CONTROL_REQUESTS)
@pytest.mark.parametrize("epoch", [5, 6, 2**31 - 1])
async def test_an_equal_or_newer_controller_epoch_is_accepted_and_stored(build, states, epoch) -> None:  # rule 9.8
    node = Node()
    node.replicas.controller_epoch = 5
    assert (await node.ask(build(*states, controller_epoch=epoch))).error_code == ErrorCode.NONE
    assert node.replicas.controller_epoch == epoch


@pytest.mark.parametrize(("first", "first_states"), CONTROL_REQUESTS)
@pytest.mark.parametrize(("second", "second_states"), CONTROL_REQUESTS)
async def test_all_requests_share_one_controller_epoch(first, first_states, second, second_states) -> None:  # rule 9.8
    node = Node()
    await node.ask(first(*first_states, controller_epoch=3))
    answer = await node.ask(second(*second_states, controller_epoch=2))
    assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_the_controller_epoch_starts_at_0() -> None:  # rule 9.8
    node = Node()
    assert (await node.ask(leader_and_isr(lai_state(), controller_epoch=0))).error_code == ErrorCode.NONE
    answer = await node.ask(leader_and_isr(lai_state(leader_epoch=1), controller_epoch=-1))
    assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_the_controller_id_is_ignored() -> None:  # rule 9.10
    node = Node()
    await node.ask(update_metadata(controller_id=2, controller_epoch=5))
    answer = await node.ask(update_metadata(controller_id=3, controller_epoch=5))
    assert answer.error_code == ErrorCode.NONE
    assert node.cache.snapshot.controller_id == 3


@pytest.mark.parametrize("version", range(2, 5))
async def test_leader_and_isr_errors_are_flat_before_version_5(version) -> None:  # rules 9.4, 9.9, 9.27
    node = Node()
    node.replicas.controller_epoch = 5
    answer = await node.ask(leader_and_isr(lai_state(0), lai_state(1)), version)
    assert answer.error_code == 11
    assert codes(answer) == {("a", 0): 11, ("a", 1): 11}
    assert answer.topics == ()


@pytest.mark.parametrize("version", [0, 1])
async def test_leader_and_isr_errors_of_ungrouped_versions(version) -> None:  # rules 9.4, 13.8
    node = Node()
    node.replicas.controller_epoch = 5
    answer = await node.ask(ungrouped_leader_and_isr(lai_state(0, topic="a"), lai_state(1, topic="b")), version)
    assert answer.error_code == 11
    assert codes(answer) == {("a", 0): 11, ("b", 1): 11}


@pytest.mark.parametrize("version", range(5, 8))
async def test_leader_and_isr_errors_are_grouped_by_topic_id_from_version_5(version) -> None:  # rules 9.4, 13.14
    node = Node()
    node.replicas.controller_epoch = 5
    topics = tuple(
        wire.LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=(lai_state(index),))
        for name, topic_id, index in (("a", ID_A, 0), ("b", ID_B, 1), ("c", NO_ID, 2), ("d", NO_ID, 3))
    )
    answer = await node.ask(wire.LeaderAndIsrRequest(controller_epoch=1, topic_states=topics), version)
    assert codes(answer) == {(ID_A, 0): 11, (ID_B, 1): 11, (NO_ID, 2): 11, (NO_ID, 3): 11}
    assert len(answer.topics) == 3  # topics without an id share one entry


async def test_an_exception_in_stop_replica_is_an_error_for_every_partition(monkeypatch) -> None:  # rules 9.4, 9.28
    node = Node()
    monkeypatch.setattr(node.replicas, "stop_replicas", _broken)
    answer = await node.ask(stop_replica((0, -1, False), (1, 3, True)))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert codes(answer) == {("a", 0): -1, ("a", 1): -1}


async def test_an_exception_in_update_metadata_is_a_top_level_error(monkeypatch) -> None:  # rules 9.4, 9.28
    node = Node()
    monkeypatch.setattr(node.replicas, "maybe_update_metadata_cache", _broken)
    answer = await node.ask(update_metadata(umr_state()))
    assert answer == wire.UpdateMetadataResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (wire.ControlledShutdownRequest(broker_id=2), wire.ControlledShutdownResponse(error_code=-1)),
        (wire.AlterPartitionRequest(broker_id=2), wire.AlterPartitionResponse(error_code=-1)),
    ],
)
async def test_an_exception_in_the_controller_is_a_top_level_error(message, expected) -> None:  # rule 9.4
    class Broken:
        alter_partition = controlled_shutdown = staticmethod(lambda *_: _broken())

    assert await Node(controller=Broken()).ask(message) == expected


async def test_a_duplicate_topic_fails_the_request() -> None:  # rules 9.28, 13.11
    node = Node()
    one = wire.LeaderAndIsrTopicState(topic_name="a", topic_id=ID_A, partition_states=(lai_state(0),))
    other = wire.LeaderAndIsrTopicState(topic_name="a", topic_id=ID_A, partition_states=(lai_state(1),))
    answer = await node.ask(wire.LeaderAndIsrRequest(controller_epoch=1, topic_states=(one, other)))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    another = wire.LeaderAndIsrTopicState(topic_name="b", topic_id=ID_A, partition_states=(lai_state(0),))
    with pytest.raises(ValueError, match="has topic a twice"):
        leader_and_isr_topic_ids(wire.LeaderAndIsrRequest(topic_states=(another, one, other)))
    assert codes(answer) == {(ID_A, 0): -1, (ID_A, 1): -1}
    assert not node.replicas.partitions


@pytest.mark.parametrize("listener", ["CONTROL", "DATA"])
async def test_control_requests_are_accepted_on_any_listener(listener) -> None:  # rule 9.65
    node = Node()
    assert (await node.ask(leader_and_isr(lai_state()), listener=listener)).error_code == ErrorCode.NONE
    assert node.partition().is_leader


def _broken(*_: object) -> None:
    raise RuntimeError("broken for the test")
