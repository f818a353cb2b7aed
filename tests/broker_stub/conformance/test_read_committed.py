"""ReplicaManagerTest of Kafka: what a reader of READ_COMMITTED sees (docs/transaction-semantics.md, TRM)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.log import Origin
from kce.wire import ErrorCode
from kce.wire.batch_header import read_headers
from tests.broker_stub.log.support import marker, produced
from tests.broker_stub.replication.support import A0, RecordNode, a_node

case = pytest.mark.kafka
PID, EPOCH, COUNT = 234, 5, 3


class Leader:
    """It leads a-0, in which producer 234 has written three batches of a transaction; broker 2 follows."""

    def __init__(self, node: RecordNode) -> None:
        self.node = node

    def append(self, records: bytes, origin: Origin = Origin.CLIENT) -> None:
        codes: list[ErrorCode] = []
        self.node.replication.appends.append(
            {A0: records}, 1, 1000, lambda results: codes.append(results[A0][1]), origin=origin
        )
        assert codes == [ErrorCode.NONE]

    def end(self, *, committed: bool) -> None:
        self.append(marker(PID, committed=committed, epoch=EPOCH), Origin.COORDINATOR)

    async def replicate(self, offset: int) -> None:
        """The follower has everything before it."""
        found = await self.node.fetch(offset, replica=2, max_wait_ms=0)
        assert found.error_code == ErrorCode.NONE

    async def read(self, **more: Any) -> wire.FetchResponsePartitionData:
        return await self.node.fetch(0, isolation=1, **more)


def is_empty(found: wire.FetchResponsePartitionData) -> bool:
    return found.error_code == ErrorCode.NONE and not found.records


@asynccontextmanager
async def running() -> AsyncIterator[Leader]:
    async with a_node() as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        node.replication.appends.verifies_transactions = False
        leader = Leader(node)
        for sequence in range(COUNT):
            leader.append(produced(PID, sequence, epoch=EPOCH, transactional=True))
        yield leader


@case("TRM-14")
async def test_nothing_beyond_the_last_stable_offset(autojump_clock: MockClock) -> None:  # rules T12.6, T12.7
    async with running() as leader:
        await leader.replicate(COUNT)
        for wait in ({"min_bytes": 0, "max_wait_ms": 0}, {"min_bytes": 1000, "max_wait_ms": 1000}):
            began = trio.current_time()
            found = await leader.read(**wait)
            assert trio.current_time() - began == pytest.approx(wait["max_wait_ms"] / 1000, abs=0.01)
            assert is_empty(found)
            assert found.last_stable_offset == 0
            assert not found.aborted_transactions
        leader.end(committed=True)
        assert is_empty(await leader.read(min_bytes=0, max_wait_ms=0)), "the marker is not replicated"
        await leader.replicate(COUNT + 1)
        found = await leader.read(min_bytes=0, max_wait_ms=0)
        assert found.last_stable_offset == COUNT + 1
        assert not found.aborted_transactions
        assert len(list(read_headers(found.records or b""))) == COUNT + 1


@case("TRM-2")
async def test_a_fetch_that_waited_says_what_was_aborted(autojump_clock: MockClock) -> None:  # rule T12.10
    async with running() as leader:
        leader.end(committed=False)
        await leader.replicate(COUNT + 1)
        answers = []

        async def read() -> None:
            answers.append(await leader.read(min_bytes=10_000, max_wait_ms=1000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(0.999)
            await wait_all_tasks_blocked()
            assert answers == []
        (found,) = answers
        assert found.error_code == ErrorCode.NONE
        assert found.last_stable_offset == COUNT + 1
        assert sum(header.record_count for _, header in read_headers(found.records or b"")) == COUNT + 1
        assert [(a.first_offset, a.producer_id) for a in found.aborted_transactions or ()] == [(0, PID)]
