"""CEM: the event queue (section 14 of docs/controller-semantics.md; rules of sections 3 and 12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller import dispatch
from kce.controller.event_loop import QUEUE_TIME_RESET_SECONDS
from kce.controller.events import (
    BrokersChanged,
    ControllerEvent,
    ControllerState,
    LeaderRebalanceDue,
    TopicsChanged,
    UpdateMetadataAnswered,
)
from kce.metrics import Histogram, MetricName, Metrics
from kce.zookeeper.model import BrokerId
from tests.controller.support import IdleLoop

QUEUE_TIME = MetricName("kafka.controller", "ControllerEventManager", "EventQueueTimeMs")

QUEUE_SIZE = MetricName("kafka.controller", "ControllerEventManager", "EventQueueSize")


@asynccontextmanager
async def running(process: Callable[[ControllerEvent], Awaitable[None]], metrics: Metrics) -> AsyncIterator[IdleLoop]:
    async with trio.open_nursery() as nursery:
        loop = IdleLoop(process, metrics)
        nursery.start_soon(loop.run)
        await trio.testing.wait_all_tasks_blocked()
        yield loop
        loop.close()


def histogram(metrics: Metrics, name: MetricName = QUEUE_TIME) -> Histogram:
    found = metrics[name]
    assert isinstance(found, Histogram)
    return found


def of_the_queue(metrics: Metrics) -> set[MetricName]:
    return {name for name, _ in metrics.items() if name.type == QUEUE_TIME.type}


async def nothing(event: ControllerEvent) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.kafka("CEM-1")
async def test_metrics_are_removed_on_close(autojump_clock: MockClock) -> None:  # rules 3.5, 12.6
    metrics = Metrics()
    async with running(nothing, metrics):
        assert of_the_queue(metrics) == {QUEUE_TIME, QUEUE_SIZE}
    assert of_the_queue(metrics) == set()


@pytest.mark.kafka("CEM-2")
async def test_an_event_whose_state_has_no_timer(autojump_clock: MockClock) -> None:  # rules 3.4, 3.7
    event = UpdateMetadataAnswered(wire.UpdateMetadataResponse(), BrokerId(1))
    assert dispatch.row(event).state.timer_name is None
    processed: list[ControllerEvent] = []

    async def process(event: ControllerEvent) -> None:
        await trio.lowlevel.checkpoint()
        processed.append(event)

    async with running(process, Metrics()) as loop:
        loop.put(event)
        await loop.wait_idle()
    assert processed == [event]


@pytest.mark.kafka("CEM-3")
async def test_time_in_the_queue(autojump_clock: MockClock) -> None:  # rule 3.4
    metrics = Metrics()

    async def process(event: ControllerEvent) -> None:
        await trio.sleep(0.5)

    async with running(process, metrics) as loop:
        for event in (TopicsChanged(), BrokersChanged()):
            loop.put(event)
        await loop.wait_idle()
        times = histogram(metrics)
        assert (times.count, times.min) == (2, 0)
        assert times.max == pytest.approx(500)


@pytest.mark.kafka("CEM-4")
async def test_time_in_the_queue_is_forgotten_when_idle(autojump_clock: MockClock) -> None:  # rule 3.6
    metrics = Metrics()
    async with running(nothing, metrics) as loop:
        loop.put(TopicsChanged())
        await loop.wait_idle()
        times = histogram(metrics)
        await trio.sleep(QUEUE_TIME_RESET_SECONDS - 1)
        assert times.count == 1
        await trio.sleep(2)
        assert (times.count, times.max) == (0, 0)


async def timed(event: ControllerEvent, state: ControllerState, timer_name: str, *, fails: bool) -> None:
    """One event of 0.25 s: its state while it is processed, its timer, and that it is over afterwards."""
    metrics = Metrics()
    states: list[ControllerState] = []

    async def process(event: ControllerEvent) -> None:
        states.append(loop.state)
        await trio.sleep(0.25)
        if fails:
            raise RuntimeError("broken for the test")

    async with running(process, metrics) as loop:
        timer = histogram(metrics, MetricName("kafka.controller", "ControllerStats", timer_name))
        assert timer.count == 0
        loop.put(event)
        await loop.wait_idle()
        assert states == [state]
        assert loop.state is ControllerState.IDLE
        assert timer.count == 1
        assert timer.max == pytest.approx(250)
        loop.put(event)  # the loop goes on
        await loop.wait_idle()
        assert timer.count == 2


@pytest.mark.kafka("CEM-5")
async def test_an_event_that_succeeds(autojump_clock: MockClock) -> None:  # rules 3.4, 3.7
    timer = "AutoLeaderBalanceRateAndTimeMs"
    await timed(LeaderRebalanceDue(), ControllerState.AUTO_LEADER_BALANCE, timer, fails=False)


@pytest.mark.kafka("CEM-6")
async def test_an_event_that_fails(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:  # 3.4, 3.7
    timer = "LeaderElectionRateAndTimeMs"
    await timed(BrokersChanged(), ControllerState.BROKER_CHANGE, timer, fails=True)
    assert "broken for the test" in caplog.text
