"""A cluster in memory for controller tests: the store's twin, brokers that answer over in-memory connections, and as
many contenders as a test wants. Traffic is kept in order, so that tests read as dialogues."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import trio

from kce import wire
from kce.broker_stub.zookeeper.config_changes import ConfigChangeListener
from kce.controller.config import ControllerConfig
from kce.controller.context import ControllerContext
from kce.controller.elector import ControllerToken
from kce.controller.event_loop import ControllerEventLoop, Process
from kce.controller.events import ControllerEvent
from kce.controller.kafka_controller import KafkaController
from kce.controller.runtime import ControllerRuntime, WaitForFeatures, no_feature_cache
from kce.controller.states import ReplicaState
from kce.metrics import Metrics
from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    BrokerId,
    Endpoint,
    Leadership,
    PartitionReplica,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.store import Create, SessionState, value
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from kce.zookeeper.znodes import encode_topic
from tests.connections import TaskConnection
from tests.controller import requests

CONTROL, DATA = "CONTROL", "DATA"


def broker(
    broker_id: int, rack: str | None = None, features: Mapping[str, tuple[int, int]] | None = None
) -> RegisteredBroker:
    """Its ports contain the id: 1000 + id for control, 2000 + id for data."""
    return RegisteredBroker(
        BrokerId(broker_id),
        (
            Endpoint(CONTROL, "PLAINTEXT", "127.0.0.1", 1000 + broker_id),
            Endpoint(DATA, "PLAINTEXT", "127.0.0.1", 2000 + broker_id),
        ),
        rack,
        dict(features or {}),
    )


@dataclass
class Sent:
    """One request that a broker received."""

    broker: int
    header: wire.Header
    message: Any

    def __str__(self) -> str:
        return f"{type(self.message).__name__} {self.header.api_version} -> {self.broker}"


def as_received(request: wire.Message, api_version: int) -> wire.Message:
    """What a broker decodes."""
    frame = wire.encode_request(request, api_version=api_version, correlation_id=0, client_id=None)
    return wire.decode_request(frame)[1]


def answer(request: Any, header: wire.Header) -> wire.Message:
    """A broker's response without errors."""
    match request:
        case wire.LeaderAndIsrRequest():
            if header.api_version < 5:
                flat = [
                    (t.topic_name, p.partition_index) for t in request.topic_states for p in t.partition_states
                ] or [(p.topic_name, p.partition_index) for p in request.ungrouped_partition_states]
                return wire.LeaderAndIsrResponse(
                    partition_errors=tuple(
                        wire.LeaderAndIsrPartitionError(topic_name=t, partition_index=p) for t, p in flat
                    )
                )
            return wire.LeaderAndIsrResponse(
                topics=tuple(
                    wire.LeaderAndIsrTopicError(
                        topic_id=t.topic_id,
                        partition_errors=tuple(
                            wire.LeaderAndIsrPartitionError(partition_index=p.partition_index)
                            for p in t.partition_states
                        ),
                    )
                    for t in request.topic_states
                )
            )
        case wire.UpdateMetadataRequest():
            return wire.UpdateMetadataResponse()
        case wire.StopReplicaRequest():
            return wire.StopReplicaResponse(
                partition_errors=tuple(
                    wire.StopReplicaPartitionError(topic_name=tp.topic, partition_index=tp.partition)
                    for tp in stopped(request)
                )
            )
    raise AssertionError(f"a controller does not send {type(request).__name__}")


def stopped(request: wire.StopReplicaRequest) -> dict[TopicPartition, bool]:
    """Partitions that a request of any version stops -> whether they are deleted."""
    found = {
        TopicPartition(t.topic_name, p.partition_index): p.delete_partition
        for t in request.topic_states
        for p in t.partition_states
    }
    of_v0 = [TopicPartition(p.topic_name, p.partition_index) for p in request.ungrouped_partitions]
    of_v1 = [TopicPartition(t.name, p) for t in request.topics for p in t.partition_indexes]
    return found | dict.fromkeys(of_v0 + of_v1, request.delete_partitions)


