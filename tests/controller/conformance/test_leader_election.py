"""LE-1: leader epochs in a cluster (section 14 of docs/controller-semantics.md).

LE-2, fencing by brokers, is in tests/broker_stub/test_fencing.py."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.controller.conformance.cluster import propose_isr, stop
from tests.controller.support import world


@pytest.mark.kafka("LE-1")
async def test_the_death_of_a_leader_that_is_the_controller(autojump_clock: MockClock) -> None:  # rule 6.33
    async with world([]) as w:
        await w.start_controller(0)
        second = await w.start_controller(1)
        await w.create_topic("t", {0: [0, 1]})
        assert await w.state("t") == (0, 0, (0, 1))
        await stop(w, 0)
        assert second.is_active
        assert await w.state("t") == (1, 2, (1,))
        first = await w.start_controller(0)
        await propose_isr(w, second, [1, 0])
        await stop(w, 1)
        assert first.is_active
        assert await w.state("t") == (0, 4, (0,))
