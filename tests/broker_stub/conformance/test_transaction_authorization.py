"""TAZ: transactions under an authorizer (sections 14 and 16 of docs/transaction-semantics.md; section 9 of
docs/broker-semantics.md). Each case sends what Kafka's producer would, to one broker that leads everything.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.security.operations import ResourceType
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.wire import ErrorCode as E
from kce.wire.record import Record, RecordBatch
from kce.wire.records import write_records
from kce.zookeeper.security_nodes import ResourcePattern, VersionedAcls
from tests.broker_stub.security.authorizers import ALICE
from tests.broker_stub.support import lai_state, leader_and_isr, umr_state, update_metadata
from tests.broker_stub.test_authorization import Guarded, Need, need
from tests.broker_stub.test_transaction_requests import OFFSETS, ONE, STATE, Broker, Channel

kafka = pytest.mark.kafka

TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
CONTROLLER = KafkaPrincipal("User", "superuser1")
WRITES_ID, WRITES_TOPIC = need("WRITE", TXN), need("WRITE", TOPIC)
WRITES_IDEMPOTENTLY = need("IDEMPOTENT_WRITE", CLUSTER)
DESCRIBES_ID, DESCRIBES_TOPIC = need("DESCRIBE", TXN), need("DESCRIBE", TOPIC)


class GuardedBroker(Broker):
    """Its client is alice, who has no ACLs at first."""

    node: Guarded

    def revoke(self, *needs: Need) -> None:
        """All ACLs of these resources; of every resource without ``needs``."""
        for kind, name in {(one.kind, one.name) for one in needs or EVERYTHING}:
            resource = ResourcePattern(kind.label, name)
            version = self.node.authorizer.cache.get(resource).version
            self.node.authorizer.cache.put(resource, VersionedAcls(frozenset(), version + 1))

    async def find_coordinator(self) -> int:
        answer = await self.node.ask(wire.FindCoordinatorRequest(key_type=1, coordinator_keys=("t",)), 4)
        return int(answer.coordinators[0].error_code)

    async def init_idempotent(self) -> int:
        request = wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        return int((await self.node.ask(request, 4)).error_code)

    async def send(self, transactional_id: str | None, sequence: int = 0, pid: int = 70) -> int:
        """A record for a-0."""
        records = write_records(
            RecordBatch.of(
                Record(offset=0, timestamp=0, value=b"1"), producer_id=pid, producer_epoch=0, base_sequence=sequence,
                is_transactional=transactional_id is not None,
            )
        )  # fmt: skip
        data = wire.PartitionProduceData(index=0, records=records)
        topics = (wire.TopicProduceData(name="a", partition_data=(data,)),)
        request = wire.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=topics)
        answer = await self.node.ask(request, 9)
        return int(answer.responses[0].partition_responses[0].error_code)

    async def add_offsets(self) -> int:
        request = wire.AddOffsetsToTxnRequest(transactional_id="t", producer_id=70, producer_epoch=0, group_id="g")
        return int((await self.node.ask(request, 3)).error_code)

    async def begin(self) -> None:
        """A transaction with a record in a-0."""
        assert await self.init() == (E.NONE, 70, 0)
        assert await self.add(0) == {0: E.NONE}
        assert await self.send("t") == E.NONE


EVERYTHING = (WRITES_ID, WRITES_TOPIC, WRITES_IDEMPOTENTLY, need("WRITE", GROUP))


@pytest.fixture
async def broker() -> AsyncIterator[GuardedBroker]:
    async with trio.open_nursery() as nursery:
        node = Guarded(nursery, Channel(), {name.replace(".", "_"): value for name, value in ONE.items()})
        alone: Any = {"isr": (1,), "replicas": (1,)}
        for i, topic in enumerate(("a", STATE, OFFSETS), 1):
            named: Any = {"topic": topic, "topic_id": uuid.UUID(int=i)}
            node.cache.update(update_metadata(umr_state(0, **alone), **named))
            node.principal = CONTROLLER
            await node.ask(leader_and_isr(lai_state(0, **alone), **named))
        node.principal = ALICE
        nursery.start_soon(node.transactions.manager.run)
        node.producer_ids.request_block()
        made = GuardedBroker(node)
        await made.settle()
        yield made
        nursery.cancel_scope.cancel()


@kafka("TAZ-1")
async def test_who_may_only_describe_the_id_gets_no_producer(broker: GuardedBroker) -> None:
    broker.node.grant(DESCRIBES_ID)
    assert await broker.find_coordinator() == E.NONE
    assert await broker.init() == (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)


@kafka("TAZ-2")
async def test_who_may_not_describe_the_id_finds_no_coordinator(broker: GuardedBroker) -> None:
    assert await broker.find_coordinator() == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@kafka("TAZ-3")
async def test_who_may_only_read_gets_no_producer_id(broker: GuardedBroker) -> None:
    broker.node.grant(need("READ", TOPIC))
    for _ in range(2):
        assert await broker.init_idempotent() == E.CLUSTER_AUTHORIZATION_FAILED


@kafka("TAZ-4")
async def test_an_idempotent_producer_loses_its_permission(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_TOPIC, WRITES_IDEMPOTENTLY)
    assert await broker.init_idempotent() == E.NONE
    assert await broker.send(None) == E.NONE
    broker.revoke()
    broker.node.grant(DESCRIBES_TOPIC)
    for _ in range(2):
        assert await broker.send(None, 1) == E.TOPIC_AUTHORIZATION_FAILED


@kafka("TAZ-5")
async def test_who_may_write_the_id_gets_a_producer(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID)
    assert await broker.find_coordinator() == E.NONE
    assert await broker.init() == (E.NONE, 70, 0)


@kafka("TAZ-6")
@kafka("TAZ-7")
async def test_who_may_only_describe_the_topic_adds_no_partition(broker: GuardedBroker) -> None:
    """The producer fails the record and the commit without another request."""
    broker.node.grant(WRITES_ID, DESCRIBES_TOPIC)
    assert await broker.init() == (E.NONE, 70, 0)
    assert await broker.add(0) == {0: E.TOPIC_AUTHORIZATION_FAILED}
    assert await broker.send("t") == E.TOPIC_AUTHORIZATION_FAILED


@kafka("TAZ-8")
async def test_the_id_is_revoked_before_a_record(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID)
    assert await broker.init() == (E.NONE, 70, 0)
    broker.revoke()
    broker.node.grant(WRITES_TOPIC)
    assert await broker.add(0) == {0: E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert await broker.send("t") == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@kafka("TAZ-9")
async def test_the_id_is_revoked_before_the_end(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID, WRITES_TOPIC)
    await broker.begin()
    broker.revoke()
    assert await broker.end(commit=True) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@kafka("TAZ-10")
async def test_only_who_may_describe_an_id_sees_it_listed(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID, WRITES_TOPIC)
    await broker.begin()

    async def listed() -> set[str]:
        answer = await broker.node.ask(wire.ListTransactionsRequest(), 1)
        assert answer.error_code == E.NONE
        return {state.transactional_id for state in answer.transaction_states}

    assert await listed() == {"t"}
    broker.revoke(WRITES_ID)
    assert await listed() == set()
    broker.node.grant(DESCRIBES_ID)
    assert await listed() == {"t"}


@kafka("TAZ-11")
async def test_topics_are_hidden_in_a_described_transaction(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID, WRITES_TOPIC)
    await broker.begin()
    broker.revoke(WRITES_TOPIC)
    answer = await broker.node.ask(wire.DescribeTransactionsRequest(transactional_ids=("t",)), 0)
    (state,) = answer.transaction_states
    assert (state.transactional_id, state.transaction_state, state.topics) == ("t", "Ongoing", ())


@kafka("TAZ-12")
async def test_a_transaction_is_aborted_after_a_topic_was_refused(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID, WRITES_TOPIC, DESCRIBES_TOPIC)
    await broker.begin()
    assert await broker.add(0, topic="otherTopic") == {0: E.TOPIC_AUTHORIZATION_FAILED}
    assert await broker.end(commit=False) == E.NONE


@kafka("TAZ-13")
async def test_the_id_is_revoked_before_offsets(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_ID, need("WRITE", GROUP))
    assert await broker.init() == (E.NONE, 70, 0)
    broker.revoke()
    assert await broker.add_offsets() == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await broker.commit_offset(1) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@kafka("TAZ-14")
async def test_an_idempotent_producer_with_its_acls(broker: GuardedBroker) -> None:
    broker.node.grant(WRITES_IDEMPOTENTLY, WRITES_TOPIC)
    assert await broker.init_idempotent() == E.NONE
    assert await broker.send(None) == E.NONE
