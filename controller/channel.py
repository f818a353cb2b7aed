"""A channel to a broker: a queue, a task, and one request in flight, resent until it is answered (8c).

A channel connects to the broker's control-plane listener where there is one, else to its inter-broker listener (8.28),
and sends fixed versions without negotiating ApiVersions (8.19). When an attempt fails, the channel closes the
connection and resends the same request after 100 ms (8.31): delivery is at least once, in order. A stuck request
blocks those behind it (8.32). A resent request keeps the epochs that it was built with (8.35).

While a connection is in order and need not be waited for, its task only waits: a request leaves when it is enqueued, or
when the response to the one before it comes, without a switch of tasks. The task goes on with whatever must wait.
"""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from kce import wire
from kce.controller.request_batch import OnResponse
from kce.metrics import Timer
from kce.wire.transport import Dial, DirectConnection
from kce.zookeeper.model import BrokerId, Endpoint

log = logging.getLogger(__name__)

#: delay before a retry (rule 8.31)
RETRY_BACKOFF_S = 0.1
#: larger requests are sent by the task
_DIRECT_BYTES = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """Timeouts in ms: Kafka's `request.timeout.ms` and `controller.socket.timeout.ms` (rule 8.29)."""

    broker_id: BrokerId
    inter_broker_listener: str
    control_plane_listener: str | None = None
    request_timeout_ms: int = 30_000
    socket_timeout_ms: int = 30_000

    @property
    def client_id(self) -> str:
        return str(self.broker_id)

    @property
    def listener(self) -> str:
        return self.control_plane_listener or self.inter_broker_listener


#: correlation id -> the bytes of the request, in two pieces; the second may be shared with other channels
Encode = Callable[[int], tuple[bytes, bytes | memoryview]]


@dataclass(frozen=True, slots=True)
class _Queued:
    #: the class of the request
    message: type[wire.Message]
    api_version: int
    encode: Encode
    on_response: OnResponse | None
    enqueued_at: float


