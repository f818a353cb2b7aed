"""Reassignment: by request, by /admin/reassign_partitions, its interruption, and its traffic (rules 11.1-11.28)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller import reassignment
from kce.controller.errors import BrokenBatch, OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.controller.reassignment import TOGETHER_FROM
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import BrokerId, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create, Delete, SetData, value
from tests.controller import requests
from tests.controller.conformance.bench import ids
from tests.controller.support import World, alter_partition_request, join_isr, texts, world

TP = TopicPartition("t", 0)


#: in Kafka's words, which its tools print
TEXTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The partition does not exist.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "No reassignment of the partition is in progress.",
}


async def reassign(
    w: World, controller: KafkaController, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, ErrorCode] | OperationResult:
    answers: list[dict[TopicPartition, OperationResult] | OperationResult] = []
    requests.alter_partition_reassignments(controller, targets, answers.append)
    await w.settle()
    (answer,) = answers
    if isinstance(answer, OperationResult):
        return answer
    for result in answer.values():
        assert result.message == TEXTS.get(result.code, result.message)
        assert bool(result.message) == (result.code is not ErrorCode.NONE)
    return {tp: result.code for tp, result in answer.items()}


@pytest.mark.parametrize("target", [(1,) * 20_000, range(-20_000, 0), range(20_000)])
async def test_a_refusal_of_very_many_replicas_fits_into_the_answer(target: Sequence[int]) -> None:  # rule 11.26
    async with world(brokers=(1, 2)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2]})
        answers: list[dict[TopicPartition, OperationResult] | OperationResult] = []
        requests.alter_partition_reassignments(controller, {TP: target}, answers.append)
        await w.settle()
        (answer,) = answers
        assert isinstance(answer, dict)
        assert answer[TP].code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert 0 < len(answer[TP].message) < 2**15


async def listed(
    w: World, controller: KafkaController, partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, ReplicaAssignment] | OperationResult:
    answers: list[dict[TopicPartition, ReplicaAssignment] | OperationResult] = []
    requests.list_partition_reassignments(controller, partitions, answers.append)
    await w.settle()
    return answers[0]


async def assignment(w: World, topic: str = "t", partition: int = 0) -> tuple[tuple[int, ...], ...]:
    """(replicas, adding, removing) as the topic's node has them."""
    found = (await w.zk.get_topic_assignments([topic]))[topic].partitions[partition]
    return found.replicas, found.adding, found.removing


async def by_znode(w: World, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
    data = cluster_nodes.encode_partition_reassignment({tp: [BrokerId(r) for r in t] for tp, t in targets.items()})
    value((await w.store.write([Create(znodes.REASSIGN_PARTITIONS, data)]))[0])
    await w.settle()


async def test_a_move_from_request_to_completion(autojump_clock: MockClock) -> None:  # rules 11.5-11.15; CI-12
    async with world(brokers=(1, 2, 3, 4, 5, 6)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2, 3]})
        w.take()
        assert await reassign(w, controller, {TP: [4, 5, 6]}) == {TP: ErrorCode.NONE}
        assert await assignment(w) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
        assert await w.state("t") == (1, 1, (1, 2, 3))
        sent = w.take()
        metadata = "UMR alive=[1, 2, 3, 4, 5, 6] t-0:1@1[1, 2, 3]"
        assert texts(sent, 1)[:2] == ["LAI t-0:1@1[1, 2, 3]", metadata]
        # A1, and A2: every replica that is added hears it twice
        assert [t for t in texts(sent, 5) if t != metadata] == ["LAI t-0:1@1[1, 2, 3]new"] * 2
        request = next(s.message for s in sent if s.broker == 5 and isinstance(s.message, wire.LeaderAndIsrRequest))
        state = request.topic_states[0].partition_states[0]
        assert (state.replicas, state.adding_replicas, state.removing_replicas) == (
            (4, 5, 6, 1, 2, 3),
            (4, 5, 6),
            (1, 2, 3),
        )
        assert await listed(w, controller) == {
            TP: ReplicaAssignment(*(tuple(map(BrokerId, r)) for r in ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))))
        }
        await join_isr(w, controller, TP, (1, 2, 3, 4, 5))
        assert await assignment(w) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
        w.take()
        await join_isr(w, controller, TP, (1, 2, 3, 4, 5, 6))
        assert await assignment(w) == ((4, 5, 6), (), ())
        assert await w.state("t") == (4, 5, (4, 5, 6))  # +1 A1, +1 election, +1 for each that left the ISR (11.13)
        assert await listed(w, controller) == {}
        gone = texts(w.take(), 1)
        assert [t for t in gone if not t.startswith("UMR")] == ["SR t-0@2", "SR t-0@5delete"]  # rules 11.9, 11.10
        assert controller.context.being_reassigned == set()


