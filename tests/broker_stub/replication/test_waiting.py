"""Which waiting requests an event looks at, and which it leaves alone, as in Kafka (section 2f, rules B2.17, B2.23).

Covers: broker_stub/replication/data_plane.py, broker_stub/replication/delayed.py, broker_stub/replica_manager.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.wire import ErrorCode
from tests.broker_stub.replication.support import RecordNode, a_node, batch, fetch_request
from tests.broker_stub.support import lai_state, leader_and_isr, umr_broker, umr_state, update_metadata

_LONG_MS = 60_000
#: the last one of which consumers read from leaders only
_VERSION = 10


class Waiting:
    """A node, and the error codes of a fetch that waits, once it is answered, by partition."""

    def __init__(self, node: RecordNode, nursery: trio.Nursery) -> None:
        self.node = node
        self.nursery = nursery
        self.codes: dict[int, ErrorCode] = {}
        self.session_id = 0

    async def fetch(self, *partitions: int, **more: Any) -> None:
        """Let one wait for more bytes than there are."""
        request = fetch_request(partitions=partitions, **{"max_wait_ms": _LONG_MS, "min_bytes": 150, **more})

        async def ask() -> None:
            answer = await self.node.ask(request, _VERSION)
            self.session_id = answer.session_id
            self.codes = {
                data.partition_index: ErrorCode(data.error_code)
                for topic in answer.responses
                for data in topic.partitions
            }

        self.nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()

    async def lead(self, *partitions: int, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2)) -> None:
        states = [
            lai_state(i, leader=leader, leader_epoch=epoch, partition_epoch=epoch, isr=isr, replicas=(1, 2))
            for i in partitions
        ]
        await self.node.ask(leader_and_isr(*states))
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def _waiting(isr: tuple[int, ...] = (1, 2)) -> AsyncIterator[Waiting]:
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.ask(update_metadata(*[umr_state(i) for i in range(2)], alive=(1, umr_broker(2))))
        waiting = Waiting(node, nursery)
        await waiting.lead(0, 1, isr=isr)
        yield waiting
        nursery.cancel_scope.cancel()


async def test_a_new_epoch_of_the_same_leader_is_not_noticed(autojump_clock: MockClock) -> None:
    """Its high watermark stays, and a fetch with the last epoch waits for what comes next."""
    async with _waiting(isr=(1,)) as waiting:
        await waiting.fetch(0, epoch=0)
        await waiting.lead(0, epoch=1, isr=(1,))
        assert waiting.codes == {}
        await waiting.node.produce(batch(b"a"))
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.codes == {0: ErrorCode.FENCED_LEADER_EPOCH}


async def test_a_new_epoch_moves_the_high_watermark(autojump_clock: MockClock) -> None:
    async with _waiting() as waiting:
        await waiting.node.produce(batch(b"a" * 200))
        await waiting.fetch(0)
        await waiting.lead(0, epoch=1, isr=(1,))
        assert waiting.codes == {0: ErrorCode.NONE}


async def test_an_idle_partition_of_a_session_has_a_new_epoch(autojump_clock: MockClock) -> None:
    """The fetch waits on, and gets what comes then."""
    async with _waiting(isr=(1,)) as waiting:
        began = await waiting.node.ask(fetch_request(partitions=(0, 1), session_epoch=0), _VERSION)
        await waiting.fetch(1, session_id=began.session_id, session_epoch=1)
        await waiting.lead(0, epoch=1, isr=(1,))
        assert waiting.session_id == 0
        await waiting.node.produce(batch(b"a" * 200))
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.session_id == began.session_id
        assert waiting.codes == {0: ErrorCode.NONE}


async def test_two_leaders_go_together(autojump_clock: MockClock) -> None:
    """What waits for both is answered when neither leads."""
    async with _waiting() as waiting:
        await waiting.fetch(0, 1)
        await waiting.lead(0, 1, leader=2, epoch=1)
        assert waiting.codes == dict.fromkeys((0, 1), ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize("is_deleting", [False, True])
async def test_a_log_of_a_follower_starts_later(is_deleting: bool, autojump_clock: MockClock) -> None:
    """That is noticed only while a deletion waits, of any partition."""
    async with _waiting() as waiting:
        node = waiting.node
        for partition in (0, 1):
            await node.produce(batch(b"a", b"b"), partition=partition)
            await node.fetch(2, replica=2, partitions=(partition,))
        await waiting.fetch(0, offset=2, epoch=0)
        await waiting.lead(0, epoch=1)
        if is_deleting:
            waiting.nursery.start_soon(node.ask, _deletion(1, partition=1, timeout_ms=_LONG_MS), 2)
            await trio.testing.wait_all_tasks_blocked()
        await node.ask(_deletion(1), 2)
        part = wire.FetchPartition(partition=0, fetch_offset=2, log_start_offset=1, partition_max_bytes=100)
        asked = wire.FetchTopic(topic="a", partitions=(part,))
        await node.ask(wire.FetchRequest(replica_id=2, max_wait_ms=0, topics=(asked,)), 12)
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.codes == ({0: ErrorCode.FENCED_LEADER_EPOCH} if is_deleting else {})


async def test_deleted_records_are_not_noticed(autojump_clock: MockClock) -> None:
    """A fetch with the last epoch waits for what comes next."""
    async with _waiting(isr=(1,)) as waiting:
        await waiting.node.produce(batch(b"a", b"b"))
        await waiting.fetch(0, epoch=0)
        await waiting.lead(0, epoch=1, isr=(1,))
        await waiting.node.ask(_deletion(1), 2)
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.codes == {}
        await waiting.node.produce(batch(b"a"))
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.codes == {0: ErrorCode.FENCED_LEADER_EPOCH}


def _deletion(offset: int, *, partition: int = 0, timeout_ms: int = 0) -> wire.DeleteRecordsRequest:
    entry = wire.DeleteRecordsPartition(partition_index=partition, offset=offset)
    topic = wire.DeleteRecordsTopic(name="a", partitions=(entry,))
    return wire.DeleteRecordsRequest(topics=(topic,), timeout_ms=timeout_ms)
