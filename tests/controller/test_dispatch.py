"""Requests to the controller, and the table of its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.handlers.forwarded import HANDLERS
from kce.controller import dispatch
from kce.controller import events as ev
from kce.controller.errors import OperationResult
from kce.controller.event_loop import ControllerEventLoop
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.zookeeper.model import BrokerId, FeatureUpdate, ReplicaAssignment, TopicPartition, UpgradeType
from tests.controller.conformance.bench import ids
from tests.controller.support import World, join_isr, world


async def answers(w: World, controller: KafkaController, request: wire.Message, version: int = 0) -> list[Any]:
    """What the controller replies: nothing, None, or a response."""
    given: list[Any] = []
    controller.submit(request, version, given.append)
    await w.settle()
    return given


def test_every_event_has_a_row() -> None:
    events = {cls for cls in vars(ev).values() if isinstance(cls, type) and issubclass(cls, ev.ControllerEvent)}
    assert events - dispatch.EVENTS.keys() == {ev.ControllerEvent, ev.RequestReceived}


def test_every_forwarded_request_has_a_row() -> None:
    served = {row for row in dispatch.EVENTS if issubclass(row, wire.Message)}
    assert served == {h.request for h in HANDLERS} | {wire.ElectLeadersRequest, wire.UpdateFeaturesRequest}


T0 = TopicPartition("t", 0)
WATCH_EVENTS = [
    ev.ControllerChanged(), ev.BrokersChanged(), ev.BrokerModified(BrokerId(1)), ev.TopicsChanged(),
    ev.PartitionsModified("t"), ev.TopicDeletionRequested(), ev.IsrChangeNotified(), ev.LogDirEventNotified(),
    ev.ReassignPartitionsCreated(), ev.ReassignedPartitionStateChanged(T0), ev.PreferredReplicaElectionCreated(),
]  # fmt: skip


def test_only_watch_events_coalesce() -> None:
    coalescing = {cls for cls, row in dispatch.EVENTS.items() if row.coalesces}
    assert coalescing == {type(event) for event in WATCH_EVENTS}


@pytest.mark.parametrize("event", WATCH_EVENTS, ids=lambda event: event.name)
async def test_equal_pending_watch_events_are_processed_once(event: ev.ControllerEvent) -> None:
    processed: list[ev.ControllerEvent] = []

    async def process(one: ev.ControllerEvent) -> None:
        processed.append(one)

    loop = ControllerEventLoop(process)
    loop.put(event)
    loop.put(event)
    assert len(loop) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        await trio.testing.wait_all_tasks_blocked()
        loop.put(event)  # no longer pending: it counts again
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert processed == [event, event]


@pytest.mark.parametrize("event", [ev.SessionExpiredEvent(), ev.ShutdownRequested()], ids=lambda event: event.name)
async def test_what_ends_a_term_preempts_all_pending_events(event: ev.ControllerEvent) -> None:  # rules 3.2, 3.5
    async def process(one: ev.ControllerEvent) -> None:
        raise AssertionError("nothing runs")

    loop = ControllerEventLoop(process)
    replies: list[wire.Message | None] = []
    loop.put(ev.RequestReceived(wire.ListPartitionReassignmentsRequest(), 0, replies.append))
    loop.put(ev.TopicsChanged())
    loop.put(event)
    assert len(loop) == 1
    assert replies == [None]  # this node is not the controller


async def test_a_request_that_is_not_served(autojump_clock: MockClock) -> None:
    async with world() as w:
        controller = await w.start_controller(1)
        with pytest.raises(KeyError):
            controller.submit(wire.MetadataRequest(), 0, lambda response: None)


async def test_reassignments_by_topic(autojump_clock: MockClock) -> None:  # rules 11.25-11.28
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("a", {0: [1], 1: [1]})
        twice = (
            wire.ReassignablePartition(partition_index=0, replicas=(2,)),
            wire.ReassignablePartition(partition_index=0, replicas=None),  # the last entry of a partition counts
            wire.ReassignablePartition(partition_index=1, replicas=(2,)),
        )
        unknown = wire.ReassignableTopic(name="b", partitions=(wire.ReassignablePartition(replicas=(2,)),))
        request = wire.AlterPartitionReassignmentsRequest(
            topics=(wire.ReassignableTopic(name="a", partitions=twice), unknown)
        )
        (response,) = await answers(w, controller, request)
        assert response.error_code == ErrorCode.NONE
        assert {t.name: [(p.partition_index, p.error_code) for p in t.partitions] for t in response.responses} == {
            "a": [(0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS), (1, ErrorCode.NONE)],
            "b": [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
        }
        texts = {p.error_message for t in response.responses for p in t.partitions}
        assert texts == {"No reassignment of the partition is in progress.", None, "The partition does not exist."}


async def test_reassignments_in_progress(autojump_clock: MockClock) -> None:  # rule 3.24
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("a", {0: [1], 1: [1]})
        tp = controller.context.partitions_of("a")[1]
        controller.context.being_reassigned.add(tp)
        controller.context.set_assignment(tp, ReplicaAssignment(ids(3, 1), ids(3), ids(1)))
        named = (wire.ListPartitionReassignmentsTopics(name="a", partition_indexes=(0, 1)),)
        for topics in (None, named):
            (response,) = await answers(w, controller, wire.ListPartitionReassignmentsRequest(topics=topics))
            ((partition,),) = (t.partitions for t in response.topics)
            assert (partition.partition_index, partition.replicas) == (1, (3, 1))
            assert (partition.adding_replicas, partition.removing_replicas) == ((3,), (1,))
        other = (wire.ListPartitionReassignmentsTopics(name="a", partition_indexes=(0,)),)
        (response,) = await answers(w, controller, wire.ListPartitionReassignmentsRequest(topics=other))
        assert response.topics == ()


async def test_elections_by_partition(autojump_clock: MockClock) -> None:  # rules 11.31, 11.35
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("a", {0: [2, 1], 1: [1, 2]})
        await w.stop_broker(2)
        await w.settle()
        assert (await w.state("a"))[0] == 1
        await w.start_broker(2)
        await w.settle()
        await join_isr(w, controller, T0._replace(topic="a"), [1, 2])
        topics = (
            wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0, 1)),
            wire.ElectLeadersRequestTopicPartitions(topic="b", partitions=(0,)),
        )
        (response,) = await answers(w, controller, wire.ElectLeadersRequest(topic_partitions=topics), 2)
        found = {
            (t.topic, p.partition_id): (p.error_code, p.error_message)
            for t in response.replica_election_results
            for p in t.partition_result
        }
        assert found == {
            ("a", 0): (ErrorCode.NONE, None),
            ("a", 1): (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."),
            ("b", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."),
        }
        assert (await w.state("a"))[0] == 2
        (response,) = await answers(w, controller, wire.ElectLeadersRequest(topic_partitions=None), 2)
        assert response.replica_election_results == ()


async def test_a_block_of_producer_ids(autojump_clock: MockClock) -> None:  # rule 11.82
    async with world() as w:
        controller = await w.start_controller(1)
        epoch = controller.context.broker_epochs[ids(2)[0]]
        request = wire.AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
        for first in (0, 1000):
            assert await answers(w, controller, request) == [
                wire.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=1000)
            ]


@pytest.mark.parametrize(
    ("version", "fields", "kind"),
    [
        (0, {"allow_downgrade": False}, UpgradeType.UPGRADE),
        (0, {"allow_downgrade": True}, UpgradeType.SAFE_DOWNGRADE),
        (1, {"upgrade_type": 1}, UpgradeType.UPGRADE),
        (1, {"upgrade_type": 2}, UpgradeType.SAFE_DOWNGRADE),
        (1, {"upgrade_type": 3}, UpgradeType.UNSAFE_DOWNGRADE),
        (1, {"upgrade_type": 77}, UpgradeType.UNKNOWN),
    ],
)
async def test_feature_updates_of_every_version(
    autojump_clock: MockClock, version: int, fields: dict[str, Any], kind: UpgradeType, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 11.83
    async with world() as w:
        controller = await w.start_controller(1)
        calls: list[tuple[Sequence[FeatureUpdate], bool]] = []

        async def update(updates: Sequence[FeatureUpdate], *, validate_only: bool) -> dict[str, OperationResult]:
            calls.append((updates, validate_only))
            return {"f": OperationResult(ErrorCode.INVALID_REQUEST, "no"), "g": OperationResult()}

        monkeypatch.setattr(controller._role.features, "update", update)
        keys = (wire.FeatureUpdateKey(feature="f", max_version_level=4, **fields),)
        request = wire.UpdateFeaturesRequest(feature_updates=keys, validate_only=version == 1)
        (response,) = await answers(w, controller, request, version)
        assert calls == [([FeatureUpdate("f", 4, kind)], version == 1)]
        assert response.error_code == ErrorCode.NONE
        assert [(r.feature, r.error_code, r.error_message) for r in response.results] == [
            ("f", ErrorCode.INVALID_REQUEST, "no"),
            ("g", ErrorCode.NONE, None),
        ]
