"""Consumer groups in a cluster: the coordinator is found, and its groups move to the next leader with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, partition_for
from kce.broker_stub.node_client import NodeClient
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.wire import ErrorCode

PARTITIONS = 5
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "zookeeper.session.timeout.ms": "4000",
}
GROUP = "readers"
TOPIC = "t"


class GroupClient:
    """Talks to the coordinator of one group, and looks for it again when it has moved."""

    def __init__(self, cluster: Cluster, world: MemoryClusterWorld) -> None:
        self._cluster = cluster
        self._links = NodeLinks(world.observer(), Links(set()), -1)
        self.coordinator = -1

    @asynccontextmanager
    async def _connected(self, node_id: int) -> AsyncIterator[NodeClient]:
        host, port = self._cluster.member(node_id).addresses["DATA"].rsplit(":", 1)
        client = NodeClient(await self._links.dial(host, int(port), to=node_id, listener="DATA"), "client")
        try:
            yield client
        finally:
            await client.aclose()

    async def find(self) -> None:
        request = wire.FindCoordinatorRequest(coordinator_keys=(GROUP,))
        while True:
            for node_id in (1, 2, 3):
                try:
                    async with self._connected(node_id) as client:
                        answer: Any = await client.request(request, 4)
                except OSError:
                    continue
                if answer.coordinators[0].error_code == ErrorCode.NONE:
                    self.coordinator = answer.coordinators[0].node_id
                    return
            await trio.sleep(0.1)

    async def ask(self, message: wire.Message, retries: Any = lambda answer: answer.error_code) -> Any:
        """The first answer that is not about where the coordinator is."""
        moving = (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        while True:
            try:
                async with self._connected(self.coordinator) as client:
                    answer = await client.request(message, message.__versions__.last)
                if retries(answer) not in moving:
                    return answer
            except OSError:
                pass
            await trio.sleep(0.1)
            await self.find()

    async def join(self, member_id: str = "") -> Any:
        request = wire.JoinGroupRequest(
            group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id=member_id,
            protocol_type="consumer",
            protocols=(wire.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0"),),
        )  # fmt: skip
        answer = await self.ask(request)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(answer.member_id)
        return answer

    async def commit(self, offset: int, member_id: str, generation: int) -> int:
        partition = wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = wire.OffsetCommitRequest(
            group_id=GROUP, member_id=member_id, generation_id_or_member_epoch=generation,
            topics=(wire.OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),),
        )  # fmt: skip
        answer = await self.ask(request, lambda answer: answer.topics[0].partitions[0].error_code)
        return int(answer.topics[0].partitions[0].error_code)

    async def fetch(self) -> int:
        topics = (wire.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0,)),)
        request = wire.OffsetFetchRequest(groups=(wire.OffsetFetchRequestGroup(group_id=GROUP, topics=topics),))
        answer = await self.ask(request, lambda answer: answer.groups[0].error_code)
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    async def heartbeat(self, member_id: str, generation: int) -> int:
        request = wire.HeartbeatRequest(group_id=GROUP, member_id=member_id, generation_id=generation)
        return int((await self.ask(request)).error_code)


async def test_a_group_outlives_its_coordinator() -> None:  # rules G1.6, G1.8, G9.17, G13.9
    world = memory(3)
    async with Cluster(3, world=world, properties=PROPERTIES) as cluster:
        await cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        client = GroupClient(cluster, world)
        await client.find()
        (topic,) = await cluster.describe_topics([GROUP_METADATA_TOPIC])
        assert len(topic.partitions) == PARTITIONS
        leadership = topic.partitions[partition_for(GROUP, PARTITIONS)].leadership
        assert leadership is not None
        assert client.coordinator == leadership.leader_and_isr.leader
        joined = await client.join()
        member_id, generation = joined.member_id, joined.generation_id
        assignment = wire.SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")
        sync = wire.SyncGroupRequest(
            group_id=GROUP, generation_id=generation, member_id=member_id, protocol_type="consumer",
            protocol_name="range", assignments=(assignment,),
        )  # fmt: skip
        assert (await client.ask(sync)).assignment == b"mine"
        assert await client.commit(7, member_id, generation) == ErrorCode.NONE
        for expected in (7, 8):
            old = client.coordinator
            await cluster.kill(old)
            assert await client.fetch() == expected
            assert client.coordinator != old
            assert await client.heartbeat(member_id, generation) == ErrorCode.NONE
            assert (await client.ask(sync)).assignment == b"mine"
            assert await client.commit(expected + 1, member_id, generation) == ErrorCode.NONE
            await cluster.start(old)
