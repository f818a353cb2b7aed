"""Channels to brokers (section 8c of docs/controller-semantics.md).

Covers: controller/channel.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller.channel import Channel, ChannelConfig
from kce.controller.config import ControllerConfig
from kce.zookeeper.model import BrokerEpoch, BrokerId, Endpoint
from tests.connections import DirectConnection, TaskConnection
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


async def test_correlation_ids_count_the_requests_of_a_channel(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        of_2 = [s.header.correlation_id for s in w.take() if s.broker == 2]
        assert len(of_2) >= 3
        assert of_2 == list(range(len(of_2)))


def test_timeouts_are_kafkas() -> None:  # rule 8.29
    config = ChannelConfig(broker_id=BrokerId(1), inter_broker_listener="DATA")
    assert (config.request_timeout_ms, config.socket_timeout_ms) == (30_000, 30_000)


def test_settings_of_channels() -> None:
    of_controller = ControllerConfig(
        broker_id=BrokerId(7), inter_broker_listener_name="DATA", control_plane_listener_name="CONTROL",
        request_timeout_ms=5, controller_socket_timeout_ms=6,
    )  # fmt: skip
    assert of_controller.channels == ChannelConfig(
        broker_id=BrokerId(7), inter_broker_listener="DATA", control_plane_listener="CONTROL",
        request_timeout_ms=5, socket_timeout_ms=6,
    )  # fmt: skip
    assert (of_controller.channels.client_id, of_controller.channels.listener) == ("7", "CONTROL")
    assert ChannelConfig(broker_id=BrokerId(7), inter_broker_listener="DATA").listener == "DATA"


async def test_a_broker_is_removed_when_its_connection_is_closed(autojump_clock: MockClock) -> None:  # rule 8.36
    async with world() as w:
        controller = await w.start_controller(1)
        (connection,) = w.brokers[2].connections
        closed = []

        async def aclose() -> None:
            await trio.sleep(0.5)
            closed.append(True)

        connection.aclose = aclose  # type: ignore[method-assign]
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2]})
        channel = controller.channels._channels[BrokerId(2)]
        assert channel.queue
        await controller.channels.remove_brokers([BrokerId(2)])
        assert closed == [True]
        assert not channel.queue  # rule 8.31


async def test_what_is_held_is_sent_at_release(autojump_clock: MockClock) -> None:
    """With the correlation ids that it then has."""
    async with world() as w:
        controller = await w.start_controller(1)
        channels, brokers = controller.channels, [BrokerId(2), BrokerId(3)]
        w.take()

        def send() -> None:
            for broker in brokers:
                channels.send(broker, wire.StopReplicaRequest(controller_id=1), 3, None)
            epochs = dict.fromkeys(brokers, BrokerEpoch(5))
            channels.send_update_metadata(
                epochs, wire.UpdateMetadataRequest(controller_id=1), 7, lambda broker: lambda response: None
            )

        send()
        await w.settle()
        taken = w.take()
        plain = {broker: [s for s in taken if s.broker == broker] for broker in brokers}
        channels.hold()
        send()
        channels.hold()  # what was held is dropped
        send()
        await w.settle()
        assert w.take() == []
        channels._channels[BrokerId(3)]._correlation_id += 1  # as after an attempt that failed
        channels.release(is_sent=True)
        await w.settle()
        sent = w.take()
        for broker in brokers:
            of_broker = [s for s in sent if s.broker == broker]
            assert [s.message for s in of_broker] == [s.message for s in plain[broker]]
            last = plain[broker][-1].header.correlation_id + (broker == 3)
            assert [s.header.correlation_id for s in of_broker] == [last + 1, last + 2]
        channels.hold()
        send()
        channels.release(is_sent=False)
        await w.settle()
        assert w.take() == []
        send()
        await w.settle()
        assert len(w.take()) == 4


async def test_what_cannot_be_encoded_is_dropped_when_it_is_sent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        controller = await w.start_controller(1)
        w.take()
        controller.channels.hold()
        controller.channels.send(BrokerId(2), wire.StopReplicaRequest(controller_id=1 << 40), 3, None)
        assert "dropped" not in caplog.text
        controller.channels.release(is_sent=True)
        await w.settle()
        assert "StopReplicaRequest to broker 2 is dropped" in caplog.text
        assert w.take() == []


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


async def test_an_unknown_broker_is_removed_without_a_failure(autojump_clock: MockClock) -> None:  # rule 8.36
    """Kafka throws, and so on every later change of the brokers, because the dead one stays known."""
    async with world() as w:
        controller = await w.start_controller(1)
        await controller.channels.remove_brokers([BrokerId(2), BrokerId(9)])
        assert BrokerId(2) not in controller.channels.queue_sizes()
        await w.stop_broker(2)
        await w.settle()
        assert set(controller.context.broker_epochs) == {1, 3}


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


class Peer(TaskConnection):
    """A broker: what was done to it, with the time. ``scripts``: how long each dial, request and closing takes."""

    def __init__(self, *, dial_s: float = 0, answer_s: float = 0, close_s: float = 0) -> None:
        self.dial_s, self.answer_s, self.close_s = dial_s, answer_s, close_s
        self.seen: list[tuple[float, object]] = []
        self._header = wire.Header(0, 0, 0, None)

    def _note(self, what: object) -> None:
        self.seen.append((round(trio.current_time(), 3), what))

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> Any:
        self._note((host, port, to, listener))
        await trio.sleep(self.dial_s)
        return self

    async def send_frame(self, start: bytes, rest: bytes | memoryview) -> None:
        self._header, _ = wire.decode_request(bytes(start) + bytes(rest))
        self._note(self._header.correlation_id)
        await trio.lowlevel.checkpoint()

    async def receive_frame(self) -> bytes:
        await trio.sleep(self.answer_s)
        return wire.encode_response(
            wire.UpdateMetadataResponse(), api_version=7, correlation_id=self._header.correlation_id
        )

    async def aclose(self) -> None:
        self._note("closed")
        await trio.sleep(self.close_s)


ADDRESS = ("h", 9, 2, "DATA")


@asynccontextmanager
async def channel_to(peer: Peer) -> AsyncIterator[Channel]:
    config = ChannelConfig(
        broker_id=BrokerId(1), inter_broker_listener="DATA", socket_timeout_ms=700, request_timeout_ms=500
    )
    async with trio.open_nursery() as nursery:
        channel = Channel(config, BrokerId(2), Endpoint("DATA", "PLAINTEXT", "h", 9), peer.dial)
        nursery.start_soon(channel.run)
        yield channel
        channel.scope.cancel()


def enqueue(
    channel: Channel,
    answers: list[object],
    message: wire.Message | None = None,
    on_response: Callable[[wire.Message], None] | None = None,
) -> None:
    sent = message or wire.UpdateMetadataRequest()

    def encode(correlation_id: int) -> tuple[bytes, bytes]:
        whole = wire.encode_request(sent, api_version=7, correlation_id=correlation_id, client_id="1")
        return whole[:9], whole[9:]

    def answered(answer: wire.Message) -> None:
        answers.append((len(channel.queue), answer))

    channel.enqueue(type(sent), 7, encode, on_response or answered)


async def test_a_broker_that_cannot_be_dialled_is_dialled_again(autojump_clock: MockClock) -> None:  # rules 8.29, 8.31
    peer = Peer(dial_s=60)
    async with channel_to(peer) as channel:
        enqueue(channel, [])
        await trio.sleep(2)
    assert peer.seen == [(0, ADDRESS), (0.8, ADDRESS), (1.6, ADDRESS)]


async def test_a_broker_that_does_not_answer_is_asked_again(autojump_clock: MockClock) -> None:  # rules 8.29, 8.31
    peer, answers = Peer(answer_s=60, close_s=0.2), list[object]()
    async with channel_to(peer) as channel:
        enqueue(channel, answers)
        await trio.sleep(1)
        peer.answer_s = 0.4
        await trio.sleep(2)
        assert peer.seen == [
            (0, ADDRESS), (0, 0), (0.5, "closed"), (0.8, ADDRESS), (0.8, 1), (1.3, "closed"), (1.6, ADDRESS), (1.6, 2)
        ]  # fmt: skip
        assert answers == [(0, wire.UpdateMetadataResponse())]


async def test_closing_a_connection_takes_a_second_at_most(autojump_clock: MockClock) -> None:
    peer = Peer(answer_s=60, close_s=60)
    async with channel_to(peer) as channel:
        enqueue(channel, [])
        await trio.sleep(0.2)
        channel.scope.cancel()
        await channel.stopped.wait()
    assert (trio.current_time(), len(channel.queue)) == (pytest.approx(1.2), 0)
    assert peer.seen == [(0, ADDRESS), (0, 0), (0.2, "closed")]


async def test_correlation_ids_start_over(autojump_clock: MockClock) -> None:
    peer, answers = Peer(), list[object]()
    async with channel_to(peer) as channel:
        channel._correlation_id = 2**31 - 1
        for _ in range(2):
            enqueue(channel, answers)
        await trio.sleep(1)
    assert [seen for _, seen in peer.seen] == [ADDRESS, 2**31 - 1, 0, "closed"]
    assert [waiting for waiting, _ in answers] == [1, 0]  # type: ignore[misc]


async def test_what_cannot_be_encoded_is_dropped(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rule 8.17
    peer, answers = Peer(), list[object]()
    broken = wire.LeaderAndIsrRequest(controller_id=2**40)
    async with channel_to(peer) as channel:
        enqueue(channel, answers, broken)
        enqueue(channel, answers)
        await trio.sleep(1)
    assert "LeaderAndIsrRequest to broker 2 is dropped" in caplog.text
    assert len(answers) == 1


async def test_the_time_in_the_queue(autojump_clock: MockClock) -> None:  # rule 8.33
    peer = Peer(answer_s=0.25)
    async with channel_to(peer) as channel:
        for _ in range(2):
            enqueue(channel, [])
        updates: list[float] = []
        channel.queue_time.update = updates.append  # type: ignore[method-assign]
        await trio.sleep(1)
    assert updates == [pytest.approx(0), pytest.approx(250)]


class DirectPeer(DirectConnection, Peer):
    """Does what can be done without a task. ``takes``: how much of a frame is sent without waiting; None: nothing."""

    def __init__(self, takes: int | None = 1 << 20) -> None:
        DirectConnection.__init__(self)
        Peer.__init__(self)
        self.takes = takes
        self.closed = trio.Event()

    async def aclose(self) -> None:
        self.closed.set()
        await super().aclose()

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> Any:
        self.is_unsent = False
        self.open()
        return await super().dial(host, port, to=to, listener=listener)

    def send_nowait(self, payload: bytes) -> bool:
        if self.takes is None:
            return False
        self._header, _ = wire.decode_request(payload)
        self._note(("direct", self._header.correlation_id))
        self.is_unsent = self.takes < len(payload)
        return True

    async def flush(self) -> None:
        if self.is_unsent:
            self._note("flushed")
            self.is_unsent = False

    def answers(self, frame: bytes | None = None) -> None:
        """It answers its request, or with ``frame``."""
        answer = wire.encode_response(
            wire.UpdateMetadataResponse(), api_version=7, correlation_id=self._header.correlation_id
        )
        self.arrive(answer if frame is None else frame)

    @property
    def what(self) -> list[object]:
        return [seen for _, seen in self.seen]


async def in_order(channel: Channel, peer: DirectPeer) -> list[object]:
    """Have one request answered, after which the channel needs no task; returns the list of all answers."""
    answers = list[object]()
    enqueue(channel, answers)
    await trio.sleep(0.1)
    peer.answers()
    await trio.sleep(0.1)
    assert len(answers) == 1
    peer.seen.clear()
    answers.clear()
    return answers


async def test_requests_leave_without_a_task(autojump_clock: MockClock) -> None:  # rules 8.29, 8.32
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)
        enqueue(channel, answers)
        assert peer.what == [("direct", 1)]
        enqueue(channel, answers)
        enqueue(channel, answers)
        assert peer.what == [("direct", 1)]  # one in flight
        peer.answers()
        assert peer.what == [("direct", 1), ("direct", 2)]
        assert answers == [(2, wire.UpdateMetadataResponse())]
        peer.answers()
        peer.answers()
        assert (len(answers), len(channel.queue)) == (3, 0)
        await trio.sleep(5)  # none of them is late
        assert peer.what == [("direct", 1), ("direct", 2), ("direct", 3)]


async def test_a_response_may_enqueue(autojump_clock: MockClock) -> None:
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)

        enqueue(channel, answers, on_response=lambda _: enqueue(channel, answers))
        peer.answers()
        assert peer.what == [("direct", 1), ("direct", 2)]
        peer.answers()
        assert len(answers) == 1


async def test_what_must_wait_is_sent_by_the_task(autojump_clock: MockClock) -> None:
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)
        peer.takes = None
        enqueue(channel, answers)
        enqueue(channel, answers)
        await trio.sleep(0.1)
        assert peer.what == [1]  # under the correlation id that it was encoded with
        peer.takes = 5
        peer.answers()
        await trio.sleep(0.1)
        assert peer.what == [1, ("direct", 2), "flushed"]
        peer.answers()
        await trio.sleep(0.1)
        assert len(answers) == 2


async def test_large_requests_are_not_copied(autojump_clock: MockClock) -> None:
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)
        broker = wire.UpdateMetadataBroker(id=1, endpoints=(), rack="r" * 20_000)
        enqueue(channel, answers, wire.UpdateMetadataRequest(live_brokers=(broker,)))
        await trio.sleep(0.1)
        peer.answers()
        await trio.sleep(0.1)
        assert (peer.what, len(answers)) == ([1], 1)


@pytest.mark.parametrize("fault", ["closed", "garbage", "empty", "unasked", "silence", "broken"])
async def test_a_direct_connection_that_fails(autojump_clock: MockClock, fault: str) -> None:  # rule 8.31
    """The request is sent again 100 ms later on another connection, whatever was wrong with this one."""
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)
        if fault == "unasked":
            peer.answers()
        await trio.sleep(0.1)
        enqueue(channel, answers)
        began = trio.current_time()
        match fault:
            case "closed":
                peer.close()
            case "garbage":
                peer.answers(b"\0\0")
            case "empty":
                peer.answers(b"")
            case "broken":

                def receive_nowait() -> bytes | None:
                    del peer.receive_nowait  # type: ignore[method-assign]
                    peer.has_ended = True
                    raise trio.BrokenResourceError

                peer.receive_nowait = receive_nowait  # type: ignore[method-assign]
                peer.answers()
                peer.came.clear()
        await peer.closed.wait()
        assert (trio.current_time() - began > 0.4) == (fault == "silence")
        await trio.sleep(0.2)
        (sent,) = [what for what in peer.what[peer.what.index("closed") :] if isinstance(what, int)]
        assert sent == 2  # the task sends the first request of a connection
        assert not answers
        peer.answers()
        await trio.sleep(0.1)
        assert len(answers) == 1
        assert peer.what.count("closed") == 1


@pytest.mark.parametrize("is_unasked", [False, True])
async def test_a_connection_that_is_closed_while_idle_is_opened_again_without_a_pause(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, is_unasked: bool
) -> None:  # rule 8.31: no attempt has failed
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)
        if is_unasked:
            peer.answers()
        peer.close()
        await trio.sleep(0.1)
        enqueue(channel, answers)
        await trio.sleep(0.01)
        assert peer.what == ["closed", ADDRESS, 1]  # under the next correlation id
        peer.answers()
        await trio.sleep(0.1)
        assert (len(answers), caplog.records) == (1, [])


async def test_what_cannot_be_encoded_is_dropped_without_a_task(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rule 8.17
    peer = DirectPeer()
    async with channel_to(peer) as channel:
        answers = await in_order(channel, peer)
        enqueue(channel, answers, wire.LeaderAndIsrRequest(controller_id=2**40))
        enqueue(channel, answers)
        await trio.sleep(0.1)
        peer.answers()
    assert "LeaderAndIsrRequest to broker 2 is dropped" in caplog.text
    assert len(answers) == 1


async def test_what_a_response_raises_ends_the_channel(autojump_clock: MockClock) -> None:
    peer = DirectPeer()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(pytest.RaisesGroup(ZeroDivisionError)):
        async with channel_to(peer) as channel:
            await in_order(channel, peer)
            enqueue(channel, [], on_response=fail)
            peer.answers()
            await trio.sleep(1)
