"""Clients of a simulated cluster: idempotent producers and a consumer, and what must hold of what they saw.

Each partition has a producer with one request in flight, which sends a record again until it is acknowledged by all of
the ISR (acks=all), and one consumer reads all partitions. In the end every acknowledged record must be where it was
acknowledged, once and in order, and whatever was consumed must still be there: as Jepsen's Kafka workload checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.broker_stub.log import Isolation, Log
from kce.broker_stub.node_client import NodeClient
from kce.harness.cluster import Cluster
from kce.harness.cluster_config import DATA
from kce.harness.connections import NodeLinks
from kce.harness.links import Links
from kce.harness.members import InProcessMember
from kce.wire import ErrorCode, Record, RecordBatch
from kce.wire.vocabulary import TopicPartition

#: (invariant, subject, text)
Violated = Callable[[str, object, str], None]

TOPIC: Final = "data"
#: replicas of each partition, the preferred leader first
ASSIGNMENT: Final = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
_PARTITIONS: Final = tuple(TopicPartition(TOPIC, number) for number in ASSIGNMENT)
_METADATA, _INIT_PRODUCER_ID, _PRODUCE, _FETCH = 12, 4, 9, 12
_REQUEST_TIMEOUT_S: Final = 3.0
_BACKOFF_S: Final = 0.1
#: between two records of a producer
_MOST_PAUSE_S: Final = 0.8
_FINISH_TIMEOUT_S: Final = 60.0
_READ_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _Produced:
    """What a producer knows: ``offsets`` by record, None where the broker said only that it has the record already."""

    offsets: dict[bytes, int | None] = field(default_factory=dict)
    in_flight: bytes | None = None


class _Client:
    """One client: a connection to each node, kept while it works, and what it knows of leaders."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._links = NodeLinks(cluster.world.observer(), Links(), -1)
        self._connections: dict[int, NodeClient] = {}
        self._leaders: dict[TopicPartition, int] = {}

    async def ask(self, node_id: int, message: wire.Message, version: int) -> Any:
        """The response; None if the node does not give one in time."""
        with trio.move_on_after(_REQUEST_TIMEOUT_S):
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
        await trio.sleep(_BACKOFF_S)

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()