async def test_a_move_of_one_replica_raises_the_epoch_by_three(autojump_clock: MockClock) -> None:  # 11.13; CI-12
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await by_znode(w, {TP: [3]})
        assert await w.state("t") == (2, 1, (2,))
        await join_isr(w, controller, TP, (2, 3))
        assert await w.state("t") == (3, 3, (3,))
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None
        assert controller.context.partition_state(TP).name == "ONLINE"


async def test_the_identical_list_goes_straight_to_completion(autojump_clock: MockClock) -> None:  # rule 11.13
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        assert await reassign(w, controller, {TP: [2, 3]}) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (2, 1, (2, 3))
        assert controller.context.being_reassigned == set()
        assert await reassign(w, controller, {TP: [3, 2]}) == {TP: ErrorCode.NONE}  # reordered: only that
        assert await w.state("t") == (2, 2, (2, 3))
        assert await assignment(w) == ((3, 2), (), ())


async def test_a_dead_target_holds_it_up_until_it_starts(autojump_clock: MockClock) -> None:  # 11.20; CI-14, CI-15
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await by_znode(w, {TP: [9]})
        assert await w.state("t") == (2, 1, (2,))
        assert await w.get(znodes.REASSIGN_PARTITIONS) is not None
        await w.start_broker(9)
        await w.settle()
        assert await w.state("t") == (2, 2, (2,))  # resumed: phase A once more
        await join_isr(w, controller, TP, (2, 9))
        assert await w.state("t") == (9, 4, (9,))
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None


@pytest.mark.parametrize("by_request", [True, False])
async def test_a_failover_in_the_middle(autojump_clock: MockClock, by_request: bool) -> None:  # rules 4.15, 11.17
    async with world(brokers=(1, 2, 3, 4)) as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        await w.create_topic("t", {0: [3]})
        if by_request:
            await reassign(w, first, {TP: [4]})
        else:
            await by_znode(w, {TP: [4]})
        await w.kill_controller(1)
        await w.settle()
        assert second.is_active
        assert second.context.being_reassigned == {TP}
        await join_isr(w, second, TP, (3, 4))
        assert (await w.state("t"))[0] == 4
        assert await assignment(w) == ((4,), (), ())
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None


async def test_a_topic_written_in_the_middle_of_a_reassignment_waits_for_a_failover(
    autojump_clock: MockClock,
) -> None:  # rule 4.8, as measured with 3.9.1
    async with world(brokers=(1, 2, 3, 4)) as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        moving = ReplicaAssignment(ids(4, 3), adding=ids(4), removing=ids(3))
        await w.store.write([Create("/brokers/topics/t", znodes.encode_topic(w.new_uuid(), {0: moving}))])
        await w.settle()
        await join_isr(w, first, TP, (4, 3))
        assert await assignment(w) == ((4, 3), (4,), (3,))
        assert first.context.being_reassigned == set()
        await w.kill_controller(1)
        await w.settle()
        assert second.is_active
        assert await assignment(w) == ((4,), (), ())


