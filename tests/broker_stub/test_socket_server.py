"""Planes, acceptors and draining over real sockets (rules B1.2-B1.16, B1.45, B1.46, B1.56-B1.65).

Covers: broker_stub/reactor/socket_server.py, broker_stub/reactor/acceptor.py.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

import pytest
import trio
from trio.testing import memory_stream_pair

from kce import wire
from kce.broker_stub import BindError, BrokerConfig, Endpoint
from kce.broker_stub.connection_limits import ConnectionLimits
from kce.broker_stub.ports import Link
from kce.broker_stub.reactor import Request, RequestMetrics, SocketServer
from kce.broker_stub.reactor.acceptor import Acceptor
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.broker_stub.reactor.turns import PAUSE_SECONDS
from kce.harness.world.tcp_stream import TcpStream
from tests.broker_stub.support import (
    ONE_LISTENER,
    Client,
    NoStream,
    ScriptedApis,
    config,
    connect,
    link,
    listener,
    make_broker,
    node_links,
    processors_of,
    running_server,
    until,
)

QUESTION = wire.ApiVersionsRequest()
ANSWER = wire.ApiVersionsResponse()
SLOW = wire.MetadataRequest()  # see `slow_metadata`


async def answer(request: Request) -> None:
    request.respond(ANSWER)


class SlowMetadata:
    """Metadata waits for ``released`` in its handler; other requests are answered at once."""

    def __init__(self) -> None:
        self.released = trio.Event()
        self.running = 0
        self.finished: list[str] = []

    async def __call__(self, request: Request) -> None:
        if isinstance(request.message, wire.MetadataRequest):
            self.running += 1
            await self.released.wait()
            request.respond(wire.MetadataResponse())
        else:
            request.respond(ANSWER)
        self.finished.append(wire.api(request.context.header.api_key).name)


# -- shape ------------------------------------------------------------------------------------------------------------


def test_the_two_planes_share_nothing() -> None:  # rules B1.2-B1.5, B1.8
    server = SocketServer(config(num_network_threads="4", num_io_threads="5"), ScriptedApis(answer), node_links().bind)
    control, data = server.planes
    assert (control.name, control.channel.handlers, [len(a.processors) for a in control.acceptors]) == (
        "control-plane", 1, [1],
    )  # fmt: skip
    assert (data.name, data.channel.handlers, [len(a.processors) for a in data.acceptors]) == ("data-plane", 5, [4])
    assert control.channel is not data.channel
    ids = [p.processor_id for acceptor in server.acceptors for p in acceptor.processors]
    assert len(set(ids)) == len(ids) == 5


def test_without_a_control_plane_listener_there_is_one_plane() -> None:  # rules B1.2, B1.3, B1.6, 9.62
    names = {
        "listeners": "A://127.0.0.1:0,B://127.0.0.1:0",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    }
    base = {**names, "inter.broker.listener.name": "A", "listener.name.b.num.network.threads": "1"}
    (plane,) = SocketServer(config(base=base), ScriptedApis(answer), node_links().bind).planes
    assert [len(acceptor.processors) for acceptor in plane.acceptors] == [3, 1]
    assert plane.channel.handlers == 8


async def test_only_the_data_planes_queue_size_is_configurable() -> None:  # rules B1.4, B1.5
    server = SocketServer(config(queued_max_requests="7"), ScriptedApis(answer), node_links().bind)
    assert [plane.channel.capacity for plane in server.planes] == [20, 7]


# -- planes -----------------------------------------------------------------------------------------------------------


async def test_slow_requests_on_the_data_plane_do_not_delay_the_control_plane() -> None:  # rules B1.5, B1.65
    slow = SlowMetadata()
    configuration = config(num_io_threads="2", queued_max_requests="1")
    async with running_server(ScriptedApis(slow), configuration) as server:
        async with trio.open_nursery() as nursery:
            clients = [Client(await trio.open_tcp_stream(*listener(server)[2:])) for _ in range(4)]
            for client in clients:
                await client.send(SLOW)
            data = server.planes[1].channel
            await until(lambda: slow.running == 2 and data.request_queue_size == 1)
            async with connect(listener(server, "CONTROL")) as control:
                for _ in range(5):
                    assert await control.ask(QUESTION) == ANSWER
            assert slow.finished == ["ApiVersions"] * 5
            slow.released.set()
            for client in clients:
                nursery.start_soon(client.receive)
        for client in clients:
            await client.stream.aclose()


async def test_the_data_plane_pauses_between_slices_after_a_control_request() -> None:  # rule B1.65
    async with running_server(ScriptedApis(answer)) as server, connect(listener(server, "CONTROL")) as control:
        turns = server.planes[1].turns
        assert await control.ask(QUESTION) == ANSWER
        began = trio.current_time()
        for _ in range(20):
            turns.spend(1)
            await turns.wait()
        assert trio.current_time() - began >= 20 * PAUSE_SECONDS


async def test_slow_requests_delay_others_on_a_single_plane() -> None:  # rules B1.6, B1.65
    slow = SlowMetadata()
    configuration = config(base=ONE_LISTENER, num_io_threads="1")
    async with (
        running_server(ScriptedApis(slow), configuration) as server,
        connect(listener(server)) as first,
        connect(listener(server)) as second,
    ):
        await first.send(SLOW)
        await until(lambda: slow.running == 1)
        await second.send(QUESTION)
        await until(lambda: server.planes[0].channel.request_queue_size == 1)
        slow.released.set()
        assert await second.receive() == ANSWER
        assert slow.finished == ["Metadata", "ApiVersions"]


async def test_two_connections_proceed_concurrently() -> None:  # rule B1.29
    slow = SlowMetadata()
    async with (
        running_server(ScriptedApis(slow), config(num_network_threads="1")) as server,
        connect(listener(server)) as first,
        connect(listener(server)) as second,
    ):
        await first.send(SLOW)
        await until(lambda: slow.running == 1)
        assert await second.ask(QUESTION) == ANSWER
        slow.released.set()
        await first.receive()


async def test_pipelined_requests_are_answered_in_order() -> None:  # rules B1.19, B1.60
    async with running_server(ScriptedApis(answer)) as server, connect(listener(server)) as client:
        await client.send(*[QUESTION] * 500)
        for _ in range(500):
            assert await client.receive() == ANSWER  # checks the correlation id
        await until(lambda: server.metrics.of("ApiVersions").requests == 500)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ "sent" for each response that leaves without waiting; tests log what comes before it."""
    log: list[str] = []
    send_nowait = TcpStream.send_nowait

    def logged(stream: TcpStream, data: bytes) -> int:
        log.append("sent")
        return send_nowait(stream, data)

    monkeypatch.setattr(TcpStream, "send_nowait", logged)
    return log