class SimulatedClients:
    """``random`` decides what they do, and when. ``violated`` is called with what must not be."""

    def __init__(self, cluster: Cluster, random: Random, violated: Violated) -> None:
        self._cluster = cluster
        self._random = random
        self._violated = violated
        self._produced = {tp: _Produced() for tp in _PARTITIONS}
        self._consumed: dict[tuple[TopicPartition, int], bytes | None] = {}
        self._stopping = False
        self._finished = 0

    @property
    def acknowledged(self) -> int:
        """How many records."""
        return sum(len(produced.offsets) for produced in self._produced.values())

    @property
    def consumed(self) -> int:
        return len(self._consumed)

    async def create_topic(self) -> None:
        await self._cluster.create_topic(TOPIC, assignment=ASSIGNMENT)

    def start(self, nursery: trio.Nursery) -> None:
        """Until the nursery is cancelled."""
        for tp in _PARTITIONS:
            nursery.start_soon(self._produce, tp, Random(self._random.random()))
        nursery.start_soon(self._consume, Random(self._random.random()))

    async def finish(self) -> None:
        """Let producers end with the record that is in flight; a cluster that is well acknowledges it in time."""
        self._stopping = True
        with trio.move_on_after(_FINISH_TIMEOUT_S):
            while self._finished < len(_PARTITIONS):  # noqa: ASYNC110 - virtual time
                await trio.sleep(_BACKOFF_S)
            return
        waiting = {str(tp): produced.in_flight for tp, produced in self._produced.items() if produced.in_flight}
        self._violated("converged", "producers", f"these records are not acknowledged: {waiting}")

    # produce

    async def _produce(self, tp: TopicPartition, random: Random) -> None:
        client = _Client(self._cluster, random)
        producer_id = await self._producer_id(client)
        produced, sequence = self._produced[tp], 0
        while not self._stopping:
            value = b"%d-%d" % (tp.partition, sequence)
            produced.in_flight = value
            produced.offsets[value] = await self._deliver(client, tp, self._batch(value, producer_id, sequence))
            produced.in_flight = None
            sequence += 1
            await trio.sleep(_MOST_PAUSE_S * random.random())
        self._finished += 1
        await client.aclose()

    async def _producer_id(self, client: _Client) -> int:
        request = wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            response = await client.ask_any(request, _INIT_PRODUCER_ID)
            if response is not None and response.error_code == ErrorCode.NONE:
                found: int = response.producer_id
                return found
            await trio.sleep(_BACKOFF_S)

    def _batch(self, value: bytes, producer_id: int, sequence: int) -> bytes:
        now_ms = self._cluster.world.observer().now_ns() // 1_000_000
        record = Record(offset=0, timestamp=now_ms, key=None, value=value)
        return wire.write_records(
            RecordBatch.of(record, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        )

    async def _deliver(self, client: _Client, tp: TopicPartition, records: bytes) -> int | None:
        """Send until it is acknowledged; the offset, None if the leader says only that it has the record.

        Every error is retried: a leader that does not know yet of the next one may answer with any.
        """
        data = wire.PartitionProduceData(index=tp.partition, records=records)
        topic = wire.TopicProduceData(name=tp.topic, partition_data=(data,))
        request = wire.ProduceRequest(acks=-1, timeout_ms=int(_REQUEST_TIMEOUT_S * 1000), topic_data=(topic,))
        while True:
            response = await client.ask_leader(tp, request, _PRODUCE)
            if response is not None:
                answer = response.responses[0].partition_responses[0]
                if answer.error_code == ErrorCode.NONE:
                    offset: int = answer.base_offset
                    return offset
                if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    return None
            await client.back_off(tp)

    # consume

    async def _consume(self, random: Random) -> None:
        client = _Client(self._cluster, random)
        offsets = dict.fromkeys(_PARTITIONS, 0)
        while True:
            tp = random.choice(_PARTITIONS)
            response = await client.ask_leader(tp, _fetch(tp, offsets[tp]), _FETCH)
            data = response.responses[0].partitions[0] if response is not None and response.responses else None
            if data is None or data.error_code != ErrorCode.NONE:
                await client.back_off(tp)
            else:
                for record in _records(data.records or b""):
                    self._saw(tp, record)
                    offsets[tp] = max(offsets[tp], record.offset + 1)
            await trio.sleep(_MOST_PAUSE_S * random.random())

    def _saw(self, tp: TopicPartition, record: Record) -> None:
        before = self._consumed.setdefault((tp, record.offset), record.value)
        if before != record.value:
            text = f"a consumer read {before!r} at {tp} offset {record.offset}, and later {record.value!r}"
            self._violated("consumed", (tp, record.offset), text)

    # in the end

    async def check(self) -> None:
        """Of a cluster that has settled, with all nodes running."""
        (described,) = await self._cluster.describe_topics([TOPIC])
        for partition in described.partitions:
            tp = TopicPartition(TOPIC, partition.partition)
            logs = {broker: self._log(broker, tp) for broker in partition.assignment.replicas}
            if partition.state is None or (leader := logs.get(partition.state.leader)) is None:
                continue
            records = list(_records(_bytes(leader, leader.log_end_offset)))
            self._check_produced(tp, records)
            at = {record.offset: record.value for record in records}
            for (where, offset), value in self._consumed.items():
                if where == tp and at.get(offset) != value:
                    text = f"a consumer read {value!r} at {tp} offset {offset}, where {at.get(offset)!r} is now"
                    self._violated("consumed", (tp, offset), text)
            for broker, log in logs.items():
                self._check_equal(tp, partition.state.leader, leader, broker, log)

    def _check_produced(self, tp: TopicPartition, records: list[Record]) -> None:
        values = [record.value for record in records]
        found = {record.value: record.offset for record in records}
        for value, offset in self._produced[tp].offsets.items():
            if value not in found or offset not in (None, found[value]):
                text = f"{value!r} was acknowledged at {tp} offset {offset}, and is at {found.get(value)}"
                self._violated("acknowledged", tp, text)
        if len(set(values)) < len(values):
            twice = next(value for value in values if values.count(value) > 1)
            self._violated("once", tp, f"{twice!r} is in {tp} more than once")
        if (numbers := [int((value or b"-0").partition(b"-")[2]) for value in values]) != sorted(numbers):
            self._violated("once", (tp, "order"), f"the records of {tp} are out of order: {numbers}")

    def _check_equal(self, tp: TopicPartition, leader_id: int, leader: Log, broker: int, log: Log | None) -> None:
        if log is None or log is leader:
            return
        common = min(leader.high_watermark, log.high_watermark)
        if _bytes(leader, common) != _bytes(log, common):
            text = f"the logs of {tp} of brokers {leader_id} and {broker} differ before their high watermark {common}"
            self._violated("logs", tp, text)

    def _log(self, broker: int, tp: TopicPartition) -> Log | None:
        member = self._cluster.member(broker)
        assert isinstance(member, InProcessMember)
        logs = None if member.node is None else member.node.logs
        return None if logs is None else logs.logs.get(tp)


def _fetch(tp: TopicPartition, offset: int) -> wire.FetchRequest:
    wanted = wire.FetchPartition(
        partition=tp.partition, fetch_offset=offset, partition_max_bytes=_READ_BYTES, current_leader_epoch=-1,
        last_fetched_epoch=-1, log_start_offset=-1,
    )  # fmt: skip
    return wire.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=_READ_BYTES, isolation_level=0, replica_id=-1,
        topics=(wire.FetchTopic(topic=tp.topic, partitions=(wanted,)),),
    )  # fmt: skip


def _records(data: bytes) -> Iterator[Record]:
    for batch in wire.read_records(data).batches:
        yield from batch.records


def _bytes(log: Log, end: int) -> bytes:
    """The batches before ``end``."""
    found, at = b"", log.log_start_offset
    while at < end:
        data = bytes(log.read(at, _READ_BYTES, Isolation.LOG_END, at_least_one=True).records)
        batches = wire.read_records(data).batches
        if not batches:
            break
        found += b"".join(wire.write_records(batch) for batch in batches if batch.records[-1].offset < end)
        at = batches[-1].records[-1].offset + 1
    return found