async def test_a_partition_that_never_had_a_leader_ends_no_failover(autojump_clock: MockClock) -> None:  # rule 11.12
    async with world(brokers=(1, 2, 3)) as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        never = ReplicaAssignment((BrokerId(9), BrokerId(8)), adding=(BrokerId(9),))
        await w.store.write([Create("/brokers/topics/t", znodes.encode_topic(w.new_uuid(), {0: never}))])
        await w.settle()
        await w.kill_controller(1)
        await w.settle()
        assert (second.is_active, second.failovers) == (True, 1)
        await w.create_topic("good", {0: [3]})
        assert (await w.state("good"))[0] == 3
        await w.start_broker(9)  # of the target, not of the ISR
        await w.settle()
        await w.create_topic("better", {0: [3, 9]})
        assert (await w.state("better"))[2] == (3, 9)
        assert (first.loop.failures, second.loop.failures) == ({}, {})


async def test_a_failover_finds_it_complete(autojump_clock: MockClock) -> None:  # rule 11.17
    async with world(brokers=(1, 2, 3, 4)) as w:
        first = await w.start_controller(1)
        await w.start_controller(2)
        await w.create_topic("t", {0: [3]})
        await reassign(w, first, {TP: [4]})
        path = znodes.partition_state_path(TP)
        state = json.loads(await w.get(path) or b"")
        await w.store.write([SetData(path, json.dumps(state | {"isr": [3, 4]}).encode())])
        await w.kill_controller(1)
        await w.settle()
        assert await assignment(w) == ((4,), (), ())
        assert (await w.state("t"))[0] == 4


async def test_a_new_target_replaces_the_old_one(autojump_clock: MockClock) -> None:  # rule 11.18
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await reassign(w, controller, {TP: [3]})
        w.take()
        assert await reassign(w, controller, {TP: [4]}) == {TP: ErrorCode.NONE}
        assert await assignment(w) == ((4, 2), (4,), (2,))
        stopped = [t for t in texts(w.take(), 3) if t.startswith("SR")]
        assert stopped == ["SR t-0@1", "SR t-0@1delete"]


async def test_cancelling(autojump_clock: MockClock) -> None:  # rules 11.19, 11.27
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2, 3], 1: [2, 3]})
        other = TopicPartition("t", 1)
        await reassign(w, controller, {TP: [3, 4, 2]})
        assert await assignment(w) == ((3, 4, 2, 1), (4,), (1,))
        w.take()
        result = await reassign(w, controller, {TP: None, other: None})
        assert result == {TP: ErrorCode.NONE, other: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
        assert await assignment(w) == ((3, 2, 1), (), ())  # the order is not restored
        assert [t for t in texts(w.take(), 4) if t.startswith("SR")] == ["SR t-0@1", "SR t-0@1delete"]
        assert controller.context.being_reassigned == set()


async def test_what_is_refused(autojump_clock: MockClock) -> None:  # rules 11.26, 11.21
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2], 1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [1, 9]})
        wanted: dict[TopicPartition, Sequence[int]] = {
            TopicPartition("t", 0): [],
            TopicPartition("t", 1): [1, 1],
            TopicPartition("t", 2): [1, -1],
            TopicPartition("t", 3): [1, 8],
            TopicPartition("t", 4): [9, 1],  # a dead replica may stay
            TopicPartition("t", 7): [1],
            TopicPartition("u", 0): [1],
        }
        invalid, unknown = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        codes = [invalid] * 4 + [ErrorCode.NONE, unknown, unknown]
        assert await reassign(w, controller, wanted) == dict(zip(wanted, codes, strict=True))
        requests.controlled_shutdown(controller, 3, -1, lambda _: None)
        refused = await reassign(w, controller, {TopicPartition("t", 0): [1, 3]})  # shutting down is not live
        assert refused == {TopicPartition("t", 0): invalid}
        idle = await w.start_controller(2)
        assert await reassign(w, idle, {TP: [1]}) == OperationResult(ErrorCode.NOT_CONTROLLER)
        assert await listed(w, idle) == OperationResult(ErrorCode.NOT_CONTROLLER)
        assert await listed(w, controller, [TP, TopicPartition("u", 0)]) == {}


