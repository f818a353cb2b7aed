"""The proxy between a node and ZooKeeper."""

from __future__ import annotations

import functools

import trio

from kce.harness.world.tcp_proxy import TcpProxy


async def test_a_cut_proxy_breaks_and_refuses_until_it_is_healed() -> None:
    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(functools.partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        proxy = TcpProxy("127.0.0.1", listener.socket.getsockname()[1])
        await nursery.start(proxy.run)
        through = await trio.open_tcp_stream("127.0.0.1", proxy.port)
        await through.send_all(b"x")
        assert await through.receive_some() == b"x"
        proxy.cut()
        assert await through.receive_some() == b""
        refused = await trio.open_tcp_stream("127.0.0.1", proxy.port)
        assert await refused.receive_some() == b""
        proxy.heal()
        again = await trio.open_tcp_stream("127.0.0.1", proxy.port)
        await again.send_all(b"y")
        assert await again.receive_some() == b"y"
        proxy.mute()
        await again.send_all(b"z")
        with trio.move_on_after(0.2):
            await again.receive_some()
            raise AssertionError
        proxy.heal()
        assert await again.receive_some() == b"z"
        proxy.delay_s = 0.1
        began = trio.current_time()
        await again.send_all(b"late")
        assert await again.receive_some() == b"late"
        assert trio.current_time() - began >= 0.1
        for stream in (through, refused, again):
            await stream.aclose()
        nursery.cancel_scope.cancel()
