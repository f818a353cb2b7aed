"""Many requests as one in kazoo's queues: its callbacks for each, even if the connection breaks."""

from __future__ import annotations

import struct
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kce.zookeeper.store.pipeline import Pipeline
from kce.zookeeper.store.requests import Requests
from kce.zookeeper.store.trio_calls import TrioCalls


def frame(xid: int, code: int = 0, body: bytes = b"", zxid: int = 7) -> bytes:
    return struct.pack(">iqi", xid, zxid, code) + body


class Socket:
    """What the thread uses of a BufferedSocket."""

    def __init__(self) -> None:
        self.sent = b""
        self.received: list[int] = []
        self.arrived: list[bytes] = []
        self.frames: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        self.sent += data

    def recv(self, size: int) -> bytes:
        self.received.append(size)
        return b"\0"

    def read_ahead(self) -> None:
        self.frames += self.arrived
        self.arrived.clear()

    def frame(self) -> bytes | None:
        return self.frames[0] if self.frames else None

    def take_frame(self) -> None:
        self.frames.popleft()

    def requests(self) -> list[tuple[int, int, bytes]]:
        """Xid, opcode and body of what was sent since."""
        found, data, self.sent = [], self.sent, b""
        while data:
            length, xid, opcode = struct.unpack_from(">iii", data)
            found.append((xid, opcode, data[12 : 4 + length]))
            data = data[4 + length :]
        return found


class Kazoo:
    """A stand-in for KazooClient that records the calls to its own methods."""

    def __init__(self) -> None:
        self.own: list[str] = []
        self.socket = Socket()
        self._queue: deque[tuple[Any, Any]] = deque()
        self._pending: deque[tuple[Any, Any, int]] = deque()
        self.last_zxid = 0
        self.handler = SimpleNamespace(poller=SimpleNamespace(), lock=threading.RLock())
        self._connection = SimpleNamespace(
            _xid=0,
            _socket=self.socket,
            _read_sock=self.socket,
            _send_request=lambda read_timeout, connect_timeout: self.own.append("sent"),
            _read_socket=self._read_own,
            ping_outstanding=threading.Event(),
        )
        self._session_callback = self.own.append
        self.events: list[bytes] = []
        self._data_watchers: dict[str, Any] = {}
        self._child_watchers: dict[str, Any] = {}
        Pipeline(self, self._watch, cast(TrioCalls, SimpleNamespace(soon=lambda call, *args: None)))

    def _watch(self, frame: bytes, offset: int) -> None:
        self.events.append(frame[offset:])
        struct.unpack_from(">i", frame, offset)

    def _read_own(self, read_timeout: float) -> str | None:
        self.own.append("read")
        self.socket.take_frame()
        return "closed" if len(self.own) > 2 else None

    def send(self) -> None:
        self._connection._send_request(1.0, 1.0)

    def read(self) -> Any:
        return self._connection._read_socket(1.0)

    def answer(self, *frames: bytes) -> Any:
        self.socket.arrived += frames
        return self.read()

    def break_off(self, error: Exception) -> None:
        """Fail all requests as kazoo does when the connection breaks."""
        for _, result, _ in self._pending:
            result.set_exception(error)
        for _, result in self._queue:
            result.set_exception(error)
        self._pending.clear()
        self._queue.clear()


class Batch:
    def __init__(self, kazoo: Kazoo, count: int, opcode: int = 4, *, bad: int | None = None) -> None:
        self.done = 0
        self._bad = bad
        self.requests = Requests(
            opcode, range(count), self._body, lambda i, data, at: (i, data[at:]), lambda i, code: (i, code), self._done
        )
        kazoo._queue.append((self.requests, self.requests))

    def _body(self, i: int) -> bytes:
        if i == self._bad:
            raise ValueError("no body")
        return b"%d" % i

    def _done(self) -> None:
        self.done += 1

    @property
    def answers(self) -> list[Any]:
        return self.requests.answers


def test_all_are_sent_in_order_and_answered_in_order() -> None:
    kazoo = Kazoo()
    batch = Batch(kazoo, 150)
    sent = []
    rounds = 0
    while kazoo._queue:
        kazoo.send()
        sent += kazoo.socket.requests()
        rounds += 1
    assert rounds == 3  # 64 at once
    assert sent == [(i + 1, 4, b"%d" % i) for i in range(150)]
    assert kazoo.handler.poller.under_way() == 150
    kazoo.answer(*(frame(i + 1, -101 if i % 2 else 0, b"!") for i in range(149)))
    assert not batch.done
    kazoo.answer(frame(150, body=b"last", zxid=9))
    assert batch.done == 1
    assert batch.answers == [(i, -101) if i % 2 else (i, b"!") for i in range(149)] + [(149, b"last")]
    assert kazoo.last_zxid == 9
    assert kazoo.socket.received == [1]  # one byte wakes the thread for each in the queue


def test_an_answer_without_a_zxid_says_nothing_of_it() -> None:
    kazoo = Kazoo()
    Batch(kazoo, 4)
    kazoo.send()
    seen = []
    for xid, zxid in ((1, 0), (2, 1), (3, -1), (4, 2)):
        kazoo.answer(frame(xid, zxid=zxid))
        seen.append(kazoo.last_zxid)
    assert seen == [0, 1, 1, 2]


