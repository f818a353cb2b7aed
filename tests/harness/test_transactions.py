"""Transactions in a cluster: they end though brokers die, and readers see what is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from kce import wire
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.node_client import NodeClient
from kce.harness import Cluster
from kce.harness.errors import HarnessError
from kce.harness.faults import Rule
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.wire import ErrorCode
from kce.wire.record import Record, RecordBatch
from kce.wire.records import read_records, write_records

PROPERTIES = {
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "zookeeper.session.timeout.ms": "4000",
}
#: when clusters in memory begin
STARTED_MS = 1_704_067_200_000
ID, TOPIC = "copier", "t"
RETRIED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class TransactionalClient:
    """A producer with a transactional id, and a reader of partitions. It repeats what Kafka's clients repeat."""

    def __init__(self, cluster: Cluster, world: MemoryClusterWorld, transactional_id: str = ID) -> None:
        self.id = transactional_id
        self._cluster = cluster
        self._links = NodeLinks(world.observer(), Links(set()), -1)
        self.coordinator = -1
        self.producer = -1, -1
        self._sequences = Counter[tuple[str, int]]()

    @asynccontextmanager
    async def connected(self, node_id: int) -> AsyncIterator[NodeClient]:
        host, port = self._cluster.member(node_id).addresses["DATA"].rsplit(":", 1)
        client = NodeClient(await self._links.dial(host, int(port), to=node_id, listener="DATA"), "client")
        try:
            yield client
        finally:
            await client.aclose()

    async def find(self, kind: int = 1) -> None:
        request = wire.FindCoordinatorRequest(coordinator_keys=(self.id,), key_type=kind)
        while True:
            for node_id in [member.id for member in self._cluster.members]:
                try:
                    async with self.connected(node_id) as client:
                        answer: Any = await client.request(request, 4)
                except OSError:
                    continue
                if answer.coordinators[0].error_code == ErrorCode.NONE:
                    self.coordinator = answer.coordinators[0].node_id
                    return
            await trio.sleep(0.1)

    async def ask(
        self, message: wire.Message, version: int, code: Any = lambda answer: answer.error_code, kind: int = 1
    ) -> Any:
        """Of the coordinator: the first answer that is not to be repeated. ``kind``: 0 of groups."""
        while True:
            await self.find(kind)
            try:
                async with self.connected(self.coordinator) as client:
                    answer = await client.request(message, version)
                if code(answer) not in RETRIED:
                    return answer
            except OSError:
                pass
            await trio.sleep(0.1)

    async def bump(self) -> None:
        """Take the next epoch of the producer id."""
        producer_id, epoch = self.producer
        request = wire.InitProducerIdRequest(
            transactional_id=self.id, transaction_timeout_ms=60_000, producer_id=producer_id, producer_epoch=epoch
        )
        await self._init(request)

    async def init(self, timeout_ms: int = 60_000) -> None:
        request = wire.InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=timeout_ms)
        await self._init(request)

    async def _init(self, request: wire.InitProducerIdRequest) -> None:
        answer = await self.ask(request, 5)
        assert answer.error_code == ErrorCode.NONE
        self.producer = answer.producer_id, answer.producer_epoch
        self._sequences = Counter[tuple[str, int]]()

    async def add(self, *partitions: int, topic: str = TOPIC) -> int:
        producer_id, epoch = self.producer
        request = wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=(wire.AddPartitionsToTxnTopic(name=topic, partitions=partitions),),
        )

        def code(answer: Any) -> int:
            return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        return code(await self.ask(request, 3, code))

    async def commit_offset(self, offset: int, version: int = 4) -> int:
        """For the group of the same name, which the same broker coordinates with one partition of each topic."""
        producer_id, epoch = self.producer
        entry = wire.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = wire.TxnOffsetCommitRequest(
            transactional_id=self.id, group_id=self.id, producer_id=producer_id, producer_epoch=epoch,
            topics=(wire.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=(entry,)),),
        )  # fmt: skip

        def code(answer: Any) -> int:
            return int(answer.topics[0].partitions[0].error_code)

        return code(await self.ask(request, version, code, kind=0))

    async def add_offsets(self) -> int:
        producer_id, epoch = self.producer
        request = wire.AddOffsetsToTxnRequest(
            transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, group_id=self.id
        )
        return int((await self.ask(request, 3)).error_code)

    async def end(self, *, commit: bool) -> int:
        producer_id, epoch = self.producer
        request = wire.EndTxnRequest(
            transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        return int((await self.ask(request, 4)).error_code)

    async def of_leader(self, topic: str, partition: int, message: wire.Message, version: int, code: Any) -> Any:
        while True:
            (found,) = await self._cluster.describe_topics([topic])
            leadership = found.partitions[partition].leadership
            assert leadership is not None
            try:
                async with self.connected(leadership.leader_and_isr.leader) as client:
                    answer = await client.request(message, version)
                if code(answer) not in RETRIED:
                    return answer
            except (OSError, HarnessError):  # it died, or there is no leader
                pass
            await trio.sleep(0.1)

    async def produce(
        self, partition: int, *values: bytes, version: int = 9, topic: str = TOPIC, timestamp: int = STARTED_MS
    ) -> int:
        producer_id, epoch = self.producer
        records = write_records(
            RecordBatch.of(
                *(Record(offset=i, timestamp=timestamp, value=value) for i, value in enumerate(values)),
                producer_id=producer_id, producer_epoch=epoch, base_sequence=self._sequences[topic, partition],
                is_transactional=True,
            )
        )  # fmt: skip
        data = wire.PartitionProduceData(index=partition, records=records)
        request = wire.ProduceRequest(
            transactional_id=self.id, acks=-1, timeout_ms=5000,
            topic_data=(wire.TopicProduceData(name=topic, partition_data=(data,)),),
        )  # fmt: skip

        def code(answer: Any) -> int:
            return int(answer.responses[0].partition_responses[0].error_code)

        error = code(await self.of_leader(topic, partition, request, version, code))
        self._sequences[topic, partition] += len(values) if error == ErrorCode.NONE else 0
        return error

    async def read(
        self, partition: int, *, topic: str = TOPIC, committed: bool = True, min_bytes: int = 0
    ) -> list[bytes]:
        return [value for _, value in await self.read_offsets(partition, topic, committed, min_bytes)]

    async def read_offsets(
        self, partition: int, topic: str, committed: bool = True, min_bytes: int = 0
    ) -> list[tuple[int, bytes]]:
        """What a consumer sees, with offsets; a read_committed one drops what is aborted."""
        request = wire.FetchRequest(
            isolation_level=int(committed), max_bytes=10**6, min_bytes=min_bytes, max_wait_ms=100,
            topics=(
                wire.FetchTopic(
                    topic=topic, partitions=(wire.FetchPartition(partition=partition, partition_max_bytes=10**6),)
                ),
            ),
        )  # fmt: skip

        def code(answer: Any) -> int:
            return int(answer.responses[0].partitions[0].error_code)

        found = (await self.of_leader(topic, partition, request, 11, code)).responses[0].partitions[0]
        starts = sorted((a.first_offset, a.producer_id) for a in found.aborted_transactions or ())
        aborted: set[int] = set()
        values = []
        for batch in read_records(found.records or b"").batches:
            while starts and starts[0][0] <= batch.last_offset:
                aborted.add(starts.pop(0)[1])
            if batch.is_control:
                aborted.discard(batch.producer_id)
            elif batch.producer_id not in aborted or not batch.is_transactional:
                values += [(record.offset, record.value or b"") for record in batch.records]
        return values

    async def configure(self, name: str, value: str) -> None:
        """All brokers."""
        config = wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)
        resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=4, resource_name="", configs=(config,)
        )
        async with self.connected(1) as client:
            answer: Any = await client.request(wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
        assert [found.error_code for found in answer.responses] == [ErrorCode.NONE]

    async def state(self) -> str:
        request = wire.DescribeTransactionsRequest(transactional_ids=(self.id,))
        answer = await self.ask(request, 0, lambda answer: answer.transaction_states[0].error_code)
        return str(answer.transaction_states[0].transaction_state)

    async def wait_for(self, state: str) -> None:
        with trio.fail_after(120):
            while await self.state() != state:  # noqa: ASYNC110 - only the coordinator knows
                await trio.sleep(0.1)


@asynccontextmanager
async def running(seed: int) -> AsyncIterator[tuple[Cluster, TransactionalClient]]:
    world = memory(seed)
    async with Cluster(3, world=world, properties=PROPERTIES) as cluster:
        await cluster.create_topic(TOPIC, partitions=2, replication_factor=3)
        yield cluster, TransactionalClient(cluster, world)


async def test_commit_and_abort() -> None:  # rules T1.4, T5.4, T5.10, T6.1, T12.7
    async with running(1) as (cluster, client):
        await client.init()
        (topic,) = await cluster.describe_topics([TRANSACTION_STATE_TOPIC])
        assert len(topic.partitions) == 3
        for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
            assert await client.add(0, 1) == ErrorCode.NONE
            for partition in (0, 1):
                assert await client.produce(partition, value) == ErrorCode.NONE
            before = await client.read(0)
            assert value not in before, "a transaction that has not ended is not seen"
            assert await client.end(commit=commit) == ErrorCode.NONE
            await client.wait_for("CompleteCommit" if commit else "CompleteAbort")
        assert [await client.read(partition) for partition in (0, 1)] == [[b"a", b"c"]] * 2
        assert await client.end(commit=True) == ErrorCode.NONE, "a repetition"
        assert await client.end(commit=False) == ErrorCode.INVALID_TXN_STATE


async def test_a_second_producer_fences_the_first() -> None:  # rules T4.9, T4.10, T13.6
    async with running(2) as (_, client):
        await client.init()
        first = client.producer
        await client.add(0)
        assert await client.produce(0, b"zombie") == ErrorCode.NONE
        await client.init()
        assert client.producer == (first[0], first[1] + 2)
        await client.add(0)
        assert await client.produce(0, b"new") == ErrorCode.NONE
        assert await client.end(commit=True) == ErrorCode.NONE
        await client.wait_for("CompleteCommit")
        second, client.producer = client.producer, first
        assert await client.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await client.add(1) == ErrorCode.PRODUCER_FENCED
        assert await client.produce(0, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        client.producer = second
        assert await client.read(0) == [b"new"]


async def test_a_transaction_outlives_its_coordinator() -> None:  # rules T9.13 to T9.15, T13.3
    async with running(3) as (cluster, client):
        await client.init()
        for i in range(2):
            await client.add(0, 1)
            assert await client.produce(0, b"%d" % i) == ErrorCode.NONE
            old = client.coordinator
            await cluster.kill(old)
            assert await client.produce(1, b"%d" % i) == ErrorCode.NONE
            assert await client.end(commit=True) == ErrorCode.NONE
            assert client.coordinator != old
            await client.wait_for("CompleteCommit")
            await cluster.start(old)
        assert [await client.read(partition) for partition in (0, 1)] == [[b"0", b"1"]] * 2


async def test_markers_are_written_by_the_next_coordinator() -> None:  # rules T6.5, T9.14
    async with running(4) as (cluster, client):
        await client.init()
        await client.add(0)
        assert await client.produce(0, b"x") == ErrorCode.NONE
        async with cluster.faults(Rule(api="WriteTxnMarkers", drop=True)):
            assert await client.end(commit=True) == ErrorCode.NONE
            assert await client.state() == "PrepareCommit"
            assert await client.read(0) == []
            await trio.sleep(1)
            await cluster.kill(client.coordinator)
        await client.wait_for("CompleteCommit")
        assert await client.read(0) == [b"x"]


async def test_a_transaction_that_takes_too_long_is_aborted() -> None:  # rules T8.1 to T8.3
    async with running(5) as (_, client):
        await client.init(timeout_ms=3000)
        await client.add(0)
        assert await client.produce(0, b"x") == ErrorCode.NONE
        await client.wait_for("CompleteAbort")
        assert await client.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await client.produce(0, b"y") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await client.read(0) == []


async def test_what_is_not_in_the_transaction_is_refused() -> None:  # rules T10.1, T10.9, T10.10, G7.18
    async with running(6) as (_, client):
        await client.init()
        assert await client.produce(0, b"early") == ErrorCode.INVALID_TXN_STATE
        assert await client.produce(0, b"early", version=11) == ErrorCode.TRANSACTION_ABORTABLE
        assert await client.add(1) == ErrorCode.NONE
        assert await client.produce(0, b"elsewhere", version=11) == ErrorCode.TRANSACTION_ABORTABLE
        assert await client.produce(1, b"x") == ErrorCode.NONE
        assert await client.commit_offset(5, 3) == ErrorCode.INVALID_TXN_STATE
        assert await client.commit_offset(5) == ErrorCode.TRANSACTION_ABORTABLE
        assert await client.add_offsets() == ErrorCode.NONE
        assert await client.commit_offset(5) == ErrorCode.NONE
        assert await client.end(commit=True) == ErrorCode.NONE
        await client.wait_for("CompleteCommit")
        assert await client.produce(1, b"late", version=11) == ErrorCode.TRANSACTION_ABORTABLE
        assert [await client.read(partition) for partition in (0, 1)] == [[], [b"x"]]


async def test_verification_is_turned_off_at_run_time() -> None:  # rules T10.2, T10.19, T14.5
    async with running(7) as (_, client):
        await client.init()
        assert await client.produce(0, b"x") == ErrorCode.INVALID_TXN_STATE
        await client.configure("transaction.partition.verification.enable", "false")
        with trio.fail_after(30):
            while await client.produce(0, b"x") == ErrorCode.INVALID_TXN_STATE:  # noqa: ASYNC110 - only the leader knows
                await trio.sleep(0.1)
        assert await client.read(0) == []
