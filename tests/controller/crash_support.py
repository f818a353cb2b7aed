"""A cluster that can crash a controller at any of its store operations and sends, and that checks that no broker
receives a state that is not in the store.

A point is (before or after, operation, repetition): ``("before", "SetData /brokers/topics/t", 0)``. A run without a
crash records its points; each of them is then the point of a crash in a run of its own. Operations identify points,
because Trio's scheduler does not run tasks in the same order twice, so numbers would not.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from kce import wire
from kce.controller.kafka_controller import KafkaController
from kce.wire.metadata_version import LATEST
from kce.zookeeper import znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import LEADER_DURING_DELETE, LeaderAndIsr, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Check, Create, MultiFailed, NodeData, Op, OpResult, SetData, Stat, StoreError
from kce.zookeeper.store.data_tree import Client, DataTree
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.controller.support import FakeConnection, World

#: which time the same thing happens comes last
Point = tuple[str, str, int]
VICTIM, SUCCESSOR = 8, 9


class Strike(enum.Enum):
    """``KILL``: the process is gone, its session too. ``EXPIRE``: its session ends and it lives. ``RESTART``:
    ZooKeeper goes away and comes back with all sessions; what it answered last is lost. ``ERROR``: the store refuses
    what no rule expects it to refuse."""

    KILL = "kill -9"
    EXPIRE = "session expired"
    RESTART = "ZooKeeper restarted"
    ERROR = "error"


class RecordingTree(DataTree):
    def __init__(self, record: Callable[[str, bytes, int], None]) -> None:
        super().__init__()
        self._record = record

    def multi(self, client: Client, ops: Sequence[Op]) -> list[OpResult]:
        results = super().multi(client, ops)
        for op, result in zip(ops, results, strict=True):
            if isinstance(op, (Create, SetData)):
                self._record(op.path, op.data, result.version if isinstance(result, Stat) else 0)
        return results


class RecordingZooKeeper(MemoryZooKeeper):
    """Records all states of partitions, assignments and controller epochs that it ever held."""

    def __init__(self, world: CrashWorld) -> None:
        super().__init__()
        self.tree = RecordingTree(self._record)
        self.world = world
        self.states: set[tuple[TopicPartition, LeaderAndIsr]] = set()
        self.assignments: set[tuple[TopicPartition, ReplicaAssignment]] = set()
        self.controller_epochs: set[int] = set()
        self.marked_for_deletion: set[str] = set()

    def connect(self, *, session_timeout_ms: int = 6000) -> StrikableStore:
        return StrikableStore(self, next(self._sessions), session_timeout_ms)

    def assigned(self, tp: TopicPartition) -> set[ReplicaAssignment]:
        """Assignments of the partition that requests may contain. A reassignment's target is sent when it is complete,
        before it is written (11.13)."""
        held = {assignment for known, assignment in self.assignments if known == tp}
        return held | {ReplicaAssignment(assignment.target) for assignment in held}

    def _record(self, path: str, data: bytes, version: int) -> None:
        match path.strip("/").split("/"):
            case ["controller_epoch"]:
                self.controller_epochs.add(int(data))
            case ["admin", "delete_topics", topic]:
                self.marked_for_deletion.add(topic)
            case ["brokers", "topics", topic]:
                for number, assignment in znodes.decode_topic(topic, data).partitions.items():
                    self.assignments.add((TopicPartition(topic, number), assignment))
            case ["brokers", "topics", topic, "partitions", number, "state"]:
                known = znodes.decode_partition_state(data, version)
                assert known is not None
                self.states.add((TopicPartition(topic, int(number)), known.leader_and_isr))


class StrikableStore(MemoryStore):
    """A session of which every operation is a point, each write of many by itself."""

    def _world(self) -> CrashWorld:
        server = self._server
        assert isinstance(server, RecordingZooKeeper)
        return server.world

    async def _read(self, what: str, paths: Sequence[str]) -> None:
        if paths:
            await self._world().point("before", f"{what} {paths[0]} and {len(paths) - 1} more", self)

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        await self._read("get_data", paths)
        return await super().get_data(paths, watch=watch)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        await self._read("exists", paths)
        return await super().exists(paths, watch=watch)

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        await self._read("get_children", paths)
        return await super().get_children(paths, watch=watch)

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        answers: list[OpResult | StoreError] = []
        for op in ops:
            what = f"{type(op).__name__} {op.path}"
            await self._world().point("before", what, self)
            (answer,) = await super().write([op], fence=fence)
            if await self._world().point("after", what, self):  # the answer was lost, the client asks again (1.52)
                (answer,) = await super().write([op], fence=fence)
            answers.append(answer)
        return answers

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        answers: list[list[OpResult] | MultiFailed] = []
        for group in groups:
            what = " + ".join(f"{type(op).__name__} {op.path}" for op in group)
            await self._world().point("before", what, self)
            (answer,) = await super().multi([group])
            if await self._world().point("after", what, self):
                (answer,) = await super().multi([group])
            answers.append(answer)
        return answers


class StrikableConnection(FakeConnection):
    """Every request of the victim is a point before it is sent and when the broker has it; all are checked."""

    def __init__(self, world: CrashWorld, broker: int) -> None:
        super().__init__(world.brokers[broker])
        self._world = world

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        payload += rest
        await trio.lowlevel.checkpoint()  # where a task that was cancelled ends
        _, message = wire.decode_request(payload)
        assert isinstance(message, (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest, wire.StopReplicaRequest))
        sender = self._world.sender(message.controller_id)
        what = f"{type(message).__name__} to {self.server.id}"
        await self._world.point("before", what, sender)
        await super().send_frame(payload)
        try:
            self._world.check(message, self.server.id)
        except AssertionError as e:
            self._world.violations.append(e)
        await self._world.point("after", what, sender)


class CrashWorld(World):
    """``strike`` falls at the first of ``strikes`` on the victim, and at a second one on whoever takes over from it.

    ``passed`` are the points that were come by since ``arm``: by the first victim, then by the second.
    """

    def __init__(self, nursery: trio.Nursery, strike: Strike, strikes: Sequence[Point]) -> None:
        super().__init__(nursery, LATEST)
        self.recorder = RecordingZooKeeper(self)
        self.server = self.recorder
        self.store = self.server.connect()
        self.zk = KafkaZkClient(self.store, now_ms=lambda: 0, new_uuid=self.new_uuid)
        self.strike = strike
        self.strikes = tuple(strikes)
        self.passed: list[list[Point]] = [[]]
        self.violations: list[AssertionError] = []
        self._armed = False
        self._times: collections.Counter[tuple[str, str]] = collections.Counter()
        self._dead: set[int] = set()

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> FakeConnection:
        await super().dial(host, port, to=to, listener=listener)
        return StrikableConnection(self, port - 1000)

    def arm(self) -> None:
        self._armed = True

    @property
    def struck(self) -> int:
        """How often."""
        return len(self.passed) - 1

    async def revive(self) -> KafkaController:
        """The first victim comes back as a process comes back that was killed."""
        self._dead.discard(VICTIM)
        return await self.start_controller(VICTIM)

    def sender(self, controller_id: int) -> MemoryStore | None:
        if controller_id in self._dead:
            self.violations.append(AssertionError(f"{controller_id} is dead and sends"))
        return self.registrations.get(controller_id)

    async def point(self, when: str, what: str, client: MemoryStore | None) -> bool:
        """Pass a point. True when the answer to what was done there is lost."""
        victim = VICTIM if not self.struck else SUCCESSOR
        if not self._armed or client is None or client is not self.registrations.get(victim):
            return False
        place = (when, what, self._times[when, what])
        self._times[when, what] += 1
        self.passed[-1].append(place)
        if place != (*self.strikes, None)[min(self.struck, len(self.strikes))]:
            return False
        self.passed.append([])
        self._times.clear()
        match self.strike:
            case Strike.KILL:
                await self._kill(victim)
            case Strike.EXPIRE:
                self.server.expire(self.registrations[victim])
            case Strike.RESTART:
                everyone = [self.store, *self.registrations.values()]
                for one in everyone:
                    assert isinstance(one, MemoryStore)
                    self.server.disconnect(one)
                for one in everyone:
                    self.server.reconnect(one)
                return when == "after"
            case Strike.ERROR:
                raise StoreError("struck by the test")
        return False

    async def _kill(self, victim: int) -> None:
        """Called in a task of the victim, which gets no further than this."""
        self._dead.add(victim)
        self.nodes.pop(victim).scope.cancel()
        self.brokers[victim].down = True
        self.brokers[victim].break_connections()
        self.server.tree.end_session(self.registrations.pop(victim))
        await trio.sleep_forever()

    # nothing is sent that was not persisted

    def check(self, message: wire.Message, broker: int) -> None:
        seen = self.recorder
        match message:
            case wire.LeaderAndIsrRequest():
                assert message.controller_epoch in seen.controller_epochs
                for topic in message.topic_states:
                    for p in topic.partition_states:
                        tp = TopicPartition(topic.topic_name, p.partition_index)
                        state = LeaderAndIsr(
                            p.leader, p.isr, p.leader_epoch, p.leader_recovery_state, p.partition_epoch
                        )  # type: ignore[arg-type]
                        assert (tp, state) in seen.states, f"{tp} was sent {state}, which was never persisted"
                        assignment = ReplicaAssignment(p.replicas, p.adding_replicas, p.removing_replicas)  # type: ignore[arg-type]
                        assert assignment in seen.assigned(tp), f"{tp} was sent {assignment}, which nobody decided"
                        assert p.controller_epoch in seen.controller_epochs
            case wire.UpdateMetadataRequest():
                assert message.controller_epoch in seen.controller_epochs
                for topic in message.topic_states:
                    for p in topic.partition_states:
                        tp = TopicPartition(topic.topic_name, p.partition_index)
                        if p.leader == LEADER_DURING_DELETE:
                            assert topic.topic_name in seen.marked_for_deletion
                            continue
                        assert any(
                            known == tp
                            and (s.leader, s.leader_epoch, s.isr, s.partition_epoch)
                            == (p.leader, p.leader_epoch, p.isr, p.zk_version)
                            for known, s in seen.states
                        ), f"{tp} was announced as {p}, which was never persisted"
            case wire.StopReplicaRequest():
                for topic in message.topic_states:
                    for p in topic.partition_states:
                        tp = TopicPartition(topic.topic_name, p.partition_index)
                        if p.delete_partition and topic.topic_name not in seen.marked_for_deletion:
                            assert any(known == tp and broker not in a.target for known, a in seen.assignments), (
                                f"{tp} is deleted on {broker}, which it was never to leave"
                            )

    # what the brokers know in the end

    def believed_leadership(self, tp: TopicPartition, broker: int) -> tuple[int, int] | None:
        """Leader and leader epoch that the broker goes by: of requests that Kafka's fences let pass (B1.19, B3.5)."""
        epoch, known = 0, None
        for sent in self.log:
            if sent.broker != broker or sent.message.controller_epoch < epoch:
                continue
            epoch = sent.message.controller_epoch
            if isinstance(sent.message, wire.LeaderAndIsrRequest):
                for topic in sent.message.topic_states:
                    for p in topic.partition_states:
                        if TopicPartition(topic.topic_name, p.partition_index) == tp and (
                            known is None or p.leader_epoch >= known[1]
                        ):
                            known = (p.leader, p.leader_epoch)
        return known

    def led_as_announced(self, tp: TopicPartition, broker: int) -> tuple[int, int] | None:
        """Leader and leader epoch that the broker reports to clients."""
        epoch, known = 0, None
        for sent in self.log:
            if sent.broker != broker or sent.message.controller_epoch < epoch:
                continue
            epoch = sent.message.controller_epoch
            if isinstance(sent.message, wire.UpdateMetadataRequest):
                for topic in sent.message.topic_states:
                    for p in topic.partition_states:
                        if TopicPartition(topic.topic_name, p.partition_index) == tp:
                            known = (p.leader, p.leader_epoch)
        return known

    def deleted(self, tp: TopicPartition, broker: int) -> bool:
        return any(
            TopicPartition(topic.topic_name, p.partition_index) == tp and p.delete_partition
            for sent in self.log
            if sent.broker == broker and isinstance(sent.message, wire.StopReplicaRequest)
            for topic in sent.message.topic_states
            for p in topic.partition_states
        )


@asynccontextmanager
async def crash_world(brokers: Sequence[int], strike: Strike, strikes: Sequence[Point]) -> AsyncIterator[CrashWorld]:
    """Brokers, the controller that is to be struck, and the one that waits behind it."""
    async with trio.open_nursery() as nursery:
        made = CrashWorld(nursery, strike, strikes)
        await made.zk.create_top_level_paths()
        for broker_id in brokers:
            await made.start_broker(broker_id)
        await made.start_controller(VICTIM)
        await made.start_controller(SUCCESSOR)
        yield made
        nursery.cancel_scope.cancel()