@dataclass
class FakeBroker:
    """Answers requests, and keeps them in ``received``. ``down`` refuses connections, ``mute`` does not answer."""

    id: int
    log: list[Sent]
    received: list[Sent] = field(default_factory=list)
    answer: Callable[[Any, wire.Header], wire.Message] = answer
    down: bool = False
    mute: bool = False
    connections: list[FakeConnection] = field(default_factory=list)

    def break_connections(self) -> None:
        for connection in self.connections:
            connection.broken.set()
        self.connections.clear()


class FakeConnection(TaskConnection):
    def __init__(self, server: FakeBroker) -> None:
        self.server = server
        self.broken = trio.Event()
        self._answers: list[bytes] = []
        server.connections.append(self)

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        payload += rest
        await trio.lowlevel.checkpoint()
        if self.broken.is_set():
            raise ConnectionResetError("broken")
        header, message = wire.decode_request(payload)
        sent = Sent(self.server.id, header, message)
        self.server.received.append(sent)
        self.server.log.append(sent)
        response = self.server.answer(message, header)
        if not self.server.mute:
            self._answers.append(
                wire.encode_response(response, api_version=header.api_version, correlation_id=header.correlation_id)
            )

    async def receive_frame(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._answers:
            await self.broken.wait()
            raise ConnectionResetError("broken")
        return self._answers.pop(0)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class CountingController(KafkaController):
    """Counts its completed failovers."""

    failovers = 0

    async def grant_leadership(self, token: ControllerToken) -> None:
        await super().grant_leadership(token)
        self.failovers += 1


class IdleLoop(ControllerEventLoop):
    """An event loop that tests can wait for until it is idle."""

    def __init__(self, process: Process, metrics: Metrics | None = None) -> None:
        super().__init__(process, metrics)
        self._idle = trio.Event()

    def put(self, event: ControllerEvent) -> None:
        super().put(event)
        self._idle = trio.Event() if self._idle.is_set() else self._idle

    async def _next(self) -> ControllerEvent:
        if not len(self):
            self._idle.set()
        return await super()._next()

    async def wait_idle(self) -> None:
        """Until nothing is queued and nothing is being processed."""
        await self._idle.wait()


@dataclass
class Node:
    """A contender with its session."""

    controller: CountingController
    store: MemoryStore
    zk: KafkaZkClient
    scope: trio.CancelScope


class World:
    """Brokers, contenders and the store. ``log`` is every request any broker received, in order."""

    def __init__(
        self,
        nursery: trio.Nursery,
        ibp: MetadataVersion,
        features: Mapping[str, tuple[int, int]] | None = None,
        server: MemoryZooKeeper | None = None,
    ) -> None:
        #: of brokers that are yet to register
        self.features = features
        #: of controllers that are yet to start
        self.wait_for_features: WaitForFeatures = no_feature_cache
        self.server = MemoryZooKeeper() if server is None else server
        self.ibp = ibp
        self.log: list[Sent] = []
        self.brokers: dict[int, FakeBroker] = {}
        self.nodes: dict[int, Node] = {}
        self.registrations: dict[int, MemoryStore] = {}
        self._nursery = nursery
        self._uuids = Random(7)
        self.store = self.server.connect()
        self.zk = KafkaZkClient(self.store, now_ms=lambda: 0, new_uuid=self.new_uuid)

    @property
    def has_listener_names(self) -> bool:
        """Before 0.10.2 a listener had the name of its security protocol (rule 8.21)."""
        return self.ibp.update_metadata_version >= 3

    def _broker(self, broker_id: int, rack: str | None = None) -> RegisteredBroker:
        made = broker(broker_id, rack, self.features)
        if self.has_listener_names:
            return made
        return replace(made, endpoints=(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 1000 + broker_id),))

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._uuids.getrandbits(128), version=4)

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> FakeConnection:
        await trio.lowlevel.checkpoint()
        server = self.brokers[port - 1000]  # a controller uses the control listener
        if server.down:
            raise ConnectionRefusedError(f"{host}:{port}")
        return FakeConnection(server)

    async def start_broker(self, broker_id: int, rack: str | None = None) -> FakeBroker:
        """A broker that registers in a session of its own and answers control requests."""
        made = self.brokers[broker_id] = FakeBroker(broker_id, self.log)
        store = self.registrations[broker_id] = self.server.connect()
        await KafkaZkClient(store, now_ms=lambda: 0).register_broker(self._broker(broker_id, rack), self.ibp)
        return made

    async def stop_broker(self, broker_id: int) -> None:
        self.brokers[broker_id].down = True
        self.brokers[broker_id].break_connections()
        await self.registrations.pop(broker_id).aclose()

    async def bounce_broker(self, broker_id: int) -> None:
        """Register again before anybody notices its absence."""
        await self.registrations.pop(broker_id).aclose()
        self.brokers[broker_id].break_connections()
        store = self.registrations[broker_id] = self.server.connect()
        await KafkaZkClient(store, now_ms=lambda: 0).register_broker(self._broker(broker_id), self.ibp)

    async def start_controller(self, broker_id: int, **settings: Any) -> CountingController:
        """Start a contender on that broker, in the broker's session; also start the broker if necessary."""
        if broker_id not in self.registrations:
            await self.start_broker(broker_id)
        self.spawn_controller(broker_id, **settings)
        await self.settle()
        return self.nodes[broker_id].controller

    def spawn_controller(self, broker_id: int, **settings: Any) -> None:
        store = self.registrations[broker_id]
        zk = KafkaZkClient(store, now_ms=lambda: 0, new_uuid=self.new_uuid)
        config = ControllerConfig(
            broker_id=BrokerId(broker_id),
            inter_broker_listener_name=DATA if self.has_listener_names else "PLAINTEXT",
            control_plane_listener_name=CONTROL if self.has_listener_names else None,
            inter_broker_protocol_version=self.ibp,
            **settings,
        )

        async def register() -> object:
            return await zk.register_broker(self._broker(broker_id), self.ibp)

        async def serve() -> None:
            async with trio.open_nursery() as nursery:
                controller = CountingController(
                    config,
                    zk,
                    self.dial,
                    nursery,
                    register=register,
                    unclean_leader_election_enable=lambda: configs.unclean_leader_election_enable,
                    wait_for_features=self.wait_for_features,
                )
                configs = ConfigChangeListener(
                    zk,
                    broker_id,
                    static_unclean=config.unclean_leader_election_enable,
                    on_unclean_election_enabled=controller.unclean_leader_election_enabled,
                )
                of_controller = store.on_session

                def session_changed(state: SessionState) -> None:
                    of_controller(state)
                    configs.session_changed(state)

                store.on_session = session_changed
                await nursery.start(configs.run)
                self.nodes[broker_id] = Node(controller, store, zk, nursery.cancel_scope)
                nursery.start_soon(controller.run)

        self._nursery.start_soon(serve)

    async def kill_controller(self, broker_id: int) -> None:
        """Kill the process: contender, broker and session."""
        self.nodes.pop(broker_id).scope.cancel()
        await self.stop_broker(broker_id)

    async def settle(self) -> None:
        """Wait until nothing is pending."""
        await trio.testing.wait_all_tasks_blocked()

    async def create_topic(self, topic: str, assignment: dict[int, Sequence[int]]) -> uuid.UUID:
        topic_id = self.new_uuid()
        replicas = {p: ReplicaAssignment(tuple(BrokerId(r) for r in rs)) for p, rs in assignment.items()}
        value((await self.store.write([Create(f"/brokers/topics/{topic}", encode_topic(topic_id, replicas))]))[0])
        await self.settle()
        return topic_id

    async def state(self, topic: str, partition: int = 0) -> tuple[int, int, tuple[int, ...]]:
        """(leader, leader epoch, ISR) as ZooKeeper has it."""
        tp = TopicPartition(topic, partition)
        known = (await self.zk.get_partition_states([tp]))[tp]
        assert isinstance(known, Leadership), known
        return known.leader_and_isr.leader, known.leader_and_isr.leader_epoch, known.leader_and_isr.isr

    async def get(self, path: str) -> bytes | None:
        """Data of a node, None if it does not exist."""
        found = await self.zk.get_one(path)
        return None if found is None else found.data

    def take(self) -> list[Sent]:
        """What was sent since the last call."""
        taken = list(self.log)
        self.log.clear()
        for fake in self.brokers.values():
            fake.received.clear()
        return taken