async def _ask_all(clients: Sequence[Client], question: wire.Message) -> None:
    """Their requests come before the server runs."""
    for client in clients:
        assert isinstance(client.stream, trio.SocketStream)
        data = client.encoded(question)
        assert client.stream.socket._sock.send(data) == len(data)  # type: ignore[attr-defined]
    for client in clients:
        await client.receive()


@pytest.mark.parametrize(("name", "is_together"), [("DATA", True), ("CONTROL", False)])
async def test_answers_of_the_data_plane_leave_together(name: str, is_together: bool, sends: list[str]) -> None:
    def handle(request: Request) -> None:
        sends.append("handled")
        request.respond(ANSWER)

    async with running_server(ScriptedApis(handle)) as server:
        server.data_plane.turns.slice_seconds = 1000
        clients = [Client(await trio.open_tcp_stream(*listener(server, name)[2:])) for _ in range(5)]
        for client in clients:
            await client.ask(QUESTION)
        sends.clear()
        await _ask_all(clients, QUESTION)
        assert sends == (["handled"] * 5 + ["sent"] * 5 if is_together else ["handled", "sent"] * 5)
        await _ask_all(clients[:1], QUESTION)
        assert sends[10:] == ["handled", "sent"]
        for client in clients:
            await client.stream.aclose()


