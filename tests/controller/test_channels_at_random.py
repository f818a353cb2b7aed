"""Channels whose connections fail at random: whatever happens, every request arrives, in order, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller.channel import Channel, ChannelConfig
from kce.wire.transport import ConnectionLost
from kce.zookeeper.model import BrokerId, Endpoint
from tests.connections import DirectConnection

REQUESTS = 60
FAULTS = ("", "", "", "", "closes", "answers and closes", "garbage", "empty", "another id", "twice", "silence")


class Broker:
    """What it received: of each request its number and bytes, but for the correlation id."""

    def __init__(self, seed: int, nursery: trio.Nursery, *, is_faulty: bool) -> None:
        self.random = Random(seed)
        self.nursery = nursery
        self.received: list[tuple[int, bytes]] = []
        self.correlation_ids: list[int] = []
        self.answered: list[int] = []
        self.faulty = is_faulty
        #: somebody looks at frames: only tasks pass them on
        self.is_observed = False
        self.connections: list[Connection] = []

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> Any:
        await trio.sleep(self.random.choice((0, 0, 0.01, 2)) if self.faulty else 0)
        if self.faulty and self.random.random() < 0.2:
            raise ConnectionLost("refused")
        assert all(connection.is_closed for connection in self.connections)
        self.connections.append(Connection(self))
        return self.connections[-1]


class Connection(DirectConnection):
    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.random = broker.random
        self.is_closed = False
        self._unsent: bytes | None = None
        self._in_flight = 0

    def send_nowait(self, payload: bytes) -> bool:
        assert not self.is_closed
        assert self._unsent is None
        if self.broker.is_observed or self.has_ended or self.random.random() < 0.1:
            return False
        if self.random.random() < 0.2:
            self._unsent = payload
        else:
            self._arrive(payload)
        return True

    @property
    def is_unsent(self) -> bool:
        return self._unsent is not None

    async def flush(self) -> None:
        if self._unsent is not None:
            unsent, self._unsent = self._unsent, None
            await self.send_frame(unsent)

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        assert not self.is_closed
        assert self._unsent is None
        await trio.sleep(self.random.choice((0, 0, 0.02)))
        if self.has_ended and self.random.random() < 0.5:
            raise ConnectionLost("broken")
        self._arrive(payload + bytes(rest))

    def receive_nowait(self) -> bytes | None:
        if self.broker.is_observed:
            return None
        if self.has_ended and not self.came and self.random.random() < 0.3:
            raise trio.BrokenResourceError
        return self.came.popleft() if self.came else None

    async def receive_frame(self) -> bytes:
        frame = await super().receive_frame()
        await trio.sleep(self.random.choice((0, 0.01)))
        return frame

    async def wait_for_input(self, on_input: Callable[[], bool]) -> None:
        assert not self.is_closed
        assert self._on_input is None
        if self.broker.is_observed or self.has_ended or self.random.random() < 0.1:
            return
        await super().wait_for_input(on_input)

    def stop_waiting(self) -> None:
        self._on_input = None
        super().stop_waiting()

    async def aclose(self) -> None:
        self.is_closed = self.has_ended = True
        await trio.sleep(self.random.choice((0, 0.05)))

    def _call(self) -> None:
        if self.broker.is_observed and (self.came or self.has_ended):
            self.stop_waiting()
        else:
            super()._call()

    def _arrive(self, request: bytes) -> None:
        if self.has_ended:
            return
        header, message = wire.decode_request(request)
        assert isinstance(message, wire.UpdateMetadataRequest)
        self._in_flight += 1
        assert self._in_flight == 1, "two in flight"
        self.broker.received.append((message.controller_epoch, request[8:]))
        self.broker.correlation_ids.append(header.correlation_id)
        self.broker.nursery.start_soon(self._answer, header.correlation_id)

    async def _answer(self, correlation_id: int) -> None:
        fault = self.random.choice(FAULTS) if self.broker.faulty else ""
        delay = self.random.choice((0, 0, 0.001, 0.3, 0.499, 0.5) if self.broker.faulty else (0, 0.001))
        if delay:
            await trio.sleep(delay)
        else:
            await trio.lowlevel.checkpoint()
        if fault == "silence" or self.has_ended:
            return
        self._in_flight -= 1
        answer = wire.encode_response(wire.UpdateMetadataResponse(), api_version=7, correlation_id=correlation_id)
        match fault:
            case "closes":
                pass
            case "garbage":
                self.came.append(b"\0\0")
            case "empty":
                self.came.append(b"")
            case "another id":
                self.came.append(
                    wire.encode_response(
                        wire.UpdateMetadataResponse(), api_version=7, correlation_id=correlation_id + 1
                    )
                )
            case "twice":
                self.came += (answer, answer)
            case _:
                self.came.append(answer)
        self.has_ended = "closes" in fault
        self._arrived()


def encoder(number: int, size: int) -> Callable[[int], tuple[bytes, bytes]]:
    node = wire.UpdateMetadataBroker(id=1, endpoints=(), rack="r" * size)
    request = wire.UpdateMetadataRequest(controller_epoch=number, live_brokers=(node,))

    def encode(correlation_id: int) -> tuple[bytes, bytes]:
        whole = wire.encode_request(request, api_version=7, correlation_id=correlation_id, client_id="1")
        return whole[:30], whole[30:]

    return encode


@pytest.mark.parametrize("is_faulty", [True, False])
@pytest.mark.parametrize("seed", range(20))
async def test_every_request_arrives_in_order(autojump_clock: MockClock, seed: int, is_faulty: bool) -> None:
    """Rules 8.29, 8.31, 8.32 and 8.35. Without faults none is sent twice or takes long."""
    config = ChannelConfig(
        broker_id=BrokerId(1), inter_broker_listener="DATA", socket_timeout_ms=700, request_timeout_ms=500
    )
    answered: list[int] = []
    answered_at = 0.0
    numbers = iter(range(REQUESTS))

    async with trio.open_nursery() as nursery:
        broker = Broker(seed, nursery, is_faulty=is_faulty)
        channel = Channel(config, BrokerId(2), Endpoint("DATA", "PLAINTEXT", "h", 9), broker.dial)
        nursery.start_soon(channel.run)

        def enqueue(number: int) -> None:
            enqueued_at = trio.current_time()

            def on_response(_: wire.Message) -> None:
                nonlocal answered_at
                began_at, answered_at = max(enqueued_at, answered_at), trio.current_time()
                assert is_faulty or answered_at - began_at < 0.1
                assert broker.received[-1][0] == number, "the next one was sent before this one was answered"
                answered.append(number)
                if broker.random.random() < 0.2 and (following := next(numbers, None)) is not None:
                    enqueue(following)

            size = broker.random.choice((1, 1, 1, 20_000))
            channel.enqueue(wire.UpdateMetadataRequest, 7, encoder(number, size), on_response)

        while (number := next(numbers, None)) is not None:
            enqueue(number)
            await trio.sleep(broker.random.choice((0, 0, 0, 0.002, 1)))
            broker.is_observed = broker.random.random() < 0.2
        broker.faulty = broker.is_observed = False
        await trio.sleep(10)  # what is lost on the way is resent after half a second
        channel.scope.cancel()
        await channel.stopped.wait()
    assert answered == list(range(REQUESTS))
    received = [number for number, _ in broker.received]
    assert received == sorted(received)
    assert is_faulty or received == answered
    assert len(set(broker.received)) == REQUESTS, "it was resent with other bytes"
    assert broker.correlation_ids == sorted(set(broker.correlation_ids))
