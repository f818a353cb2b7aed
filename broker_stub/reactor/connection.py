"""One accepted connection: read a request, pass it on, write its response, read the next.

This order implements muting (rules B1.19-B1.21): nothing is read while a request is in progress, so there is never a
second one, and responses leave in the order of their requests. Pipelined bytes wait in the frame buffer and the kernel.
Each connection writes on its own, so a slow reader delays no other connection.
"""

from __future__ import annotations

import enum
import logging
import math
from typing import Protocol

import trio

from kce import wire
from kce.broker_stub.ports import Link
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request_channel import Action, ConnectionContext, Response

log = logging.getLogger(__name__)


class Phase(enum.Enum):
    """The state of a connection; it is muted in all but the first."""

    READING = enum.auto()
    IN_PROGRESS = enum.auto()
    WRITING = enum.auto()


class ConnectionOwner(Protocol):
    """The processor of a connection."""

    metrics: RequestMetrics

    def receive_completed(self, connection: Connection, frame: bytes) -> None:
        """A complete request arrived; the connection is muted until ``Connection.deliver``."""


class Connection:
    """Owns the link and closes it. ``client_software_*`` are from the client's ApiVersions request (rule B1.38)."""

    def __init__(
        self,
        context: ConnectionContext,
        link: Link,
        owner: ConnectionOwner,
    ) -> None:
        self.context = context
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self._link = link
        self._owner = owner
        self._scope = trio.CancelScope()
        self._phase = Phase.READING
        self._last_sent = -math.inf
        self._expired = False
        self._finishing = False
        self._response: Response | None = None
        self._response_due = trio.Event()
        self._muted_until = -math.inf

    def __repr__(self) -> str:
        return f"<Connection {self.context.connection_id}>"

    async def serve(self) -> None:
        """Serve until either side closes the connection. Raises nothing: errors close only this connection."""
        try:
            with self._scope:
                await self._serve()
        except wire.DecodeError as e:
            self.refuse(str(e))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            log.debug("%s: connection lost: %s", self.context.connection_id, e.__cause__ or e)
        except Exception:
            log.exception("%s: closed after an unexpected error", self.context.connection_id)
        finally:
            with trio.CancelScope(shield=True):
                await self._link.aclose()

    async def _serve(self) -> None:
        while not self._finishing:
            frame = await self._link.receive()
            if frame is None:
                if self._link.buffered_bytes:
                    log.info("%s: the client closed the connection within a request", self.context.connection_id)
                return
            response = await self._response_to(frame)
            dequeued_at = self._last_sent = trio.current_time()
            try:
                if self._expired:  # expired while the request was in progress (rule B1.53)
                    return
                if response.action is Action.SEND:
                    self._phase = Phase.WRITING
                    await self._link.send(response.payload)
            finally:  # also if the client is gone
                response.request.record(self._owner.metrics, dequeued_at=dequeued_at)
            self._phase = Phase.READING
            if response.action is Action.CLOSE_CONNECTION:
                return
            await trio.sleep_until(self._muted_until)

    async def _response_to(self, frame: bytes) -> Response:
        self._phase = Phase.IN_PROGRESS
        self._response_due = trio.Event()
        self._owner.receive_completed(self, frame)
        await self._response_due.wait()
        assert self._response is not None
        return self._response

    def expire(self, now: float, max_idle_seconds: float) -> float:
        """Close the connection if it was idle for that long. Returns the earliest time when it may expire.

        With a request in progress it stays open until the response, which is then dropped (rule B1.53).
        """
        expires_at = max(self._link.last_received, self._last_sent) + max_idle_seconds
        if now < expires_at:
            return expires_at
        if not self._expired:
            self._expired = True
            self._owner.metrics.connections_expired += 1
            log.info("%s: closed, idle for longer than connections.max.idle.ms", self.context.connection_id)
            if self._phase is not Phase.IN_PROGRESS:
                self._scope.cancel()
        return math.inf

    def throttle(self, seconds: float) -> None:
        """Stop reading for that time. Call before the response is delivered (rule B1.27)."""
        if seconds > 0:
            self._muted_until = trio.current_time() + seconds

    def deliver(self, response: Response) -> None:
        """Write the response to the request in progress, then unmute."""
        self._response = response
        self._response_due.set()

    def refuse(self, reason: str) -> None:
        """Close without a response because of a bad request (rules B1.34, B1.35)."""
        self._owner.metrics.connections_closed_for_bad_requests += 1
        log.warning("%s: closed: %s", self.context.connection_id, reason)
        self.close()

    def finish(self) -> None:
        """Close when no request is in progress."""
        self._finishing = True
        if self._phase is Phase.READING:
            self._scope.cancel()

    def close(self) -> None:
        self._finishing = True
        self._scope.cancel()
