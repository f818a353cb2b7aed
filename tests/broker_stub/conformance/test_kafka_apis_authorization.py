"""Ports of cases about authorization: of KafkaApisTest, and of the requests for SCRAM credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.handlers.kafka_apis import KafkaApis
from kce.broker_stub.log import LogConfig, Origin
from kce.broker_stub.partition import ALL
from kce.broker_stub.reactor import RequestMetrics
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.broker_stub.transactions.metadata import TransactionState
from kce.wire import ErrorCode
from kce.wire.steps import Steps
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.test_authorization import MARKERS, Guarded, Need, codes

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture
async def node() -> AsyncIterator[Guarded]:
    async with trio.open_nursery() as nursery:
        yield Guarded(nursery)
        nursery.cancel_scope.cancel()


def may_describe(kind: ResourceType, name: str) -> Need:
    return Need(Operation.DESCRIBE, kind, name)


@pytest.mark.kafka("SCA-1")
async def test_alter_nothing_not_authorized(node: Guarded) -> None:
    assert (await node.ask(wire.AlterUserScramCredentialsRequest(), 0)).results == ()


@pytest.mark.kafka("SCA-2")
async def test_alter_something_not_authorized(node: Guarded) -> None:
    request = wire.AlterUserScramCredentialsRequest(
        deletions=(wire.ScramCredentialDeletion(name="user1", mechanism=1),),
        upsertions=(wire.ScramCredentialUpsertion(name="user2", mechanism=2),),
    )
    results = (await node.ask(request, 0)).results
    assert [(result.user, result.error_code) for result in results] == [("user1", DENIED), ("user2", DENIED)]


@pytest.mark.kafka("SCA-13")
async def test_describe_not_authorized(node: Guarded) -> None:
    answer = await node.ask(wire.DescribeUserScramCredentialsRequest(users=()), 0)
    assert answer.error_code == DENIED


@pytest.mark.kafka("TKA-26")
async def test_write_txn_markers_without_the_acls(node: Guarded) -> None:
    assert set(codes(await node.ask(MARKERS, 1))) == {DENIED}


@pytest.mark.kafka("TKA-31")
@pytest.mark.parametrize("operation", [Operation.ALTER, Operation.CLUSTER_ACTION])
async def test_write_txn_markers_with_either_acl(node: Guarded, operation: Operation) -> None:
    appended: list[tuple[Any, ...]] = []

    def append(*args: Any, **more: Any) -> None:
        appended.append((set(args[0]), args[1], more["origin"]))
        args[3](dict.fromkeys(args[0], (None, ErrorCode.NONE)))

    node.services.appends.append = append  # type: ignore[method-assign]
    hosted: Any = SimpleNamespace(is_leader=False, log=SimpleNamespace(config=LogConfig.of({})))
    node.services.replica_manager.partitions[TopicPartition("a", 0)] = hosted
    topics = (wire.WritableTxnMarkerTopic(name="a", partition_indexes=(0,)),)
    request = wire.WriteTxnMarkersRequest(markers=(wire.WritableTxnMarker(producer_id=1, topics=topics),))
    node.grant(Need(operation, ResourceType.CLUSTER, "kafka-cluster"))
    assert set(codes(await node.ask(request, 1))) == {ErrorCode.NONE}
    assert appended == [({TopicPartition("a", 0)}, ALL, Origin.COORDINATOR)]


@pytest.mark.kafka("TKA-16")
@pytest.mark.parametrize("version", range(6))
async def test_add_partitions_to_txn_without_the_acls(node: Guarded, version: int) -> None:
    topics = (wire.AddPartitionsToTxnTopic(name="topic", partitions=(0,)),)
    metrics, sender = RequestMetrics(), SimpleNamespace(client_software_name="name", client_software_version="1")
    metrics.add(24, (version, {}, *(0.001,) * 7), sender, await _refused(node, topics, version))
    ((counted, of_kind),) = metrics.apis.items()
    assert counted == ("AddPartitionsToTxn" if version < 4 else "AddPartitionsToTxnVerification")
    assert dict(of_kind.histograms())["TotalTimeMs"].count == 1


async def _refused(
    node: Guarded, topics: tuple[wire.AddPartitionsToTxnTopic, ...], version: int
) -> wire.AddPartitionsToTxnRequest:
    """The request that was refused."""
    if version < 4:
        request = wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="txnId1", v3_and_below_producer_id=15, v3_and_below_topics=topics
        )
        (found,) = (await node.ask(request, version)).results_by_topic_v3_and_below
        (partition,) = found.results_by_partition
        assert (found.name, partition.partition_index) == ("topic", 0)
        assert partition.partition_error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return request
    transaction = wire.AddPartitionsToTxnTransaction(
        transactional_id="txnId1", producer_id=15, producer_epoch=0, verify_only=True, topics=topics
    )
    request = wire.AddPartitionsToTxnRequest(transactions=(transaction,))
    answer = await node.ask(request, version)
    assert answer.error_code == DENIED
    return request


def values(state: TransactionState, *partitions: TopicPartition, producer_id: int = 12345) -> SimpleNamespace:
    return SimpleNamespace(
        state=state, partitions=partitions, producer_id=producer_id, producer_epoch=15, timeout_ms=10000, start_ms=777
    )


def with_transactions(node: Guarded, known: dict[str, SimpleNamespace]) -> None:
    """The coordinator has these."""
    metadata = {name: SimpleNamespace(transactional_id=name, values=of) for name, of in known.items()}

    def listed(*filters: Any) -> Steps[SimpleNamespace]:
        yield
        return SimpleNamespace(error=ErrorCode.NONE, unknown_states=(), found=list(metadata.values()))

    coordinator: Any = SimpleNamespace(describe=metadata.__getitem__, list_transactions=listed)
    node.apis = KafkaApis(replace(node.services, transactions=coordinator))


@pytest.mark.kafka("TKA-34")
async def test_describe_transactions(node: Guarded) -> None:
    with_transactions(node, {name: values(TransactionState.COMPLETE_COMMIT) for name in ("foo", "bar")})
    node.grant(may_describe(ResourceType.TRANSACTIONAL_ID, "foo"))
    answer = await node.ask(wire.DescribeTransactionsRequest(transactional_ids=("foo", "bar")), 0)
    foo, bar = answer.transaction_states
    assert foo == wire.DescribeTransactionsResponseTransactionState(
        transactional_id="foo", producer_id=12345, producer_epoch=15, transaction_start_time_ms=777,
        transaction_state="CompleteCommit", transaction_timeout_ms=10000,
    )  # fmt: skip
    assert (bar.transactional_id, bar.error_code) == ("bar", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.kafka("TKA-35")
async def test_describe_transactions_filters_unauthorized_topics(node: Guarded) -> None:
    partitions = [TopicPartition(topic, i) for topic, numbers in (("foo", (1, 2)), ("bar", (3, 4))) for i in numbers]
    with_transactions(node, {"foo": values(TransactionState.ONGOING, *partitions)})
    node.grant(may_describe(ResourceType.TRANSACTIONAL_ID, "foo"), may_describe(ResourceType.TOPIC, "foo"))
    (state,) = (await node.ask(wire.DescribeTransactionsRequest(transactional_ids=("foo",)), 0)).transaction_states
    assert state == wire.DescribeTransactionsResponseTransactionState(
        transactional_id="foo", producer_id=12345, producer_epoch=15, transaction_start_time_ms=777,
        transaction_state="Ongoing", transaction_timeout_ms=10000,
        topics=(wire.DescribeTransactionsResponseTopicData(topic="foo", partitions=(1, 2)),),
    )  # fmt: skip


@pytest.mark.kafka("TKA-37")
async def test_list_transactions_authorization(node: Guarded) -> None:
    known = {"foo": values(TransactionState.ONGOING), "bar": values(TransactionState.PREPARE_ABORT, producer_id=98765)}
    with_transactions(node, known)
    node.grant(may_describe(ResourceType.TRANSACTIONAL_ID, "foo"))
    answer = await node.ask(wire.ListTransactionsRequest(), 1)
    assert answer.error_code == ErrorCode.NONE
    (listed,) = answer.transaction_states
    assert (listed.transactional_id, listed.producer_id, listed.transaction_state) == ("foo", 12345, "Ongoing")


async def test_list_groups_lists_those_that_may_be_described(node: Guarded) -> None:
    """With Describe on the cluster all of them."""
    groups = tuple(wire.ListedGroup(group_id=name) for name in ("g", "other"))

    def known(*filters: Any) -> Steps[tuple[ErrorCode, tuple[wire.ListedGroup, ...]]]:
        yield
        return ErrorCode.NONE, groups

    coordinator: Any = SimpleNamespace(list_groups=known, manager=node.services.groups.manager)
    node.apis = KafkaApis(replace(node.services, groups=coordinator))

    async def listed() -> list[str]:
        return [group.group_id for group in (await node.ask(wire.ListGroupsRequest(), 4)).groups]

    assert await listed() == []
    node.grant(may_describe(ResourceType.GROUP, "g"))
    assert await listed() == ["g"]
    node.grant(may_describe(ResourceType.CLUSTER, "kafka-cluster"))
    assert await listed() == ["g", "other"]