def test_small_ones_share_a_write_and_kazoos_own_keep_their_place() -> None:
    kazoo = Kazoo()
    first, second = Batch(kazoo, 2, 4), Batch(kazoo, 1, 14)
    kazoo._queue.append((SimpleNamespace(type=-11), None))
    third = Batch(kazoo, 1)
    kazoo.send()
    assert [(xid, opcode) for xid, opcode, _ in kazoo.socket.requests()] == [(1, 4), (2, 4), (3, 14)]
    kazoo.send()
    assert kazoo.own == ["sent"]
    assert not kazoo.socket.requests()
    kazoo._queue.popleft()
    kazoo.send()
    assert [xid for xid, _, _ in kazoo.socket.requests()] == [4]
    kazoo._connection.ping_outstanding.set()
    kazoo.answer(frame(1), frame(2), frame(-2), frame(3))  # a ping between them
    assert not kazoo._connection.ping_outstanding.is_set()
    kazoo.answer(frame(-4))  # an answer to authentication
    assert kazoo.own == ["sent", "read"]
    assert (first.done, second.done, third.done) == (1, 1, 0)
    kazoo._pending.appendleft((SimpleNamespace(type=-11), None, 3))
    assert kazoo.answer(frame(3), frame(4)) == "closed"
    assert third.done == 0


def test_xids_begin_again() -> None:
    kazoo = Kazoo()
    kazoo._connection._xid = 0x7FFFFFFF - 1
    batch = Batch(kazoo, 2)
    kazoo.send()
    assert [xid for xid, _, _ in kazoo.socket.requests()] == [0x7FFFFFFF, 1]
    kazoo.answer(frame(0x7FFFFFFF), frame(1))
    assert batch.done == 1


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
@pytest.mark.parametrize("answered", [0, 10, 64, 128, 150])
def test_a_connection_that_breaks_leaves_nothing_without_an_answer(sent: int, answered: int) -> None:
    kazoo = Kazoo()
    batch = Batch(kazoo, 150)
    for _ in range(sent):
        kazoo.send()
    answered = min(answered, sent * 64, 150)
    kazoo.answer(*(frame(i + 1, body=b"!") for i in range(answered)))
    lost = ConnectionError("lost")
    kazoo.break_off(lost)
    assert batch.answers == [(i, b"!") for i in range(answered)] + [lost] * (150 - answered)
    batch.requests.set_exception(lost)  # kazoo reports a closed connection twice
    assert (len(batch.answers), batch.done) == (150, 1)


@pytest.mark.parametrize("bad", [0, 10, 100])
def test_a_body_that_cannot_be_made(bad: int) -> None:
    kazoo = Kazoo()
    batch = Batch(kazoo, 150, bad=bad)
    behind = Batch(kazoo, 1)
    while kazoo._queue:
        kazoo.send()
    assert len(kazoo.socket.requests()) == bad + 1
    kazoo.answer(*(frame(i + 1) for i in range(bad + 1)))
    assert (batch.done, behind.done) == (1, 1)
    assert isinstance(batch.requests.fault, ValueError)


def test_what_cannot_be_read_is_its_answer() -> None:
    kazoo = Kazoo()

    def read(i: int, data: bytes, at: int) -> None:
        raise ValueError("what is this?")

    calls: list[str] = []
    requests = Requests(4, [0], lambda i: b"", read, lambda i, code: None, lambda: calls.append("done"))
    kazoo._queue.append((requests, requests))
    kazoo.send()
    kazoo.answer(frame(1))
    assert calls == ["done"]
    assert isinstance(requests.answers[0], ValueError)


def test_events_of_watches_come_between_answers() -> None:
    kazoo = Kazoo()
    batch = Batch(kazoo, 2)
    kazoo.send()
    kazoo.answer(frame(1), frame(-1, body=b"event"), frame(2))
    assert (batch.done, kazoo.events, kazoo.own) == (1, [b"event"], [])
    assert kazoo.last_zxid == 7
    for watchers in (kazoo._data_watchers, kazoo._child_watchers):
        watchers["/a"] = None
        kazoo.answer(frame(-1, body=b"event"))
        watchers.clear()
    assert (kazoo.events, kazoo.own) == ([b"event"] * 3, ["read"] * 2)
    with pytest.raises(OSError, match="an event that cannot be read"):
        kazoo.answer(frame(-1, body=b"cut", zxid=9))
    assert kazoo.last_zxid == 7  # an event's is none


@pytest.mark.parametrize("wrong", [frame(2), b"", frame(1)[:15]])
def test_an_answer_out_of_turn_or_cut_breaks_the_connection(wrong: bytes) -> None:
    kazoo = Kazoo()
    batch = Batch(kazoo, 2)
    kazoo.send()
    with pytest.raises(OSError, match="a response"):
        kazoo.answer(wrong)
    lost = ConnectionError("lost")
    kazoo.break_off(lost)
    assert batch.answers == [lost, lost]