async def test_refusals_say_why(autojump_clock: MockClock) -> None:  # rules 11.12, 11.26
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2], 1: [1, 2]})
        gone = TopicPartition("t", 1)
        await w.store.write([Delete(znodes.partition_state_path(gone))])
        answers: list[dict[TopicPartition, OperationResult]] = []
        requests.alter_partition_reassignments(controller, {TP: [1, -2], gone: [3, 1]}, answers.append)  # type: ignore[arg-type]
        await w.settle()
        ((negative, lost),) = (answer.values() for answer in answers)
        assert negative.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "Negative broker ids" in str(negative.message)
        assert lost.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "no leader and ISR in ZooKeeper" in str(lost.message)


async def test_a_move_goes_on_when_one_of_its_target_starts(autojump_clock: MockClock) -> None:  # rule 11.17
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await by_znode(w, {TP: [9, 3]})
        assert await w.state("t") == (2, 1, (2,))
        await w.start_broker(9)
        await w.settle()
        assert await w.state("t") == (2, 2, (2,))


async def test_what_is_done_leaves_the_znode_alone(autojump_clock: MockClock) -> None:  # rule 11.16
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2], 1: [2]})
        other = TopicPartition("t", 1)
        await by_znode(w, {TP: [3], other: [3]})
        await join_isr(w, controller, TP, (2, 3))
        left = cluster_nodes.decode_partition_reassignment(await w.get(znodes.REASSIGN_PARTITIONS) or b"")
        assert left == {other: (3,)}


async def test_a_failing_write_costs_one_partition(autojump_clock: MockClock) -> None:  # rules 11.2, 11.21
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await w.create_topic("u", {0: [2]})
        await w.store.write([SetData(znodes.partition_state_path(TP), b"nonsense")])
        u = TopicPartition("u", 0)
        result = await reassign(w, controller, {TP: [3], u: [3]})
        assert result == {TP: ErrorCode.UNKNOWN_SERVER_ERROR, u: ErrorCode.NONE}


#: partitions of a topic whose reassignments share their requests
MANY = TOGETHER_FROM


async def completed_many(w: World, controller: KafkaController) -> None:
    """One AlterPartition of broker 1 adds broker 4 to all ISRs."""
    asked = [alter_partition_request(controller, TopicPartition("t", n), (1, 2, 3, 4)) for n in range(MANY)]
    (topic,) = asked[0].topics
    partitions = tuple(p for each in asked for t in each.topics for p in t.partitions)
    requests.alter_partition(
        controller, replace(asked[0], topics=(replace(topic, partitions=partitions),)), 1, lambda response: None
    )
    await w.settle()