def put_replica_state(context: ControllerContext, replica: PartitionReplica, state: ReplicaState) -> None:
    context.replica_states.put(replica.replica, [replica.topic_partition], state)


def alter_partition_request(
    controller: KafkaController, tp: TopicPartition, isr: Sequence[int]
) -> wire.AlterPartitionRequest:
    """A request for ``isr`` by the current leader, with its epochs; a recovering leader has recovered (9.22)."""
    known = controller.context.leadership[tp].leader_and_isr
    wanted = wire.AlterPartitionRequestPartitionData(
        partition_index=tp.partition,
        leader_epoch=known.leader_epoch,
        partition_epoch=known.partition_epoch,
        new_isr=tuple(isr),
    )
    return wire.AlterPartitionRequest(
        broker_id=known.leader,
        broker_epoch=controller.context.broker_epochs[known.leader],
        topics=(wire.AlterPartitionRequestTopicData(topic_name=tp.topic, partitions=(wanted,)),),
    )


async def join_isr(w: World, controller: KafkaController, tp: TopicPartition, isr: Sequence[int]) -> int:
    """The leader requests ``isr``; returns the error code."""
    answers: list[wire.AlterPartitionResponse] = []
    requests.alter_partition(controller, alter_partition_request(controller, tp, isr), 1, answers.append)
    await w.settle()
    return answers[0].topics[0].partitions[0].error_code


