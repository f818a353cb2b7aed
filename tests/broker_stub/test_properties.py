"""Random control requests: nothing raises, epochs never decrease, fenced requests change nothing."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.broker_stub import TopicPartition
from kce.wire import ErrorCode
from kce.zookeeper.model import LeaderAndIsr
from tests.broker_stub.support import ID_A, ID_B, NO_ID, Node, codes, umr_broker
from tests.sampling import examples

FENCED = {ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH}

brokers = st.integers(1, 4)
leaders = st.integers(-2, 4)
epochs = st.integers(-2, 5)
isrs = st.lists(brokers, max_size=4, unique=True).map(tuple)
topics = st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True)
topic_ids = st.sampled_from([ID_A, ID_B, NO_ID])
envelope = {"controller_id": brokers, "controller_epoch": st.integers(0, 4)}
broker_epochs = st.integers(-1, 6)


def _partition_states(cls: Any, named: bool, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    if named:
        fields["topic_name"] = st.sampled_from("ab")
    return st.lists(st.builds(cls, partition_index=st.integers(0, 2), **fields), max_size=4).map(tuple)


def _grouped(cls: Any, states: st.SearchStrategy[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One entry per topic, like a controller's request."""

    def entries(names: list[str]) -> st.SearchStrategy[Any]:
        one = [st.builds(cls, topic_name=st.just(name), partition_states=states, **fields) for name in names]
        return st.tuples(*one)

    return topics.flatmap(entries)


@st.composite
def leader_and_isr(draw: st.DrawFn) -> tuple[wire.Message, int]:
    version = draw(st.integers(0, 7))
    state = {
        "controller_epoch": epochs, "leader": leaders, "leader_epoch": epochs, "isr": isrs, "replicas": isrs,
        "partition_epoch": epochs, **({"is_new": st.booleans()} if version >= 1 else {}),
    }  # fmt: skip
    states = _partition_states(wire.LeaderAndIsrPartitionState, version < 2, **state)
    fields: dict[str, Any] = dict(envelope)
    if version < 2:
        fields["ungrouped_partition_states"] = states
    else:
        ids = {"topic_id": topic_ids} if version >= 5 else {}
        fields["topic_states"] = _grouped(wire.LeaderAndIsrTopicState, states, **ids)
        fields["broker_epoch"] = broker_epochs
    return draw(st.builds(wire.LeaderAndIsrRequest, **fields)), version


@st.composite
def update_metadata(draw: st.DrawFn) -> tuple[wire.Message, int]:
    version = draw(st.integers(0, 8))
    state = {"controller_epoch": epochs, "leader": leaders, "leader_epoch": epochs, "isr": isrs, "replicas": isrs}
    states = _partition_states(wire.UpdateMetadataPartitionState, version < 5, **state)
    fields: dict[str, Any] = dict(envelope)
    listeners = ("CONTROL", "DATA") if version >= 3 else ("DATA",)  # without names two endpoints are of one listener
    alive = brokers.map(lambda broker_id: umr_broker(broker_id, listeners))
    fields["live_brokers"] = st.lists(alive, max_size=4, unique_by=lambda b: b.id).map(tuple)
    if version < 5:
        fields["ungrouped_partition_states"] = states
    else:
        ids = {"topic_id": topic_ids} if version >= 7 else {}
        fields["topic_states"] = _grouped(wire.UpdateMetadataTopicState, states, **ids)
        fields["broker_epoch"] = broker_epochs
    return draw(st.builds(wire.UpdateMetadataRequest, **fields)), version


@st.composite
def stop_replica(draw: st.DrawFn) -> tuple[wire.Message, int]:
    state = st.builds(
        wire.StopReplicaPartitionState,
        partition_index=st.integers(0, 2), leader_epoch=epochs, delete_partition=st.booleans(),
    )  # fmt: skip
    states = _grouped(wire.StopReplicaTopicState, st.lists(state, max_size=3).map(tuple))
    fields = {**envelope, "broker_epoch": broker_epochs, "topic_states": states}
    return draw(st.builds(wire.StopReplicaRequest, **fields)), draw(st.integers(3, 4))


answers = st.sampled_from([55, 107, 3, 74, 95, -1, 999]) | st.builds(
    LeaderAndIsr,
    leader=brokers,
    leader_epoch=epochs,
    isr=isrs,
    partition_epoch=epochs,
)
registrations = st.integers(0, 6)
steps = st.lists(
    st.one_of(leader_and_isr(), update_metadata(), stop_replica(), answers, registrations), min_size=1, max_size=25
)


def _state(node: Node) -> tuple[Any, ...]:
    hosted = {tp: (p, _epochs(p), p.leader, p.isr, p.replicas, p.pending) for tp, p in node.replicas.partitions.items()}
    return node.replicas.controller_epoch, hosted, node.cache.snapshot, list(node.submitter.unanswered)


def _epochs(partition: Any) -> tuple[int, int]:
    return partition.leader_epoch, partition.partition_epoch


@given(steps=steps)
@settings(max_examples=examples(100), deadline=None)
def test_epochs_never_decrease_and_fenced_requests_change_nothing(steps: list[Any]) -> None:
    trio.run(_run, steps)


async def _run(steps: list[Any]) -> None:
    node = Node()
    for step in steps:
        before = _state(node)
        if isinstance(step, tuple) and not isinstance(step, LeaderAndIsr):
            await _ask(node, *step, before)
        elif isinstance(step, int) and step <= 6 and step >= 0:
            node.broker_epoch = step
        else:
            for partition in list(node.submitter.unanswered):
                if node.replicas.partitions.get(partition) is not None:
                    node.submitter.answer(partition, step)
                    break
        _check_that_epochs_grew(node, before)
        for partition in node.replicas.partitions.values():
            assert partition.pending is None or partition.is_leader
            assert partition.is_leader or partition.isr == ()


async def _ask(node: Node, message: Any, version: int, before: tuple[Any, ...]) -> None:
    answer = await node.ask(message, version)
    stale_broker = getattr(message, "broker_epoch", -1) not in (-1, None) and message.broker_epoch < node.broker_epoch
    stale_controller = message.controller_epoch < before[0]
    expected = ErrorCode.STALE_BROKER_EPOCH if stale_broker else ErrorCode.STALE_CONTROLLER_EPOCH
    assert answer.error_code == (expected if stale_broker or stale_controller else ErrorCode.NONE)
    if answer.error_code in FENCED:
        assert _state(node) == before
    else:
        assert node.replicas.controller_epoch == message.controller_epoch
        allowed = {0, 3, 11, 103} if isinstance(message, wire.LeaderAndIsrRequest) else {0, 74}
        assert set(codes(answer).values()) <= allowed


def _check_that_epochs_grew(node: Node, before: tuple[Any, ...]) -> None:
    controller_epoch, hosted, _, _ = before
    assert node.replicas.controller_epoch >= controller_epoch
    for topic_partition, (partition, (leader_epoch, partition_epoch), *_) in hosted.items():
        assert isinstance(topic_partition, TopicPartition)
        if node.replicas.partitions.get(topic_partition) is partition:
            assert partition.leader_epoch >= leader_epoch
            assert partition.partition_epoch >= partition_epoch
