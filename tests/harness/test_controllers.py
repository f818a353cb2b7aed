"""Nodes that are controllers only: they drive brokers and take no replicas.

Covers: harness/cli/controller.py.
"""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from kce import wire
from kce.harness import Cluster, HarnessError
from kce.harness.world import memory
from kce.wire import ErrorCode
from kce.zookeeper.admin import write_topic
from kce.zookeeper.znodes import broker_path
from tests.clusters import node

FAST = {"zookeeper.session.timeout.ms": "2000"}


async def active_is(cluster: Cluster, node_id: int) -> bool:
    active = await cluster.controller()
    return active is not None and active.id == node_id


async def elect(cluster: Cluster, node_id: int) -> None:
    """Delete /controller until that node owns it."""
    while not await active_is(cluster, node_id):
        old = await cluster.wait_for_controller()
        if old.id != node_id:
            await cluster.delete_controller()
            await cluster.wait_for_controller(other_than=old)


async def test_it_is_registered_for_the_brokers_and_gets_no_replicas() -> None:
    async with Cluster(2, controllers=1, world=memory(seed=3), properties=FAST) as cluster:
        await elect(cluster, 3)
        assert await cluster.registered() == {1, 2, 3}
        assert json.loads((await cluster.zk.get_one(broker_path(3))).data)["kce_controller_only"] is True
        assert "kce_controller_only" not in json.loads((await cluster.zk.get_one(broker_path(1))).data)
        await cluster.create_topic("t", partitions=12, replication_factor=2)
        (topic,) = await cluster.describe_topics(["t"])
        assert {b for p in topic.partitions for b in p.assignment.replicas} == {1, 2}
        with pytest.raises(HarnessError, match="Replication factor"):
            await cluster.create_topic("wide", replication_factor=3)
        with pytest.raises(HarnessError, match=r"nodes \[3\] are controllers only and take no replicas"):
            await cluster.create_topic("given", assignment={0: [1, 3]})


async def test_replicas_that_another_broker_placed_on_it_are_moved() -> None:
    """Real brokers write the assignment of __consumer_offsets straight into ZooKeeper."""
    async with Cluster(3, controllers=1, world=memory(seed=3), properties=FAST) as cluster:
        await elect(cluster, 4)
        await write_topic(cluster.zk, "offsets", {0: [4, 1], 1: [1, 4], 2: [2, 3], 3: [4, 1, 2, 3]}, {}, uuid4())

        async def led() -> bool:
            (topic,) = await cluster.describe_topics(["offsets"])
            return topic.has_leaders

        await cluster.wait_until(led, "leaders")
        (topic,) = await cluster.describe_topics(["offsets"])
        replicas = {p.partition: list(p.assignment.replicas) for p in topic.partitions}
        assert (replicas[2], replicas[3]) == ([2, 3], [1, 2, 3])
        assert [len(set(replicas[p])) for p in (0, 1)] == [2, 2]
        assert (replicas[0][1], replicas[1][0]) == (1, 1)
        assert {broker for each in replicas.values() for broker in each} == {1, 2, 3}


async def test_requests_of_clients_give_it_no_replicas() -> None:
    """CreateTopics, CreatePartitions and AlterPartitionReassignments, which the active controller serves."""
    async with Cluster(2, controllers=1, world=memory(seed=3), properties=FAST) as cluster:
        await elect(cluster, 3)
        await cluster.create_topic("first")  # the controller knows the brokers from here on
        active = node(cluster, 3)

        async def request(message: wire.Message, version: int) -> wire.Message:
            host, _, port = cluster.member(3).addresses["DATA"].rpartition(":")
            link = await active.links.dial(host, int(port), to=-1, listener="")
            await link.send_frame(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))
            frame = await link.receive_frame()
            await link.aclose()
            return wire.decode_response(frame, api_key=message.__api_key__, api_version=version)[1]

        placed = wire.CreatableTopic(name="placed", num_partitions=6, replication_factor=2)
        assigned = wire.CreatableTopic(
            name="assigned", num_partitions=-1, replication_factor=-1,
            assignments=(wire.CreatableReplicaAssignment(partition_index=0, broker_ids=(3,)),),
        )  # fmt: skip
        created = await request(wire.CreateTopicsRequest(topics=(placed, assigned), timeout_ms=10_000), 7)
        assert isinstance(created, wire.CreateTopicsResponse)
        assert {t.name: t.error_code for t in created.topics} == {
            "placed": ErrorCode.NONE, "assigned": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        }  # fmt: skip
        more = wire.CreatePartitionsRequest(
            topics=(wire.CreatePartitionsTopic(name="placed", count=12, assignments=None),), timeout_ms=10_000
        )
        await request(more, 3)
        (topic,) = await cluster.describe_topics(["placed"])
        assert len(topic.partitions) == 12
        assert {b for p in topic.partitions for b in p.assignment.replicas} == {1, 2}
        moved = wire.AlterPartitionReassignmentsRequest(
            timeout_ms=10_000,
            topics=(
                wire.ReassignableTopic(
                    name="placed", partitions=(wire.ReassignablePartition(partition_index=0, replicas=(1, 3)),)
                ),
            ),
        )
        answer = await request(moved, 0)
        assert isinstance(answer, wire.AlterPartitionReassignmentsResponse)
        assert [p.error_code for t in answer.responses for p in t.partitions] == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
