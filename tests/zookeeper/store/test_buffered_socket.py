"""What stands between kazoo and its socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from kce.zookeeper.store.buffered_socket import BufferedSocket, Poller, WakeUp

Pair = tuple[BufferedSocket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield BufferedSocket(ours, threading.RLock()), theirs


@pytest.fixture
def wake_up() -> Iterator[WakeUp]:
    made = WakeUp()
    yield made
    made.close()


def test_what_is_read_ahead_is_given_in_pieces_and_without_waiting(pair: Pair) -> None:
    ours, theirs = pair
    poller = Poller()
    theirs.sendall(b"\0\0\0\2ab\0\0\0\1c")
    assert poller.wait([ours], [], 10)[0] == [ours]
    assert ours.recv(6) == b"\0\0\0\2ab"
    assert ours.pending() == 5
    assert poller.wait([ours], [], None)[0] == [ours]  # would hang, were it not known to wait here
    assert ours.recv(6) == b"\0\0\0\1c"
    assert poller.wait([ours], [], 0)[0] == []
    theirs.close()
    assert poller.wait([ours], [], 10)[0] == [ours]
    assert ours.recv(4) == b""


def test_half_a_frame_is_waited_for(pair: Pair, wake_up: WakeUp) -> None:
    ours, theirs = pair
    poller = Poller()
    theirs.sendall(b"\0\0\0\2a")
    assert poller.wait([ours, wake_up], [], 10)[0] == [ours]
    ours.read_ahead()
    assert poller.wait([ours, wake_up], [], 0)[0] == []
    ours.read_ahead()  # nothing has come
    theirs.sendall(b"b")
    assert poller.wait([ours, wake_up], [], 10)[0] == [ours]
    ours.read_ahead()
    assert ours.frame() == b"ab"


def test_what_is_written_goes_before_anyone_waits(pair: Pair) -> None:
    ours, theirs = pair
    poller = Poller()
    assert poller.wait([], [ours], 5)[1] == [ours]
    assert (ours.send(b"one"), ours.send(b"two")) == (3, 3)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)
    poller.wait([ours], [], 0)
    assert theirs.recv(10) == b"onetwo"


def test_a_server_that_does_not_read_times_out(pair: Pair) -> None:
    ours, theirs = pair
    Poller().wait([], [ours], 0.01)
    much = bytes(1 << 24)
    with pytest.raises(TimeoutError, match="does not read"):
        ours.send(much)
    assert theirs.recv(10) == bytes(10)


def test_large_writes_arrive_whole(pair: Pair) -> None:
    ours, theirs = pair
    sent = bytes(range(256)) * 300
    for begin in range(0, len(sent), 1000):
        ours.send(sent[begin : begin + 1000])
    ours.flush()
    got = b""
    while len(got) < len(sent):
        got += theirs.recv(1 << 20)
    assert got == sent


def test_what_is_sent_now_goes_without_waiting_and_the_rest_is_buffered(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.can_send_now()
    assert ours.send_now(b"")
    assert ours.send_now(b"now")
    assert theirs.recv(10) == b"now"
    much = bytes(range(256)) * (1 << 16)
    assert not ours.send_now(much)
    assert not ours.can_send_now()
    rest = threading.Thread(target=ours.flush)
    rest.start()
    got = b""
    while len(got) < len(much):
        got += theirs.recv(1 << 20)
    rest.join()
    assert got == much
    assert ours.can_send_now()
    theirs.close()
    ours.send_now(b"lost")  # who reads notices it
    with pytest.raises(ConnectionError):
        ours.read_ahead()


def test_tls_is_for_one_thread() -> None:
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    with theirs, context.wrap_socket(ours, server_hostname="host", do_handshake_on_connect=False) as encrypted:
        made = BufferedSocket(encrypted, threading.RLock())
        assert made.is_encrypted
        assert not made.can_send_now()


def test_a_duplicate_ends_with_its_socket(pair: Pair) -> None:
    ours, theirs = pair
    with ours.duplicate() as duplicate:
        theirs.sendall(b"here")
        assert Poller().wait([duplicate], [], 10)[0] == [duplicate]
        ours.close()
        assert theirs.recv(10) == b""
    with pytest.raises(OSError, match="Bad file"):
        ours.duplicate()


def test_while_another_thread_reads_only_a_wake_up_or_the_timeout_ends_the_wait(pair: Pair, wake_up: WakeUp) -> None:
    ours, theirs = pair
    poller, elsewhere = Poller(), True
    poller.is_read_elsewhere = lambda: elsewhere
    ours.send(b"ping")
    assert poller.wait([ours, wake_up], [], 0)[0] == []
    assert theirs.recv(10) == b"ping"
    theirs.sendall(b"\0\0\0\0")
    wake_up.send(b"\0")
    assert poller.wait([ours, wake_up], [], 10)[0] == [wake_up]
    wake_up.recv(1)
    assert poller.wait([ours, wake_up], [], 0.01)[0] == [ours]  # the other thread is late
    assert poller.wait([ours], [], 10)[0] == [ours]  # within a response
    elsewhere = False
    assert poller.wait([ours, wake_up], [], 10)[0] == [ours]


def test_one_wake_up_for_many_requests(wake_up: WakeUp) -> None:
    poller = Poller()
    assert poller.wait([wake_up], [], 0)[0] == []
    for _ in range(3):
        wake_up.send(b"\0")
    for _ in range(3):
        assert poller.wait([wake_up], [], 0)[0] == [wake_up]
        wake_up.recv(1)
    assert poller.wait([wake_up], [], 0)[0] == []
    wake_up.recv(1)  # kazoo clears one too many at times
    wake_up.send(b"\0")
    assert poller.wait([wake_up], [], 10)[0] == [wake_up]
    wake_up.recv(1)
    wake_up.close()
    wake_up.close()
    with pytest.raises(OSError, match="closed"):
        wake_up.send(b"\0")
    with pytest.raises(OSError, match="closed"):
        poller.wait([wake_up], [], 0)


def test_requests_that_go_on_do_not_keep_answers_waiting(pair: Pair, wake_up: WakeUp) -> None:
    ours, theirs = pair
    poller = Poller()
    under_way = 0
    poller.under_way = lambda: under_way
    theirs.sendall(b"\0\0\0\0")
    wake_up.send(b"\0")
    while ours not in poller.wait([ours, wake_up], [], 0)[0]:
        under_way += 1
    assert 100 < under_way < 1000
    under_way //= 3
    assert poller.wait([ours, wake_up], [], 0)[0] == [wake_up]


def test_frames_that_have_been_read_ahead(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.frame() is None
    theirs.sendall(b"\0\0\0\1a\0\0\0\3bcd\0\0\0\4ef")
    assert ours.recv(5) == b"\0\0\0\1a"
    assert ours.frame() == ours.frame() == b"bcd"
    ours.read_ahead()  # it is there
    ours.take_frame()
    assert ours.frame() is None  # half of it
    assert ours.recv(100) == b"\0\0\0\4ef"


def test_a_read_takes_more_after_one_that_was_full(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair
    receive, sizes = ours._receive, []

    def noted(size: int) -> bytes:
        sizes.append(size)
        return receive(size)

    monkeypatch.setattr(ours, "_receive", noted)
    theirs.sendall((100_000).to_bytes(4, "big") + bytes(100_000))
    while ours.frame() is None:
        ours.read_ahead()
    ours.take_frame()
    theirs.sendall(b"\0\0\0\1a")
    ours.read_ahead()
    assert sizes == [1 << 16, 1 << 17, 1 << 16]


def test_no_frame_and_the_end(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"\xff\xff\xff\xff ...")
    ours.read_ahead()
    with pytest.raises(OSError, match="frame of -1 bytes"):
        ours.frame()
    assert ours.recv(100) == b"\xff\xff\xff\xff ..."
    theirs.close()
    with pytest.raises(OSError, match="closed"):
        ours.read_ahead()
