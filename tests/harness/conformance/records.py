"""A cluster in memory, and what clients do in it: produce to a node, consume from one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kce import wire
from kce.broker_stub.log import Log
from kce.broker_stub.node_client import NodeClient
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.members import Member
from kce.harness.node import Node
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import fetch_request, produce_request, values_of

TOPIC = "t"
T0 = TopicPartition(TOPIC, 0)


class Clients:
    def __init__(self, cluster: Cluster, world: MemoryClusterWorld) -> None:
        self.cluster = cluster
        self.world = world

    def node(self, node_id: int) -> Node:
        member: Any = self.cluster.member(node_id)
        assert isinstance(member, Member)
        node = member.node  # type: ignore[attr-defined]
        assert isinstance(node, Node)
        return node

    def log(self, node_id: int, partition: int = 0) -> Log:
        logs = self.node(node_id).logs
        assert logs is not None
        return logs.logs[TopicPartition(TOPIC, partition)]

    async def ask(self, node_id: int, message: wire.Message, version: int) -> Any:
        host, port = self.cluster.member(node_id).addresses["DATA"].rsplit(":", 1)
        links = NodeLinks(self.world.observer(), Links(set()), -1)
        client = NodeClient(await links.dial(host, int(port), to=node_id, listener="DATA"), "test")
        try:
            return await client.request(message, version)
        finally:
            await client.aclose()

    async def produce(self, node_id: int, *values: bytes, partition: int = 0) -> ErrorCode:
        """With acks=-1."""
        answer = await self.ask(node_id, produce_request(batch(*values), -1, 5000, TOPIC, partition), 9)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def consume(self, node_id: int, partition: int = 0) -> tuple[ErrorCode, list[bytes | None]]:
        """Everything from the start; of a leader only."""
        request = fetch_request(0, topic=TOPIC, version=10, partitions=(partition,))
        answer = await self.ask(node_id, request, 10)
        (data,) = answer.responses[0].partitions
        return ErrorCode(data.error_code), values_of(data)

    async def create(self, assignment: Mapping[int, Sequence[int]], config: Mapping[str, str] | None = None) -> None:
        """The topic; the first replica of each partition leads, and knows it."""
        await self.cluster.create_topic(TOPIC, assignment=assignment, config=config)
        for partition, replicas in assignment.items():
            await self.wait_for_leader(replicas[0], partition)

    async def leadership(self, partition: int = 0) -> tuple[int, tuple[int, ...]]:
        """Leader and ISR, as ZooKeeper has them."""
        (found,) = await self.cluster.describe_topics([TOPIC])
        known = found.partitions[partition].leadership
        assert known is not None
        return known.leader_and_isr.leader, tuple(known.leader_and_isr.isr)

    async def wait_for_leader(self, node_id: int, partition: int = 0) -> None:
        """Until it is written, and the node knows it and tells it."""

        async def leads() -> bool:
            if (await self.leadership(partition))[0] != node_id:
                return False
            hosted = self.node(node_id).broker.replica_manager.partitions.get(TopicPartition(TOPIC, partition))
            cached = self.cached(node_id, partition)
            return hosted is not None and hosted.is_leader and cached is not None and cached.leader == node_id

        await self.cluster.wait_until(leads, f"node {node_id} to lead")

    async def wait_for_metadata(self, node_id: int) -> None:
        """Until the node knows itself to be alive."""

        async def is_alive() -> bool:
            return node_id in self.node(node_id).broker.metadata_cache.snapshot.alive_brokers

        await self.cluster.wait_until(is_alive, f"node {node_id} to have metadata")

    def cached(self, node_id: int, partition: int = 0) -> wire.UpdateMetadataPartitionState | None:
        """What a node tells clients."""
        return self.node(node_id).broker.metadata_cache.snapshot.partition(TopicPartition(TOPIC, partition))

    async def change_config(self, node_id: int = 1, **config: str) -> None:
        """With IncrementalAlterConfigs."""
        changes = tuple(
            wire.IncrementalAlterConfigsRequestAlterableConfig(
                name=name.replace("_", "."), config_operation=0, value=text
            )
            for name, text in config.items()
        )
        resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=TOPIC, configs=changes
        )
        answer = await self.ask(node_id, wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
        assert [response.error_code for response in answer.responses] == [ErrorCode.NONE]


@asynccontextmanager
async def clients(
    brokers: int, *, controllers: int = 0, properties: Mapping[str, str | None] | None = None
) -> AsyncIterator[Clients]:
    world = memory(7)
    defaults = {"log.dirs": "/logs-{id}", "replica.lag.time.max.ms": "2000", "zookeeper.session.timeout.ms": "2000"}
    async with Cluster(
        brokers, controllers=controllers, world=world, properties={**defaults, **(properties or {})}
    ) as cluster:
        only_controller = brokers + 1
        while controllers and (await cluster.wait_for_controller()).id != only_controller:
            await cluster.delete_controller()
        yield Clients(cluster, world)


def files_below(clients: Clients, node_id: int, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in clients.world.disks[f"node-{node_id}"].files(folder)]


__all__ = ["T0", "TOPIC", "Clients", "clients", "files_below"]
