"""One accepted connection: read requests, have them handled in order, write their responses, read the next.

A connection is muted while a request is in progress (rules B1.19-B1.21): nothing is read then, there is never a second
one, and responses leave in the order of their requests. Pipelined bytes wait in the frame buffer and the kernel.
Requests that arrived together and need not wait are handled one after the other, and their responses leave in one
write; those of an API whose requests share work are in progress together. The response to one that was parked is
written by whoever gives it, if the link can do so at once. Each connection writes on its own, so a slow reader delays
no other connection.

Each connection has a task, but where the link calls when something has come, the task only does what must wait.
"""

from __future__ import annotations

import enum
import logging
import math
from typing import Final

import trio

from kce import wire
from kce.broker_stub.ports import Link
from kce.broker_stub.reactor.authentication import Authentication, NotAuthenticated
from kce.broker_stub.reactor.incoming import BadRequest, ConnectionOwner, Incoming, bad_request
from kce.broker_stub.reactor.request import ConnectionContext, Request
from kce.broker_stub.reactor.turns import SLICE_SECONDS, Turns

log = logging.getLogger(__name__)

#: responses that are written together
BATCH_BYTES: Final = 65536


class Rest(enum.Enum):
    """What remains to be done with frames that have come."""

    NOTHING = enum.auto()
    MORE = enum.auto()  # they were enough for one turn, or something is to be sent
    PARKED = enum.auto()  # whoever gives the response sends it, if that is possible
    RESPONSES = enum.auto()  # of parked requests, which are sent here
    HANDLER = enum.auto()  # of the last request in progress
    AUTHENTICATION = enum.auto()  # the frame begins one
    LONG_REQUEST = enum.auto()  # the frame is one


#: to read a member of an enum's class takes ten times as long in Python 3.11
NOTHING: Final = Rest.NOTHING
MORE: Final = Rest.MORE
PARKED: Final = Rest.PARKED


