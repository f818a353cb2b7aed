"""integration/kafka/server/DelayedFetchTest.scala (DF): what ends a follower's fetch that waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kce.broker_stub.log import Isolation
from kce.broker_stub.log.segments import OffsetMetadata
from kce.broker_stub.replication.delayed import DelayedFetch
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch, Read
from kce.wire import ErrorCode
from tests.broker_stub.replication.support import A0, RecordNode, a_node, batch
from tests.broker_stub.support import ID_A, umr_state, update_metadata

kafka = pytest.mark.kafka


def fetch_of(node: RecordNode, *, epoch: int = 10, last_fetched_epoch: int = -1) -> tuple[bool, Sequence[Read]]:
    """Whether a fetch from offset 5 that waits is complete, and what it is answered with."""
    answers: list[Read] = []
    params = FetchParams(replica_id=2, max_wait_ms=500, min_bytes=1, max_bytes=1024, isolation=Isolation.LOG_END)
    fetch = PartitionFetch(
        A0, ID_A, 5, 1024, log_start_offset=0, current_leader_epoch=epoch, last_fetched_epoch=last_fetched_epoch
    )
    waiting = Read(ErrorCode.NONE, start=OffsetMetadata(5))
    operation = DelayedFetch(node.replication.data_plane, params, [fetch], [waiting], answers.extend)
    return operation.try_complete(), answers


async def leading(node: RecordNode) -> None:
    """With four records of epoch 9, one of epoch 10."""
    await node.lead(epoch=9, isr=(1, 2), replicas=(1, 2))
    await node.produce(batch(*[b"v"] * 4))
    await node.lead(epoch=10, isr=(1, 2), replicas=(1, 2), partition_epoch=1)
    await node.produce(batch(b"v"))


async def test_it_waits() -> None:
    async with a_node() as node:
        await leading(node)
        assert fetch_of(node, last_fetched_epoch=10) == (False, [])


@kafka("DF-1")
async def test_a_fenced_epoch_ends_it() -> None:  # rule B2.19
    async with a_node() as node:
        await leading(node)
        is_complete, (found,) = fetch_of(node, epoch=9)
        assert (is_complete, found.error) == (True, ErrorCode.FENCED_LEADER_EPOCH)


@kafka("DF-2")
async def test_a_broker_that_does_not_lead_ends_it() -> None:  # rule B2.19
    async with a_node() as node:
        await node.ask(update_metadata(umr_state(leader=2)))
        is_complete, (found,) = fetch_of(node)
        assert (is_complete, found.error) == (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@kafka("DF-3")
async def test_a_diverging_epoch_ends_it() -> None:  # rule B2.20
    async with a_node() as node:
        await leading(node)
        is_complete, (found,) = fetch_of(node, last_fetched_epoch=9)
        assert (is_complete, found.error) == (True, ErrorCode.NONE)
        assert found.diverging == (9, 4)
