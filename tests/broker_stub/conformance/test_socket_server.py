"""SS, beside tests/broker_stub/test_socket_server.py and test_processor.py: who is served, and who is closed
(section 12a of docs/broker-semantics.md; rules B1.45 to B1.52). On real sockets.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from kce import wire
from kce.broker_stub.reactor import Request, SocketServer
from tests.broker_stub.support import (
    ONE_LISTENER,
    Client,
    ScriptedApis,
    config,
    listener,
    node_links,
    running_server,
    until,
)

kafka = pytest.mark.kafka

QUESTION = wire.ApiVersionsRequest()
ANSWER = wire.ApiVersionsResponse()
#: also of this machine
OTHER_ADDRESS = "127.0.0.2"


def answer(request: Request) -> None:
    request.respond(ANSWER)


class Clients:
    """They connect to one server, and are closed at the end."""

    def __init__(self, server: SocketServer) -> None:
        self._endpoint = listener(server)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def connect(self, local_address: str | None = None) -> Client:
        endpoint = self._endpoint
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port, local_address=local_address)
        await self._stack.enter_async_context(stream)
        return Client(stream)


@kafka("SS-1")
async def test_bytes_arrive_as_they_were_sent() -> None:
    received: list[Request] = []

    def remember(request: Request) -> None:
        received.append(request)
        answer(request)

    async with running_server(ScriptedApis(remember)) as server, Clients(server) as clients:
        client = await clients.connect()
        sent = wire.ApiVersionsRequest(client_software_name="name", client_software_version="1.2.3")
        assert await client.ask(sent) == ANSWER
        assert [request.message for request in received] == [sent]
        assert received[0].context.header.client_id == "test"


@kafka("SS-20")
async def test_only_addresses_with_a_limit_of_their_own() -> None:
    limits = {"max_connections_per_ip": "0", "max_connections_per_ip_overrides": "127.0.0.1:5"}
    async with running_server(ScriptedApis(answer), config(**limits)) as server, Clients(server) as clients:
        first = [await clients.connect() for _ in range(5)]
        for client in first:
            assert await client.ask(QUESTION) == ANSWER
        assert await (await clients.connect()).closed()
        await first[0].stream.aclose()
        await until(lambda: server.quotas.open_from("127.0.0.1") < 5)
        assert await (await clients.connect()).ask(QUESTION) == ANSWER
        assert await (await clients.connect(OTHER_ADDRESS)).closed()


@kafka("SS-21")
async def test_a_limit_by_the_name_of_a_host() -> None:
    limits = {"max_connections_per_ip": "1", "max_connections_per_ip_overrides": "localhost:2"}
    async with running_server(ScriptedApis(answer), config(**limits)) as server, Clients(server) as clients:
        for client in [await clients.connect() for _ in range(2)]:
            assert await client.ask(QUESTION) == ANSWER
        assert await (await clients.connect()).closed()


@kafka("SS-24")
async def test_who_is_held_is_closed_at_the_end() -> None:
    async with AsyncExitStack() as stack:
        async with running_server(ScriptedApis(answer), config(quota_window_num="2")) as server:
            server.quotas.ip_config_changed("<default>", 5)
            clients = await stack.enter_async_context(Clients(server))
            for client in [await clients.connect() for _ in range(5)]:
                assert await client.ask(QUESTION) == ANSWER
            held = await clients.connect()
        assert await held.closed()


@kafka("SS-60")
async def test_so_many_connections_wait_to_be_accepted() -> None:
    """Nobody accepts them before requests are processed."""
    settings = config(base=ONE_LISTENER, socket_listen_backlog_size="128")
    server = SocketServer(settings, ScriptedApis(answer), node_links().bind)
    await server.bind()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        with trio.fail_after(30):
            async with Clients(server) as clients:
                for _ in range(128):
                    await clients.connect()
        await server.shutdown(1)
