"""A node without sockets that keeps records, and short forms of requests for records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import trio

from kce import wire
from kce.broker_stub.log import Isolation, Log
from kce.broker_stub.replication.data_plane import DataPlane
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire.transport import ConnectionLost, Dial
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import batch
from tests.broker_stub.logs import MemoryLogManager
from tests.broker_stub.support import (
    ID_A,
    Node,
    lai_state,
    leader_and_isr,
    no_dial,
    umr_state,
    update_metadata,
)

A0 = TopicPartition("a", 0)
ID = UUID(int=5)


class RecordNode(Node):
    """Broker 1. ``topic``: settings of every topic."""

    def __init__(
        self,
        nursery: trio.Nursery,
        topic: dict[str, str],
        disk: MemoryDisk | None,
        log_dirs: tuple[str, ...],
        *,
        dial: Dial = no_dial,
        **properties: str,
    ) -> None:
        self.record_logs = MemoryLogManager(topic, disk, log_dirs, properties.get("inter_broker_protocol_version"))
        self.topic = self.record_logs.topic
        self.disk = self.record_logs.disk
        super().__init__(log_manager=self.record_logs, nursery=nursery, dial=dial, **properties)

    @property
    def log(self) -> Log:
        """The log of partition a-0."""
        return self.record_logs.logs[A0]

    async def lead(self, *, isr: tuple[int, ...] = (1,), epoch: int = 0, partition_epoch: int = 0, leader: int = 1,
                   replicas: tuple[int, ...] = (1, 2, 3)) -> None:  # fmt: skip
        """A LeaderAndIsr for a-0, and the UpdateMetadata that follows."""
        state = {"leader": leader, "leader_epoch": epoch, "isr": isr, "replicas": replicas}
        await self.ask(update_metadata(umr_state(**state)))  # type: ignore[arg-type]
        answer = await self.ask(leader_and_isr(lai_state(partition_epoch=partition_epoch, is_new=True, **state)))  # type: ignore[arg-type]
        assert answer.error_code == 0

    async def produce(self, records: bytes, *, acks: int = 1, version: int = 9, timeout_ms: int = 1000,
                      topic: str = "a", partition: int = 0) -> wire.PartitionProduceResponse:  # fmt: skip
        answer = await self.ask(produce_request(records, acks, timeout_ms, topic, partition), version)
        return answer.responses[0].partition_responses[0]  # type: ignore[no-any-return]

    async def fetch(self, offset: int = 0, *, version: int = 12, **more: Any) -> wire.FetchResponsePartitionData:
        answer = await self.ask(fetch_request(offset, version=version, **more), version)
        return answer.responses[0].partitions[0]  # type: ignore[no-any-return]


@asynccontextmanager
async def a_node(
    topic: dict[str, str] | None = None,
    *,
    disk: MemoryDisk | None = None,
    log_dirs: tuple[str, ...] = ("/logs",),
    dial: Dial = no_dial,
    **properties: str,
) -> AsyncIterator[RecordNode]:
    async with trio.open_nursery() as nursery:
        node = RecordNode(nursery, topic or {}, disk, log_dirs, dial=dial, **properties)
        await node.record_logs.load()
        nursery.start_soon(node.replication.run)
        yield node
        nursery.cancel_scope.cancel()


class Leader:
    """A leader, which answers with the next of ``fetched``, ``ends`` and ``offsets``.

    A fetch without an answer waits, as a leader without new records does. A list in ``fetched``: of partitions 0, 1 ...
    """

    def __init__(self, address: tuple[str, int, int, str] = ("leader", 9, 9, "DATA"), topic_id: UUID = ID) -> None:
        """``address``: host, port, broker, listener."""
        self._address = address
        self._topic_id = topic_id
        self.requests: list[Any] = []
        self.versions: list[int] = []
        self.clients: list[str | None] = []
        self.connections = 0
        self.closed = 0
        self.fetched: list[dict[str, Any] | list[dict[str, Any]]] = []
        self.ends: list[dict[str, Any]] = []
        self.offsets: list[tuple[int, int]] = []
        self.refuse = False
        #: of its answers; 0: it has no room for sessions
        self.session_id = 0
        #: what happens while a request is on its way
        self.meanwhile: list[Callable[[], None]] = []
        #: codes of the next fetches as a whole
        self.whole_errors: list[int] = []
        self._frames: list[bytes] = []
        self._idle = trio.Event()
        self._last_id = 0

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> Leader:
        assert (host, port, to, listener) == self._address
        await trio.lowlevel.checkpoint()
        if self.refuse:
            raise ConnectionRefusedError("refused")
        self.connections += 1
        self._frames.clear()
        return self

    async def send_frame(self, payload: bytes) -> None:
        await trio.lowlevel.checkpoint()
        header, request = wire.decode_request(payload)
        self.requests.append(request)
        self.versions.append(header.api_version)
        self._last_id = header.correlation_id
        self.clients.append(header.client_id)
        if (response := self._answer(request)) is not None:
            self._frames.append(
                wire.encode_response(response, api_version=header.api_version, correlation_id=header.correlation_id)
            )

    async def receive_frame(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._frames:
            await self._idle.wait()
        if not self._frames:
            raise ConnectionLost("closed")
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return self._frames.pop()

    def end_wait(self) -> None:
        """Answer the fetch that waits: nothing is new."""
        self._frames.append(
            wire.encode_response(
                wire.FetchResponse(session_id=self.session_id),
                api_version=self.versions[-1],
                correlation_id=self._last_id,
            )
        )
        self._idle.set()
        self._idle = trio.Event()

    async def aclose(self) -> None:
        self.closed += 1
        self._idle.set()
        self._idle = trio.Event()
        await trio.lowlevel.checkpoint()

    def _answer(self, request: Any) -> wire.Message | None:
        match request:
            case wire.FetchRequest() if self.whole_errors:
                return wire.FetchResponse(error_code=self.whole_errors.pop(0))
            case wire.FetchRequest() if self.fetched:
                answer = self.fetched.pop(0)
                answers = enumerate(answer if isinstance(answer, list) else [answer])
                data = tuple(wire.FetchResponsePartitionData(partition_index=i, **one) for i, one in answers)
                return wire.FetchResponse(
                    session_id=self.session_id,
                    responses=(wire.FetchableTopicResponse(topic="a", topic_id=self._topic_id, partitions=data),),
                )
            case wire.OffsetForLeaderEpochRequest():
                end = wire.OffsetForLeaderEpochResponseEpochEndOffset(partition=0, **self.ends.pop(0))
                return wire.OffsetForLeaderEpochResponse(
                    topics=(wire.OffsetForLeaderTopicResult(topic="a", partitions=(end,)),)
                )
            case wire.ListOffsetsRequest():
                code, offset = self.offsets.pop(0)
                found = wire.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
                return wire.ListOffsetsResponse(topics=(wire.ListOffsetsTopicResponse(name="a", partitions=(found,)),))
        return None

    def fetches(self) -> list[tuple[int, int, int]]:
        """(offset, leader epoch, last fetched epoch) of each fetch of the partition a-0."""
        return [
            (p.fetch_offset, p.current_leader_epoch, p.last_fetched_epoch)
            for request in self.requests
            if isinstance(request, wire.FetchRequest)
            for topic in request.topics
            for p in topic.partitions
            if p.partition == 0
        ]


def produce_request(
    records: bytes, acks: int = 1, timeout_ms: int = 1000, topic: str = "a", partition: int = 0
) -> wire.ProduceRequest:
    data = wire.PartitionProduceData(index=partition, records=records)
    return wire.ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=(wire.TopicProduceData(name=topic, partition_data=(data,)),)
    )


def fetch_request(
    offset: int = 0,
    *,
    version: int = 12,
    replica: int = -1,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**20,
    partition_max_bytes: int = 2**20,
    epoch: int = -1,
    last_fetched_epoch: int = -1,
    isolation: int = 0,
    topic: str = "a",
    partitions: tuple[int, ...] = (0,),
    log_start_offset: int = 0,
    **more: Any,
) -> wire.FetchRequest:
    entries = tuple(
        wire.FetchPartition(
            partition=number,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_fetched_epoch if version >= 12 else -1,
            log_start_offset=log_start_offset,
        )
        for number in partitions
    )
    named = {"topic": topic} if version < 13 else {"topic_id": ID_A}
    replicas: dict[str, Any] = (
        {"replica_state": wire.ReplicaState(replica_id=replica)} if version >= 15 else {"replica_id": replica}
    )
    return wire.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=(wire.FetchTopic(partitions=entries, **named),),
        **replicas,
        **more,  # type: ignore[arg-type]
    )


def follower_fetches(plane: DataPlane, replica: int, epoch: int) -> None:
    """A follower that has nothing fetches a-0 from its start."""
    params = FetchParams(replica_id=replica, max_wait_ms=0, min_bytes=1, max_bytes=100, isolation=Isolation.LOG_END)
    fetch = PartitionFetch(A0, ID_A, 0, 100, log_start_offset=0, current_leader_epoch=epoch)
    plane.fetch(params, [fetch], lambda reads: None)


def values_of(data: wire.FetchResponsePartitionData) -> list[bytes | None]:
    return [record.value for found in wire.read_records(data.records or b"").batches for record in found.records]


__all__ = ["A0", "ID", "Leader", "RecordNode", "a_node", "batch", "fetch_request", "produce_request", "values_of"]
