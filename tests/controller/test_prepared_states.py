"""Partition states that the controller's node writes together with its new topics (rules 6.7, 6.8, 10.7)."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from kce.controller.context import ControllerContext
from kce.controller.prepared_states import MOST
from kce.controller.states import PartitionState, ReplicaState
from kce.zookeeper import admin, znodes
from kce.zookeeper.admin import NewTopic
from kce.zookeeper.client import CONTROLLER_EPOCH
from kce.zookeeper.kafka_zk_client import Creation, KafkaZkClient
from kce.zookeeper.model import (
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    PartitionReplica,
    ReplicaAssignment,
    TopicAssignment,
    TopicPartition,
)
from kce.zookeeper.store import (
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    Op,
    OpResult,
    SetData,
    StoreError,
    StoreUnavailable,
)
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.controller.support import CountingController, FakeBroker, World, broker, leaderships_of, texts, world

T0 = TopicPartition("t", 0)
#: the answers of a multi
Answers = list[list[OpResult] | MultiFailed]


class Writes:
    """A world with controller 1, of which the writes of new topics are observed."""

    def __init__(self, w: World, controller: CountingController) -> None:
        self.w, self.controller = w, controller
        self.node = w.nodes[1]
        #: the operations of each group
        self.groups: list[Sequence[Op]] = []
        self.before: Callable[[], Awaitable[object]] = w.settle
        self.after: Callable[[], Awaitable[object]] = w.settle
        self._multi, self._write = self.node.store.multi, self.node.store.write
        #: partition states that were created by themselves
        self.alone: list[str] = []

    async def multi(self, groups: Sequence[Sequence[Op]]) -> Answers:
        before, self.before = self.before, self.w.settle
        after, self.after = self.after, self.w.settle
        self.groups += groups
        await before()
        answers = await self._multi(groups)
        await after()
        return answers

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        self.alone += [op.path for op in ops if isinstance(op, Create) and op.path.endswith("/state")]
        return await self._write(ops, fence=fence)

    async def create(self, assignment: Mapping[int, Sequence[int]], name: str = "t") -> dict[str, admin.AdminError]:
        topic = NewTopic(name, assignment, {}, self.w.new_uuid())
        refused = await admin.write_topics(self.node.zk, [topic])
        await self.w.settle()
        return refused

    @property
    def prepared(self) -> int:
        """Partitions whose prepared states are remembered."""
        return len(self.controller._runtime.partitions.prepared._creations)


def context_of(context: ControllerContext) -> dict[str, object]:
    """Everything in it, to be compared later."""
    everything = vars(context) | {
        "replica_states": dict(context.replica_states),
        "being_reassigned": set(context.being_reassigned),
    }
    return copy.deepcopy(everything)


@pytest.fixture
async def writes(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Writes]:
    async with world() as w:
        made = Writes(w, await w.start_controller(1))
        monkeypatch.setattr(made.node.store, "multi", made.multi)
        monkeypatch.setattr(made.node.store, "write", made.write)
        w.take()
        yield made


async def test_states_are_written_with_the_topic(writes: Writes) -> None:
    w = writes.w
    assert await writes.create({0: (2, 3), 1: (3, 1)}) == {}
    (group,) = writes.groups
    paths = ["/config/topics/t", "/brokers/topics/t", "/brokers/topics/t/partitions"]
    paths += [f"/brokers/topics/t/partitions/{p}" for p in (0, 1)]
    paths += [f"/brokers/topics/t/partitions/{p}/state" for p in (0, 1)]
    fence, *creations = group
    assert isinstance(fence, Check)
    assert (fence.path, fence.version) == (CONTROLLER_EPOCH, writes.controller.context.epoch_zk_version)
    assert [op.path for op in creations] == paths
    assert writes.alone == []
    assert await w.state("t", 0) == (2, 0, (2, 3))
    assert await w.state("t", 1) == (3, 0, (3, 1))
    assert sorted(leaderships_of(w.take(), T0)) == [(2, 0), (3, 0)]
    assert writes.prepared == 0


async def test_a_broker_that_dies_meanwhile_is_not_elected(writes: Writes) -> None:
    async def dies() -> None:
        await writes.w.stop_broker(2)
        await writes.w.settle()

    writes.before = dies
    assert await writes.create({0: (2, 3), 1: (3, 1)}) == {}
    assert writes.alone == [znodes.partition_state_path(T0)] * 2  # the first try finds the one that was prepared
    assert await writes.w.state("t", 0) == (3, 0, (3,))
    assert await writes.w.state("t", 1) == (3, 0, (3, 1))
    assert sorted(leaderships_of(writes.w.take(), T0)) == [(3, 0)]
    assert writes.prepared == 0


async def test_topics_are_created_while_they_are_written(writes: Writes) -> None:
    """Brokers are told when the write is answered."""
    w, context = writes.w, writes.controller.context
    before: list[str] = []

    async def under_way() -> None:
        await w.settle()
        assert context.partition_state(T0) is PartitionState.ONLINE
        assert context.replica_states.of(PartitionReplica(T0, BrokerId(3))) is ReplicaState.ONLINE
        before.extend(texts(w.take(), 3))

    writes.before = under_way
    assert await writes.create({0: (2, 3)}) == {}
    assert before == []
    sent = w.take()
    assert texts(sent, 2) == ["LAI t-0:2@0[2, 3]new", "UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]
    assert texts(sent, 1) == ["UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]


async def test_a_broker_that_dies_while_topics_are_written_is_replaced_as_leader(writes: Writes) -> None:
    async def dies() -> None:
        await writes.w.settle()
        await writes.w.stop_broker(2)
        await writes.w.settle()

    writes.before = dies
    assert await writes.create({0: (2, 3)}) == {}
    assert await writes.w.state("t") == (3, 1, (3,))
    told = [text for text in texts(writes.w.take(), 3) if text.startswith("LAI")]
    assert list(dict.fromkeys(told)) == ["LAI t-0:2@0[2, 3]new", "LAI t-0:3@1[3]"]


async def test_topics_that_are_not_written_are_forgotten(writes: Writes) -> None:
    w, context = writes.w, writes.controller.context
    await w.create_topic("known", {0: [1, 2]})
    w.take()
    known = context_of(context)

    async def fails() -> None:
        await w.settle()
        assert context.topics == {"known", "t"}
        raise StoreUnavailable("the connection is lost")

    writes.before = fails
    with pytest.raises(StoreUnavailable):
        await writes.create({0: (2, 3), 1: (3,)})
    await w.settle()
    assert context_of(context) == known
    assert (w.take(), writes.prepared) == ([], 0)
    assert await writes.create({0: (3, 2)}) == {}
    assert "LAI t-0:3@0[3, 2]new" in texts(w.take(), 2)


async def test_a_write_whose_answer_is_lost_is_read(writes: Writes) -> None:
    """The topics are forgotten, found, and created with the states that were written after all."""
    w = writes.w

    async def is_lost() -> None:
        raise StoreUnavailable("the connection is lost")

    writes.after = is_lost
    with pytest.raises(StoreUnavailable):
        await writes.create({0: (2, 3), 1: (3,)})
    await w.settle()
    assert writes.controller.context.partition_state(T0) is PartitionState.ONLINE
    assert await w.state("t", 0) == (2, 0, (2, 3))
    assert await w.state("t", 1) == (3, 0, (3,))
    assert "LAI t-0:2@0[2, 3]new" in texts(w.take(), 2)
    assert writes.prepared == 0


async def test_a_topic_that_somebody_else_writes_first_is_theirs(writes: Writes) -> None:
    w = writes.w

    async def somebody_else() -> None:
        await w.settle()
        await w.create_topic("t", {0: [3]})

    writes.before = somebody_else
    assert list(await writes.create({0: (1,), 1: (1,)})) == ["t"]
    assert leaderships_of(w.take(), T0)[:1] == [(3, 0)]
    assert writes.controller.context.topic_assignments("t") == {0: ReplicaAssignment((BrokerId(3),))}
    assert writes.controller.context.replica_states.get(PartitionReplica(T0, BrokerId(1))) is None
    assert writes.prepared == 0


async def test_without_a_live_replica_the_partition_stays_new(writes: Writes) -> None:
    w = writes.w

    async def dies() -> None:
        await w.stop_broker(2)
        await w.settle()

    writes.before = dies
    assert await writes.create({0: (2,)}) == {}
    assert writes.controller.context.partition_state(T0) is PartitionState.NEW
    assert writes.prepared == 1
    await writes.create({0: (3,)}, "other")
    assert writes.prepared == 1  # it is still to be replaced
    w.take()
    await w.start_broker(2)
    await w.settle()
    assert writes.controller.context.partition_state(T0) is PartitionState.ONLINE
    assert await w.state("t") == (2, 0, (2,))
    assert "LAI t-0:2@0[2]new" in texts(w.take(), 2)
    assert writes.prepared == 0


async def test_replicas_of_dead_brokers_are_not_prepared(writes: Writes) -> None:
    assert await writes.create({0: (2, 3), 1: (7,)}) == {}
    assert [len(group) for group in writes.groups][:1] == [2]
    assert await writes.w.state("t", 0) == (2, 0, (2, 3))
    assert writes.controller.context.partition_state(TopicPartition("t", 1)) is PartitionState.NEW
    assert writes.prepared == 0


async def test_a_large_topic_is_not_prepared(writes: Writes) -> None:
    assert await writes.create(dict.fromkeys(range(MOST + 1), (2,))) == {}
    assert len(writes.groups[0]) == 2
    assert await writes.w.state("t", MOST) == (2, 0, (2,))
    assert await writes.create(dict.fromkeys(range(MOST), (2,)), "u") == {}
    assert writes.prepared == 0
    assert await writes.w.state("u", MOST - 1) == (2, 0, (2,))


@pytest.mark.parametrize("change", [SetData(CONTROLLER_EPOCH, b"7"), Delete(CONTROLLER_EPOCH)])
async def test_a_controller_that_has_moved_still_creates_the_topic(writes: Writes, change: Op) -> None:  # rule 10.7
    async def moves() -> None:
        await writes.w.store.write([change])

    writes.before = moves
    assert await writes.create({0: (2, 3)}) == {}
    assert await writes.w.get("/brokers/topics/t") is not None
    assert await writes.w.get("/config/topics/t") is not None
    assert await writes.w.get(znodes.partition_state_path(T0)) is None


async def test_what_is_in_the_way(writes: Writes) -> None:
    """A configuration that is left over; then a topic of that name."""
    w = writes.w
    await w.store.write([Create("/config/topics/t", b"{}")])
    assert await writes.create({0: (2, 3)}) == {}
    assert await w.state("t") == (2, 0, (2, 3))
    assert writes.prepared == 0

    async def somebody_else() -> None:
        await w.create_topic("u", {0: [3]})

    writes.before = somebody_else
    assert list(await writes.create({0: (1,), 1: (1,)}, "u")) == ["u"]
    assert await w.state("u") == (3, 0, (3,))
    assert await w.get(znodes.partition_state_path(TopicPartition("u", 1))) is None
    await writes.create({0: (1,)}, "v")
    assert writes.prepared == 0


async def test_two_clients_create_a_topic_at_a_time(writes: Writes) -> None:
    """What was prepared for the one that comes too late does not hide what was written for the other."""
    w = writes.w

    async def second() -> None:
        topic = NewTopic("t", {0: (3, 2)}, {}, w.new_uuid())
        assert list(await admin.write_topics(writes.node.zk, [topic])) == ["t"]

    async def dies() -> None:
        await w.stop_broker(2)
        await w.settle()

    writes.before, writes.after = dies, second
    assert await writes.create({0: (2, 3)}) == {}
    assert writes.controller.context.partition_state(T0) is PartitionState.ONLINE
    assert await w.state("t") == (3, 0, (3,))
    await writes.create({0: (3,)}, "other")
    assert writes.prepared == 0


async def test_those_of_a_write_that_is_under_way_are_kept(writes: Writes) -> None:
    creation = Creation({"u": TopicAssignment("u", writes.w.new_uuid(), {0: ReplicaAssignment((BrokerId(2),))})})
    writes.node.zk.creation_handler.prepare(creation)
    prepared = writes.controller._runtime.partitions.prepared
    await writes.w.create_topic("foreign", {0: [2]})
    await writes.w.settle()
    assert (list(prepared.ended()), writes.prepared) == ([], 1)
    creation.ended.set()
    assert list(prepared.ended()) == [(creation.topics["u"].topic_id, TopicPartition("u", 0))]
    await writes.w.create_topic("other", {0: [2]})
    await writes.w.settle()
    assert writes.prepared == 0


async def test_a_state_of_somebody_else_stays(writes: Writes) -> None:  # rule 6.8
    """Neither the one that was prepared, nor the one that is to be."""
    zk, partitions, epoch = writes.node.zk, writes.controller._runtime.partitions, EpochZkVersion(1)
    creation = Creation({"t": TopicAssignment("t", writes.w.new_uuid(), {0: ReplicaAssignment((BrokerId(2),))})})
    partitions.prepared.prepare(creation, partitions.initial_state, epoch)
    states = [Leadership(LeaderAndIsr(BrokerId(broker), (BrokerId(broker),)), ControllerEpoch(1)) for broker in (1, 3)]
    await zk.ensure_paths(["/brokers/topics/t"])
    await zk.create_partition_states({T0: states[0]}, epoch)
    created = await partitions.prepared.create({T0: states[1]}, {"t": creation.topics["t"].topic_id}, epoch)
    assert isinstance(created[T0], NodeExists)
    assert await writes.w.state("t") == (1, 0, (1,))


async def test_with_nodes_that_take_no_replicas_nothing_is_prepared(writes: Writes) -> None:
    """Their replicas are moved, but not those of partitions that exist."""
    w = writes.w
    only = replace(broker(7), controller_only=True)
    await KafkaZkClient(w.server.connect(), now_ms=lambda: 0).register_broker(only, w.ibp)
    w.brokers[7] = FakeBroker(7, w.log)
    await w.settle()
    assert await writes.create({0: (7, 2)}) == {}
    assert await w.state("t") == (1, 0, (1, 2))


async def test_who_resigns_forgets_them(writes: Writes) -> None:
    async def dies() -> None:
        await writes.w.stop_broker(2)
        await writes.w.settle()

    writes.before = dies
    await writes.create({0: (2,)})
    assert writes.prepared == 1
    await writes.w.store.write([Delete("/controller")])
    await writes.w.settle()
    assert writes.prepared == 0


async def test_states_are_those_of_the_topic_with_that_id(writes: Writes) -> None:
    """Not of another one that had its name, and was deleted before the controller has noticed it."""
    zk, partitions = writes.node.zk, writes.controller._runtime.partitions
    epoch = writes.controller.context.epoch_zk_version
    ours, other = writes.w.new_uuid(), writes.w.new_uuid()
    await zk.ensure_paths(["/brokers/topics/t"])
    for topic_id, is_created in ((other, True), (ours, False)):
        creation = Creation({"t": TopicAssignment("t", ours, {0: ReplicaAssignment((BrokerId(2),))})})
        partitions.prepared.prepare(creation, partitions.initial_state, epoch)
        creation.is_written = True
        assert await partitions.prepared.create(creation.states["t"], {"t": topic_id}, epoch) == {T0: None}
        assert (await writes.w.get(znodes.partition_state_path(T0)) is not None) is is_created
        await zk.delete_path("/brokers/topics/t/partitions")


async def test_an_answer_that_is_lost(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as of_server, world(server=MemoryZooKeeper(nursery=of_server)) as w:
        controller = await w.start_controller(1)
        node = w.nodes[1]
        node.store.delay_s = 0.01
        topic = NewTopic("t", {0: (2, 3)}, {}, w.new_uuid())

        async def write() -> None:
            assert await admin.write_topics(node.zk, [topic]) == {}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.sleep(0.005)
            w.server.mute(node.store)  # it is executed, and not answered
            await trio.sleep(0.1)
            w.server.reconnect(node.store)
        await trio.sleep(1)
        assert await w.state("t") == (2, 0, (2, 3))
        assert controller.context.partition_state(T0) is PartitionState.ONLINE
        assert sorted(leaderships_of(w.take(), T0)) == [(2, 0), (3, 0)]
        of_server.cancel_scope.cancel()
