"""A cluster in memory, as integration tests see it: brokers that record what they receive, and delayed events."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kce import wire
from kce.controller.events import ControllerEvent, UpdateMetadataAnswered
from kce.controller.kafka_controller import KafkaController
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create, SetData, value
from tests.controller import requests
from tests.controller.conformance.bench import ids
from tests.controller.support import World


class Metadata:
    """What one broker has received since it started (rules 9.35-9.37)."""

    def __init__(self, w: World, broker_id: int) -> None:
        self.alive: set[int] = set()
        self.partitions: dict[TopicPartition, wire.UpdateMetadataPartitionState] = {}
        for sent in w.brokers[broker_id].received:
            if isinstance(sent.message, wire.UpdateMetadataRequest):
                self.alive = {b.id for b in sent.message.live_brokers}
                for topic in sent.message.topic_states:
                    for state in topic.partition_states:
                        self.partitions[TopicPartition(topic.topic_name, state.partition_index)] = state

    def of(self, topic: str, partition: int = 0) -> wire.UpdateMetadataPartitionState:
        return self.partitions[TopicPartition(topic, partition)]


async def stop(w: World, *brokers: int) -> None:
    """The process: broker, session, and the contender if there is one."""
    for broker_id in brokers:
        if broker_id in w.nodes:
            await w.kill_controller(broker_id)
        else:
            await w.stop_broker(broker_id)
    await w.settle()


async def start(w: World, *brokers: int) -> None:
    for broker_id in brokers:
        await w.start_broker(broker_id)
    await w.settle()


async def propose_isr(
    w: World,
    controller: KafkaController,
    isr: Sequence[int],
    *,
    topic: str = "t",
    partition: int = 0,
    version: int = 3,
    **fields: Any,
) -> wire.AlterPartitionResponsePartitionData:
    """The leader asks for an ISR; ``fields`` stand in for what it would truly say of the partition."""
    response = await alter_partition(w, controller, isr, topic=topic, partition=partition, version=version, **fields)
    assert response.error_code == 0
    ((answer,),) = (topic_data.partitions for topic_data in response.topics)
    return answer


async def alter_partition(
    w: World,
    controller: KafkaController,
    isr: Sequence[int],
    *,
    topic: str = "t",
    topic_id: uuid.UUID | None = None,
    partition: int = 0,
    version: int = 3,
    broker: int | None = None,
    broker_epoch: int | None = None,
    leader_epoch: int | None = None,
    partition_epoch: int | None = None,
    recovery: int = 0,
) -> wire.AlterPartitionResponse:
    known = controller.context.leadership.get(TopicPartition(topic, partition))
    now = known.leader_and_isr if known else None
    asking = broker if broker is not None else now.leader if now else 1
    epochs = controller.context.broker_epochs
    wanted = wire.AlterPartitionRequestPartitionData(
        partition_index=partition,
        leader_epoch=leader_epoch if leader_epoch is not None else now.leader_epoch if now else 0,
        partition_epoch=partition_epoch if partition_epoch is not None else now.partition_epoch if now else 0,
        leader_recovery_state=recovery,
        new_isr=tuple(isr) if version < 3 else (),
        new_isr_with_epochs=tuple(wire.BrokerState(broker_id=r) for r in isr) if version >= 3 else (),
    )
    by_id = topic_id or controller.context.topic_ids.get(topic, uuid.UUID(int=0))
    data = wire.AlterPartitionRequestTopicData(
        topic_name=topic if version < 2 else "",
        topic_id=by_id if version >= 2 else uuid.UUID(int=0),
        partitions=(wanted,),
    )
    request = wire.AlterPartitionRequest(
        broker_id=asking,
        broker_epoch=broker_epoch if broker_epoch is not None else epochs.get(BrokerId(asking), -1),
        topics=(data,),
    )
    answers: list[wire.AlterPartitionResponse] = []
    requests.alter_partition(controller, request, version, answers.append)
    await w.settle()
    (answer,) = answers
    return answer


async def create(w: World, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Create a topic as an old admin tool does: without a topic id."""
    old = {p: ReplicaAssignment(ids(*replicas)) for p, replicas in assignment.items()}
    value((await w.store.write([Create(znodes.topic_path(topic), znodes.encode_topic(None, old))]))[0])
    await w.settle()


async def add_partitions(w: World, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Rewrite the topic's node with more partitions, keeping its id, as admin code does (rule 10.16)."""
    found = (await w.zk.get_topic_assignments([topic]))[topic]
    more = {p: ReplicaAssignment(ids(*replicas)) for p, replicas in assignment.items()}
    data = znodes.encode_topic(found.topic_id, {**found.partitions, **more})
    value((await w.store.write([SetData(znodes.topic_path(topic), data)]))[0])
    await w.settle()


async def decided_in(w: World, topic: str, partition: int = 0) -> int:
    """The epoch of the controller that wrote a partition's state."""
    path = znodes.partition_state_path(TopicPartition(topic, partition))
    return int(json.loads(await w.get(path) or b"{}")["controller_epoch"])


@asynccontextmanager
async def event_thread_blocked(w: World, controller: KafkaController) -> AsyncIterator[None]:
    """Inside, an event of the controller is being processed and does not end; what comes meanwhile is queued."""
    gate = trio.Event()
    process = controller.loop._process

    async def held(event: ControllerEvent) -> None:
        await gate.wait()
        await process(event)

    controller.loop._process = held
    controller.loop.put(UpdateMetadataAnswered(wire.UpdateMetadataResponse(), BrokerId(0)))
    await w.settle()
    try:
        yield
    finally:
        gate.set()
        controller.loop._process = process
        await w.settle()


async def data_version(w: World, path: str) -> int:
    """ZooKeeper's version of a node's data."""
    (stat,) = await w.store.exists([path])
    assert stat is not None, path
    return stat.version


async def reassign_by_znode(w: World, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
    data = cluster_nodes.encode_partition_reassignment({tp: ids(*target) for tp, target in targets.items()})
    value((await w.store.write([Create(znodes.REASSIGN_PARTITIONS, data)]))[0])
    await w.settle()


async def elect_by_znode(w: World, *partitions: TopicPartition) -> None:
    data = cluster_nodes.encode_partition_list(partitions)
    value((await w.store.write([Create(znodes.PREFERRED_REPLICA_ELECTION, data)]))[0])
    await w.settle()


async def change_topic_config(w: World, topic: str, config: Mapping[str, str]) -> None:
    """Write the configuration and notify the brokers, as AlterConfigs does (rules 1.35, 1.54)."""
    await w.zk.change_config("topics", topic, config)
    await w.settle()


async def another_takes_over_unseen(w: World, controller: KafkaController) -> None:
    """Broker 99 was elected, and the watch that says so has not come yet."""
    w.nodes[controller.config.broker_id].zk.unregister_change_handler(znodes.CONTROLLER)
    taken = [
        SetData("/controller_epoch", str(controller.context.epoch + 1).encode()),
        SetData("/controller", znodes.encode_controller(99, 0)),
    ]
    for answer in await w.store.write(taken):
        value(answer)
    assert controller.is_active


def has_resigned(controller: KafkaController, caplog: pytest.LogCaptureFixture) -> bool:
    """Has the controller resigned in favour of broker 99 in the middle of an event?"""
    logged = [r for r in caplog.records if r.levelname == "INFO" and "while processing" in r.getMessage()]
    resigned = not controller.is_active and controller.active_controller_id == 99 and controller.context.epoch == 0
    return resigned and len(logged) == 1
