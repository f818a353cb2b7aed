"""Two threads send and read on one connection: the Trio thread itself where that is faster, else kazoo's."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel

from kce.zookeeper.store.buffered_socket import BufferedSocket, Poller, WakeUp
from kce.zookeeper.store.pipeline import Pipeline
from kce.zookeeper.store.requests import Requests
from kce.zookeeper.store.trio_calls import TrioCalls

PING, KAZOOS_OWN, EVENT, READ = 11, 77, -1, 4


class Server:
    """Answers each request with the beginning of its body, when it is told to."""

    def __init__(self, connected: socket.socket) -> None:
        self.connected = connected
        self.requests: deque[tuple[int, int, bytes]] = deque()
        self._received = b""

    def receive(self) -> None:
        """Wait for more requests."""
        data = self.connected.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        self._received += data
        while len(self._received) >= 4 and len(self._received) >= 4 + struct.unpack_from(">i", self._received)[0]:
            length, xid, opcode = struct.unpack_from(">iii", self._received)
            self.requests.append((xid, opcode, self._received[12 : 4 + length]))
            self._received = self._received[4 + length :]

    def answer(self) -> None:
        while not self.requests:
            self.receive()
        xid, _, body = self.requests.popleft()
        self.send(xid, body[:20])

    def send(self, xid: int, body: bytes) -> None:
        self.connected.sendall(struct.pack(">iiqi", 16 + len(body), xid, 1, 0) + body)


class WatchedPoller(Poller):
    is_waiting = False

    def _ready(self, readers: Sequence[Any], timeout: float | None) -> list[Any]:
        self.is_waiting = True
        try:
            return super()._ready(readers, timeout)
        finally:
            self.is_waiting = False


class Kazoo:
    """A stand-in for a connected KazooClient, with its loop on a thread."""

    def __init__(self, connected: BufferedSocket, lock: threading.RLock) -> None:
        self._queue: deque[tuple[Any, Any]] = deque()
        self._pending: deque[tuple[Any, Any, int]] = deque()
        self._data_watchers: dict[str, Any] = {}
        self._child_watchers: dict[str, Any] = {}
        self.last_zxid = 0
        self.handler = SimpleNamespace(poller=WatchedPoller(), lock=lock)
        self._wake_up = WakeUp()
        self._connection = SimpleNamespace(
            _xid=0,
            _socket=connected,
            _read_sock=self._wake_up,
            _write_sock=self._wake_up,
            _send_request=self._send_own,
            _read_socket=self._read_own,
            ping_outstanding=threading.Event(),
        )
        self.state = "CONNECTED"
        self.own: list[bytes] = []
        self.timeout_s = 30.0
        self.woken_by: list[str] = []
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self.is_stopped = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.is_stopped = True
        self._wake_up.send(b"\0")
        self._thread.join()
        self._wake_up.close()

    def _loop(self) -> None:
        connection = self._connection
        try:
            while not self.is_stopped:
                ready, _, _ = self.handler.poller.wait([connection._socket, self._wake_up], [], self.timeout_s)
                if connection._socket in ready:
                    self.woken_by.append("socket")
                    connection._read_socket(1.0)
                if self._wake_up in ready:
                    self.woken_by.append("wake-up")
                    connection._send_request(1.0, 1.0)
        except OSError:
            pass
        self._session_callback("CONNECTING")
        connection._socket.close()

    def _session_callback(self, state: str) -> None:
        self.state = state
        for waiting in (self._pending, self._queue):
            while waiting:
                waiting.popleft()[1].set_exception(ConnectionError("lost"))

    def _call(self, request: Any, result: Any) -> None:
        self._queue.append((request, result))
        self._wake_up.send(b"\0")

    def _send_own(self, read_timeout: float, connect_timeout: float) -> None:
        if self._queue:
            request, result = self._queue.popleft()
            self._connection._xid += 1
            xid = self._connection._xid
            self._connection._socket.send(struct.pack(">iii", 8 + len(request.body), xid, request.type) + request.body)
            self._pending.append((request, result, xid))
        self._wake_up.recv(1)

    def _read_own(self, read_timeout: float) -> None:
        assert threading.current_thread() is self._thread
        frame = self._connection._socket.frame()
        self._connection._socket.take_frame()
        self.own.append(frame[16:])
        if struct.unpack_from(">i", frame)[0] >= 0:
            self._pending.popleft()[1].set(frame[16:])


class Case:
    def __init__(self, kazoo: Kazoo, pipeline: Pipeline, server: Server) -> None:
        self.kazoo = kazoo
        self.pipeline = pipeline
        self.server = server
        #: bodies of answers and events, in the order in which they are heard of
        self.heard: list[bytes | str] = []
        self.read_on: list[threading.Thread] = []

    def call(self, *bodies: bytes) -> Requests:
        def read(i: int, buffer: bytes, offset: int) -> bytes:
            self.read_on.append(threading.current_thread())
            return buffer[offset:]

        made = Requests(READ, range(len(bodies)), bodies.__getitem__, read, lambda i, code: code, lambda: done())
        done: Callable[[], None] = lambda: self.calls.soon(self.heard.extend, made.answers)  # noqa: E731
        self.pipeline.call(made)
        return made

    def own(self, body: bytes) -> None:
        self.kazoo._call(SimpleNamespace(type=KAZOOS_OWN, body=body), SimpleNamespace(set=lambda value: None))

    calls: TrioCalls

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(30):
            while not condition():  # noqa: ASYNC110 - of threads
                await trio.sleep(0.001)

    async def until_direct(self) -> None:
        """Until the Trio thread reads, and the other one sleeps."""
        await self.until(lambda: self.pipeline._is_direct and self.kazoo.handler.poller.is_waiting)


@asynccontextmanager
async def connection() -> AsyncIterator[Case]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(30)
    lock = threading.RLock()
    with theirs:
        kazoo = Kazoo(BufferedSocket(ours, lock), lock)
        calls = TrioCalls(trio.lowlevel.current_trio_token())
        heard: list[bytes | str] = []
        pipeline = Pipeline(kazoo, lambda frame, at: calls.soon(heard.append, frame[at:]), calls)
        case = Case(kazoo, pipeline, Server(theirs))
        case.calls, case.heard = calls, heard
        try:
            yield case
        finally:
            await trio.to_thread.run_sync(kazoo.stop)


@asynccontextmanager
async def opened() -> AsyncIterator[Case]:
    async with connection() as case:
        case.pipeline.opened()
        case.kazoo.start()
        await case.until_direct()
        yield case


@contextlib.contextmanager
def held_by_another_thread(lock: threading.RLock) -> Iterator[None]:
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


async def test_a_small_batch_neither_wakes_the_connection_thread_nor_is_woken_by_it() -> None:
    async with opened() as case:
        case.kazoo.woken_by.clear()
        for body in (b"one", b"two"):
            case.call(body)
            case.server.answer()
            await case.until(lambda body=body: case.heard[-1:] == [body])  # type: ignore[misc]
        case.server.send(EVENT, b"event")
        case.kazoo._connection.ping_outstanding.set()
        case.server.send(-2, b"")
        await case.until(lambda: not case.kazoo._connection.ping_outstanding.is_set())
        assert case.heard == [b"one", b"two", b"event"]
        assert case.kazoo.last_zxid == 1
        assert case.read_on == [threading.current_thread()] * 2
        assert case.kazoo.woken_by == []


async def test_before_it_is_open_and_after_it_has_broken_requests_are_kazoos() -> None:
    async with connection() as case:
        early = case.call(b"early")
        assert list(case.kazoo._queue) == [(early, early)]
        case.pipeline.opened()
        behind = case.call(b"behind")  # in its turn
        assert list(case.kazoo._queue) == [(early, early), (behind, behind)]
        case.kazoo.start()
        case.server.answer()
        case.server.answer()
        await case.until(lambda: case.heard == [b"early", b"behind"])
        await case.until_direct()
        lost = case.call(b"lost")
        case.server.connected.close()
        await case.until(lambda: case.kazoo.state == "CONNECTING")
        assert [type(answer) for answer in lost.answers] == [ConnectionError]
        after = case.call(b"after")
        assert list(case.kazoo._queue) == [(after, after)]


async def test_a_large_batch_and_kazoos_own_requests_are_for_the_connection_thread() -> None:
    async with opened() as case:
        bodies = [b"%d" % i for i in range(17)]
        case.call(*bodies)
        for _ in bodies:
            case.server.answer()
        await case.until(lambda: len(case.heard) == len(bodies))
        await case.until_direct()
        case.own(b"own")
        case.server.answer()
        await case.until(lambda: case.kazoo.own == [b"own"])
        assert set(case.read_on) == {case.kazoo._thread}
        await case.until_direct()
        case.call(*bodies[:16])
        for _ in bodies[:16]:
            case.server.answer()
        await case.until(lambda: len(case.heard) == 33)
        assert case.heard == [*bodies, *bodies[:16]]
        assert set(case.read_on[17:]) == {threading.current_thread()}


async def test_with_tls_the_connection_thread_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BufferedSocket, "is_encrypted", True)
    monkeypatch.delattr(BufferedSocket, "duplicate")  # TLS sockets have none
    async with connection() as case:
        case.pipeline.opened()
        case.kazoo.start()
        for body in (b"one", b"two"):
            case.call(body)
            case.server.answer()
            await case.until(lambda body=body: case.heard[-1:] == [body])  # type: ignore[misc]
        assert case.read_on == [case.kazoo._thread] * 2
        assert not case.pipeline._is_direct


async def test_many_in_flight_wait_in_the_queue() -> None:
    async with opened() as case:
        for i in range(64):
            case.call(b"%d" % i)
        assert len(case.kazoo._pending) == 64
        case.kazoo.woken_by.clear()
        case.call(b"64")
        await case.until(lambda: "wake-up" in case.kazoo.woken_by)
        with held_by_another_thread(case.kazoo.handler.lock):
            case.call(b"65")
            case.call(b"66")
            assert [requests.count for requests, _ in case.kazoo._queue] == [1, 1]
        for _ in range(67):
            case.server.answer()
        await case.until(lambda: len(case.heard) == 67)
        assert case.heard == [b"%d" % i for i in range(67)]


async def test_no_thread_waits_for_the_other_one() -> None:
    async with opened() as case:
        with held_by_another_thread(case.kazoo.handler.lock):
            case.call(b"queued")
            assert len(case.kazoo._queue) == 1
            case.server.send(EVENT, b"event")
            await case.until(lambda: not case.pipeline._is_direct)  # it is left to the connection thread
        case.server.answer()
        await case.until(lambda: len(case.heard) == 2)
        assert case.heard == [b"event", b"queued"]


async def test_the_connection_thread_reads_when_the_trio_thread_is_late() -> None:
    async with opened() as case:
        case.kazoo.timeout_s = 0.02
        case.pipeline.hand_over()
        await case.until_direct()
        case.call(b"late")
        case.server.answer()
        while not case.read_on:  # the Trio thread is busy
            pass
        assert case.read_on == [case.kazoo._thread]
        await case.until(lambda: case.heard == [b"late"])


@pytest.mark.parametrize("wrong", ["closed", "xid", "short", "negative", "event"])
async def test_what_is_wrong_is_reported_by_the_connection_thread(wrong: str) -> None:
    async with opened() as case:
        lost = case.call(b"lost")
        match wrong:
            case "closed":
                case.server.connected.close()
            case "xid":
                case.server.send(7, b"")
            case "short":
                case.server.connected.sendall(struct.pack(">ihb", 3, 0, 0))
            case "negative":
                case.server.connected.sendall(struct.pack(">i", -2))
            case "event":
                case.pipeline._on_watch = lambda frame, at: (_ for _ in ()).throw(ValueError("cut"))
                case.server.send(EVENT, b"")
        await case.until(lambda: case.kazoo.state == "CONNECTING")
        assert [type(answer) for answer in lost.answers] == [ConnectionError]


async def test_a_connection_that_breaks_while_nothing_is_in_flight_is_reported_at_once() -> None:
    async with opened() as case:
        case.kazoo.woken_by.clear()
        case.server.connected.close()
        await case.until(lambda: case.kazoo.state == "CONNECTING")
        assert case.kazoo.woken_by == ["wake-up", "socket"]  # the threads do not hand it to each other


async def test_an_event_for_which_kazoo_has_watchers_is_also_kazoos() -> None:
    async with opened() as case:
        case.kazoo._data_watchers["/a"] = None
        case.server.send(EVENT, b"event")
        await case.until(lambda: case.kazoo.own == [b"event"])
        await case.until(lambda: case.heard == [b"event"])


async def test_a_socket_that_takes_no_more_keeps_the_rest_for_the_connection_thread() -> None:
    async with opened() as case:
        case.call(bytes(1 << 22))
        answer = threading.Thread(target=case.server.answer)
        answer.start()
        await case.until(lambda: case.heard == [bytes(20)])
        await trio.to_thread.run_sync(answer.join)


@pytest.mark.parametrize("seed", range(5))
async def test_whoever_reads_answers_and_events_keep_the_servers_order(seed: int) -> None:
    random, count = Random(seed), 600
    async with opened() as case:
        case.kazoo.timeout_s = 0.001
        expected: list[bytes] = []
        sizes = [random.choice([1, 1, 1, 2, 16, 17, 100]) for _ in range(count)]

        def serve() -> None:
            for i in range(sum(sizes)):
                if i % 3 == 0:
                    case.server.send(EVENT, b"event %d" % i)
                case.server.answer()

        server = threading.Thread(target=serve)
        server.start()
        calls = []
        for number, size in enumerate(sizes):
            calls.append(case.call(*(b"%d-%d" % (number, i) for i in range(size))))
            match random.randrange(8):
                case 0:
                    case.pipeline.hand_over()
                case 1:
                    await trio.lowlevel.checkpoint()
                case 2:
                    await case.until(lambda: calls[-1].count == len(calls[-1].answers))
                case 3:
                    await case.until_direct()
        await case.until(lambda: all(made.count == len(made.answers) for made in calls))
        await trio.to_thread.run_sync(server.join)
        done = 0
        for number, size in enumerate(sizes):
            answers = [b"%d-%d" % (number, i) for i in range(size)]
            assert calls[number].answers == answers
            expected += [b"event %d" % i for i in range(done, done + size) if i % 3 == 0]
            expected += answers
            done += size
        await case.until(lambda: len(case.heard) == len(expected))
        assert case.heard == expected
        assert len(set(case.read_on)) == 2


async def test_calls_after_the_end_of_the_run_are_dropped() -> None:
    calls: list[TrioCalls] = []

    async def short() -> None:
        calls.append(TrioCalls(trio.lowlevel.current_trio_token()))

    await trio.to_thread.run_sync(trio.run, short)
    calls[0].soon(pytest.fail, "called")
