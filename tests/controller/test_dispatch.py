"""Requests to the controller, and the table of its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.handlers.forwarded import HANDLERS
from kce.controller import dispatch
from kce.controller import events as ev
from kce.controller.errors import OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.zookeeper.model import FeatureUpdate, ReplicaAssignment, UpgradeType
from tests.controller.conformance.bench import ids
from tests.controller.support import World, world


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
