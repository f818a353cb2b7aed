"""Ending a ZooKeeper session from outside."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kce.harness.embedded_zookeeper import free_port
from kce.harness.errors import HarnessError
from kce.harness.world.session_expiry import end_session, password, requests
from kce.zookeeper.store import SessionState
from kce.zookeeper.store.kazoo import KazooStore


def test_passwords_are_javas() -> None:
    """java.util.Random's nextBytes, with the seed id ^ 0xB3415C00."""
    # new Random(0).nextBytes: the well-known first numbers are -1155484576 and -723955400
    assert password(0xB3415C00)[:8] == (-1155484576).to_bytes(4, "little", signed=True) + (-723955400).to_bytes(
        4, "little", signed=True
    )
    assert len(password(-1)) == 16


def test_the_requests_are_framed() -> None:
    sent = requests(7)
    size = int.from_bytes(sent[:4], "big")
    assert (size, len(sent)) == (45, 4 + 45 + 4 + 8)
    assert sent[-4:] == (-11).to_bytes(4, "big", signed=True)


async def test_no_server() -> None:
    with pytest.raises(HarnessError, match="does not close session 0x7"):
        await end_session("127.0.0.1", free_port(), 7, None)


GARBAGE = Random(3)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\0\0\0\x08abc", b"\0\0\0\x24" + bytes(36),
        *(GARBAGE.randbytes(size) for size in (1, 4, 19, 20, 21, 24, 5000, 1 << 20)),
    ],
    ids=len,
)  # fmt: skip
async def test_a_server_that_does_not_know_it(answer: bytes, nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    port = listener.socket.getsockname()[1]
    with pytest.raises(HarnessError, match="session 0x7"):
        await end_session("127.0.0.1", port, 7, None)


@pytest.mark.slow
async def test_a_real_server_ends_the_session(zookeeper: str) -> None:
    host, port = zookeeper.rsplit(":", 1)
    store = await KazooStore.connect(f"{zookeeper}/expiry", session_timeout_ms=20_000, connection_timeout_ms=20_000)
    try:
        expired, states = trio.Event(), []

        def changed(state: SessionState) -> None:
            states.append(state)
            if state is SessionState.ESTABLISHED:
                expired.set()

        store.on_session = changed
        session = store.session_id
        await end_session(host, int(port), session, None)
        with trio.fail_after(60):
            await expired.wait()
        assert SessionState.EXPIRED in states
        assert store.session_id != session
        with pytest.raises(HarnessError, match="does not know session"):
            await end_session(host, int(port), session, None)
    finally:
        await store.aclose()