async def test_answers_to_parked_requests_leave_with_those_of_the_slice(sends: list[str]) -> None:
    parked: list[Request] = []

    def handle(request: Request) -> None:
        sends.append(request.context.header.client_id or "")
        parked.append(request)
        if len(parked) == 5:
            for each in parked:
                each.respond(wire.MetadataResponse())
            parked.clear()
            sends.append("answered")

    async with running_server(ScriptedApis(handle)) as server:
        server.data_plane.turns.slice_seconds = 1000
        clients = [Client(await trio.open_tcp_stream(*listener(server)[2:])) for _ in range(5)]
        for _ in range(3):
            sends.clear()
            await _ask_all(clients, SLOW)
        assert sends[5:] == ["answered"] + ["sent"] * 5
        assert not any(c._is_muted for p in processors_of(server) for c in p.connections.values())
        for client in clients:
            await client.send(SLOW)
        for client in clients:  # in a task, or by whoever answers: none is lost
            await client.receive()
            await client.stream.aclose()


async def test_an_answer_that_cannot_leave_is_left_to_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(request: Request) -> None:
        request.respond(ANSWER)

    async with running_server(ScriptedApis(handle)) as server, connect(listener(server)) as client:
        await client.ask(QUESTION)
        for sent in (0, 3):  # none of it, or a part
            monkeypatch.setattr(
                TcpStream, "send_nowait", lambda stream, data, sent=sent: stream.socket.send(data[:sent])
            )
            await client.send(QUESTION)
            assert await client.receive() == ANSWER
        monkeypatch.undo()
        assert await client.ask(QUESTION) == ANSWER
        (connection,) = (c for p in processors_of(server) for c in p.connections.values())
        await until(lambda: not connection._is_muted)
        await server.shutdown(drain_seconds=60)
        assert await client.closed()


async def test_a_full_queue_delays_clients_and_loses_nothing() -> None:  # rule B1.22
    slow = SlowMetadata()
    configuration = config(queued_max_requests="1", num_io_threads="1", num_network_threads="2")
    async with running_server(ScriptedApis(slow), configuration) as server:
        clients = [Client(await trio.open_tcp_stream(*listener(server)[2:])) for _ in range(8)]
        for client in clients:
            await client.send(SLOW, SLOW, SLOW)
        await until(lambda: slow.running == 1 and server.planes[1].channel.request_queue_size == 1)
        slow.released.set()
        for client in clients:
            for _ in range(3):
                await client.receive()
            await client.stream.aclose()


async def test_a_processor_is_blocked_by_one_connection_at_a_time() -> None:  # rule B1.22
    """All of them have waited for their turn while it was not blocked yet."""
    slow, turn = SlowMetadata(), trio.Event()
    configuration = config(queued_max_requests="1", num_io_threads="1", num_network_threads="1")
    async with running_server(ScriptedApis(slow), configuration) as server:
        turns = server.planes[1].turns
        turns.spend(1)
        turns.wait = turn.wait  # type: ignore[method-assign]
        clients = [Client(await trio.open_tcp_stream(*listener(server)[2:])) for _ in range(6)]
        for client in clients:
            await client.send(SLOW, SLOW)
        (processor,) = processors_of(server)
        await until(lambda: [c._is_muted for c in processor.connections.values()] == [True] * 6)
        turn.set()
        await until(lambda: processor.is_blocked)
        slow.released.set()
        with trio.fail_after(60):
            for client in clients:
                await client.receive()
                await client.receive()
                await client.stream.aclose()


# -- accepting --------------------------------------------------------------------------------------------------------


async def test_connections_are_assigned_round_robin() -> None:  # rules B1.15, B1.16
    async with running_server(ScriptedApis(answer)) as server:
        processors = list(processors_of(server))
        clients = []
        for i in range(7):
            clients.append(Client(await trio.open_tcp_stream(*listener(server)[2:])))
            await clients[i].ask(QUESTION)
            theirs, ours = clients[i].stream.socket.getpeername(), clients[i].stream.socket.getsockname()  # type: ignore[attr-defined]
            connection_id = f"{theirs[0]}:{theirs[1]}-{ours[0]}:{ours[1]}-{i // 3}"
            assert connection_id in processors[i % 3].connections
        assert [len(p.connections) for p in processors] == [3, 2, 2]
        for client in clients:
            await client.stream.aclose()


class FullProcessor:
    """Its hand-off queue is full until the test empties it."""

    def __init__(self, log: list[str], name: str, *, full: bool) -> None:
        self.log, self.name, self.full = log, name, full
        self.room = trio.Event()

    def accept_nowait(self, accepted: Link) -> None:
        if self.full:
            self.log.append(f"{self.name} is full")
            raise trio.WouldBlock
        self.log.append(f"{self.name} accepts")

    async def accept(self, accepted: Link) -> None:
        self.log.append(f"waiting for {self.name}")
        await self.room.wait()
        self.log.append(f"{self.name} accepts")