class Channel:
    """The channel to one broker. ``run`` sends what is enqueued, until it is cancelled."""

    def __init__(self, config: ChannelConfig, broker: BrokerId, endpoint: Endpoint, dial: Dial) -> None:
        self.broker = broker
        #: ms that requests wait in the queue (rule 8.33)
        self.queue_time = Timer()
        self.endpoint = endpoint
        self.queue: collections.deque[_Queued] = collections.deque()
        self._config = config
        self._dial = dial
        self._filled = trio.Event()
        self._clock = trio.lowlevel.current_clock().current_time
        self._correlation_id = 0
        self._connection: DirectConnection | None = None
        #: the first in the queue, while it is sent and answered, and its bytes
        self._current: _Queued | None = None
        self._encoded: tuple[bytes, bytes | memoryview] | None = None
        #: all of it was passed to the connection
        self._is_sent = False
        #: received, and not decoded
        self._frame: bytes | None = None
        #: until then it must be answered
        self._deadline = math.inf
        #: cancelled where it is not
        self._in_time = trio.CancelScope()
        #: the task waits while requests are sent and responses taken outside of it
        self._is_direct = False
        self._failure: Exception | None = None
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()

    def enqueue(
        self,
        message: type[wire.Message],
        api_version: int,
        encode: Encode,
        on_response: OnResponse | None,
    ) -> None:
        self.queue.append(_Queued(message, api_version, encode, on_response, self._clock()))
        if not self._is_direct:
            self._filled.set()
        elif self._is_due and not self._send_directly():
            assert self._connection is not None
            self._connection.stop_waiting()

    def encoded_ahead(self, encode: Encode, before: int) -> Encode:
        """``encode``, called already with the correlation id that the request will probably have, if so many others
        are enqueued ``before`` it."""
        probable = self._correlation_id + before
        try:
            encoded = encode(probable)
        except wire.EncodeError:  # met again when it is sent
            return encode
        return lambda correlation_id: encoded if correlation_id == probable else encode(correlation_id)

    @property
    def _is_due(self) -> bool:
        """Whether the first in the queue is to be sent."""
        return bool(self.queue) and self._current is None

    async def run(self) -> None:
        """Send requests until ``scope`` is cancelled; then close the connection and drop the queue (rule 8.31)."""
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._give_up_slow)
                    while True:
                        with trio.CancelScope() as self._in_time:
                            while True:
                                await self._serve_directly()
                                await self._next()
                        if self._current is not None:  # it was not answered after all
                            await self._failed(self._current, trio.TooSlowError())
        finally:
            self.queue.clear()
            await self._disconnect()
            self.stopped.set()

    async def _serve_directly(self) -> None:
        """Send what is enqueued, as long as nothing must be waited for."""
        if self._connection is None or (self._is_due and not self._send_directly()):
            return
        self._is_direct = True
        try:
            await self._connection.wait_for_input(self._take_responses)
        finally:
            self._is_direct = False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _send_directly(self) -> bool:
        """Send the first in the queue; false if there is something left for the task."""
        assert self._connection is not None
        try:
            start, rest = self._encode(self._begin())
        except wire.EncodeError:  # the task meets it again
            return False
        if len(rest) > _DIRECT_BYTES or not self._connection.send_nowait(b"".join((start, rest))):
            return False
        self._is_sent = True
        return not self._connection.is_unsent

    def _take_responses(self) -> bool:
        """Take what has come, and send what waits for it; false if there is something left for the task."""
        assert self._connection is not None
        try:
            while (frame := self._connection.receive_nowait()) is not None:
                if not self._take_response(frame):
                    self._frame = frame
                    return False
                if self._is_due and not self._send_directly():
                    return False
        except trio.BrokenResourceError:  # the task meets it again
            return False
        except Exception as e:  # noqa: BLE001 - raised by the task
            self._failure = e
            return False
        return True

    def _take_response(self, frame: bytes) -> bool:
        """Whether it is the response to the current request; if not, the task finds out why."""
        queued = self._current
        if queued is None:
            return False
        try:
            response = self._decode(queued, frame)
        except Exception:  # noqa: BLE001
            return False
        self._end(queued, response)
        return True

    async def _next(self) -> None:
        while not self.queue:
            self._filled = trio.Event()
            await self._filled.wait()
        queued = self._current or self._begin()
        self._end(queued, await self._deliver(queued))

    def _begin(self) -> _Queued:
        """The first in the queue becomes the current request."""
        queued = self._current = self.queue[0]
        self.queue_time.update(1000 * (self._clock() - queued.enqueued_at))
        return queued

    def _end(self, queued: _Queued, response: wire.Message | None) -> None:
        """It was answered, or cannot be encoded."""
        self._forget()
        self._current = None
        self.queue.popleft()
        if queued.on_response is not None and response is not None:
            queued.on_response(response)

    def _forget(self) -> None:
        """What was encoded, sent and received for the current request."""
        self._encoded, self._is_sent, self._frame, self._deadline = None, False, None, math.inf

    async def _deliver(self, queued: _Queued) -> wire.Message | None:
        """The response; None for a request that cannot be encoded."""
        while True:
            try:
                return await self._attempt(queued)
            except wire.EncodeError as e:
                log.error("%s to broker %d is dropped: %s", queued.message.__name__, self.broker, e)
                return None
            except Exception as e:  # noqa: BLE001 - a host name, for example, fails in many ways
                await self._failed(queued, e)

    async def _failed(self, queued: _Queued, error: Exception) -> None:
        """Rule 8.31."""
        log.warning(
            "controller %d: retrying %s to broker %d at %s:%d: %s",
            self._config.broker_id,
            queued.message.__name__,
            self.broker,
            self.endpoint.host,
            self.endpoint.port,
            error or type(error).__name__,
        )
        self._forget()
        await self._disconnect()
        await trio.sleep(RETRY_BACKOFF_S)

    def _encode(self, queued: _Queued) -> tuple[bytes, bytes | memoryview]:
        """Its bytes, for one attempt. Raises EncodeError."""
        if self._encoded is None:
            correlation_id = self._correlation_id
            self._correlation_id = (correlation_id + 1) & 0x7FFFFFFF
            self._encoded = queued.encode(correlation_id)
            self._deadline = self._clock() + self._config.request_timeout_ms / 1000
        return self._encoded

    async def _attempt(self, queued: _Queued) -> wire.Message:
        if self._connection is not None and self._encoded is None and self._connection.has_ended:
            self._forget()
            await self._disconnect()  # while it was idle: no attempt has failed (rule 8.31)
        if self._connection is None:
            with trio.fail_after(self._config.socket_timeout_ms / 1000):
                self._connection = await self._dial(
                    self.endpoint.host, self.endpoint.port, to=self.broker, listener=self.endpoint.listener
                )
        encoded = self._encode(queued)
        try:
            if self._is_sent:
                await self._connection.flush()
            else:
                await self._connection.send_frame(*encoded)
                self._is_sent = True
            frame = await self._connection.receive_frame() if self._frame is None else self._frame
        finally:
            self._deadline = math.inf
        return self._decode(queued, frame)

    def _decode(self, queued: _Queued, frame: bytes) -> wire.Message:
        """Raises DecodeError, also for the response to another request."""
        expected = (self._correlation_id - 1) & 0x7FFFFFFF
        header, response = wire.decode_response(
            frame, api_key=queued.message.__api_key__, api_version=queued.api_version
        )
        if header.correlation_id != expected:
            raise wire.InvalidValue(f"the response has correlation id {header.correlation_id}, not {expected}")
        return response

    async def _give_up_slow(self) -> None:
        """A cancel scope for each request would take a tenth of the controller's time."""
        timeout_s = self._config.request_timeout_ms / 1000
        while True:
            now = self._clock()
            if self._deadline <= now:
                self._in_time.cancel()
                self._deadline = math.inf
            await trio.sleep_until(min(self._deadline, now + timeout_s))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with trio.move_on_after(1) as scope:
                scope.shield = True
                await connection.aclose()
