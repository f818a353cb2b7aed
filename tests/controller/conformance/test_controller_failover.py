"""CFO: errors inside an event (section 14 of docs/controller-semantics.md; rules of sections 2 and 3)."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce.zookeeper.model import BrokerId
from tests.controller.support import world


@pytest.mark.kafka("CFO-1")
async def test_an_illegal_state_moves_the_controller(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules 2.19, 2.20
    caplog.set_level("INFO")
    async with world([3]) as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        assert first.context.epoch == 1
        first._runtime.batch.add_update_metadata([BrokerId(3)], [])  # what is left over makes the next batch illegal
        await w.start_broker(4)
        await w.settle()
        assert "broker 1 resigned as controller of epoch 1" in caplog.text
        active = [c for c in (first, second) if c.is_active]
        assert [c.context.epoch for c in active] == [2]
        assert active[0].context.live_broker_ids == {1, 2, 3, 4}
