"""Channels to brokers, and the event loop (sections 3 and 8c of docs/controller-semantics.md)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

import wire
from controller import events as ev
from controller.event_loop import ControllerEventLoop
from controller.model import BrokerId
from tests.controller.support import Sent, texts, world


async def test_one_request_in_flight_and_in_order(autojump_clock: MockClock) -> None:  # rules 8.12, 8.29, 8.32
    async with world() as w:
        await w.start_controller(1)
        w.take()
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2, 3]})
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2, 3]new"]  # the UpdateMetadata behind it waits
        w.brokers[2].mute = False
        w.brokers[2].break_connections()
        await trio.sleep(1)
        await w.settle()
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2, 3]new", "UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]


async def test_resent_unchanged_until_answered(autojump_clock: MockClock) -> None:  # rules 8.31, 8.35
    async with world() as w:
        await w.start_controller(1)
        w.take()
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2]})
        start = trio.current_time()
        for _ in range(3):
            w.brokers[2].break_connections()
            await trio.sleep(0.2)
        sent: list[Sent] = [s for s in w.take() if s.broker == 2]
        assert len(sent) == 4
        assert {s.message for s in sent} == {sent[0].message}
        assert trio.current_time() - start < 1
        w.brokers[2].down = True
        w.brokers[2].break_connections()
        await trio.sleep(5)
        w.brokers[2].down = w.brokers[2].mute = False
        await trio.sleep(1)
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2]new", "UMR alive=[1, 2, 3] t-0:2@0[2]"]


async def test_a_request_times_out_and_is_sent_again(autojump_clock: MockClock) -> None:  # rule 8.29
    async with world() as w:
        await w.start_controller(1, request_timeout_ms=700)
        w.take()
        w.brokers[3].mute = True
        await w.create_topic("t", {0: [3]})
        await trio.sleep(2)
        assert len(texts(w.take(), 3)) >= 3
        w.brokers[3].mute = False


@pytest.mark.parametrize("fault", ["garbage", "another correlation id"])
async def test_an_answer_that_is_none_closes_the_connection(autojump_clock: MockClock, fault: str) -> None:
    async with world() as w:
        await w.start_controller(1)
        w.take()
        faults = [fault]
        plain = w.brokers[2].answer

        def answer(request: object, header: wire.Header) -> wire.Message:
            if faults:
                faults.pop()
                broken = w.brokers[2].connections[-1]
                frame = b"\0\0" if fault == "garbage" else wire.encode_response(
                    plain(request, header), api_version=header.api_version, correlation_id=header.correlation_id + 9
                )  # fmt: skip
                broken._answers.append(frame)
            return plain(request, header)

        w.brokers[2].answer = answer
        await w.create_topic("t", {0: [2]})
        await trio.sleep(1)
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2]new"] * 2 + ["UMR alive=[1, 2, 3] t-0:2@0[2]"]


async def test_a_removed_broker_is_not_sent_to_again(autojump_clock: MockClock) -> None:  # rule 8.36
    async with world() as w:
        controller = await w.start_controller(1)
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2, 3]})
        assert controller.channels.queue_sizes()[BrokerId(2)] == 2
        await w.stop_broker(2)
        await w.settle()
        assert BrokerId(2) not in controller.channels.queue_sizes()


async def test_refusals_are_never_retried(autojump_clock: MockClock) -> None:  # rules 8.40, 8.41
    async with world() as w:
        controller = await w.start_controller(1)
        w.take()

        def stale(request: object, header: wire.Header) -> wire.Message:
            code = wire.ErrorCode.STALE_BROKER_EPOCH
            if isinstance(request, wire.LeaderAndIsrRequest):
                return wire.LeaderAndIsrResponse(error_code=code)
            return wire.UpdateMetadataResponse(error_code=code)

        w.brokers[2].answer = stale
        await w.create_topic("t", {0: [2, 3]})
        await trio.sleep(10)
        assert len(texts(w.take(), 2)) == 2
        assert controller.is_active
        assert await w.state("t") == (2, 0, (2, 3))


# the event loop


@dataclass(frozen=True, slots=True)
class Noted(ev.ControllerEvent):
    name: str
    preempted: list[str]

    @property
    def state(self) -> ev.ControllerState:
        return ev.ControllerState.TOPIC_CHANGE

    def preempt(self) -> None:
        self.preempted.append(self.name)


async def test_first_in_first_out_one_at_a_time(autojump_clock: MockClock) -> None:  # rules 3.1, 3.4
    done: list[str] = []
    under_way = 0

    async def process(event: ev.ControllerEvent) -> None:
        nonlocal under_way
        assert isinstance(event, Noted)
        under_way += 1
        assert under_way == 1
        assert loop.state is ev.ControllerState.TOPIC_CHANGE
        await trio.sleep(1)
        under_way -= 1
        done.append(event.name)
        if event.name == "b":
            raise RuntimeError("b fails")

    loop = ControllerEventLoop(process)
    async with trio.open_nursery() as nursery:
        for name in "abc":
            loop.put(Noted(name, []))
        nursery.start_soon(loop.run)
        await loop.wait_idle()
        assert done == ["a", "b", "c"]
        assert loop.state is ev.ControllerState.IDLE
        loop.close()


async def test_draining_preempts_in_order_and_spares_the_event_under_way(
    autojump_clock: MockClock,
) -> None:  # 3.2, 3.40
    done: list[str] = []
    preempted: list[str] = []

    async def process(event: ev.ControllerEvent) -> None:
        await trio.sleep(1)
        assert isinstance(event, Noted)
        done.append(event.name)

    loop = ControllerEventLoop(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        for name in "abc":
            loop.put(Noted(name, preempted))
        await trio.sleep(0.5)
        loop.clear_and_put(Noted("d", preempted))
        await loop.wait_idle()
        assert (done, preempted) == (["a", "d"], ["b", "c"])
        loop.put(Noted("e", preempted))
        loop.close()
        assert preempted == ["b", "c", "e"]
        loop.put(Noted("late", preempted))
        assert preempted[-1] == "late"


async def test_equal_pending_watch_events_are_one(autojump_clock: MockClock) -> None:
    seen: list[ev.ControllerEvent] = []

    async def process(event: ev.ControllerEvent) -> None:
        seen.append(event)
        if len(seen) == 1:
            loop.put(ev.TopicsChanged())  # it is being processed: this one is new

    loop = ControllerEventLoop(process)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            loop.put(ev.TopicsChanged())
            loop.put(ev.PartitionsModified("t"))
        assert len(loop) == 2
        nursery.start_soon(loop.run)
        await loop.wait_idle()
        assert seen == [ev.TopicsChanged(), ev.PartitionsModified("t"), ev.TopicsChanged()]
        loop.close()