def leaderships_of(sent: Sequence[Sent], tp: TopicPartition) -> list[tuple[int, int]]:
    """(broker, partition epoch) of each LeaderAndIsr that contains the partition."""
    return [
        (s.broker, p.partition_epoch)
        for s in sent
        if isinstance(s.message, wire.LeaderAndIsrRequest)
        for t in s.message.topic_states
        for p in t.partition_states
        if (t.topic_name, p.partition_index) == tp
    ]


def texts(sent: Sequence[Sent], broker_id: int) -> list[str]:
    """What one broker was sent, in short and in order."""
    return [_text(s.message) for s in sent if s.broker == broker_id]


def _text(message: Any) -> str:
    match message:
        case wire.LeaderAndIsrRequest():
            parts = [
                f"{t.topic_name}-{p.partition_index}:{p.leader}@{p.leader_epoch}{list(p.isr)}{'new' * p.is_new}"
                for t in message.topic_states
                for p in t.partition_states
            ]
            return " ".join(["LAI", *parts])
        case wire.UpdateMetadataRequest():
            parts = [
                f"{t.topic_name}-{p.partition_index}:{p.leader}@{p.leader_epoch}{list(p.isr)}"
                for t in message.topic_states
                for p in t.partition_states
            ]
            return " ".join(["UMR", f"alive={sorted(b.id for b in message.live_brokers)}", *parts])
        case wire.StopReplicaRequest():
            parts = [
                f"{t.topic_name}-{p.partition_index}@{p.leader_epoch}{'delete' * p.delete_partition}"
                for t in message.topic_states
                for p in t.partition_states
            ]
            return " ".join(["SR", *parts])
    raise AssertionError(message)


@asynccontextmanager
async def world(
    brokers: Sequence[int] = (1, 2, 3),
    ibp: MetadataVersion = LATEST,
    features: Mapping[str, tuple[int, int]] | None = None,
    server: MemoryZooKeeper | None = None,
) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        made = World(nursery, ibp, features, server)
        await made.zk.create_top_level_paths()
        for broker_id in brokers:
            await made.start_broker(broker_id)
        yield made
        nursery.cancel_scope.cancel()


async def prepared(w: World) -> ControllerRuntime:
    """Controller 1, and topic t on brokers 2 and 3."""
    controller = await w.start_controller(1)
    await w.create_topic("t", {0: [2, 3]})
    w.take()
    return controller._runtime
