"""Pipelined requests on kazoo's connection.

kazoo runs its loop once for each request and each response, with a dozen calls and a result object with its own lock.
Here one object represents all requests of a batch, in kazoo's queue and as their result; each iteration sends many of
them and reads all available responses. Imports nothing from kazoo.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any

import trio

log = logging.getLogger(__name__)

#: requests that one iteration sends
_MOST_AT_ONCE = 64
#: length, xid, opcode
_REQUEST_HEAD = struct.Struct(">iii")
_XID_AND_TYPE_BYTES = 8
_WATCH_XID = -1
#: xid, zxid, error
_REPLY_HEADER = struct.Struct(">iqi")


def in_trio(token: trio.lowlevel.TrioToken, call: Callable[..., object], *args: object) -> None:
    try:
        token.run_sync_soon(call, *args)
    except trio.RunFinishedError:
        log.debug("dropped, because the trio run has ended: %s", call)


class Requests:
    """One or more requests of one opcode, sent and answered in order.

    For each of ``indexes``, on kazoo's thread: ``body`` builds the request, ``read`` decodes a response from the frame
    and the offset behind its header, ``failed`` takes an error code. An exception of ``read`` becomes the answer.
    ``done`` is called when ``answers`` is complete. kazoo uses the object as a request and as that request's result.
    """

    def __init__(
        self,
        opcode: int,
        indexes: Sequence[int],
        body: Callable[[int], bytes],
        read: Callable[[int, bytes, int], Any],
        failed: Callable[[int, int], Any],
        done: Callable[[], None],
    ) -> None:
        self.type = opcode
        self.answers: list[Any] = []
        self._indexes = indexes
        self._body = body
        self._read = read
        self._failed = failed
        self._done = done
        self._sent = 0
        self._count = len(indexes)
        #: the error of a body that could not be built; nothing was sent after it
        self.fault: Exception | None = None

    @property
    def all_sent(self) -> bool:
        return self._sent == self._count

    def take(self, most: int) -> list[bytes]:
        """Bodies of the next requests, which then count as sent."""
        bodies: list[bytes] = []
        try:
            bodies.extend(map(self._body, self._indexes[self._sent : self._sent + most]))
        except Exception as e:  # noqa: BLE001 - raised in the waiting task
            self.fault = e
            self._count = self._sent + len(bodies)
        self._sent += len(bodies)
        if self.fault and len(self.answers) == self._count:
            self._done()
        return bodies

    def answer(self, code: int, frame: bytes) -> None:
        """Answer the first request without an answer."""
        index = self._indexes[len(self.answers)]
        try:
            answer = self._failed(index, code) if code else self._read(index, frame, _REPLY_HEADER.size)
        except Exception as e:  # noqa: BLE001 - raised in the waiting task
            answer = e
        self._add([answer])

    def set_exception(self, error: Exception) -> None:
        """kazoo calls it when the connection breaks: once for each request in flight, then once for those in its queue.
        Without a connection thread, it calls it on the Trio thread, perhaps repeatedly."""
        under_way = self._sent > len(self.answers)
        self._add([error] * (1 if under_way else self._count - len(self.answers)))

    def _add(self, answers: list[Any]) -> None:
        self.answers += answers
        if answers and len(self.answers) == self._count:
            self._done()


def take_over(client: Any, on_watch: Callable[[bytes, int], None]) -> None:
    """Make the connection thread of this KazooClient, not yet started, send and read Requests.

    It calls ``on_watch`` with the frame of each watch's event, and the offset behind its header.
    """
    connection = client._connection
    send_one, read_one = connection._send_request, connection._read_socket
    client.handler.poller.under_way = lambda: len(client._pending)

    def send(read_timeout: float, connect_timeout: float) -> None:
        queue, pending = client._queue, client._pending
        parts: list[bytes] = []
        while len(parts) < 2 * _MOST_AT_ONCE and queue:
            requests, _ = queue[0]
            if not isinstance(requests, Requests):
                break
            for body in requests.take(_MOST_AT_ONCE):
                connection._xid = xid = connection._xid % 0x7FFFFFFF + 1
                parts += (_REQUEST_HEAD.pack(_XID_AND_TYPE_BYTES + len(body), xid, requests.type), body)
                pending.append((requests, requests, xid))
            if requests.all_sent:
                queue.popleft()
                connection._read_sock.recv(1)
        if parts:
            connection._socket.send(b"".join(parts))
        else:
            send_one(read_timeout, connect_timeout)

    def read(read_timeout: float) -> Any:
        """Raises OSError; kazoo logs its text and reconnects."""
        connected = connection._socket
        connected.read_ahead()
        while (frame := connected.frame()) is not None:
            if len(frame) < _REPLY_HEADER.size:
                raise OSError(errno.EPROTO, f"a response of {len(frame)} bytes")
            xid, zxid, code = _REPLY_HEADER.unpack_from(frame)
            if xid == _WATCH_XID:
                try:
                    on_watch(frame, _REPLY_HEADER.size)
                except (ValueError, struct.error) as e:
                    raise OSError(errno.EPROTO, f"an event that cannot be read: {e}") from None
                if not client._data_watchers and not client._child_watchers:
                    connected.take_frame()
                    continue
            pending = client._pending
            requests, _, expected = pending[0] if pending else (None, None, 0)
            if xid < 0 or not isinstance(requests, Requests):  # an event or a ping, or kazoo's
                if (answered := read_one(read_timeout)) is not None:
                    return answered
                continue
            connected.take_frame()
            if xid != expected:
                raise OSError(errno.EPROTO, f"a response to request {xid}, expected {expected}")
            pending.popleft()
            if zxid > 0:
                client.last_zxid = zxid
            requests.answer(code, frame)
        return None

    connection._send_request, connection._read_socket = send, read
