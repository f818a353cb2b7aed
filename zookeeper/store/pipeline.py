"""Many requests under way at once: what kazoo's queues hold of ours, and how its thread sends and reads them.

kazoo goes round its loop once for each request and each answer, through a dozen calls and with a result that has a
lock of its own. Here one object stands for all requests of a batch, in its queue and as their result; each round sends
many of them and reads all answers that have come. Nothing is imported from kazoo: its connection is given.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any

import trio

log = logging.getLogger(__name__)

#: requests that are written at once
_MOST_AT_ONCE = 64
#: length, xid, opcode
_REQUEST_HEAD = struct.Struct(">iii")
_XID_AND_TYPE_BYTES = 8
#: xid, zxid, error
_REPLY_HEADER = struct.Struct(">iqi")


def in_trio(token: trio.lowlevel.TrioToken, call: Callable[..., object], *args: object) -> None:
    try:
        token.run_sync_soon(call, *args)
    except trio.RunFinishedError:
        log.debug("ZooKeeper said something after the end: %s", call)


class Requests:
    """Requests of one opcode, sent in order and answered in order; at least one.

    For each of ``indexes``, ``body`` makes its bytes, ``read`` makes an answer of the frame and the offset behind its
    header, and ``failed`` one of ZooKeeper's error code, all on kazoo's thread; what ``read`` raises is the answer.
    ``done`` is called when ``answers`` has them all. kazoo takes it for a request and for that request's result.
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
        #: why no more was sent, when a body could not be made
        self.fault: Exception | None = None

    @property
    def all_sent(self) -> bool:
        return self._sent == self._count

    def take(self, most: int) -> list[bytes]:
        """The bodies of the next requests, which count as sent."""
        bodies: list[bytes] = []
        try:
            bodies.extend(map(self._body, self._indexes[self._sent : self._sent + most]))
        except Exception as e:  # noqa: BLE001 - left to the waiting task
            self.fault = e
            self._count = self._sent + len(bodies)
        self._sent += len(bodies)
        if self.fault and len(self.answers) == self._count:
            self._done()
        return bodies

    def answer(self, code: int, frame: bytes) -> None:
        """To the first that has none."""
        index = self._indexes[len(self.answers)]
        try:
            answer = self._failed(index, code) if code else self._read(index, frame, _REPLY_HEADER.size)
        except Exception as e:  # noqa: BLE001 - left to the waiting task
            answer = e
        self._told([answer])

    def set_exception(self, error: Exception) -> None:
        """By kazoo, when the connection breaks: once for each request that was sent, and then for the rest, if it is
        in its queue. On the trio thread if there is no connection thread any more, more than once then."""
        under_way = self._sent > len(self.answers)
        self._told([error] * (1 if under_way else self._count - len(self.answers)))

    def _told(self, answers: list[Any]) -> None:
        self.answers += answers
        if answers and len(self.answers) == self._count:
            self._done()


def take_over(client: Any) -> None:
    """Have the thread of this KazooClient, which has not been started, send and read Requests."""
    connection = client._connection
    send_one, read_one = connection._send_request, connection._read_socket
    client.handler.poller.under_way = lambda: len(client._pending)

    def send(read_timeout: float, connect_timeout: float) -> None:
        queue, pending = client._queue, client._pending
        parts: list[bytes] = []
        while len(parts) < 2 * _MOST_AT_ONCE and queue and isinstance(queue[0][0], Requests):
            requests = queue[0][0]
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
        """Raises OSError, with a text that kazoo logs before it connects again."""
        connected = connection._socket
        connected.read_ahead()
        while (frame := connected.frame()) is not None:
            if len(frame) < _REPLY_HEADER.size:
                raise OSError(errno.EPROTO, f"an answer of {len(frame)} bytes")
            xid, zxid, code = _REPLY_HEADER.unpack_from(frame)
            pending = client._pending
            if xid < 0 or not pending or not isinstance(pending[0][0], Requests):  # a watch, a ping, asked by kazoo
                if (answered := read_one(read_timeout)) is not None:
                    return answered
                continue
            connected.take_frame()
            requests, _, expected = pending[0]
            if xid != expected:
                raise OSError(errno.EPROTO, f"the answer to request {xid} where that to {expected} was due")
            pending.popleft()
            if zxid > 0:
                client.last_zxid = zxid
            requests.answer(code, frame)
        return None

    connection._send_request, connection._read_socket = send, read
