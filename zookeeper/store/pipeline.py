"""Pipelined requests on kazoo's connection, by the Trio thread where that is faster.

kazoo runs its loop once for each request and each response, with a dozen calls and a result object with its own lock.
Here one object represents all requests of a batch, in kazoo's queue and as their result; each iteration sends many of
them and reads all available responses. Imports nothing from kazoo.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Callable
from typing import Any

import trio

from kce.zookeeper.store.buffered_socket import BufferedSocket
from kce.zookeeper.store.requests import REPLY_HEADER, Requests
from kce.zookeeper.store.trio_calls import TrioCalls

#: requests that one iteration of kazoo's loop takes from a batch; with so many in flight, none is sent directly
_MOST_AT_ONCE = 64
#: requests of a batch that is sent directly
_MOST_DIRECTLY = 16
#: length, xid, opcode
_REQUEST_HEAD = struct.Struct(">iii")
_XID_AND_TYPE_BYTES = 8
_WATCH_XID, _PING_XID = -1, -2


class Pipeline:
    """Sends and reads Requests for a KazooClient that is not yet started.

    The Trio thread sends small batches itself, and reads ("direct") the answers and the events: waking the connection
    thread, and being woken by it, takes longer than either. The connection thread connects, authenticates, sends pings
    and notices timeouts. It also sends and reads for large batches and for kazoo's own requests, with TLS, when a read
    fails, and when the Trio thread is late; when nothing is in flight any more, it hands back.

    ``client.handler.lock`` guards the socket, its buffers, and the order of requests in flight. The Trio thread never
    waits for it.

    ``on_watch`` takes the frame of each watch's event, and the offset behind its header; it must not wait.
    """

    def __init__(self, client: Any, on_watch: Callable[[bytes, int], None], calls: TrioCalls) -> None:
        self._client = client
        self._connection = connection = client._connection
        self._on_watch = on_watch
        self._calls = calls
        self._lock = client.handler.lock
        #: whether kazoo's loop runs: before, kazoo reads the answers to connecting and authenticating
        self._is_open = False
        self._is_direct = False
        #: the connection thread is to look at the socket before the Trio thread reads again
        self._is_handed_over = False
        # of the trio thread
        self._reader_scope: trio.CancelScope | None = None
        self._resumed = trio.Event()
        self._send_own, self._read_own = connection._send_request, connection._read_socket
        self._report_state = client._session_callback
        connection._send_request, connection._read_socket = self._send, self._read
        client._session_callback = self._state_changed
        client.handler.poller.under_way = lambda: len(client._pending)
        client.handler.poller.is_read_elsewhere = self._is_read_directly

    # on the trio thread

    def call(self, requests: Requests) -> None:
        """Send ``requests``, soon."""
        if requests.count > _MOST_DIRECTLY or not self._lock.acquire(blocking=False):
            self._client._call(requests, requests)
            return
        try:
            if not self._can_send_directly():
                self._client._call(requests, requests)
            elif not self._connection._socket.send_now(b"".join(self._framed(requests, _MOST_DIRECTLY))):
                self._wake_connection_thread()
        finally:
            self._lock.release()

    def _can_send_directly(self) -> bool:
        client = self._client
        return (
            self._is_open
            and not client._queue
            and len(client._pending) < _MOST_AT_ONCE
            and self._connection._socket.can_send_now()
        )

    def hand_over(self) -> None:
        """Let the connection thread read."""
        self._is_direct, self._is_handed_over = False, True
        self._wake_connection_thread()

    def _wake_connection_thread(self) -> None:
        wake_up = self._connection._write_sock
        if wake_up is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                wake_up.send(b"\0")

    def _start_reading(self, connected: BufferedSocket) -> None:
        self._reader_scope = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._read_directly, connected, self._reader_scope)

    def _resume_reading(self) -> None:
        self._resumed.set()

    def _end_reading(self) -> None:
        if self._reader_scope is not None:
            self._reader_scope.cancel()

    async def _read_directly(self, connected: BufferedSocket, scope: trio.CancelScope) -> None:
        # a duplicate, because kazoo closes the socket; an error if it has done so already
        with contextlib.suppress(OSError), connected.duplicate() as duplicate, scope:
            while True:
                if self._is_direct:
                    await trio.lowlevel.wait_readable(duplicate)
                    self._read_available()
                else:
                    self._resumed = trio.Event()
                    await self._resumed.wait()

    def _read_available(self) -> None:
        with self._calls.held():
            if not self._lock.acquire(blocking=False):
                self.hand_over()
                return
            try:
                if self._is_direct:
                    self._take_available()
            finally:
                self._lock.release()

    def _take_available(self) -> None:
        """The connection thread reads again what is not ours, or is wrong."""
        connected = self._connection._socket
        try:
            connected.read_ahead()
            while (frame := connected.frame()) is not None:
                if not self._take(frame):
                    return self.hand_over()
        except OSError:
            self.hand_over()
        return None

    # on the connection thread

    def opened(self) -> None:
        """The connection is made and authenticated."""
        self._is_open = True
        connected = self._connection._socket
        if not connected.is_encrypted:
            self._calls.soon(self._start_reading, connected)

    def _state_changed(self, state: Any) -> None:
        """kazoo fails what is in flight; a request sent after that would have no answer."""
        with self._lock:
            self._is_open = self._is_direct = False
        self._calls.soon(self._end_reading)
        self._report_state(state)

    def _is_read_directly(self) -> bool:
        """Called before the thread waits."""
        client, connected = self._client, self._connection._socket
        with self._lock:
            if self._is_handed_over:
                self._is_handed_over = False
            elif self._is_open and not self._is_direct and not client._queue and not client._pending:
                self._is_direct = connected.can_send_now() and not connected.has_frame()
                if self._is_direct:
                    self._calls.soon(self._resume_reading)
            return self._is_direct

    def _send(self, read_timeout: float, connect_timeout: float) -> None:
        queue = self._client._queue
        parts: list[bytes] = []
        with self._lock:
            self._is_direct = self._is_direct and not queue
            while len(parts) < 2 * _MOST_AT_ONCE and queue:
                requests, _ = queue[0]
                if not isinstance(requests, Requests):
                    break
                parts += self._framed(requests, _MOST_AT_ONCE)
                if requests.all_sent:
                    queue.popleft()
                    self._connection._read_sock.recv(1)
            if parts:
                self._connection._socket.send(b"".join(parts))
            else:
                self._send_own(read_timeout, connect_timeout)

    def _read(self, read_timeout: float) -> Any:
        """Raises OSError; kazoo logs its text and reconnects."""
        with self._lock:
            self._is_direct = False
            connected = self._connection._socket
            connected.read_ahead()
            while (frame := connected.frame()) is not None:
                if self._take(frame):
                    continue
                if REPLY_HEADER.unpack_from(frame)[0] == _WATCH_XID:
                    self._report_event(frame)
                if (answered := self._read_own(read_timeout)) is not None:
                    return answered
        return None

    # on both, with the lock

    def _framed(self, requests: Requests, most: int) -> list[bytes]:
        """Frames, in parts, of the next ``requests``, which are then in flight."""
        parts: list[bytes] = []
        for body in requests.take(most):
            self._connection._xid = xid = self._connection._xid % 0x7FFFFFFF + 1
            parts += (_REQUEST_HEAD.pack(_XID_AND_TYPE_BYTES + len(body), xid, requests.type), body)
            self._client._pending.append((requests, requests, xid))
        return parts

    def _take(self, frame: bytes) -> bool:
        """Consume and handle a frame that is nothing to kazoo. Raises OSError."""
        client, connected = self._client, self._connection._socket
        if len(frame) < REPLY_HEADER.size:
            raise OSError(errno.EPROTO, f"a response of {len(frame)} bytes")
        xid, zxid, code = REPLY_HEADER.unpack_from(frame)
        if xid == _PING_XID:
            connected.take_frame()
            self._connection.ping_outstanding.clear()
            return True
        if xid == _WATCH_XID and not client._data_watchers and not client._child_watchers:
            self._report_event(frame)
            connected.take_frame()
            return True
        pending = client._pending
        requests, _, expected = pending[0] if pending else (None, None, 0)
        if xid < 0 or not isinstance(requests, Requests):
            return False
        if xid != expected:
            raise OSError(errno.EPROTO, f"a response to request {xid}, expected {expected}")
        connected.take_frame()
        pending.popleft()
        if zxid > 0:
            client.last_zxid = zxid
        requests.answer(code, frame)
        return True

    def _report_event(self, frame: bytes) -> None:
        try:
            self._on_watch(frame, REPLY_HEADER.size)
        except (ValueError, struct.error) as e:
            raise OSError(errno.EPROTO, f"an event that cannot be read: {e}") from None
