"""Requests to ZooKeeper that wait for their answers. Imports nothing from kazoo."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

#: of a response: xid, zxid, error
REPLY_HEADER = struct.Struct(">iqi")


class Requests:
    """One or more requests of one opcode, sent and answered in order.

    For each of ``indexes``: ``body`` builds the request, ``read`` decodes a response from the frame and the offset
    behind its header, ``failed`` takes an error code. An exception of ``read`` becomes the answer. ``done`` is called
    when ``answers`` is complete. All are called on the thread that sends or reads, and must not wait. kazoo uses the
    object as a request and as that request's result.
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
        self.count = len(indexes)
        #: the error of a body that could not be built; nothing was sent after it
        self.fault: Exception | None = None

    @property
    def all_sent(self) -> bool:
        return self._sent == self.count

    def take(self, most: int) -> list[bytes]:
        """Bodies of the next requests, which then count as sent."""
        bodies: list[bytes] = []
        try:
            bodies.extend(map(self._body, self._indexes[self._sent : self._sent + most]))
        except Exception as e:  # noqa: BLE001 - raised in the waiting task
            self.fault = e
            self.count = self._sent + len(bodies)
        self._sent += len(bodies)
        if self.fault and len(self.answers) == self.count:
            self._done()
        return bodies

    def answer(self, code: int, frame: bytes) -> None:
        """Answer the first request without an answer."""
        index = self._indexes[len(self.answers)]
        try:
            answer = self._failed(index, code) if code else self._read(index, frame, REPLY_HEADER.size)
        except Exception as e:  # noqa: BLE001 - raised in the waiting task
            answer = e
        self._add([answer])

    def set_exception(self, error: Exception) -> None:
        """kazoo calls it when the connection breaks: once for each request in flight, then once for those in its queue.
        Without a connection thread, it calls it on the Trio thread, perhaps repeatedly."""
        under_way = self._sent > len(self.answers)
        self._add([error] * (1 if under_way else self.count - len(self.answers)))

    def _add(self, answers: list[Any]) -> None:
        self.answers += answers
        if answers and len(self.answers) == self.count:
            self._done()
