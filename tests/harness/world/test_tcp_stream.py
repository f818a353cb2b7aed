"""TCP connections of the real world.

Covers: harness/world/tcp_stream.py, harness/world/input_poller.py.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from kce.harness.world import RealWorld, real_disk, tcp_stream
from kce.harness.world import input_poller as module
from kce.harness.world.input_poller import Patience, Waiter, input_poller
from kce.harness.world.real_disk import RealDisk, RealSlice
from kce.harness.world.tcp_stream import TcpStream


async def pair() -> tuple[TcpStream, TcpStream]:
    world = RealWorld()
    listener = await world.bind("127.0.0.1", 0)
    listener.listen(1)
    dialled = await world.connect(*listener.address)
    accepted = await listener.accept()
    listener.close()
    assert isinstance(dialled.stream, TcpStream)
    assert isinstance(accepted.stream, TcpStream)
    return dialled.stream, accepted.stream


async def test_what_the_buffers_do_not_hold_waits_for_the_reader(nursery) -> None:
    ours, theirs = await pair()
    async with ours, theirs:
        data = bytes(range(256)) * 65536  # 16 MiB
        sent = trio.Event()

        async def send() -> None:
            await ours.send_all(data)
            sent.set()

        nursery.start_soon(send)
        received = bytearray(await theirs.receive_some(1000))
        assert len(received) <= 1000
        with pytest.raises(trio.BusyResourceError):
            await ours.send_all(b"x")
        assert not sent.is_set()
        while len(received) < len(data):
            received += await theirs.receive_some()
        assert received == data
        await sent.wait()
        await ours.wait_send_all_might_not_block()


async def test_the_end_of_a_stream_and_a_broken_one() -> None:
    ours, theirs = await pair()
    await theirs.send_all(b"last")
    await theirs.aclose()
    assert await ours.receive_some() == b"last"
    assert await ours.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(bytes(1 << 26))  # more than the buffers hold
    await ours.aclose()
    await ours.aclose()


async def test_closing_wakes_who_waits(nursery) -> None:
    ours, theirs = await pair()
    woken = trio.Event()

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()
        woken.set()

    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    ours.close()
    await woken.wait()
    with pytest.raises(trio.ClosedResourceError):
        await ours.send_all(b"x")
    with pytest.raises(trio.ClosedResourceError):
        await ours.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        await ours.wait_send_all_might_not_block()
    await theirs.aclose()


async def test_data_that_is_there_is_sent_and_received_in_one_pass_of_the_loop() -> None:
    ours, theirs = await pair()
    async with ours, theirs:
        await theirs.send_all(b"before")
        with trio.testing.assert_no_checkpoints():
            await ours.send_all(b"x")
        assert await ours.receive_some() == b"before"


class AtOnce:
    """Calls at once whoever has input. ``slices``: how many looks for input found some."""

    def __init__(self) -> None:
        self.slices = 0

    def call(self, work: Callable[[], None]) -> None:
        work()

    def end_slice(self) -> None:
        self.slices += 1


at_once = AtOnce()


class Stored:
    """A file of 16 MiB, more than the buffers of a connection hold, and a slice of it."""

    def __init__(self, folder: Path) -> None:
        self.disk = RealDisk()
        self.path = f"{folder}/f"
        self.data = os.urandom(1 << 20) * 16
        self.file = self.disk.open(self.path)
        self.file.append(self.data)

    @property
    def slice(self) -> RealSlice:
        found = self.file.slice(10, 1 << 30)
        assert isinstance(found, RealSlice)
        return found


async def slow_pair() -> tuple[TcpStream, TcpStream]:
    """The second has a small buffer, which does not grow."""
    ours, theirs = await pair()
    theirs.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    return ours, theirs


async def received(stream: TcpStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := await stream.receive_some()):
        data += more
    return bytes(data)


async def test_parts_arrive_in_order_whatever_becomes_of_the_name_of_the_file(tmp_path: Path, nursery) -> None:
    ours, theirs = await slow_pair()
    stored = Stored(tmp_path)
    async with ours, theirs:
        expected = b"<" + stored.data[10:] + b"-" + stored.data[10:] + b">"
        nursery.start_soon(ours.send_parts, [b"<", stored.slice, b"-", stored.slice, b">"])
        begin = await received(theirs, 100_000)
        with pytest.raises(trio.BusyResourceError):
            await ours.send_all(b"x")
        stored.disk.delete(stored.path)
        assert begin + await received(theirs, len(expected) - len(begin)) == expected


async def test_what_fits_is_sent_in_one_pass_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_disk, "MIN_SLICE_BYTES", 50_000)
    ours, theirs = await pair()
    stored = Stored(tmp_path)
    async with ours, theirs:
        with trio.testing.assert_no_checkpoints():
            await ours.send_parts([b"<", stored.file.slice(0, 50_000), b">"])
        assert await received(theirs, 50_002) == b"<" + stored.data[:50_000] + b">"
        if hasattr(socket, "TCP_CORK"):  # nothing is held back
            assert not ours.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK)


@pytest.mark.parametrize("by_us", [True, False])
async def test_a_file_that_is_cut_meanwhile_breaks_the_stream(by_us: bool, tmp_path: Path, nursery) -> None:
    ours, theirs = await slow_pair()
    stored = Stored(tmp_path)
    async with ours, theirs:

        async def send() -> None:
            with pytest.raises(trio.BrokenResourceError, match="cut before byte"), trio.fail_after(30):
                await ours.send_parts([stored.slice])
            await ours.aclose()

        nursery.start_soon(send)
        begin = await received(theirs, 1)
        if by_us:
            stored.file.truncate(len(stored.data) - 1)
            stored.file.append(b"x")
        else:
            os.truncate(stored.path, len(stored.data) - 1)
        arrived = begin + await received(theirs, len(stored.data))
        assert len(arrived) < len(stored.data) - 10
        assert stored.data[10:].startswith(arrived)


async def test_parts_to_a_peer_that_is_gone(tmp_path: Path, nursery) -> None:
    ours, theirs = await pair()
    stored = Stored(tmp_path)
    slice_ = stored.slice
    await theirs.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_parts([slice_, slice_])
    ours.close()
    for parts in ([slice_], [b"x"]):
        with pytest.raises(trio.ClosedResourceError):
            await ours.send_parts(parts)


async def test_who_waits_for_input_is_called_as_long_as_there_is_some() -> None:
    ours, theirs = await pair()
    received: list[bytes | None] = []

    def on_input() -> bool:
        received.append(theirs.receive_nowait(3))
        return len(received) < 4

    async with ours, theirs:
        for _ in range(2):
            await ours.send_all(b"onetwothree")
            await theirs.wait_for_input(on_input, at_once)
            assert received == [b"one", b"two", b"thr", b"ee"]
            received.clear()
        assert theirs.receive_nowait(3) is None
        await ours.aclose()
        await theirs.wait_for_input(lambda: False, at_once)
        assert theirs.receive_nowait(3) == b""


async def test_what_comes_while_nobody_waits_is_told_later() -> None:
    ours, theirs = await pair()
    async with ours, theirs:
        for data in (b"one", b"two", b"three"):
            await ours.send_all(data)
            await trio.testing.wait_all_tasks_blocked()  # the poller has seen it
            with trio.fail_after(10):
                for _ in range(2):  # the first does not read it
                    await theirs.wait_for_input(lambda: False, at_once)
            await trio.testing.wait_all_tasks_blocked()  # the poller does not spin
            assert await theirs.receive_some() == data


async def test_the_end_that_came_with_the_last_bytes_is_told() -> None:
    ours, theirs = await pair()
    received: list[bytes | None] = []

    def on_input() -> bool:
        received.append(theirs.receive_nowait(10))
        return received[-1] != b""

    async with ours, theirs:
        await ours.send_all(b"x")
        await ours.aclose()
        with trio.fail_after(10):
            await theirs.wait_for_input(on_input, at_once)
        assert received == [b"x", b""]


@pytest.mark.parametrize("seed", range(20))
async def test_no_input_is_missed_whoever_reads_it_and_when(seed: int, nursery: trio.Nursery) -> None:
    random = Random(seed)
    ours, theirs = await pair()
    sent, received = random.randbytes(3000), bytearray()
    has_ended = False

    def read() -> None:
        nonlocal has_ended
        data = theirs.receive_nowait(random.choice((1, 30, 1000)))
        has_ended = data == b""
        received.extend(data or b"")

    def on_input() -> bool:
        for _ in range(random.randrange(3)):
            read()
        return not has_ended and random.random() < 0.7

    async def send() -> None:
        at = 0
        while at < len(sent):
            size = random.choice((1, 100, 1000))
            ours.socket.send(sent[at : at + size])
            at += size
            for _ in range(random.randrange(4)):
                await trio.lowlevel.checkpoint()
        ours.close()

    nursery.start_soon(send)
    with trio.fail_after(10):
        while not has_ended:
            await theirs.wait_for_input(on_input, at_once)
            for _ in range(random.randrange(3)):
                await trio.lowlevel.checkpoint()
            if random.random() < 0.3:
                read()
    assert received == sent
    theirs.close()


async def test_many_inputs_are_dealt_with_in_one_step(nursery: trio.Nursery) -> None:
    pairs = [await pair() for _ in range(20)]
    received: list[bytes | None] = []
    turns = AtOnce()
    for _, theirs in pairs:

        def on_input(stream: TcpStream = theirs) -> bool:
            received.append(stream.receive_nowait(10))
            return True

        nursery.start_soon(theirs.wait_for_input, on_input, turns)
    await trio.testing.wait_all_tasks_blocked()
    for ours, _ in pairs:
        ours.socket.send(b"x")

    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    await trio.testing.wait_all_tasks_blocked()
    trio.lowlevel.remove_instrument(steps)
    assert received == [b"x"] * 20
    assert steps.count < 10
    assert turns.slices < 20
    for ours, theirs in pairs:
        theirs.stop_waiting()
        ours.close()
        theirs.close()


async def test_whoever_has_no_turn_is_called_once_it_has(nursery: trio.Nursery) -> None:
    ours, theirs = await pair()
    line: list[Callable[[], None]] = []
    received: list[bytes | None] = []

    def on_input() -> bool:
        received.append(theirs.receive_nowait(10))
        return False

    async with ours, theirs:
        turns = AtOnce()
        turns.call = line.append  # type: ignore[method-assign]
        nursery.start_soon(theirs.wait_for_input, on_input, turns)
        await ours.send_all(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert (len(line), received) == (1, [])
        line[0]()
        line[0]()  # nobody waits any more
        assert received == [b"x"]


async def test_what_comes_meanwhile_is_served_in_the_same_pass_of_the_loop() -> None:
    passes: list[float] = []

    class Passes(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:
            passes.append(timeout)

    poller = input_poller()
    served: list[int] = []
    both = trio.Event()
    (ours, theirs), (our_other, their_other) = socket.socketpair(), socket.socketpair()
    with ours, theirs, our_other, their_other:

        def first() -> None:
            served.append(len(passes))
            our_other.send(b"x")

        def second() -> None:
            served.append(len(passes))
            both.set()

        poller.wait(theirs.fileno(), Waiter(first, at_once.end_slice), is_drained=False)
        poller.wait(their_other.fileno(), Waiter(second, at_once.end_slice), is_drained=False)
        trio.lowlevel.add_instrument(instrument := Passes())
        ours.send(b"x")
        await both.wait()
        trio.lowlevel.remove_instrument(instrument)
        for end in (theirs, their_other):
            poller.forget(end.fileno())
    assert served[0] == served[1] > 0


class Asking:
    """A peer that asks again when the poller has looked ``every`` times whether it does, ``times`` times."""

    LOOK_SECONDS = module.AWAKE_SECONDS / 15.5

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, times: int, look_seconds: float = LOOK_SECONDS, every: int = 3
    ) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.poller = input_poller()
        self.passes = self.looks = 0
        #: the passes in which it was served
        self.served: list[int] = []
        self.waits_again = True
        self._left = times
        self._every = every
        self._look_seconds = look_seconds
        self._now = 0.0
        monkeypatch.setattr(module, "clock", lambda: self._now)
        monkeypatch.setattr(os, "sched_yield", self._look)

    def _look(self) -> None:
        self.looks += 1
        self._now += self._look_seconds
        if self._left and self.looks % self._every == 0:
            self._left -= 1
            self.ours.send(b"x")

    def on_input(self) -> None:
        self.theirs.recv(10)
        self.served.append(self.passes)
        if self.waits_again:
            self.poller.wait(self.theirs.fileno(), Waiter(self.on_input, at_once.end_slice), is_drained=False)

    async def ask(self, count: int, every: float = 0) -> None:
        """Ask and wait until it is served, so many times."""
        for _ in range(count):
            self._now += every
            self.passes += 1
            self.ours.send(b"x")
            await trio.testing.wait_all_tasks_blocked()

    def __enter__(self) -> Asking:
        self.poller.wait(self.theirs.fileno(), Waiter(self.on_input, at_once.end_slice), is_drained=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.poller.forget(self.theirs.fileno())
        self.ours.close()
        self.theirs.close()


async def test_the_poller_stays_awake_for_a_peer_that_asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with Asking(monkeypatch, 3) as peer:
        await peer.ask(1)
        await peer.ask(Patience.LEAST - 1)
        assert (peer.served, peer.looks) == ([*range(1, Patience.LEAST + 1)], 0)
        await peer.ask(1)
        assert peer.served[Patience.LEAST :] == [Patience.LEAST + 1] * 4, "the next three without waking up"
        assert peer.looks == 3 * 3 + 16, "then until its patience was at its end"


async def test_the_poller_lets_others_run_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with Asking(monkeypatch, 1000) as peer:
        await peer.ask(Patience.LEAST + 2)
        served = [peer.served.count(number) for number in (Patience.LEAST + 1, Patience.LEAST + 2)]
    most = module.PASS_SECONDS / (3 * Asking.LOOK_SECONDS)
    assert all(1 < count <= most + 2 for count in served), served


async def test_the_poller_sleeps_if_input_comes_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    with Asking(monkeypatch, 1000) as peer:
        await peer.ask(50, every=3 * module.AWAKE_SECONDS)
        assert (len(peer.served), peer.looks) == (50, 0)


async def test_the_poller_does_not_stay_awake_while_somebody_else_is_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with Asking(monkeypatch, 1000) as peer:
        await peer.ask(Patience.LEAST)
        peer.waits_again = False
        await peer.ask(1)
        assert (len(peer.served), peer.looks) == (Patience.LEAST + 1, 0)


async def test_the_poller_does_not_stay_awake_where_others_want_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    with Asking(monkeypatch, 1000, look_seconds=1.1 * module.OTHERS_SECONDS) as peer:
        await peer.ask(2 * Patience.LEAST)
        assert (len(peer.served), peer.looks) == (2 * Patience.LEAST, 1)


async def test_input_that_came_while_others_had_the_processor_is_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    with Asking(monkeypatch, 1000, look_seconds=1.1 * module.OTHERS_SECONDS, every=1) as peer:
        await peer.ask(Patience.LEAST + 1)
        assert peer.looks > 10
        assert peer.served[Patience.LEAST :] == [Patience.LEAST + 1] * (peer.looks + 1)


def test_patience_that_was_in_vain_returns_later_and_later() -> None:
    patience, wanted = Patience(), []
    for _ in range(10):
        soon = 0
        while not patience.is_worth_it and soon < 5000:
            patience.slept(module.AWAKE_SECONDS)
            soon += 1
        wanted.append(soon)
        patience.failed()
    assert wanted == [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_patience_lasts_longer_where_others_end_it_early() -> None:
    patience = Patience()
    for _ in range(Patience.LEAST):
        patience.slept(module.AWAKE_SECONDS)
    for _ in range(Patience.FAILURE):
        patience.succeeded()
    for _ in range(Patience.FAILURE // Patience.SHORT_FAILURE):
        patience.failed(Patience.SHORT_FAILURE)
        assert patience.is_worth_it
    patience.failed(Patience.SHORT_FAILURE)
    assert not patience.is_worth_it


def test_patience_outlives_a_failure_after_many_successes() -> None:
    patience = Patience()
    for _ in range(2):
        for _ in range(Patience.LEAST):
            patience.slept(module.AWAKE_SECONDS)
        assert patience.is_worth_it
        for _ in range(100):
            patience.succeeded()
        for worth_it in (True, True, False):
            patience.failed()
            assert patience.is_worth_it is worth_it
        for _ in range(Patience.LEAST):
            patience.slept(module.AWAKE_SECONDS)
        assert not patience.is_worth_it, "twice as many are wanted"


async def test_a_wait_for_input_can_be_ended(nursery: trio.Nursery) -> None:
    ours, theirs = await pair()
    ended: list[str] = []

    async def wait() -> None:
        try:
            await theirs.wait_for_input(lambda: True, at_once)
        except trio.ClosedResourceError:
            ended.append("closed")
        else:
            ended.append("stopped")

    async with ours, theirs:
        with trio.move_on_after(0):
            await theirs.wait_for_input(lambda: True, at_once)
        theirs.stop_waiting()  # nobody waits
        for end in (theirs.stop_waiting, theirs.close):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            end()
            await trio.testing.wait_all_tasks_blocked()
            if end == theirs.stop_waiting:
                await ours.send_all(b"more")
                assert await theirs.receive_some() == b"more"
    assert ended == ["stopped", "closed"]


async def test_a_file_descriptor_that_is_used_again() -> None:
    """A poller that took it for the one before would never tell of its input."""
    for _ in range(2):
        ours, theirs = await pair()
        async with ours, theirs:
            await ours.send_all(b"x")
            with trio.fail_after(60):
                await theirs.wait_for_input(lambda: False, at_once)


async def test_where_nobody_can_call_the_wait_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_stream, "IS_AVAILABLE", False)
    ours, theirs = await pair()
    async with ours, theirs:
        await theirs.wait_for_input(lambda: True, at_once)
