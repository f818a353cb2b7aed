"""The controller's state machines on a bench: an elected controller in memory whose context a test fills by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kce import wire
from kce.controller import request_batch
from kce.controller.context import ControllerContext
from kce.controller.control_requests import BatchConfig
from kce.controller.request_batch import ControllerRequestBatch, OnResponse
from kce.controller.runtime import ControllerRuntime
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import (
    BrokerId,
    ControllerEpoch,
    LeaderAndIsr,
    Leadership,
    PartitionReplica,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.store import Create, SetData, value
from tests.controller.support import DATA, Sent, World, as_received, broker

TP = TopicPartition("t", 0)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(b) for b in brokers)


def replica(broker_id: int, tp: TopicPartition = TP) -> PartitionReplica:
    return PartitionReplica(tp, BrokerId(broker_id))


def leadership(leader: int, isr: Sequence[int], leader_epoch: int = 0, *, controller_epoch: int = 1) -> Leadership:
    return Leadership(LeaderAndIsr(BrokerId(leader), ids(*isr), leader_epoch), ControllerEpoch(controller_epoch))


async def bench(w: World, assignments: Mapping[int, Sequence[int]] | None = None) -> ControllerRuntime:
    """Broker 1 is the controller; topic t has no partition but in the context, where ``assignments`` are."""
    controller = await w.start_controller(1)
    await w.create_topic("t", {})
    runtime = controller._runtime
    for partition, replicas in (assignments or {0: [1]}).items():
        runtime.context.set_assignment(TopicPartition("t", partition), ReplicaAssignment(ids(*replicas)))
    w.take()
    return runtime


async def stored(w: World, runtime: ControllerRuntime, tp: TopicPartition, known: Leadership) -> None:
    """Put a partition's state into ZooKeeper and into the cache."""
    path = znodes.partition_state_path(tp)
    await w.zk.ensure_paths([znodes.partition_path(tp)])
    answer = (await w.store.write([Create(path, znodes.encode_partition_state(known))]))[0]
    value(answer)
    runtime.context.put_leadership(tp, known)


async def put_config(w: World, topic: str, **config: str) -> None:
    path = znodes.topic_config_path(topic)
    await w.zk.ensure_paths([path])
    named = {key.replace("_", "."): text for key, text in config.items()}
    value((await w.store.write([SetData(path, cluster_nodes.encode_config(named))]))[0])


def leader_and_isr(sent: Iterable[Sent], broker_id: int) -> list[wire.LeaderAndIsrPartitionState]:
    """Every partition state that one broker was sent in LeaderAndIsr requests."""
    return [
        state
        for s in sent
        if s.broker == broker_id and isinstance(s.message, wire.LeaderAndIsrRequest)
        for states in (
            s.message.ungrouped_partition_states,
            *(topic.partition_states for topic in s.message.topic_states),
        )
        for state in states
    ]


class Outbox(request_batch.Outbox):
    """The outbox of a batch under test; ``answer`` responds to a request."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, wire.Message, int]] = []
        self.callbacks: list[OnResponse | None] = []

    def send(self, broker: BrokerId, request: wire.Message, api_version: int, on_response: OnResponse | None) -> None:
        self.sent.append((broker, as_received(request, api_version), api_version))
        self.callbacks.append(on_response)

    def answer(self, index: int, response: wire.Message) -> None:
        on_response = self.callbacks[index]
        assert on_response is not None
        on_response(response)


class Responses:
    """What a batch passes on of the answers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, wire.Message]] = []
        self.deleted: list[frozenset[TopicPartition]] = []

    def leader_and_isr(self, response: wire.LeaderAndIsrResponse, broker: BrokerId) -> None:
        self.events.append(("LeaderAndIsr", broker, response))

    def update_metadata(self, response: wire.UpdateMetadataResponse, broker: BrokerId) -> None:
        self.events.append(("UpdateMetadata", broker, response))

    def stop_replica(
        self, response: wire.StopReplicaResponse, broker: BrokerId, deleted: frozenset[TopicPartition]
    ) -> None:
        self.events.append(("StopReplica", broker, response))
        self.deleted.append(deleted)


def batch(
    context: ControllerContext, ibp: MetadataVersion | str = "3.9", listener: str = DATA
) -> tuple[ControllerRequestBatch, Outbox, Responses]:
    outbox, responses = Outbox(), Responses()
    version = MetadataVersion.parse(ibp) if isinstance(ibp, str) else ibp
    config = BatchConfig(broker_id=BrokerId(0), ibp=version, inter_broker_listener=listener)
    return ControllerRequestBatch(config, context, outbox, responses), outbox, responses


__all__ = [
    "TP",
    "Outbox",
    "Responses",
    "batch",
    "bench",
    "broker",
    "ids",
    "leader_and_isr",
    "leadership",
    "put_config",
    "replica",
    "stored",
]
