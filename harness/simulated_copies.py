"""Copiers of a simulated cluster: each copies records in transactions, and says there how far it has come.

Two of them have one transactional id, so that each fences the other, and a read_committed consumer reads the copies.
Whatever has an unknown outcome makes a copier begin again, with a new producer epoch: an old request that arrives later
is fenced, as the protocol before KIP-890 needs it. Once it is known that a transaction is committed, whoever asks for
stable offsets sees its own, and no older epoch commits any more. In the end the copies are the records before the
committed offset, each once and in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.harness.cluster import Cluster
from kce.harness.commit_history import CommitHistory, Violated
from kce.harness.simulated_client import BACKOFF_S, GROUP, TRANSACTION, SimulatedClient, records_of
from kce.harness.simulated_groups import fetch_offsets
from kce.wire import ErrorCode, Record, RecordBatch
from kce.wire.vocabulary import TopicPartition

COPIES: Final = TopicPartition("copies", 0)
GROUP_ID: Final = "copiers"
_ID: Final = "copier"
COPIERS: Final = 2
_INIT, _ADD, _ADD_OFFSETS, _COMMIT, _END, _PRODUCE, _OFFSET_COMMIT = 4, 3, 3, 3, 3, 9, 8
#: shorter than a schedule
_TRANSACTION_TIMEOUT_MS: Final = 5000
_MOST_RECORDS: Final = 5
_MOST_PAUSE_S: Final = 1.5
_ABORTS: Final = 0.2
#: how often a copier stops before a request, and how often it looks whether what it has committed is there
_STOPS: Final = 0.1
_LOOKS: Final = 0.5
_READ_COMMITTED: Final = 1
#: errors that say for certain that a transaction was not ended
_REFUSED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


class _BeginAgain(Exception):
    """A request failed, or nobody knows (NETWORK_EXCEPTION)."""

    def __init__(self, code: int = ErrorCode.NETWORK_EXCEPTION) -> None:
        super().__init__(code)
        self.code = code


class Copies:
    """``source`` is what is copied. ``violated`` is called with what must not be."""

    def __init__(self, cluster: Cluster, source: TopicPartition, violated: Violated) -> None:
        self._cluster = cluster
        self._source = source
        self._violated = violated
        self._commits = CommitHistory(violated)
        #: what a read_committed consumer has read, by offset
        self._seen: dict[int, bytes | None] = {}
        self._stopping = False
        self.transactions = 0

    async def create_topic(self) -> None:
        await self._cluster.create_topic(COPIES.topic, assignment={0: (2, 3, 1)})

    def stop(self) -> None:
        """Let `copy` end."""
        self._stopping = True

    # copy

    async def copy(self, random: Random) -> None:
        client = SimulatedClient(self._cluster, random)
        while not self._stopping:
            try:
                copier = await self._begin(client, random)
                while not self._stopping:
                    await copier.copy_some()
                    self.transactions += 1
                    await trio.sleep(_MOST_PAUSE_S * random.random())
            except _BeginAgain:
                client.forget_coordinator(_ID, TRANSACTION)
                client.forget_coordinator(GROUP_ID, GROUP)
                await client.back_off(COPIES)
                await trio.sleep(_MOST_PAUSE_S * random.random())
        await client.aclose()

    async def _begin(self, client: SimulatedClient, random: Random) -> _Copier:
        request = wire.InitProducerIdRequest(transactional_id=_ID, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
        response = await client.ask_coordinator(_ID, TRANSACTION, request, _INIT)
        if response is None or response.error_code != ErrorCode.NONE:
            raise _BeginAgain
        self._commits.written(response.producer_epoch)
        position = await _committed(client, self._source, self._commits)
        if position is None:
            raise _BeginAgain
        producer = response.producer_id, response.producer_epoch
        now_ms = self._cluster.world.observer().now_ms()
        return _Copier(client, random, self._source, self._commits, producer, max(position, 0), now_ms)

    # read

    async def read(self, random: Random) -> None:
        """Until cancelled."""
        client, offset = SimulatedClient(self._cluster, random), 0
        while True:
            data = await client.fetch(COPIES, offset, _READ_COMMITTED)
            for batch in () if data is None else wire.read_records(data.records or b"").batches:
                offset = max(offset, batch.last_offset + 1)
            for record in () if data is None else committed_records(data):
                self._seen.setdefault(record.offset, record.value)
            await trio.sleep(_MOST_PAUSE_S * random.random())

    # in the end

    async def finish(self) -> None:
        """Of a cluster that is well, whose copiers have ended: until no transaction is open, then check."""
        client = SimulatedClient(self._cluster, Random(0))
        while (position := await _committed(client, self._source, self._commits)) is None:
            client.forget_coordinator(GROUP_ID, GROUP)
            await trio.sleep(BACKOFF_S)
        copies = source = None
        while source is None or copies is None:
            source = await client.fetch(self._source, 0)
            copies = await client.fetch(COPIES, 0, _READ_COMMITTED)
            if copies is not None and copies.last_stable_offset < copies.high_watermark:
                copies = None
                await trio.sleep(BACKOFF_S)
        wanted = [record.value for record in records_of(source.records or b"") if record.offset < position]
        self._check(committed_records(copies), wanted)
        await client.aclose()

    def _check(self, copies: Sequence[Record], wanted: Sequence[bytes | None]) -> None:
        if (found := [record.value for record in copies]) != wanted:
            self._violated("copies", COPIES, f"the copies of {wanted} are {found}")
        at = {record.offset: record.value for record in copies}
        for offset, value in self._seen.items():
            if at.get(offset, b"nothing") != value:
                text = f"a read_committed consumer read {value!r} at {offset}, where {at.get(offset)!r} is committed"
                self._violated("copies", (COPIES, offset), text)


class _Copier:
    """One producer epoch. Every method raises _BeginAgain."""

    def __init__(
        self, client: SimulatedClient, random: Random, source: TopicPartition, commits: CommitHistory,
        producer: tuple[int, int], position: int, now_ms: int,
    ) -> None:  # fmt: skip
        self._client = client
        self._random = random
        self._source = source
        self._commits = commits
        self._producer = producer
        self._position = position
        self._now_ms = now_ms
        self._sequence = 0

    async def copy_some(self) -> None:
        """In one transaction, which may be aborted; nothing if there is nothing to copy."""
        data = await self._client.fetch(self._source, self._position)
        records = list(records_of(b"" if data is None else data.records or b""))
        records = [record for record in records if record.offset >= self._position][:_MOST_RECORDS]
        if not records:
            return
        for record in records:
            self._commits.read(self._source, record.offset)
        position = records[-1].offset + 1
        await self._add_partition()
        await self._stop_sometimes()
        await self._produce(records)
        await self._commit_offset(position)
        await self._stop_sometimes()
        if self._random.random() < _ABORTS:
            await self._end(committed=False)
            return
        _, epoch = self._producer
        commit = self._commits.begin(self._source, position, epoch)
        try:
            await self._end(committed=True)
        except _BeginAgain as e:
            if e.code in _REFUSED:
                self._commits.refused(self._source, commit)
            raise
        self._commits.accepted(self._source, commit)
        self._position = position
        if self._random.random() < _LOOKS:
            await _committed(self._client, self._source, self._commits)

    async def _stop_sometimes(self) -> None:
        if self._random.random() < _STOPS:
            await trio.sleep(2 * _MOST_PAUSE_S * self._random.random())

    async def _end(self, *, committed: bool) -> None:
        producer_id, epoch = self._producer
        request = wire.EndTxnRequest(
            transactional_id=_ID, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        await self._coordinate(request, _END, lambda answer: answer.error_code)

    async def _add_partition(self) -> None:
        producer_id, epoch = self._producer
        topic = wire.AddPartitionsToTxnTopic(name=COPIES.topic, partitions=(COPIES.partition,))
        request = wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=_ID, v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch, v3_and_below_topics=(topic,),
        )  # fmt: skip
        await self._coordinate(
            request, _ADD, lambda a: a.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        )

    async def _produce(self, records: Sequence[Record]) -> None:
        producer_id, epoch = self._producer
        copies = [
            Record(offset=at, timestamp=self._now_ms, key=None, value=record.value) for at, record in enumerate(records)
        ]
        batch = RecordBatch.of(
            *copies, producer_id=producer_id, producer_epoch=epoch, base_sequence=self._sequence, is_transactional=True
        )
        data = wire.PartitionProduceData(index=COPIES.partition, records=wire.write_records(batch))
        request = wire.ProduceRequest(
            transactional_id=_ID, acks=-1, timeout_ms=3000,
            topic_data=(wire.TopicProduceData(name=COPIES.topic, partition_data=(data,)),),
        )  # fmt: skip
        response = await self._client.ask_leader(COPIES, request, _PRODUCE)
        if response is None or response.responses[0].partition_responses[0].error_code != ErrorCode.NONE:
            raise _BeginAgain
        self._sequence += len(copies)

    async def _commit_offset(self, position: int) -> None:
        producer_id, epoch = self._producer
        add = wire.AddOffsetsToTxnRequest(
            transactional_id=_ID, producer_id=producer_id, producer_epoch=epoch, group_id=GROUP_ID
        )
        await self._coordinate(add, _ADD_OFFSETS, lambda answer: answer.error_code)
        partition = wire.TxnOffsetCommitRequestPartition(
            partition_index=self._source.partition, committed_offset=position, committed_metadata=""
        )
        commit = wire.TxnOffsetCommitRequest(
            transactional_id=_ID, group_id=GROUP_ID, producer_id=producer_id, producer_epoch=epoch, member_id="",
            topics=(wire.TxnOffsetCommitRequestTopic(name=self._source.topic, partitions=(partition,)),),
        )  # fmt: skip
        response = await self._client.ask_coordinator(GROUP_ID, GROUP, commit, _COMMIT)
        if response is None or response.topics[0].partitions[0].error_code != ErrorCode.NONE:
            raise _BeginAgain

    async def _coordinate(self, message: wire.Message, version: int, code: Any) -> None:
        """Again while the transaction before this one is not completed: then the request has changed nothing."""
        while True:
            response = await self._client.ask_coordinator(_ID, TRANSACTION, message, version)
            error = ErrorCode.NETWORK_EXCEPTION if response is None else code(response)
            if error == ErrorCode.NONE:
                return
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                raise _BeginAgain(error)
            await trio.sleep(BACKOFF_S)


async def _committed(client: SimulatedClient, source: TopicPartition, commits: CommitHistory) -> int | None:
    """How far the copies are, without the transaction that has not ended; None if the coordinator does not say.

    It has to accept a commit first: a broker that does not know that it leads no more answers from its memory.
    """
    before = commits.now()
    partition = wire.OffsetCommitRequestPartition(
        partition_index=COPIES.partition, committed_offset=0, committed_metadata=""
    )
    request = wire.OffsetCommitRequest(
        group_id=GROUP_ID, topics=(wire.OffsetCommitRequestTopic(name=COPIES.topic, partitions=(partition,)),)
    )
    response = await client.ask_coordinator(GROUP_ID, GROUP, request, _OFFSET_COMMIT)
    if response is None or response.topics[0].partitions[0].error_code != ErrorCode.NONE:
        return None
    found = await fetch_offsets(client, GROUP_ID, [source], stable=True)
    if found is None:
        return None
    commits.fetched(source, found[source], before)
    return found[source]


def committed_records(data: Any) -> list[Record]:
    """Of a fetched partition, without those of aborted transactions."""
    starts = sorted((aborted.first_offset, aborted.producer_id) for aborted in data.aborted_transactions or ())
    aborting: set[int] = set()
    found: list[Record] = []
    for batch in wire.read_records(data.records or b"").batches:
        while starts and starts[0][0] <= batch.last_offset:
            aborting.add(starts.pop(0)[1])
        if batch.is_control:
            aborting.discard(batch.producer_id)
        elif not batch.is_transactional or batch.producer_id not in aborting:
            found += batch.records
    return found