class Connection(Incoming):
    """Owns the link and closes it. ``client_software_*`` are from the client's ApiVersions request (rule B1.38)."""

    __slots__ = (
        "_authentication", "_failure", "_in_handler", "_muted_until", "_parked", "_pipelines", "_rest", "_scope",
        "_waits_for_input", "client_software_name", "client_software_version", "context",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext, link: Link, owner: ConnectionOwner) -> None:
        super().__init__(link, owner)
        self.context = context
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        #: of a listener that is not PLAINTEXT
        self._authentication = None if owner.security.is_plaintext else Authentication(link, owner, self)
        self._scope = trio.CancelScope()
        self._in_handler = False
        #: while a request is parked, unless ``_waits_for_input``; set when a response to one is there
        self._parked: trio.Event | None = None
        #: a request is parked, and its response leaves without this task, which waits for the next request
        self._waits_for_input = False
        #: the client sends a request before it has the response to the one before
        self._pipelines = False
        self._muted_until = -math.inf
        #: left for the task
        self._rest = NOTHING
        #: to be raised in the task
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.context.connection_id}>"

    @property
    def is_closing(self) -> bool:
        return self._finishing

    @property
    def last_used(self) -> float:
        return max(self._link.last_received, self._last_sent)

    @property
    def remote_host(self) -> str:
        """By which connections are counted."""
        return self._link.remote[0]

    @property
    def turns(self) -> Turns:
        return self._owner.turns

    async def serve(self) -> None:
        """Serve until either side closes the connection. Raises nothing: errors close only this connection."""
        try:
            with self._scope:
                await self._serve()
        except (wire.DecodeError, BadRequest) as e:
            self.refuse(str(e))
        except NotAuthenticated as e:
            log.info("%s: closed: %s", self.context.connection_id, e)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            log.debug("%s: connection lost: %s", self.context.connection_id, e.__cause__ or e)
        except Exception:
            log.exception("%s: closed after an unexpected error", self.context.connection_id)
        finally:
            self._drop_frame()
            self._drop_frames()
            await self._link.aclose()

    async def _serve(self) -> None:
        if self._authentication is not None:
            self.context = await self._authentication.run(self.context)
        while not self._finishing:
            try:
                if self._is_idle():
                    await self._wait_for_input()
                if self._rest is NOTHING:
                    if not await self._receive():
                        return
                    self._rest = self._handle_frames()
                rest, self._rest = self._rest, NOTHING
                await self._do(rest)
            finally:
                await self._flush()
            if not self._in_progress:
                self._is_muted = False
            if self._muted_until > -math.inf:
                await trio.sleep_until(self._muted_until)
                self._muted_until = -math.inf

    def _is_idle(self) -> bool:
        """Whether there is nothing to do: a response to a request in progress leaves without this task, or wakes it."""
        if self._in_progress:
            return self._is_parked_alone
        if self._frame is None:
            self._frame = self._link.receive_nowait()
        return self._frame is None

    @property
    def _is_parked_alone(self) -> bool:
        """Whether one request is in progress, and the client has sent no other."""
        has_other = self._pipelines or self._frame is not None or self._link.buffered_bytes
        return len(self._in_progress) == 1 and not has_other

    async def _wait_for_input(self) -> None:
        """Serve what comes, as long as nothing must be waited for."""
        self._waits_for_input = bool(self._in_progress)
        try:
            await self._link.wait_for_input(self._serve_at_once, self._owner.turns)
        finally:
            self._waits_for_input = False
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # which refers to this call
        if self._in_progress and self._rest is NOTHING:
            self._rest = Rest.RESPONSES

    def _serve_at_once(self) -> bool:
        """Serve what has come; false if there is a rest for the task."""
        try:
            if self._in_progress:
                self._pipelines = True
            elif self._muted_until > -math.inf:
                self._rest = MORE
            else:
                if self._frame is None:
                    self._frame = self._link.receive_nowait()
                if self._frame is None:
                    return True
                self._is_muted = True
                if not self._owner.is_blocked:
                    rest = self._serve_frames()
                    if rest is not NOTHING:
                        self._rest = rest
                    return self._rest is NOTHING
        except Exception as e:  # noqa: BLE001 - raised in the task
            self._failure = e
        return False

    def _serve_frames(self) -> Rest:
        """Handle what has come, and write the responses; what cannot be done without waiting.

        The responses to several connections leave together at the end of the slice: a client that sleeps is woken once.
        """
        rest = self._handle_frames()
        if rest is NOTHING:
            self._flush_soon()
        elif self._to_send and not self._flush_nowait():
            return rest
        elif rest is PARKED and self._is_parked_alone:
            self._drop_frames()
            self._waits_for_input = True
            return NOTHING
        return rest

    def _flush_soon(self) -> None:
        """Write the responses at the end of the slice, or now, while the task waits for input."""
        if not self._owner.turns.later(self._flush_without_task):
            self._flush_without_task()

    def _flush_without_task(self) -> None:
        """What cannot be done without waiting is left to the task."""
        if not self._to_send:
            return
        try:
            if self._flush_nowait() and not self._finishing:
                self._is_muted = False
                return
            self._rest = MORE
        except Exception as e:  # noqa: BLE001 - raised in the task
            self._failure = e
        self._link.stop_waiting()

    async def _receive(self) -> bool:
        """The next frame, and a turn for it. False if the client has closed."""
        if self._frame is None:
            self._frame = await self._link.receive()
        if self._frame is None:
            if self._link.buffered_bytes:
                log.info("%s: the client closed the connection within a request", self.context.connection_id)
            return False
        self._is_muted = True
        await self._owner.unblocked()
        if self._owner.turns.used_up:
            await self._owner.turns.wait()
        return True

    def _handle_frames(self) -> Rest:
        """Handle the request, and those that arrived with it, until one has to wait or the slice of time is used up.

        Raises BadRequest.
        """
        owner, began = self._owner, self.clock()
        now, batch_bytes = began, 0
        try:
            while (frame := self._frame) is not None:
                if self._authentication is not None and self._authentication.ends:
                    if self._authentication.is_reauthentication(frame, now):
                        return Rest.AUTHENTICATION
                    if self._is_expired(self._authentication, now):
                        return MORE
                try:
                    request = owner.parse(self, frame, now)
                except wire.DecodeError as e:
                    raise bad_request(e) from None
                except wire.TooManyElements:
                    return Rest.LONG_REQUEST
                self._begin(request)
                if not self._handle_at_once(request, now):
                    now = self.clock()
                    return Rest.HANDLER
                now = request.handled_at if len(self._in_progress) == 1 else self.clock()
                if self._delivered < len(self._in_progress):
                    return PARKED
                if owner.memory is not None:
                    self._drop_frames()
                batch_bytes += self._take_responses()
                if self._finishing or self._expired or self._muted_until > now:
                    return MORE
                if now - began > SLICE_SECONDS or batch_bytes > BATCH_BYTES:
                    return MORE
                if self._frame is None:
                    self._frame = self._link.receive_nowait()
        finally:
            owner.turns.spend(now - began)
        return NOTHING

    async def _do(self, rest: Rest) -> None:
        """What must be waited for."""
        if self._link.is_unsent:
            await self._link.flush()
        if rest in (NOTHING, MORE):
            return
        await self._flush_before_waiting()
        match rest:
            case Rest.AUTHENTICATION:
                await self._authenticate_again()
            case Rest.LONG_REQUEST:
                await self._serve_long()
            case Rest.HANDLER:
                await self._handle(self._in_progress[-1])
        self._drop_frames()
        if rest is Rest.RESPONSES or not self._must_wait or not self._is_parked_alone:
            await self._wait_for_responses()
            self._take_responses()

    def _is_expired(self, authentication: Authentication, now: float) -> bool:
        """Whether a request comes too late (rule B9.25)."""
        if not authentication.has_expired(now):
            return False
        log.info("%s: closed, its session has expired", self.context.connection_id)
        self._owner.metrics.expired_connections_killed += 1
        self._finishing = True
        return True

    async def _authenticate_again(self) -> None:
        assert self._authentication is not None
        assert self._frame is not None
        frame = self._frame
        self._drop_frame()
        self._is_muted = False
        await self._authentication.again(frame)

    async def _serve_long(self) -> None:
        """Work on a request of many elements in turns with others."""
        turns = self._owner.turns
        assert self._frame is not None
        async with turns.long_request():
            try:
                request = await self._owner.parse_in_turns(self, self._frame, trio.current_time())
            except wire.DecodeError as e:
                raise bad_request(e) from None
            self._begin(request)
            if self._owner.channel.free <= 0 or not self._owner.channel.begin(request):
                await self._handle(request)
            self._drop_frames()
            if request.answered:
                await turns.take(request.drop_message())
                return
        await self._wait_for_responses()  # that of an error names what the request does
        self._take_responses()
        await self._flush()
        await turns.take(request.drop_message())

    async def _flush_before_waiting(self) -> None:
        """Write the responses of the batch before the last request waits."""
        try:
            await self._flush()
        except BaseException:
            if self._in_progress:
                self._in_progress[-1].release()
            raise
        self._is_muted = True

    async def _handle(self, request: Request) -> None:
        """Wait for a handler, and in it. Another connection may have blocked the processor since the frame came."""
        try:
            await self._owner.unblocked()
        except BaseException:
            request.release()
            raise
        self._in_handler = True
        await self._owner.channel.handle(request, self._owner)
        self._in_handler = False

    async def _wait_for_responses(self) -> None:
        while self._must_wait:
            self._parked = trio.Event()
            await self._parked.wait()
            self._parked = None
        if self._link.is_unsent:
            await self._link.flush()
        await self._owner.unblocked()

    def expire(self, now: float, max_idle_seconds: float) -> float:
        """Close the connection if it was idle for that long. Returns the earliest time when it may expire.

        The response to a request in progress is then dropped (rule B1.53).
        """
        expires_at = self.last_used + max_idle_seconds
        if now < expires_at:
            return expires_at
        if not self._expired:
            self._expired = True
            self._owner.metrics.connections_expired += 1
            log.info("%s: closed, idle for longer than connections.max.idle.ms", self.context.connection_id)
            self.close()
        return math.inf

    def throttle(self, seconds: float) -> None:
        """Stop reading for that time. Call before the response is delivered (rule B1.27)."""
        if seconds > 0:
            self._muted_until = trio.current_time() + seconds

    def deliver(self, request: Request) -> None:
        """Write the response to a request in progress, then unmute.

        That to a parked request is written without its task, if it can be: somebody may have waited for it for long.
        """
        if self._parked is None or not self._sent_at_once(request):
            self._delivered += 1
        if self._parked is not None:
            self._parked.set()
        elif self._waits_for_input and not self._is_closed:
            self._waits_for_input = False
            self._take_responses()
            self._flush_soon()

    def refuse(self, reason: str) -> None:
        """Close without a response because of a bad request (rules B1.34, B1.35)."""
        self._owner.metrics.connections_closed_for_bad_requests += 1
        log.warning("%s: closed: %s", self.context.connection_id, reason)
        self.close()

    def finish(self) -> None:
        """Close when no request is in progress."""
        self._finishing = True
        if not self._is_muted:
            self._cancel()

    def close(self) -> None:
        """Close now; but a handler that works on a request finishes it (rule B1.59)."""
        self._finishing = True
        if self._in_handler:
            self._expired = True
        else:
            self._cancel()

    def _cancel(self) -> None:
        self._is_closed = True
        self._scope.cancel()
