"""Blocks of producer ids (rules 1.43, 11.82)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce.wire import ErrorCode
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, ProducerIdsBlock
from kce.zookeeper.store import NodeError, Op, OpResult, SetData, StoreError
from tests.controller import requests
from tests.controller.support import world


async def test_producer_ids(autojump_clock: MockClock) -> None:  # rules 11.82, 1.43
    async with world() as w:
        controller = await w.start_controller(1)
        answers: list[ProducerIdsBlock | ErrorCode] = []
        epoch = controller.context.broker_epochs[BrokerId(2)]
        for broker, broker_epoch in ((2, epoch), (2, epoch), (9, 1), (2, epoch - 1), (2, epoch + 1)):
            requests.allocate_producer_ids(controller, broker, broker_epoch, answers.append)
        await w.settle()
        assert answers == [
            ProducerIdsBlock(BrokerId(2), 0, 999),
            ProducerIdsBlock(BrokerId(2), 1000, 1999),
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.STALE_BROKER_EPOCH,
        ]
        node = json.loads(await w.get(znodes.PRODUCER_ID_BLOCK) or b"")
        assert node == {"version": 1, "broker": 2, "block_start": "1000", "block_end": "1999"}
        last = b'{"version":1,"broker":1,"block_start":"0","block_end":"9223372036854775807"}'
        for content in (last, b'{"version":1}'):
            await w.store.write([SetData(znodes.PRODUCER_ID_BLOCK, content)])
            requests.allocate_producer_ids(controller, 2, epoch, answers.append)
            await w.settle()
            assert answers.pop() == ErrorCode.UNKNOWN_SERVER_ERROR
        idle = await w.start_controller(3)
        requests.allocate_producer_ids(idle, 2, epoch, answers.append)
        await w.settle()
        assert answers.pop() == ErrorCode.NOT_CONTROLLER


async def test_a_block_that_cannot_be_written_is_not_handed_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 1.43
    async with world() as w:
        controller = await w.start_controller(1)
        write = w.nodes[1].store.write

        async def fails(ops: Sequence[Op], **more: Any) -> list[OpResult | StoreError]:
            answers = await write(ops, **more)
            is_block = isinstance(ops[0], SetData) and ops[0].path == znodes.PRODUCER_ID_BLOCK
            return [NodeError("not allowed")] if is_block else answers

        monkeypatch.setattr(w.nodes[1].store, "write", fails)
        answers: list[ProducerIdsBlock | ErrorCode] = []
        epoch = controller.context.broker_epochs[BrokerId(2)]
        requests.allocate_producer_ids(controller, 2, epoch, answers.append)
        await w.settle()
        assert answers == [ErrorCode.UNKNOWN_SERVER_ERROR]


async def test_a_producer_id_block_of_another_controller(autojump_clock: MockClock) -> None:  # rule 1.43
    from kce.zookeeper.admin_nodes import allocate_producer_ids

    async with world(brokers=()) as w:
        blocks: list[ProducerIdsBlock] = []

        async def allocate(broker: int) -> None:
            blocks.append(await allocate_producer_ids(w.zk, BrokerId(broker)))

        async with trio.open_nursery() as nursery:
            for broker in range(5):
                nursery.start_soon(allocate, broker)
        assert sorted(b.first for b in blocks) == [0, 1000, 2000, 3000, 4000]
