"""One client of a simulated cluster: its connections, and what it knows of leaders and coordinators."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.broker_stub.node_client import NodeClient
from kce.harness.cluster import Cluster
from kce.harness.cluster_config import DATA
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.wire import ErrorCode, Record
from kce.wire.vocabulary import TopicPartition

REQUEST_TIMEOUT_S: Final = 3.0
BACKOFF_S: Final = 0.2
READ_BYTES: Final = 1 << 20
#: key types of FindCoordinator
GROUP, TRANSACTION = 0, 1
_METADATA, _FETCH, _FIND_COORDINATOR = 12, 12, 4


class SimulatedClient:
    """Keeps a connection to each node while it works."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._links = NodeLinks(cluster.world.observer(), Links(), -1)
        self._connections: dict[int, NodeClient] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[str, int], int] = {}

    async def ask(self, node_id: int, message: wire.Message, version: int) -> Any:
        """The response; None if the node does not give one in time."""
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            try:
                connection = self._connections.get(node_id)
                if connection is None:
                    host, _, port = self._cluster.member(node_id).addresses[DATA].rpartition(":")
                    link = await self._links.dial(host, int(port), to=node_id, listener=DATA)
                    connection = self._connections[node_id] = NodeClient(link, "simulated")
                return await connection.request(message, version)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, wire.WireError):
                pass
        if (failed := self._connections.pop(node_id, None)) is not None:
            await failed.aclose()
        return None

    async def ask_any(self, message: wire.Message, version: int) -> Any:
        return await self.ask(self._random.choice(self._cluster.members).id, message, version)

    # leaders

    async def ask_leader(self, tp: TopicPartition, message: wire.Message, version: int) -> Any:
        """Like ``ask``; None also if no leader is known."""
        if tp not in self._leaders:
            request = wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name=tp.topic),))
            response = await self.ask_any(request, _METADATA)
            for topic in () if response is None else response.topics:
                for partition in topic.partitions:
                    if partition.partition_index == tp.partition and partition.error_code == ErrorCode.NONE:
                        self._leaders[tp] = partition.leader_id
        return await self.ask(self._leaders[tp], message, version) if tp in self._leaders else None

    async def back_off(self, tp: TopicPartition) -> None:
        """The leader may be another one now."""
        self._leaders.pop(tp, None)
        await trio.sleep(BACKOFF_S)

    async def fetch(self, tp: TopicPartition, offset: int, isolation: int = 0) -> Any:
        """What the leader answers of the partition; None if there is an error, after a pause."""
        response = await self.ask_leader(tp, _fetch(tp, offset, isolation), _FETCH)
        data = response.responses[0].partitions[0] if response is not None and response.responses else None
        if data is None or data.error_code != ErrorCode.NONE:
            await self.back_off(tp)
            return None
        return data

    # coordinators

    async def coordinator(self, key: str, key_type: int) -> int | None:
        """Its id, as a node has it; None, after a pause, if none is named."""
        found = self._coordinators.get((key, key_type))
        if found is not None:
            return found
        request = wire.FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
        response = await self.ask_any(request, _FIND_COORDINATOR)
        if response is None or response.coordinators[0].error_code != ErrorCode.NONE:
            await trio.sleep(BACKOFF_S)
            return None
        named: int = response.coordinators[0].node_id
        self._coordinators[key, key_type] = named
        return named

    async def ask_coordinator(self, key: str, key_type: int, message: wire.Message, version: int) -> Any:
        """Like ``ask``; None also if no coordinator is known."""
        node_id = await self.coordinator(key, key_type)
        response = None if node_id is None else await self.ask(node_id, message, version)
        if response is None:
            self.forget_coordinator(key, key_type)
        return response

    def forget_coordinator(self, key: str, key_type: int) -> None:
        """It may be another one now."""
        self._coordinators.pop((key, key_type), None)

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()


def _fetch(tp: TopicPartition, offset: int, isolation: int) -> wire.FetchRequest:
    wanted = wire.FetchPartition(
        partition=tp.partition, fetch_offset=offset, partition_max_bytes=READ_BYTES, current_leader_epoch=-1,
        last_fetched_epoch=-1, log_start_offset=-1,
    )  # fmt: skip
    return wire.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=READ_BYTES, isolation_level=isolation, replica_id=-1,
        topics=(wire.FetchTopic(topic=tp.topic, partitions=(wanted,)),),
    )  # fmt: skip


def records_of(data: bytes) -> Iterator[Record]:
    for batch in wire.read_records(data).batches:
        yield from batch.records
