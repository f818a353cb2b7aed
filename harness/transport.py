"""Connections between nodes: whole frames over TCP, with a place for recording and for faults.

Controller and broker each ask for a function that dials; `Dialer` is that function. A server's side needs nothing
here: the broker's reactor reads and writes its streams itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

import wire
from broker_stub import ConnectionLost

#: called with the address that is about to be sent to; returns when that may be done
Gate = Callable[[str, int], Awaitable[None]]
_CHUNK_BYTES = 65536


class FramedStream:
    """Frames over a stream (broker_stub.FramedConnection and controller.channel_manager.Connection)."""

    def __init__(self, stream: trio.abc.Stream, before_send: Callable[[], Awaitable[None]] | None = None) -> None:
        self._stream = stream
        self._before_send = before_send
        self._buffer = wire.FrameBuffer()

    async def send_frame(self, payload: bytes) -> None:
        """Raises ConnectionLost."""
        if self._before_send is not None:
            await self._before_send()
        try:
            await self._stream.send_all(wire.frame(payload))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            raise ConnectionLost("the connection broke while sending") from e

    async def receive_frame(self) -> bytes:
        """Raises ConnectionLost, also when the peer closed; wire.LimitExceeded for an absurd length."""
        while (frame := self._buffer.next_frame()) is None:
            try:
                data = await self._stream.receive_some(_CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
                raise ConnectionLost("the connection broke while receiving") from e
            if not data:
                raise ConnectionLost("the peer closed the connection")
            self._buffer.receive_data(data)
        return frame

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


class Dialer:
    """Opens connections. ``tap`` wraps each new stream (to record it), ``gate`` may hold back what is sent on it."""

    def __init__(
        self, *, tap: Callable[[trio.SocketStream], trio.abc.Stream] | None = None, gate: Gate | None = None
    ) -> None:
        self._tap = tap
        self._gate = gate

    async def __call__(self, host: str, port: int) -> FramedStream:
        """Raises OSError when nobody listens there."""
        stream = await trio.open_tcp_stream(host, port)
        gate = self._gate

        async def before_send() -> None:
            assert gate is not None
            await gate(host, port)

        return FramedStream(self._tap(stream) if self._tap else stream, before_send if gate else None)
