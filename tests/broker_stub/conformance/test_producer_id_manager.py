"""ProducerIdManagerTest of Kafka (docs/transaction-semantics.md, 16b: PIM). Covers: broker_stub/producer_ids.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.producer_ids import RETRY_SECONDS, Allocate, ControllerProducerIds, ProducerIdManager
from kce.broker_stub.zookeeper.producer_id_store import ZkProducerIds
from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.admin_nodes import allocate_producer_ids
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, ProducerIdsBlock
from kce.zookeeper.store import Create
from kce.zookeeper.store.memory import MemoryZooKeeper

case = pytest.mark.kafka
LAST_ID = 2**63 - 1


class Controller:
    """Hands out blocks of ``length`` ids, one after the other, after these errors."""

    def __init__(self, length: int, *errors: ErrorCode, start: int = 0) -> None:
        self.start = start
        self.length = length
        self.errors = list(errors)
        self.requests = 0

    async def request(self, api_key: int, max_version: int, build: Callable[[int], object], codes: object) -> Any:
        self.requests += 1
        await trio.lowlevel.checkpoint()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            return wire.AllocateProducerIdsResponse(error_code=error)
        start, self.start = self.start, self.start + max(0, self.length)
        return wire.AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=self.length)


@asynccontextmanager
async def manager(allocate: Allocate) -> AsyncIterator[ProducerIdManager]:
    async with trio.open_nursery() as nursery:
        yield ProducerIdManager(allocate, nursery.start_soon)
        nursery.cancel_scope.cancel()


def by(controller: Controller) -> Allocate:
    return ControllerProducerIds(0, lambda: 1, controller).allocate


async def next_id(ids: ProducerIdManager) -> int:
    found = ids.next_id()
    while found is None:
        await wait_all_tasks_blocked()
        found = ids.next_id()
    return found


@case("PIM-1")
async def test_blocks_of_two_brokers() -> None:  # rules B3.59, 1.43
    zookeeper = MemoryZooKeeper()

    def store(broker: int) -> Allocate:
        return ZkProducerIds(KafkaZkClient(zookeeper.connect(), now_ms=lambda: 0), broker).allocate

    async with manager(store(0)) as one, manager(store(1)) as other:
        assert [await next_id(one), await next_id(other)] == [0, 1000]
        assert [await next_id(one) for _ in range(999)] == list(range(1, 1000))
        assert [await next_id(other) for _ in range(999)] == list(range(1001, 2000))
        assert [await next_id(one), await next_id(other)] == [2000, 3000]


@case("PIM-2")
async def test_no_ids_are_left() -> None:  # rule 1.43
    zk = KafkaZkClient(MemoryZooKeeper().connect(), now_ms=lambda: 0)
    last = cluster_nodes.encode_producer_id_block(ProducerIdsBlock(BrokerId(0), LAST_ID - 1000, LAST_ID - 1))
    await zk.store.write([Create(znodes.PRODUCER_ID_BLOCK, last)])
    with pytest.raises(IllegalState):
        await allocate_producer_ids(zk, BrokerId(0))
    assert await ZkProducerIds(zk, 0).allocate() is None


@case("PIM-3")
@pytest.mark.parametrize("length", [1, 2, 10, 100])
async def test_requests_at_the_same_time(length: int) -> None:  # rule B3.58
    found: list[int] = []
    refused = 0

    async with manager(by(Controller(length))) as ids, trio.open_nursery() as nursery:

        async def ask() -> None:
            nonlocal refused
            while len(found) < 3 * length:
                one = ids.next_id()
                if one is None:
                    refused += 1
                else:
                    found.append(one)
                await trio.lowlevel.checkpoint()

        for _ in range(5):
            nursery.start_soon(ask)
    assert refused >= 3
    assert len(set(found)) == len(found)
    assert sorted(found) == list(range(len(found)))
    assert 3 * length <= len(found) < 3 * length + 5


async def failed(ids: ProducerIdManager) -> None:
    """It asks for a block, and does not get one."""
    assert ids.next_id() is None
    await wait_all_tasks_blocked()
    assert ids.next_id() is None


async def got_block(ids: ProducerIdManager, expected: int) -> None:
    await wait_all_tasks_blocked()
    assert ids.next_id() == expected


@case("PIM-4")
@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST])
async def test_errors_of_the_controller(mock_clock: MockClock, error: ErrorCode) -> None:  # rule B3.58
    async with manager(by(Controller(1, ErrorCode.NONE, error))) as ids:
        assert ids.next_id() is None
        await got_block(ids, 0)
        await failed(ids)
        mock_clock.jump(RETRY_SECONDS)
        await got_block(ids, 1)


@case("PIM-5")
@pytest.mark.parametrize(("start", "length"), [(-1, 10), (0, -1), (LAST_ID - 1, 10), (0, 0)])
async def test_blocks_that_cannot_be(start: int, length: int) -> None:  # rule B3.59
    controller = Controller(length, start=start)
    async with manager(by(controller)) as ids:
        await failed(ids)
        assert controller.requests == 1


@case("PIM-6")
async def test_no_second_request_before_the_backoff(mock_clock: MockClock) -> None:  # rule B3.59
    controller = Controller(1, ErrorCode.UNKNOWN_SERVER_ERROR)
    async with manager(by(controller)) as ids:
        await failed(ids)
        mock_clock.jump(RETRY_SECONDS * 0.99)
        await wait_all_tasks_blocked()
        assert (ids.next_id(), controller.requests) == (None, 1)
        mock_clock.jump(RETRY_SECONDS)
        await got_block(ids, 0)
