"""Clients of a simulated cluster: idempotent producers, a consumer, a group, and what must hold of what they saw.

Each partition has a producer with one request in flight, which sends a record again until it is acknowledged by all of
the ISR (acks=all), one consumer reads all partitions, and so does a group (`kce.harness.simulated_groups`); in some
runs a partition is copied in transactions (`kce.harness.simulated_copies`). In the end every acknowledged record must
be where it was acknowledged, once and in order, and whatever was consumed must still be there: as Jepsen's Kafka
workload checks it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kce.broker_stub.log import Log
from kce.harness.cluster import Cluster
from kce.harness.commit_history import CommitHistory, Violated
from kce.harness.members import InProcessMember
from kce.harness.simulated_client import BACKOFF_S, GROUP, READ_BYTES, REQUEST_TIMEOUT_S, SimulatedClient, records_of
from kce.harness.simulated_copies import COPIERS, COPIES, Copies
from kce.harness.simulated_groups import GROUP_ID, MEMBERS, GroupMember, fetch_offsets
from kce.wire import ErrorCode, Record, RecordBatch
from kce.wire.vocabulary import TopicPartition

TOPIC: Final = "data"
#: replicas of each partition, the preferred leader first
ASSIGNMENT: Final = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
_PARTITIONS: Final = tuple(TopicPartition(TOPIC, number) for number in ASSIGNMENT)
_CHECKED: Final = (TOPIC, COPIES.topic, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
_INIT_PRODUCER_ID, _PRODUCE = 4, 9
#: between two records of a producer
_MOST_PAUSE_S: Final = 0.8
_FINISH_TIMEOUT_S: Final = 60.0
#: transactions take a third of the time of their runs
_COPYING_RUNS: Final = 0.35


@dataclass(slots=True)
class _Produced:
    """What a producer knows: ``offsets`` by record, None where the broker said only that it has the record already."""

    offsets: dict[bytes, int | None] = field(default_factory=dict)
    in_flight: bytes | None = None


class SimulatedClients:
    """``random`` decides what they do, and when. ``violated`` is called with what must not be."""

    def __init__(self, cluster: Cluster, random: Random, violated: Violated) -> None:
        self._cluster = cluster
        self._random = random
        self._violated = violated
        self._produced = {tp: _Produced() for tp in _PARTITIONS}
        self._consumed: dict[tuple[TopicPartition, int], bytes | None] = {}
        self.commits = CommitHistory(violated)
        self._members = [
            GroupMember(cluster, Random(random.random()), self.commits, _PARTITIONS) for _ in range(MEMBERS)
        ]
        self.copies = Copies(cluster, _PARTITIONS[0], violated)
        self._copiers = COPIERS if random.random() < _COPYING_RUNS else 0
        self._stopping = False
        #: who has not ended
        self._working: set[str] = set()

    @property
    def acknowledged(self) -> int:
        """How many records."""
        return sum(len(produced.offsets) for produced in self._produced.values())

    @property
    def consumed(self) -> int:
        return len(self._consumed)

    async def create_topics(self) -> None:
        await self._cluster.create_topic(TOPIC, assignment=ASSIGNMENT)
        if self._copiers:
            await self.copies.create_topic()

    def start(self, nursery: trio.Nursery) -> None:
        """Until the nursery is cancelled."""
        for tp in _PARTITIONS:
            nursery.start_soon(self._work, f"the producer of {tp}", self._produce(tp, Random(self._random.random())))
        for number, member in enumerate(self._members):
            nursery.start_soon(self._work, f"member {number} of the group", member.run())
        for number in range(self._copiers):
            nursery.start_soon(self._work, f"copier {number}", self.copies.copy(Random(self._random.random())))
        nursery.start_soon(self._consume, Random(self._random.random()))
        if self._copiers:
            nursery.start_soon(self.copies.read, Random(self._random.random()))

    async def _work(self, name: str, work: Awaitable[None]) -> None:
        self._working.add(name)
        await work
        self._working.discard(name)

    async def finish(self) -> None:
        """Let producers end with the record that is in flight, and members with a commit: a cluster that is well
        acknowledges them in time."""
        self._stopping = True
        self.copies.stop()
        for member in self._members:
            member.stop()
        with trio.move_on_after(_FINISH_TIMEOUT_S):
            while self._working:  # noqa: ASYNC110 - virtual time
                await trio.sleep(BACKOFF_S)
            self._working = {"the check of commits"}
            await self._check_commits()
            self._working = {"the check of copies"}
            if self._copiers:
                await self.copies.finish()
            return
        waiting = {str(tp): produced.in_flight for tp, produced in self._produced.items() if produced.in_flight}
        text = f"{', '.join(sorted(self._working))} cannot end; not acknowledged: {waiting}"
        self._violated("converged", "clients", text)

    async def _check_commits(self) -> None:
        client = SimulatedClient(self._cluster, Random(self._random.random()))
        while (found := await fetch_offsets(client, GROUP_ID, _PARTITIONS)) is None:
            client.forget_coordinator(GROUP_ID, GROUP)
            await trio.sleep(BACKOFF_S)
        for tp, offset in found.items():
            self.commits.fetched(tp, offset, self.commits.now())
        await client.aclose()

    # produce

    async def _produce(self, tp: TopicPartition, random: Random) -> None:
        client = SimulatedClient(self._cluster, random)
        producer_id = await self._producer_id(client)
        produced, sequence = self._produced[tp], 0
        while not self._stopping:
            value = b"%d-%d" % (tp.partition, sequence)
            produced.in_flight = value
            produced.offsets[value] = await self._deliver(client, tp, self._batch(value, producer_id, sequence))
            produced.in_flight = None
            sequence += 1
            await trio.sleep(_MOST_PAUSE_S * random.random())
        await client.aclose()

    async def _producer_id(self, client: SimulatedClient) -> int:
        request = wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            response = await client.ask_any(request, _INIT_PRODUCER_ID)
            if response is not None and response.error_code == ErrorCode.NONE:
                found: int = response.producer_id
                return found
            await trio.sleep(BACKOFF_S)

    def _batch(self, value: bytes, producer_id: int, sequence: int) -> bytes:
        now_ms = self._cluster.world.observer().now_ms()
        record = Record(offset=0, timestamp=now_ms, key=None, value=value)
        return wire.write_records(
            RecordBatch.of(record, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        )

    async def _deliver(self, client: SimulatedClient, tp: TopicPartition, records: bytes) -> int | None:
        """Send until it is acknowledged; the offset, None if the leader says only that it has the record.

        Every error is retried: a leader that does not know yet of the next one may answer with any.
        """
        data = wire.PartitionProduceData(index=tp.partition, records=records)
        topic = wire.TopicProduceData(name=tp.topic, partition_data=(data,))
        request = wire.ProduceRequest(acks=-1, timeout_ms=int(REQUEST_TIMEOUT_S * 1000), topic_data=(topic,))
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
        client = SimulatedClient(self._cluster, random)
        offsets = dict.fromkeys(_PARTITIONS, 0)
        while True:
            tp = random.choice(_PARTITIONS)
            data = await client.fetch(tp, offsets[tp])
            for record in () if data is None else records_of(data.records or b""):
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
        for described in await self._cluster.describe_topics():
            if described.name not in _CHECKED:
                continue
            for partition in described.partitions:
                tp = TopicPartition(described.name, partition.partition)
                logs = {broker: self._log(broker, tp) for broker in partition.assignment.replicas}
                if partition.state is None or (leader := logs.get(partition.state.leader)) is None:
                    continue
                if tp in self._produced:
                    self._check_records(tp, list(records_of(_bytes(leader, leader.log_end_offset))))
                for broker, log in logs.items():
                    self._check_equal(tp, partition.state.leader, leader, broker, log)

    def _check_records(self, tp: TopicPartition, records: list[Record]) -> None:
        self._check_produced(tp, records)
        at = {record.offset: record.value for record in records}
        for (where, offset), value in self._consumed.items():
            if where == tp and at.get(offset) != value:
                text = f"a consumer read {value!r} at {tp} offset {offset}, where {at.get(offset)!r} is now"
                self._violated("consumed", (tp, offset), text)

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


def _bytes(log: Log, end: int) -> bytes:
    """The batches before ``end``."""
    found, at = b"", log.log_start_offset
    while at < end:
        data = bytes(log.read_bytes(at, READ_BYTES))
        batches = wire.read_records(data).batches
        if not batches:
            break
        found += b"".join(wire.write_records(batch) for batch in batches if batch.records[-1].offset < end)
        at = batches[-1].records[-1].offset + 1
    return found
