"""CCM: what is sent to whom (section 14 of docs/controller-semantics.md; rules of sections 8a, 8b and 8d)."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller import events as ev
from kce.controller.context import ControllerContext
from kce.wire.control import partition_states
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper.model import (
    RECOVERED,
    RECOVERING,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)
from tests.controller.conformance.bench import TP, Outbox, batch, bench, broker, ids, leadership
from tests.controller.support import world

M = TypeVar("M", bound=wire.Message)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
T_ID, U_ID = uuid.UUID(int=8), uuid.UUID(int=9)

#: rule 8.18, with the last version before each boundary: LeaderAndIsr, UpdateMetadata, StopReplica
VERSIONS = {
    "3.9": (7, 8, 4),
    "3.4-IV0": (7, 8, 4),
    "3.3": (6, 7, 3),
    "3.2-IV0": (6, 7, 3),
    "3.1": (5, 7, 3),
    "2.8-IV1": (5, 7, 3),
    "2.8-IV0": (4, 6, 3),
    "2.6-IV0": (4, 6, 3),
    "2.5": (4, 6, 2),
    "2.4-IV1": (4, 6, 2),
    "2.4-IV0": (3, 5, 1),
    "2.3": (2, 5, 1),
    "2.2-IV0": (2, 5, 1),
    "2.1": (1, 4, 0),
    "1.0-IV0": (1, 4, 0),
    "0.11.0": (0, 3, 0),
    "0.10.2-IV0": (0, 3, 0),
    "0.10.1": (0, 2, 0),
    "0.10.0-IV1": (0, 2, 0),
    "0.10.0-IV0": (0, 1, 0),
    "0.9.0": (0, 1, 0),
    "0.8.2": (0, 0, 0),
}


def context(*live: int, shutting_down: tuple[int, ...] = ()) -> ControllerContext:
    """Controller epoch 12; broker N has epoch 100 + N; t has two partitions and u one, on brokers 1, 2, 3."""
    made = ControllerContext()
    made.epoch = ControllerEpoch(12)
    made.add_live_brokers((broker(b), BrokerEpoch(100 + b)) for b in (*live, *shutting_down))
    made.shutting_down = set(ids(*shutting_down))
    made.set_topics(["t", "u"])
    made.add_topic_id("t", T_ID)
    made.add_topic_id("u", U_ID)
    for tp in (T0, T1, U0):
        made.set_assignment(tp, ReplicaAssignment(ids(1, 2, 3)))
    return made


def plain_context(*live: int) -> ControllerContext:
    """One that every version can tell of: a single listener, named as its protocol."""
    made = context()
    plain = (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9),)
    made.add_live_brokers((RegisteredBroker(BrokerId(b), plain), BrokerEpoch(100 + b)) for b in live)
    return made


def sent(outbox: Outbox, kind: type[M]) -> dict[int, M]:
    """The sent requests of this kind by broker, at most one each."""
    found = [(to, request) for to, request, _ in outbox.sent if isinstance(request, kind)]
    assert len({to for to, _ in found}) == len(found)
    return dict(found)


def partitions(request: Any) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(t.topic_name, p.partition_index): p for t in request.topic_states for p in t.partition_states
    }


@pytest.mark.kafka("CCM-1")
def test_leader_and_isr_is_sent() -> None:  # rules 8.4, 8.5, 8.14-8.16, 8.39
    made = context(1, 2, 3)
    requests, outbox, responses = batch(made)
    decided = {T0: leadership(1, [1, 2], 3, controller_epoch=11), T1: leadership(2, [2], 4), U0: leadership(-1, [3], 5)}
    requests.new_batch()
    for tp, known in decided.items():
        made.leadership[tp] = known
        requests.add_leader_and_isr(ids(2), tp, known, made.assignment(tp), is_new=False)
    requests.send()
    assert list(sent(outbox, wire.LeaderAndIsrRequest)) == [2]
    assert list(sent(outbox, wire.UpdateMetadataRequest)) == [1, 2, 3]
    request = sent(outbox, wire.LeaderAndIsrRequest)[2]
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (0, 12, 102)
    assert {t.topic_name: t.topic_id for t in request.topic_states} == {"t": T_ID, "u": U_ID}
    assert {
        tp: (p.controller_epoch, p.leader, p.leader_epoch, p.isr, p.replicas, p.is_new)
        for tp, p in partitions(request).items()
    } == {
        T0: (11, 1, 3, (1, 2), (1, 2, 3), False),
        T1: (1, 2, 4, (2,), (1, 2, 3), False),
        U0: (1, -1, 5, (3,), (1, 2, 3), False),
    }
    assert [(b.broker_id, b.host_name, b.port) for b in request.live_leaders] == [
        (1, "127.0.0.1", 2001),
        (2, "127.0.0.1", 2002),
    ]
    answer = wire.LeaderAndIsrResponse()
    outbox.answer(0, answer)
    assert responses.events == [("LeaderAndIsr", 2, answer)]


@pytest.mark.kafka("CCM-2")
def test_is_new_sticks() -> None:  # rule 8.3
    requests, outbox, _ = batch(context(1))
    for epoch, is_new in ((1, True), (2, False)):
        requests.add_leader_and_isr(ids(1), T0, leadership(1, [1], epoch), ReplicaAssignment(ids(1)), is_new=is_new)
    requests.send()
    states = partitions(sent(outbox, wire.LeaderAndIsrRequest)[1])[T0]
    assert (states.leader_epoch, states.is_new) == (2, True)


def test_is_new_stays_set_for_an_old_replica() -> None:  # rule 8.3
    made = context(1)
    known = {T0: leadership(1, [1], 2), T1: leadership(1, [1], 3)}
    requests, outbox, _ = batch(made)
    for tp, is_new in ((T0, True), (T1, False), (U0, True)):  # nothing is known of u
        requests.add_leader_and_isr(ids(1), tp, leadership(1, [1], 1), made.assignment(tp), is_new=is_new)
    made.leadership.update(known)
    requests.add_known_leader_and_isr(BrokerId(1), [T0, T1, U0])
    requests.send()
    states = partitions(sent(outbox, wire.LeaderAndIsrRequest)[1])
    assert {tp: (p.leader_epoch, p.is_new) for tp, p in states.items()} == {
        T0: (2, True),
        T1: (3, False),
        U0: (1, True),
    }


@pytest.mark.parametrize(("ibp", "leader_and_isr", "update_metadata"), [("2.1", "t", "t"), ("2.2-IV0", "", "")])
def test_where_a_topics_name_stands(ibp: str, leader_and_isr: str, update_metadata: str) -> None:  # rules 13.7, 13.16
    made = plain_context(1)
    made.leadership[T0] = leadership(1, [1])
    requests, outbox, _ = batch(made, ibp, "PLAINTEXT")
    requests.add_leader_and_isr(ids(1), T0, made.leadership[T0], made.assignment(T0), is_new=False)
    requests.send()
    for kind, name in ((wire.LeaderAndIsrRequest, leader_and_isr), (wire.UpdateMetadataRequest, update_metadata)):
        request: Any = sent(outbox, kind)[1]  # type: ignore[type-var]
        grouped = [p for topic in request.topic_states for p in topic.partition_states]
        (state,) = (*request.ungrouped_partition_states, *grouped)
        assert state.topic_name == name, kind
        assert bool(grouped) is not bool(name)


@pytest.mark.kafka("CCM-3")
def test_leader_and_isr_goes_to_live_and_shutting_down_brokers() -> None:  # rule 8.13
    requests, outbox, _ = batch(context(1, shutting_down=(2,)))
    requests.add_leader_and_isr(ids(1, 2, 3), T0, leadership(1, [1]), ReplicaAssignment(ids(1, 2, 3)), is_new=False)
    requests.send()
    by_broker = sent(outbox, wire.LeaderAndIsrRequest)
    assert list(by_broker) == [1, 2]
    assert all(set(partitions(request)) == {T0} for request in by_broker.values())
    assert list(sent(outbox, wire.UpdateMetadataRequest)) == [1, 2]


@pytest.mark.kafka("CCM-4")
@pytest.mark.parametrize("ibp", VERSIONS)
def test_versions_of_leader_and_isr(ibp: str) -> None:  # rules 8.4, 8.18, 8.25
    made = plain_context(1)
    requests, outbox, _ = batch(made, ibp, "PLAINTEXT")
    known = Leadership(LeaderAndIsr(BrokerId(1), ids(1), 3, RECOVERING), ControllerEpoch(12))
    requests.add_leader_and_isr(ids(1), T0, known, made.assignment(T0), is_new=False)
    requests.send()
    _, request, version = outbox.sent[0]
    assert version == VERSIONS[ibp][0]
    frame = wire.encode_request(request, api_version=version, correlation_id=1, client_id="0")
    _, read = wire.decode_request(frame)
    assert isinstance(read, wire.LeaderAndIsrRequest)
    since = MetadataVersion.parse
    (state,) = (*read.ungrouped_partition_states, *(p for t in read.topic_states for p in t.partition_states))
    assert [x.topic_name for x in (read.topic_states or read.ungrouped_partition_states)] == ["t"]
    assert state.leader_recovery_state == (RECOVERING if since(ibp) >= since("3.2-IV0") else RECOVERED)
    sent_ids = [t.topic_id for t in read.topic_states if t.topic_id.int]
    assert sent_ids == ([T_ID] if since(ibp) >= since("2.8-IV1") else [])


@pytest.mark.kafka("CCM-5")
def test_update_metadata_is_sent() -> None:  # rules 8.7, 8.8, 8.10, 8.39
    made = context(1, 2, 3)
    requests, outbox, responses = batch(made)
    made.leadership = {T0: leadership(1, [1, 2], 3), T1: leadership(2, [2], 4), U0: leadership(3, [3], 5)}
    requests.new_batch()
    requests.add_update_metadata(ids(1, 2, 3), made.leadership)
    requests.send()
    by_broker = sent(outbox, wire.UpdateMetadataRequest)
    assert len(outbox.sent) == len(by_broker) == 3
    for to, request in by_broker.items():
        assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (0, 12, 100 + to)
        assert {t.topic_name: t.topic_id for t in request.topic_states} == {"t": T_ID, "u": U_ID}
        assert {tp: (p.leader, p.leader_epoch, p.isr, p.replicas) for tp, p in partitions(request).items()} == {
            T0: (1, 3, (1, 2), (1, 2, 3)),
            T1: (2, 4, (2,), (1, 2, 3)),
            U0: (3, 5, (3,), (1, 2, 3)),
        }
        assert [(b.id, [(e.listener, e.port) for e in b.endpoints]) for b in request.live_brokers] == [
            (b, [("CONTROL", 1000 + b), ("DATA", 2000 + b)]) for b in (1, 2, 3)
        ]
    refused = wire.UpdateMetadataResponse(error_code=wire.ErrorCode.STALE_BROKER_EPOCH)
    outbox.answer(1, refused)
    assert responses.events == [("UpdateMetadata", 2, refused)]


@pytest.mark.kafka("CCM-6")
def test_update_metadata_leaves_out_partitions_without_leadership() -> None:  # rules 8.7, 8.23
    made = context(1, 2)
    requests, outbox, _ = batch(made)
    requests.add_update_metadata(ids(1, 2), [T0, U0])
    requests.send()
    by_broker = sent(outbox, wire.UpdateMetadataRequest)
    assert list(by_broker) == [1, 2]
    for request in by_broker.values():
        assert request.topic_states == ()
        assert [b.id for b in request.live_brokers] == [1, 2]


@pytest.mark.kafka("CCM-7")
def test_update_metadata_of_a_topic_queued_for_deletion() -> None:  # rule 8.9
    made = context(1)
    for tp, known in ((T0, leadership(1, [1, 2], 3)), (U0, leadership(3, [3], 5))):
        made.leadership[tp] = Leadership(known.leader_and_isr.with_partition_epoch(7), known.controller_epoch)
    made.topics_to_delete.add("t")
    requests, outbox, _ = batch(made)
    requests.add_update_metadata(ids(1), made.leadership)
    requests.send()
    states = partitions(sent(outbox, wire.UpdateMetadataRequest)[1])
    assert (states[T0].leader, states[T0].leader_epoch, states[T0].zk_version, states[T0].isr) == (-2, 0, 0, (1, 2))
    assert (states[U0].leader, states[U0].leader_epoch, states[U0].zk_version, states[U0].isr) == (3, 5, 7, (3,))


@pytest.mark.kafka("CCM-8")
def test_update_metadata_goes_to_and_lists_live_and_shutting_down_brokers() -> None:  # rules 8.10, 8.13
    requests, outbox, _ = batch(context(1, shutting_down=(2,)))
    requests.add_update_metadata(ids(1, 2, 3), [])
    requests.send()
    by_broker = sent(outbox, wire.UpdateMetadataRequest)
    assert list(by_broker) == [1, 2]
    for request in by_broker.values():
        assert [b.id for b in request.live_brokers] == [1, 2]


@pytest.mark.kafka("CCM-9")
@pytest.mark.parametrize("ibp", VERSIONS)
def test_versions_of_update_metadata(ibp: str) -> None:  # rule 8.18
    made = plain_context(1)
    made.leadership[T0] = leadership(1, [1], 3)
    requests, outbox, _ = batch(made, ibp, "PLAINTEXT")
    requests.add_update_metadata(ids(1), [T0])
    requests.send()
    ((_, request, version),) = outbox.sent
    assert version == VERSIONS[ibp][1]
    _, read = wire.decode_request(wire.encode_request(request, api_version=version, correlation_id=1, client_id="0"))
    assert isinstance(read, wire.UpdateMetadataRequest)
    (state,) = (*read.ungrouped_partition_states, *(p for t in read.topic_states for p in t.partition_states))
    assert [x.topic_name for x in (read.topic_states or read.ungrouped_partition_states)] == ["t"]
    assert (state.leader, state.leader_epoch, state.isr) == (1, 3, (1,))


@pytest.mark.kafka("CCM-10")
async def test_stop_replica_is_sent(autojump_clock: MockClock) -> None:  # rules 8.6, 8.23, 8.43
    made = context(1, 2)
    made.leadership = {T0: leadership(1, [1], 3), T1: leadership(1, [1], 4)}
    requests, outbox, _ = batch(made)
    requests.new_batch()
    for tp in (T0, T1, U0):
        requests.add_stop_replica(ids(2), tp, delete=False)
    requests.send()
    assert len(outbox.sent) == 1
    request = sent(outbox, wire.StopReplicaRequest)[2]
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (0, 12, 102)
    assert {tp: (p.leader_epoch, p.delete_partition) for tp, p in partitions(request).items()} == {
        T0: (3, False),
        T1: (4, False),
        U0: (-1, False),
    }
    assert await events_of_deletion(started=False, delete=False) == []


async def events_of_deletion(
    *, started: bool, delete: bool, ibp: str = "3.9", others: tuple[TopicPartition, ...] = ()
) -> list[Any]:
    """The event that the answer to StopReplica of ``TP``, and of ``others``, makes of itself in a real controller."""
    async with world([1], ibp=MetadataVersion.parse(ibp)) as w:
        runtime = await bench(w)
        controller = w.nodes[1].controller
        seen: list[Any] = []
        put = controller.loop.put
        controller.loop.put = lambda event: (seen.append(event), put(event))[1]  # type: ignore[method-assign]
        runtime.context.topics_to_delete.add("t")
        if started:
            runtime.context.topics_with_deletion_started.add("t")
        runtime.batch.new_batch()
        for tp in (TP, *others):
            runtime.batch.add_stop_replica(ids(1), tp, delete=delete)
        runtime.batch.send()
        await w.settle()
        assert [type(s.message) for s in w.take()][:1] == [wire.StopReplicaRequest]
        return [event for event in seen if isinstance(event, ev.ReplicaDeletionAnswered)]


def stopped(requests: list[Any]) -> list[dict[TopicPartition, tuple[int | None, bool | None]]]:
    """The partitions of each StopReplica request: leader epoch (None: its version has none) and delete flag."""
    return [
        {TopicPartition(s.topic, s.partition): (s.leader_epoch, s.delete) for s in partition_states(request)}
        for request in requests
    ]


def stop_while_queued(ibp: str, *, delete: bool) -> None:
    """Both partitions of t, which is queued for deletion, and one of u."""
    made = plain_context(2)
    made.leadership = {T0: leadership(1, [1], 3), T1: leadership(2, [2], 4), U0: leadership(3, [3], 5)}
    made.queue_for_deletion(["t"])
    requests, outbox, _ = batch(made, ibp, "PLAINTEXT")
    requests.new_batch()
    for tp in made.leadership:
        requests.add_stop_replica(ids(2), tp, delete=delete)
    requests.send()
    ((to, request, version),) = outbox.sent
    assert to == 2
    epochs = {T0: -2, T1: -2, U0: 5}
    expected = {tp: (epoch if version >= 3 else None, delete) for tp, epoch in epochs.items()}
    assert stopped([request]) == [expected]


@pytest.mark.kafka("CCM-11")
def test_delete_sticks() -> None:  # rule 8.6
    requests, outbox, _ = batch(context(1))
    for delete in (True, False):
        requests.add_stop_replica(ids(1), T0, delete=delete)
    requests.send()
    assert partitions(sent(outbox, wire.StopReplicaRequest)[1])[T0].delete_partition is True


@pytest.mark.kafka("CCM-12")
@pytest.mark.parametrize("ibp", VERSIONS)
async def test_stop_replica_of_a_topic_queued_for_deletion(autojump_clock: MockClock, ibp: str) -> None:  # 5.13, 8.43
    stop_while_queued(ibp, delete=True)
    assert await events_of_deletion(started=False, delete=True, ibp=ibp) == []


@pytest.mark.kafka("CCM-13")
@pytest.mark.parametrize("ibp", VERSIONS)
async def test_stop_replica_after_deletion_has_started(autojump_clock: MockClock, ibp: str) -> None:  # rule 8.43
    stop_while_queued(ibp, delete=True)
    assert await events_of_deletion(started=True, delete=True, ibp=ibp, others=(T1, U0)) == [
        ev.ReplicaDeletionAnswered(BrokerId(1), 0, ((T1, 0), (TP, 0)))
    ]


@pytest.mark.kafka("CCM-14")
@pytest.mark.parametrize("ibp", VERSIONS)
async def test_stop_replica_without_delete_after_deletion_has_started(
    autojump_clock: MockClock, ibp: str
) -> None:  # rule 8.43
    stop_while_queued(ibp, delete=False)
    assert await events_of_deletion(started=True, delete=False, ibp=ibp, others=(T1, U0)) == []


@pytest.mark.kafka("CCM-15")
@pytest.mark.parametrize("ibp", VERSIONS)
def test_stop_replica_with_and_without_delete(ibp: str) -> None:  # rule 8.22
    made = plain_context(1)
    u1 = TopicPartition("u", 1)
    made.leadership = {tp: leadership(1, [], epoch) for epoch, tp in enumerate((U0, u1, T0, T1), 3)}
    requests, outbox, _ = batch(made, ibp, "PLAINTEXT")
    requests.new_batch()
    for tp in made.leadership:
        requests.add_stop_replica(ids(1), tp, delete=tp.topic == "t")
    requests.send()
    sent_to_1 = [request for _, request, _ in outbox.sent]
    if VERSIONS[ibp][2] >= 3:
        assert stopped(sent_to_1) == [{U0: (3, False), u1: (4, False), T0: (5, True), T1: (6, True)}]
    else:
        assert stopped(sent_to_1) == [{T0: (None, True), T1: (None, True)}, {U0: (None, False), u1: (None, False)}]
        assert [on_response is not None for on_response in outbox.callbacks] == [True, False]


@pytest.mark.kafka("CCM-16")
@pytest.mark.parametrize("delete", [False, True])
def test_stop_replica_is_grouped_by_broker(delete: bool) -> None:  # rule 8.22
    made = context(1, 2, 3)
    made.leadership = {T0: leadership(1, [], 3), T1: leadership(2, [], 4), U0: leadership(3, [], 5)}
    requests, outbox, responses = batch(made)
    for tp in made.leadership:
        requests.add_stop_replica(ids(2, 3), tp, delete=delete)
    requests.send()
    by_broker = sent(outbox, wire.StopReplicaRequest)
    assert len(outbox.sent) == len(by_broker) == 2
    for index, (to, request) in enumerate(by_broker.items()):
        assert stopped([request]) == [{T0: (3, delete), T1: (4, delete), U0: (5, delete)}]
        outbox.answer(index, wire.StopReplicaResponse())
        assert responses.events[index][:2] == ("StopReplica", to)
    assert responses.deleted == [frozenset(made.leadership) if delete else frozenset()] * 2


@pytest.mark.kafka("CCM-17")
def test_stop_replica_goes_to_live_and_shutting_down_brokers() -> None:  # rule 8.13
    requests, outbox, _ = batch(context(1, shutting_down=(2,)))
    for tp in (T0, T1, U0):
        requests.add_stop_replica(ids(1, 2, 3), tp, delete=False)
    requests.send()
    by_broker = sent(outbox, wire.StopReplicaRequest)
    assert list(by_broker) == [1, 2]
    assert stopped(list(by_broker.values())) == [dict.fromkeys((T0, T1, U0), (-1, False))] * 2


@pytest.mark.kafka("CCM-18")
@pytest.mark.parametrize("ibp", VERSIONS)
def test_versions_of_stop_replica(ibp: str) -> None:  # rule 8.18
    made = plain_context(1)
    requests, outbox, _ = batch(made, ibp, "PLAINTEXT")
    requests.add_stop_replica(ids(1), T0, delete=True)
    requests.send()
    ((_, request, version),) = outbox.sent
    assert version == VERSIONS[ibp][2]
    _, read = wire.decode_request(wire.encode_request(request, api_version=version, correlation_id=1, client_id="0"))
    assert isinstance(read, wire.StopReplicaRequest)
    named = (
        *((p.topic_name, p.partition_index) for p in read.ungrouped_partitions),
        *((t.name, i) for t in read.topics for i in t.partition_indexes),
        *((t.topic_name, p.partition_index) for t in read.topic_states for p in t.partition_states),
    )
    assert named == (("t", 0),)
    assert read.delete_partitions or all(p.delete_partition for t in read.topic_states for p in t.partition_states)
