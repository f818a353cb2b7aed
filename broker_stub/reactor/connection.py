"""One accepted connection: read a request, hand it over, write its answer, read the next.

That order is the whole of muting (rules B1.19-B1.21): while a request is in progress nothing is read, so there is never
a second one, and answers leave in the order of their requests. Pipelined bytes stay in the frame buffer and the kernel.
Each connection writes by itself, so that a peer that does not read holds up nobody else.
"""

from __future__ import annotations

import enum
import logging
import math
from typing import Protocol

import trio

import wire
from broker_stub.reactor.metrics import RequestMetrics
from broker_stub.reactor.request_channel import Action, ConnectionContext, Response

logger = logging.getLogger("broker_stub.reactor")


class Phase(enum.Enum):
    """Where a connection is in its round; it is muted in all but the first."""

    READING = enum.auto()
    IN_PROGRESS = enum.auto()
    WRITING = enum.auto()


class ConnectionOwner(Protocol):
    """A processor, as its connections see it."""

    metrics: RequestMetrics

    def receive_completed(self, connection: Connection, frame: bytes) -> None:
        """A whole request has come; the connection is muted until ``Connection.deliver``."""


class Connection:
    """Owns the stream and closes it. ``client_software_*`` are what ApiVersions said (rule B1.38)."""

    def __init__(
        self,
        context: ConnectionContext,
        stream: trio.abc.Stream,
        owner: ConnectionOwner,
        *,
        max_frame_bytes: int,
    ) -> None:
        self.context = context
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self._stream = stream
        self._owner = owner
        self._frames = wire.FrameBuffer(max_frame_bytes)
        self._scope = trio.CancelScope()
        self._phase = Phase.READING
        self._last_active = trio.current_time()
        self._expired = False
        self._finishing = False
        self._response: Response | None = None
        self._response_due = trio.Event()
        self._muted_until = -math.inf

    def __repr__(self) -> str:
        return f"<Connection {self.context.connection_id}>"

    async def serve(self) -> None:
        """Until either side closes it; raises nothing. Whatever goes wrong here ends here."""
        try:
            with self._scope:
                await self._serve()
        except wire.DecodeError as e:
            self.refuse(str(e))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            logger.debug("%s: connection lost: %s", self.context.connection_id, e.__cause__ or e)
        except Exception:
            logger.exception("%s: closed after an unexpected error", self.context.connection_id)
        finally:
            await self._close_stream()

    async def _close_stream(self) -> None:
        try:
            await trio.aclose_forcefully(self._stream)
        except Exception:  # a tap's: the streams of the kernel do not fail here
            logger.exception("%s: cannot be closed properly", self.context.connection_id)

    async def _serve(self) -> None:
        while not self._finishing:
            frame = await self._next_frame()
            if frame is None:
                return
            response = await self._have_answered(frame)
            taken_at = self._last_active = trio.current_time()
            try:
                if self._expired:  # the request was kept, its answer comes too late (rule B1.53)
                    return
                if response.action is Action.SEND:
                    self._phase = Phase.WRITING
                    await self._stream.send_all(response.frame)
            finally:  # counted also where nobody takes the answer
                response.request.record(self._owner.metrics, taken_at=taken_at)
            self._phase = Phase.READING
            if response.action is Action.CLOSE_CONNECTION:
                return
            await trio.sleep_until(self._muted_until)

    async def _next_frame(self) -> bytes | None:
        """None when the peer has closed. Raises wire.LimitExceeded."""
        while (frame := self._frames.next_frame()) is None:
            data = await self._stream.receive_some()
            self._last_active = trio.current_time()
            if not data:
                if len(self._frames):
                    logger.info("%s: the peer closed inside a request", self.context.connection_id)
                return None
            self._frames.receive_data(data)
        return frame

    async def _have_answered(self, frame: bytes) -> Response:
        self._phase = Phase.IN_PROGRESS
        self._response_due = trio.Event()
        self._owner.receive_completed(self, frame)
        await self._response_due.wait()
        assert self._response is not None
        return self._response

    def expire(self, now: float, max_idle_seconds: float) -> float:
        """Close the connection if nothing has moved on it for that long; otherwise say when that may have come to pass.

        One with a request in progress is kept until its answer is due, which is then dropped (rule B1.53).
        """
        expires_at = self._last_active + max_idle_seconds
        if now < expires_at:
            return expires_at
        if not self._expired:
            self._expired = True
            self._owner.metrics.connections_expired += 1
            logger.info("%s: closed, idle for longer than connections.max.idle.ms", self.context.connection_id)
            if self._phase is not Phase.IN_PROGRESS:
                self._scope.cancel()
        return math.inf

    def throttle(self, seconds: float) -> None:
        """Read nothing for so long; to be said before the response is delivered (rule B1.27)."""
        if seconds > 0:
            self._muted_until = trio.current_time() + seconds

    def deliver(self, response: Response) -> None:
        """The answer to the request in progress; unmutes once it has been written."""
        self._response = response
        self._response_due.set()

    def refuse(self, reason: str) -> None:
        """Close without an answer because of what the peer sent (rules B1.34, B1.35); no other connection notices."""
        self._owner.metrics.connections_closed_for_bad_requests += 1
        logger.warning("%s: closed: %s", self.context.connection_id, reason)
        self.close()

    def finish(self) -> None:
        """Close as soon as no request is in progress."""
        self._finishing = True
        if self._phase is Phase.READING:
            self._scope.cancel()

    def close(self) -> None:
        self._finishing = True
        self._scope.cancel()