@pytest.mark.kafka("SS-56")
async def test_full_processors_are_skipped_and_the_last_one_is_awaited(nursery) -> None:  # rule B1.15
    log: list[str] = []
    processors = [FullProcessor(log, name, full=name != "b") for name in "abc"]
    acceptor = _acceptor(processors)
    accepted = link(NoStream())
    await acceptor._assign(accepted)
    assert log == ["a is full", "b accepts"]
    log.clear()
    processors[1].full = True
    nursery.start_soon(acceptor._assign, accepted)
    await trio.testing.wait_all_tasks_blocked()
    assert log == ["c is full", "a is full", "b is full", "waiting for b"]
    processors[1].room.set()
    await trio.testing.wait_all_tasks_blocked()
    assert log[-1] == "b accepts"
    log.clear()
    processors[1].full = False
    await acceptor._assign(accepted)
    assert log == ["c is full", "a is full", "b accepts"]


@pytest.mark.kafka("SS-22")
async def test_a_failed_accept_is_retried(nursery, autojump_clock, caplog) -> None:
    """An aborted connection causes no pause; missing file descriptors, for example, do."""
    attempts: list[float] = []
    failures = [errno.ECONNABORTED, errno.EPROTO, errno.EMFILE, errno.ENFILE]

    class Listening:
        async def accept(self) -> None:
            await trio.lowlevel.checkpoint()
            attempts.append(trio.current_time())
            if not failures:
                await trio.sleep_forever()
            number = failures.pop(0)
            raise OSError(number, os.strerror(number))

    acceptor = _acceptor([])
    acceptor._socket = Listening()  # type: ignore[assignment]
    begin = trio.current_time()
    await nursery.start(acceptor.run)
    await trio.sleep(1)
    assert [time - begin for time in attempts] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert [record.getMessage() for record in caplog.records] == [
        f"listener DATA cannot accept: [Errno {number}] {os.strerror(number)}"
        for number in (errno.EMFILE, errno.ENFILE)
    ]


async def test_a_connection_waiting_for_a_processor_is_closed_at_the_end(nursery) -> None:
    quotas = ConnectionQuotas(ConnectionLimits())
    acceptor = _acceptor([FullProcessor([], "a", full=True)], quotas)
    ours, theirs = memory_stream_pair()
    with trio.CancelScope() as scope:
        nursery.start_soon(_cancel_when_blocked, scope)
        await acceptor._dispatch(link(theirs))
    assert scope.cancelled_caught
    assert await ours.receive_some() == b""
    assert quotas.open_from("127.0.0.1") == 0


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


def _acceptor(processors: list[FullProcessor], quotas: ConnectionQuotas | None = None) -> Acceptor:
    return Acceptor(
        Endpoint("DATA", "PLAINTEXT", "127.0.0.1", 0),
        processors,  # type: ignore[arg-type]
        bind=node_links().bind,
        backlog=50,
        max_frame_bytes=10_000,
        memory=None,
        quotas=quotas or ConnectionQuotas(ConnectionLimits()),
        metrics=RequestMetrics(),
    )


@pytest.mark.kafka("SS-19")
@pytest.mark.kafka("CQ-4")
async def test_excess_connections_of_an_address_are_closed_without_a_response() -> None:  # rules B1.45, B1.46
    async with running_server(ScriptedApis(answer), config(max_connections_per_ip="2")) as server:
        async with connect(listener(server)) as first, connect(listener(server, "CONTROL")) as second:
            await first.ask(QUESTION)
            await second.ask(QUESTION)
            for _ in range(3):
                async with connect(listener(server)) as surplus:
                    assert await surplus.closed()
            assert server.metrics.connections_refused == 3
            assert await first.ask(QUESTION) == ANSWER
        await until(lambda: server.metrics.connections_open == 0)
        async with connect(listener(server)) as again:
            assert await again.ask(QUESTION) == ANSWER


# -- binding ----------------------------------------------------------------------------------------------------------