@pytest.mark.parametrize("is_shared", [True, False])
async def test_many_reassignments_share_their_requests(
    autojump_clock: MockClock, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for every partition, with a request for all instead of one for each."""
    if not is_shared:
        monkeypatch.setattr(reassignment, "TOGETHER_FROM", MANY + 1)
    times = 1 if is_shared else MANY
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {n: [1, 2, 3] for n in range(MANY)})
        w.take()
        targets = {TopicPartition("t", n): [1, 2, 4] for n in range(MANY)}
        assert await reassign(w, controller, targets) == dict.fromkeys(targets, ErrorCode.NONE)
        begun = [t for t in texts(w.take(), 4) if t.startswith("LAI")]
        assert len(begun) == 2 * times  # A1 and A2
        for n in range(MANY):
            assert sum(f" t-{n}:1@1[1, 2, 3]new" in text for text in begun) == 2
        await completed_many(w, controller)
        for n in range(MANY):
            assert await assignment(w, "t", n) == ((1, 2, 4), (), ())
            assert await w.state("t", n) == (1, 3, (1, 2, 4))
        assert await listed(w, controller) == {}
        sent = w.take()
        stopped = [text for text in texts(sent, 3) if text.startswith("SR")]
        assert len(stopped) == 2 * times
        for n in range(MANY):
            assert [f" t-{n}@{what} " in f"{text} " for text in stopped for what in ("2", "3delete")].count(True) == 2
        told = [text for text in texts(sent, 2) if text.startswith("UMR") and "1@3[1, 2, 4]" in text]  # B8 is the last
        assert all(any(f" t-{n}:1@3[1, 2, 4]" in text for text in told) for n in range(MANY))
        assert len({text.count("t-") for text in told}) == 1
        assert told[0].count("t-") == MANY // times


async def test_one_of_many_that_cannot_be_reassigned_costs_no_other(autojump_clock: MockClock) -> None:  # rule 11.21
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {n: [1, 2, 3] for n in range(MANY)})
        await w.store.write([SetData(znodes.partition_state_path(TopicPartition("t", 5)), b"nonsense")])
        targets = {TopicPartition("t", n): [1, 2, 4] for n in range(MANY)}
        result = await reassign(w, controller, targets)
        assert result == {tp: ErrorCode.UNKNOWN_SERVER_ERROR if tp.partition == 5 else ErrorCode.NONE for tp in targets}
        good = [tp for tp in targets if tp.partition != 5]
        for tp in good:
            await join_isr(w, controller, tp, (1, 2, 3, 4))
            assert await assignment(w, "t", tp.partition) == ((1, 2, 4), (), ())


async def test_a_request_takes_its_partitions_out_of_the_znode(autojump_clock: MockClock) -> None:  # rule 11.28
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2], 1: [2]})
        other = TopicPartition("t", 1)
        await by_znode(w, {TP: [3], other: [3]})
        await reassign(w, controller, {TP: [4]})
        left = cluster_nodes.decode_partition_reassignment(await w.get(znodes.REASSIGN_PARTITIONS) or b"")
        assert left == {other: (3,)}
        assert await assignment(w) == ((4, 2), (4,), (2,))


async def test_znode_entries_that_fail_are_removed_and_the_node_is_watched_again(
    autojump_clock: MockClock,
) -> None:  # rules 11.22, 11.23
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        nowhere = TopicPartition("nowhere", 0)
        await by_znode(w, {nowhere: [3], TP: [3]})
        left = cluster_nodes.decode_partition_reassignment(await w.get(znodes.REASSIGN_PARTITIONS) or b"")
        assert left == {TP: (3,)}
        await join_isr(w, controller, TP, (2, 3))
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None
        await by_znode(w, {nowhere: [3]})
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None
        await by_znode(w, {TP: [2]})
        assert controller.context.being_reassigned == {TP}


async def test_a_malformed_znode_stays(autojump_clock: MockClock) -> None:  # rules 1.38, 11.24
    for content in (b"{", b'{"version":1,"partitions":[{"topic":"t"}]}'):
        async with world() as w:
            await w.start_controller(1)
            value((await w.store.write([Create(znodes.REASSIGN_PARTITIONS, content)]))[0])
            await w.settle()
            assert await w.get(znodes.REASSIGN_PARTITIONS) == content


@pytest.mark.parametrize("unknown", [b'"log_dirs":["any"]}]}', b'"x":1}]}', b'"topic":"t"}],"x":1}'])
async def test_a_znode_with_fields_that_kafka_does_not_know_stays(
    autojump_clock: MockClock, unknown: bytes
) -> None:  # rule 1.38: a plan of kafka-reassign-partitions that somebody has pasted into the node has log_dirs
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        content = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3],' + unknown
        value((await w.store.write([Create(znodes.REASSIGN_PARTITIONS, content)]))[0])
        await w.settle()
        assert await w.get(znodes.REASSIGN_PARTITIONS) == content
        assert controller.context.being_reassigned == set()
        assert await w.state("t") == (2, 0, (2,))


async def test_a_topic_queued_for_deletion_is_not_reassigned(autojump_clock: MockClock) -> None:  # 11.21; DEL-4
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        w.brokers[3].mute = True
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        await w.settle()
        assert await reassign(w, controller, {TP: [1, 2]}) == {TP: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_deletion_waits_for_a_reassignment(autojump_clock: MockClock) -> None:  # rules 10.39, 10.47, 11.6
    async with world(brokers=(1, 2, 3, 4)) as w:
        await w.start_controller(1)
        second = await w.start_controller(2)
        await w.create_topic("t", {0: [3]})
        await reassign(w, w.nodes[1].controller, {TP: [4]})
        # marked when it is queued already at failover: the first enqueueing alone does not mark it (10.39)
        w.nodes[1].controller.close()
        await w.settle()
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        await w.kill_controller(1)
        await w.settle()
        assert second.context.topics_ineligible_for_deletion == {"t"}
        assert await w.get("/brokers/topics/t") is not None
        await join_isr(w, second, TP, (3, 4))
        await w.settle()
        assert await w.get("/brokers/topics/t") is None


@pytest.mark.parametrize("ibp", ["2.3", "2.6"])
async def test_below_2_7_the_state_node_is_watched(autojump_clock: MockClock, ibp: str) -> None:  # rules 11.3, 3.23
    async with world(ibp=MetadataVersion.parse(ibp)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await by_znode(w, {TP: [3]})
        path = znodes.partition_state_path(TP)
        for isr in ([2, 5], [2, 3]):  # the first does not complete it, and the watch is armed again
            state = json.loads(await w.get(path) or b"")
            await w.store.write([SetData(path, json.dumps(state | {"isr": isr}).encode())])
            await w.settle()
        assert (await w.state("t"))[0] == 3
        assert await assignment(w) == ((3,), (), ())
        assert controller.context.being_reassigned == set()
        assert path not in w.nodes[1].zk._change_handlers


async def test_an_isr_notification_completes_it(autojump_clock: MockClock) -> None:  # rules 11.17, 11.68
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await reassign(w, controller, {TP: [3]})
        path = znodes.partition_state_path(TP)
        state = json.loads(await w.get(path) or b"")
        note = Create(
            f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_", cluster_nodes.encode_partition_list([TP]), sequential=True
        )
        await w.store.write([SetData(path, json.dumps(state | {"isr": [2, 3]}).encode()), note])
        await w.settle()
        assert await assignment(w) == ((3,), (), ())
        assert controller.context.being_reassigned == set()


async def test_a_controller_that_was_moved_says_so(autojump_clock: MockClock) -> None:  # CI-29
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await w.store.write([SetData("/controller_epoch", b"9")])
        assert await reassign(w, controller, {TP: [3]}) == OperationResult(ErrorCode.NOT_CONTROLLER)
        assert await assignment(w) == ((2,), (), ())


async def test_a_reassignment_to_nothing_does_not_stop_the_controller(autojump_clock: MockClock) -> None:  # rule 11.21
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        data = cluster_nodes.encode_partition_reassignment({TopicPartition("t", 0): ()})
        await w.store.write([Create(znodes.REASSIGN_PARTITIONS, data)])
        await w.settle()
        assert controller.context.replicas(TopicPartition("t", 0)) == ()
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None
        await w.store.write([Delete("/controller")])
        await w.settle()
        await w.create_topic("u", {0: [2]})
        assert await w.state("u") == (2, 0, (2,))
        assert (controller.failovers, controller.loop.failures) == (2, {})


@pytest.mark.parametrize(("error", "ends"), [(BrokenBatch("broken"), True), (IllegalState("no leader"), False)])
async def test_a_broken_batch_ends_the_resumption(error: Exception, ends: bool, autojump_clock: MockClock) -> None:
    """A partition that cannot be resumed does not (rules 2.20, 4.15)."""
    async with world() as w:
        resumed = (await w.start_controller(1))._role.reassignment

        async def fails(*_: object) -> None:
            raise error

        resumed._reassign = fails  # type: ignore[assignment]
        with pytest.raises(BrokenBatch) if ends else nullcontext():
            await resumed._resume(TP)
