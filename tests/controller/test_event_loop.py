"""The event loop (section 3 of docs/controller-semantics.md).

Covers: kce.controller.event_loop, kce.controller.events.
"""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kce import wire
from kce.controller import events as ev
from tests.controller.support import IdleLoop


def request(broker: int, refused: list[int]) -> ev.ControllerEvent:
    """A request that is refused when it is preempted; it then adds ``broker`` to ``refused``."""
    return ev.RequestReceived(
        wire.ControlledShutdownRequest(broker_id=broker), 3, lambda response: refused.append(broker)
    )


async def test_first_in_first_out_one_at_a_time(autojump_clock: MockClock) -> None:  # rules 3.1, 3.4
    done: list[str] = []
    under_way = 0

    async def process(event: ev.ControllerEvent) -> None:
        nonlocal under_way
        assert isinstance(event, ev.PartitionsModified)
        under_way += 1
        assert under_way == 1
        assert loop.state is ev.ControllerState.TOPIC_CHANGE
        await trio.sleep(1)
        under_way -= 1
        done.append(event.topic)
        if event.topic == "b":
            raise RuntimeError("b fails")

    loop = IdleLoop(process)
    async with trio.open_nursery() as nursery:
        for name in "abc":
            loop.put(ev.PartitionsModified(name))
        nursery.start_soon(loop.run)
        await loop.wait_idle()
        assert done == ["a", "b", "c"]
        assert loop.state is ev.ControllerState.IDLE
        loop.close()


async def test_draining_preempts_in_order_and_spares_the_event_under_way(
    autojump_clock: MockClock,
) -> None:  # 3.2, 3.40
    done: list[object] = []
    preempted: list[int] = []

    async def process(event: ev.ControllerEvent) -> None:
        await trio.sleep(1)
        done.append(event.request.broker_id if isinstance(event, ev.RequestReceived) else event)

    loop = IdleLoop(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        for broker in (1, 2, 3):
            loop.put(request(broker, preempted))
        await trio.sleep(0.5)
        loop.put(ev.SessionExpiredEvent())
        await loop.wait_idle()
        assert (done, preempted) == ([1, ev.SessionExpiredEvent()], [2, 3])
        loop.put(request(5, preempted))
        loop.close()
        assert preempted == [2, 3, 5]
        loop.put(request(6, preempted))
        assert preempted[-1] == 6


async def test_a_session_that_expires_after_close_does_not_keep_the_loop_alive(autojump_clock: MockClock) -> None:
    async def process(event: ev.ControllerEvent) -> None:
        raise AssertionError(event)

    loop = IdleLoop(process)
    loop.close()
    loop.put(ev.SessionExpiredEvent())
    with trio.fail_after(1):
        await loop.run()


async def test_equal_pending_watch_events_are_one(autojump_clock: MockClock) -> None:
    seen: list[ev.ControllerEvent] = []

    async def process(event: ev.ControllerEvent) -> None:
        seen.append(event)
        if len(seen) == 1:
            loop.put(ev.TopicsChanged())  # it is being processed: this one is new

    loop = IdleLoop(process)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            loop.put(ev.TopicsChanged())
            loop.put(ev.PartitionsModified("t"))
        assert len(loop) == 2
        nursery.start_soon(loop.run)
        await loop.wait_idle()
        assert seen == [ev.TopicsChanged(), ev.PartitionsModified("t"), ev.TopicsChanged()]
        loop.close()