def _own_port() -> socket.socket:
    """A reserved port that can still be bound with SO_REUSEADDR."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    return s


async def test_a_port_in_use_is_named_in_one_line() -> None:
    with _own_port() as taken:
        taken.listen()
        port = taken.getsockname()[1]
        base = {**ONE_LISTENER, "listeners": f"DATA://127.0.0.1:{port}"}
        with pytest.raises(BindError) as caught:
            await SocketServer(config(base=base), ScriptedApis(answer), node_links().bind).bind()
    assert str(caught.value) == f"listener DATA cannot bind 127.0.0.1:{port}: the port is in use"


async def test_if_one_listener_cannot_bind_none_stays_open() -> None:
    with _own_port() as taken:
        taken.listen()
        port = taken.getsockname()[1]
        names = {"listeners": f"A://127.0.0.1:0,B://127.0.0.1:{port}", "inter.broker.listener.name": "A"}
        base = {**names, "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
        server = SocketServer(config(base=base), ScriptedApis(answer), node_links().bind)
        with pytest.raises(BindError, match="listener B"):
            await server.bind()
        assert server.acceptors[0]._socket._listener._socket.fileno() == -1  # type: ignore[union-attr]


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_a_foreign_address_cannot_be_bound(host) -> None:
    base = {**ONE_LISTENER, "listeners": f"DATA://{host}:0"}
    with pytest.raises(BindError, match=f"listener DATA cannot bind {host}:0: "):
        await SocketServer(config(base=base), ScriptedApis(answer), node_links().bind).bind()


@pytest.mark.kafka("SS-64")
async def test_a_fixed_port_is_open_only_when_processing_is_enabled() -> None:  # rule B1.11
    with _own_port() as reserved:
        port = reserved.getsockname()[1]
        base = {**ONE_LISTENER, "listeners": f"DATA://127.0.0.1:{port}"}
        server = SocketServer(config(base=base), ScriptedApis(answer), node_links().bind)
        await server.bind()
        assert server.bound_listeners()[0].port == port
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            with pytest.raises(OSError, match="connect"):
                await trio.open_tcp_stream("127.0.0.1", port)
            server.enable_request_processing()
            async with connect(listener(server)) as client:
                assert await client.ask(QUESTION) == ANSWER
            nursery.cancel_scope.cancel()


async def test_a_port_taken_before_processing_is_enabled_is_detected() -> None:
    with _own_port() as reserved:
        port = reserved.getsockname()[1]
        base = {**ONE_LISTENER, "listeners": f"DATA://127.0.0.1:{port}"}
        server = SocketServer(config(base=base), ScriptedApis(answer), node_links().bind)
        await server.bind()
        reserved.listen()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            with pytest.raises(BindError, match="the port is in use"):
                server.enable_request_processing()
            nursery.cancel_scope.cancel()


async def test_an_ephemeral_port_accepts_connections_before_processing_is_enabled() -> None:  # rules B1.11, 2.2
    server = SocketServer(config(), ScriptedApis(answer), node_links().bind)
    await server.bind()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        async with connect(listener(server)) as client:
            await client.send(QUESTION)
            await trio.testing.wait_all_tasks_blocked()
            assert server.metrics.connections_accepted == 0
            server.enable_request_processing()
            assert await client.receive() == ANSWER
        nursery.cancel_scope.cancel()


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.kafka("SS-18")
async def test_shutdown_waits_for_requests_and_closes_everything() -> None:  # rules B1.56, B1.58
    slow = SlowMetadata()
    async with running_server(ScriptedApis(slow)) as server:
        endpoint = listener(server)
        async with connect(endpoint) as idle, connect(endpoint) as busy, trio.open_nursery() as nursery:
            await idle.ask(QUESTION)
            await busy.send(SLOW, SLOW)
            await until(lambda: slow.running == 1)
            nursery.start_soon(server.shutdown, 60)
            assert await idle.closed()
            with pytest.raises(OSError, match="connect"):
                await trio.open_tcp_stream(endpoint.host, endpoint.port)
            slow.released.set()
            await busy.receive()
            assert await busy.closed()
        assert slow.running == 1
        assert server.metrics.connections_open == 0
        with pytest.raises(RuntimeError, match="stopped"):
            server.enable_request_processing()


async def test_shutdown_closes_requests_that_take_too_long(caplog) -> None:  # rules B1.56, B11.17
    parked = []

    async def park(request: Request) -> None:
        parked.append(request)

    slow = SlowMetadata()

    async def handle(request: Request) -> None:
        await (park if isinstance(request.message, wire.ApiVersionsRequest) else slow)(request)

    async with (
        running_server(ScriptedApis(handle)) as server,
        connect(listener(server)) as waiting,
        connect(listener(server)) as stuck,
    ):
        await waiting.send(QUESTION)
        await stuck.send(SLOW)
        await until(lambda: len(parked) == 1 and slow.running == 1)
        await server.shutdown(0)
        assert await waiting.closed()
        assert await stuck.closed()
        assert "closing 2 connections" in caplog.text
        parked[0].respond(ANSWER)  # rules B1.8, B1.59: too late, and ignored


@pytest.mark.kafka("SS-31")
async def test_shutdown_of_a_server_that_was_never_enabled_or_never_ran() -> None:
    server = SocketServer(config(), ScriptedApis(answer), node_links().bind)
    await server.shutdown(1)
    server = SocketServer(config(), ScriptedApis(answer), node_links().bind)
    await server.bind()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await server.shutdown(1)
        await server.shutdown(1)


@pytest.mark.kafka("SS-63")
async def test_a_stopped_server_cannot_be_enabled() -> None:  # rule B1.58
    async with running_server(ScriptedApis(answer)) as server:
        pass
    with pytest.raises(RuntimeError, match="stopped"):
        server.enable_request_processing()
    await server.shutdown(1)


async def test_queued_requests_are_dropped_at_shutdown() -> None:  # rule B1.56
    slow = SlowMetadata()
    async with running_server(ScriptedApis(slow), config(num_io_threads="1")) as server:
        clients = [Client(await trio.open_tcp_stream(*listener(server)[2:])) for _ in range(3)]
        for client in clients:
            await client.send(SLOW)
        await until(lambda: slow.running == 1 and server.planes[1].channel.request_queue_size == 2)
        await server.shutdown(0)
        for client in clients:
            assert await client.closed()
            await client.stream.aclose()
        assert slow.running == 1


# -- long requests ----------------------------------------------------------------------------------------------------


def long_metadata(topics: int) -> wire.MetadataRequest:
    return wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name=f"t{i}") for i in range(topics)))


async def test_a_long_request_is_parsed_in_turns_and_its_memory_is_given_back() -> None:
    handled: list[Request] = []

    def handle(request: Request) -> None:
        assert isinstance(request.message, (wire.MetadataRequest, wire.ApiVersionsRequest))
        if isinstance(request.message, wire.MetadataRequest):
            assert request.message.topics is not None
            assert len(request.message.topics) == 5000
            handled.append(request)
            request.respond(wire.MetadataResponse())
        else:
            request.respond(ANSWER)

    async with running_server(ScriptedApis(handle)) as server:
        for name in ("DATA", "CONTROL"):
            async with connect(listener(server, name)) as client:
                await client.send(QUESTION, long_metadata(5000), QUESTION, version=3)
                for _ in range(3):
                    await client.receive()
    of_data, of_control = [request.message for request in handled]
    assert not of_data.topics
    assert of_control == long_metadata(5000)  # the control plane works on one request after the other


async def test_a_long_request_that_is_damaged_closes_its_connection(caplog) -> None:  # rule B1.35
    async with running_server(ScriptedApis(answer)) as server, connect(listener(server)) as client:
        await client.stream.send_all(client.encoded(QUESTION) + wire.frame(client.encoded(long_metadata(5000))[4:-1]))
        assert await client.receive() == ANSWER
        assert await client.closed()
    assert "Metadata 12: MetadataRequest 12: damaged, and too long to say where" in caplog.text


async def test_a_long_request_may_be_parked(nursery) -> None:
    parked: list[Request] = []
    async with running_server(ScriptedApis(parked.append)) as server, connect(listener(server)) as client:
        await client.send(long_metadata(2000))
        await until(lambda: len(parked) == 1)
        parked[0].respond(wire.MetadataResponse())
        assert (await client.receive()).topics == ()


async def test_a_long_request_that_is_parked_keeps_what_its_error_response_names(nursery) -> None:  # rule B1.31
    parked: list[Request] = []
    async with running_server(ScriptedApis(parked.append)) as server, connect(listener(server)) as client:
        await client.send(long_metadata(2000))
        await until(lambda: len(parked) == 1)
        await trio.testing.wait_all_tasks_blocked()
        assert parked[0].message == long_metadata(2000)
        parked[0].respond(wire.MetadataResponse())
        await client.receive()
        await until(lambda: parked[0].message != long_metadata(2000))  # freed in steps


# -- memory -----------------------------------------------------------------------------------------------------------


def memory_config(**more: str) -> BrokerConfig:
    return config(socket_request_max_bytes="10000", queued_max_request_bytes="10000", **more)


async def test_half_requests_hold_no_more_memory_than_is_configured(nursery) -> None:  # rule B1.25
    """The links take memory before they receive the rest of a request; without it they do not read."""
    async with running_server(ScriptedApis(answer), memory_config()) as server:
        memory = server.planes[1].memory
        message = wire.ApiVersionsRequest(client_software_name="x" * 3900)
        clients = [Client(await trio.open_tcp_stream(*listener(server)[2:])) for _ in range(10)]
        whole = [client.encoded(message, 3) for client in clients]
        for client, frame in zip(clients, whole, strict=True):
            await client.stream.send_all(frame[:2000])
        await until(lambda: memory.used == 2 * (len(whole[0]) - 4))
        async with connect(listener(server, "CONTROL")) as control:  # its plane has memory of its own
            assert await control.ask(message, 3) == ANSWER
        async with connect(listener(server)) as small:  # what fits is served
            assert await small.ask(QUESTION) == ANSWER
        await clients[0].stream.aclose()  # gives back what it took
        for client, frame in zip(clients[1:], whole[1:], strict=True):
            nursery.start_soon(client.stream.send_all, frame[2000:])
        for client in clients[1:]:
            assert await client.receive() == ANSWER
            assert memory.used <= memory.capacity
            await client.stream.aclose()
        await until(lambda: server.metrics.connections_open == 0)
        assert memory.used == 0


async def test_a_parked_request_gives_its_memory_back() -> None:  # rule B1.25
    parked: list[Request] = []
    async with running_server(ScriptedApis(parked.append), memory_config()) as server:
        async with connect(listener(server)) as client:
            await client.send(*[QUESTION] * 3)
            for _ in range(3):
                await until(lambda: len(parked) == 1)
                assert server.planes[1].memory.used == 0
                parked.pop().respond(ANSWER)
                assert await client.receive() == ANSWER
        await until(lambda: server.metrics.connections_open == 0)
        assert server.planes[1].memory.used == 0


async def test_a_request_in_its_handler_keeps_its_memory() -> None:  # rule B1.25
    slow = SlowMetadata()
    async with running_server(ScriptedApis(slow), memory_config()) as server, connect(listener(server)) as client:
        frame = client.encoded(SLOW)
        await client.stream.send_all(frame)
        await until(lambda: slow.running == 1)
        assert server.planes[1].memory.used == len(frame) - 4
        slow.released.set()
        await client.receive()
        assert server.planes[1].memory.used == 0


async def test_refused_requests_give_their_memory_back() -> None:
    async with running_server(ScriptedApis(answer), memory_config()) as server:
        for bad in (wire.frame(b"bad"), wire.frame(bytes(5000)), b"\x7f\xff\xff\xff"):
            async with connect(listener(server)) as client:
                await client.stream.send_all(bad)
                assert await client.closed()
        await until(lambda: server.metrics.connections_open == 0)
        assert server.planes[1].memory.used == 0


async def test_without_a_limit_memory_is_unlimited() -> None:
    server = SocketServer(config(), ScriptedApis(answer), node_links().bind)
    assert [plane.memory for plane in server.planes] == [None, None]


async def test_shutdown_returns_when_the_server_has_stopped() -> None:  # rule B1.56
    async with running_server(ScriptedApis(lambda request: None)) as server:
        for _ in range(2):
            await server.shutdown(0)
            assert server._stopped.is_set()
    never_run = make_broker().socket_server
    with trio.fail_after(60):
        await never_run.shutdown(0)
    assert not never_run._stopped.is_set()
