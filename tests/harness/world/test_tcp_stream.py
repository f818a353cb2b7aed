"""TCP connections of the real world."""

from __future__ import annotations

import pytest
import trio

from kce.harness.world import RealWorld
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
