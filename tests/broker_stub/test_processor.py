"""One processor with connections in memory, which can prove that nothing happens (rules B1.16-B1.24, B1.53).

Covers: broker_stub/reactor/processor.py, broker_stub/reactor/connection.py, broker_stub/reactor/incoming.py,
broker_stub/reactor/outgoing.py, broker_stub/reactor/request.py, broker_stub/reactor/request_channel.py.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.connection_limits import ConnectionLimits
from kce.broker_stub.reactor import Request, RequestMetrics
from kce.broker_stub.reactor.memory_pool import MemoryPool
from kce.broker_stub.reactor.processor import HAND_OFF_QUEUE_SIZE, Processor
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.broker_stub.reactor.request import Sharing
from kce.broker_stub.reactor.request_channel import RequestChannel
from kce.broker_stub.reactor.turns import Turns
from kce.harness.world.tcp_stream import TcpStream
from tests.broker_stub.support import Client, ScriptedApis, config, connect, link, listener, running_server, until

LOCAL, REMOTE = ("127.0.0.1", 9092), ("127.0.0.1", 50000)
QUESTION = wire.ApiVersionsRequest()
ANSWER = wire.ApiVersionsResponse()


class Fixture:
    """A processor with its queue, handlers and clients."""

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[None] | None],
        *,
        queue: int = 500,
        handlers: int = 8,
        idle: float = 600,
    ) -> None:
        self.metrics = RequestMetrics()
        self.quotas = ConnectionQuotas(ConnectionLimits())
        self.memory = MemoryPool(100_000_000)
        apis = ScriptedApis(handle)
        self.channel = RequestChannel(queue, handlers, apis, self.metrics)
        self.processor = Processor(
            0, "DATA", self.channel, apis,
            quotas=self.quotas, metrics=self.metrics, max_idle_seconds=idle, turns=Turns(), memory=self.memory,
        )  # fmt: skip

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.processor.run(task_status)

    def client(self, pair: Callable[[], Any] = memory_stream_pair) -> Client:
        """A client with an accepted connection."""
        ours, theirs = pair()
        assert self.quotas.acquire("DATA", REMOTE[0])
        self.processor.accept_nowait(link(theirs, LOCAL, REMOTE))
        return Client(ours)


async def answer(request: Request) -> None:
    request.respond(ANSWER)


class Parking:
    """Parks requests until the test answers them."""

    def __init__(self) -> None:
        self.parked: list[Request] = []

    async def __call__(self, request: Request) -> None:
        self.parked.append(request)


async def test_a_connection_has_one_request_in_progress(nursery) -> None:  # rule B1.19
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION, QUESTION, QUESTION)
    for done in range(3):
        await wait_all_tasks_blocked()
        assert len(park.parked) == done + 1
        park.parked[done].respond(ANSWER)
        assert await client.receive() == ANSWER  # checks the correlation id: in order
    await wait_all_tasks_blocked()
    assert len(park.parked) == 3


Sockets = Callable[[], tuple[TcpStream, TcpStream]]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """Makes connected pairs, all closed at the end."""
    with ExitStack() as stack:

        def pair() -> tuple[TcpStream, TcpStream]:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            return TcpStream(ours), TcpStream(theirs)

        yield pair


async def test_the_response_to_a_parked_request_is_written_by_whoever_gives_it(nursery, sockets) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    ours, theirs = sockets()
    client = f.client(lambda: (ours, theirs))
    await client.send(QUESTION, QUESTION)
    await wait_all_tasks_blocked()
    park.parked[0].respond(ANSWER)
    assert len(ours.socket.recv(65536)) > 4  # no other task has run
    await wait_all_tasks_blocked()
    assert len(park.parked) == 2
    park.parked[1].close_connection()
    assert await ours.receive_some() == b""
    ours.close()
    counted = f.metrics.of("ApiVersions")
    assert (counted.requests, counted.errors) == (2, {0: 1})


class Steps(trio.abc.Instrument):
    """The tasks that have run, by name."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.ran.append(task.name)


async def test_a_response_wakes_no_task_if_the_client_waits_for_it(nursery, sockets) -> None:
    park, steps = Parking(), Steps()
    f = Fixture(park)
    await nursery.start(f.run)
    ours, theirs = sockets()
    client = f.client(lambda: (ours, theirs))
    for done in range(2):
        await client.send(QUESTION)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        park.parked[done].respond(ANSWER)
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(steps)
        assert await client.receive() == ANSWER
    (connection_id,) = f.processor.connections
    assert steps.ran
    assert connection_id not in steps.ran
    with trio.fail_after(60):
        await f.processor.drain()  # nothing is in progress
    assert await client.closed()
    ours.close()


async def test_a_request_that_need_not_wait_wakes_no_task(nursery, sockets, mock_clock) -> None:
    """As long as the slice of time is not used up: its clock stands still."""
    steps = Steps()
    f = Fixture(answer_at_once)
    await nursery.start(f.run)
    client = f.client(sockets)
    await client.send(QUESTION)
    assert await client.receive() == ANSWER
    await wait_all_tasks_blocked()
    trio.lowlevel.add_instrument(steps)
    for count in (1, 3):
        await client.send(*[QUESTION] * count)
        assert [await client.receive() for _ in range(count)] == [ANSWER] * count
    trio.lowlevel.remove_instrument(steps)
    (connection_id,) = f.processor.connections
    assert connection_id not in steps.ran
    await client.stream.aclose()
    await until(lambda: not f.processor.connections)
    assert f.metrics.of("ApiVersions").requests == 5


async def test_what_has_no_turn_now_is_served_in_its_turn(nursery, sockets) -> None:  # rules B1.5, B1.6
    f = Fixture(answer_at_once)
    turns = f.processor.turns = Turns(0.001)
    await nursery.start(f.run)
    clients = [f.client(sockets) for _ in range(3)]
    await wait_all_tasks_blocked()
    turns.spend(0.002)
    for client in clients:
        await client.send(QUESTION)
    await wait_all_tasks_blocked()
    assert f.metrics.of("ApiVersions").requests == 0
    nursery.start_soon(turns.run)
    for client in clients:
        assert await client.receive() == ANSWER
        await client.stream.aclose()


async def test_a_bad_request_after_others_on_a_socket(nursery, sockets) -> None:  # rule B1.35
    f = Fixture(answer_at_once)
    await nursery.start(f.run)
    for bad in (wire.frame(b"bad"), (10_001).to_bytes(4, "big")):
        client = f.client(sockets)
        await client.send(QUESTION)
        assert await client.receive() == ANSWER
        await client.stream.send_all(client.encoded(QUESTION) + bad)
        assert await client.receive() == ANSWER
        assert await client.closed()
        await client.stream.aclose()
    assert f.metrics.connections_closed_for_bad_requests == 2


async def test_a_connection_that_drains_ends_with_its_parked_request(nursery, sockets) -> None:  # rule B1.58
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client(sockets)
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    nursery.start_soon(f.processor.drain)
    await wait_all_tasks_blocked()
    park.parked[0].respond(ANSWER)
    assert await client.receive() == ANSWER
    with trio.fail_after(60):
        assert await client.closed()
    await client.stream.aclose()


async def test_a_parked_request_that_is_throttled_mutes_its_connection(  # rule B1.27
    nursery, sockets, autojump_clock
) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client(sockets)
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    park.parked[0].throttle(2000)
    park.parked[0].respond(ANSWER)
    assert await client.receive() == ANSWER
    await client.send(QUESTION)
    for seconds, parked in ((1.9, 1), (0.2, 2)):
        await trio.sleep(seconds)
        await wait_all_tasks_blocked()
        assert len(park.parked) == parked
    await client.stream.aclose()


async def test_what_cannot_leave_at_once_wakes_the_connection_that_waits_for_input(nursery, sockets) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    ours, theirs = sockets()
    client = f.client(lambda: (ours, theirs))
    large = os.urandom(1 << 23)  # more than the buffers hold
    for done in range(2):
        await client.send(QUESTION)
        await wait_all_tasks_blocked()
        park.parked[done].respond_encoded(bytes(4) + large, {0: 1})
        with trio.fail_after(60):
            assert (await client.receive_frame())[4:] == large
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    park.parked[2].close_connection()
    with trio.fail_after(60):
        assert await client.closed()
    ours.close()


async def test_a_client_that_is_gone_while_its_request_is_parked(nursery, sockets) -> None:
    """As with a request that is not read: the response finds it out."""
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    ours, theirs = sockets()
    client = f.client(lambda: (ours, theirs))
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    ours.close()
    await wait_all_tasks_blocked()
    assert len(f.processor.connections) == 1
    park.parked[0].respond(ANSWER)
    await wait_all_tasks_blocked()
    assert not f.processor.connections


async def test_what_a_reader_does_not_take_at_once_is_written_later(nursery, sockets) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    ours, theirs = sockets()
    client = f.client(lambda: (ours, theirs))
    await client.send(QUESTION, QUESTION)
    for done in range(2):
        await wait_all_tasks_blocked()
        large = os.urandom(1 << 23)  # more than the buffers hold
        park.parked[done].respond_encoded(bytes(4) + large, {0: 1})
        with trio.fail_after(60):
            assert (await client.receive_frame())[4:] == large
    ours.close()


def answer_at_once(request: Request) -> None:
    request.respond(ANSWER)


class CountingStream(trio.abc.Stream):
    """Counts the writes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.writes: list[int] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(len(data))
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self.stream.aclose()


async def test_requests_that_arrive_together_are_answered_in_one_write(nursery, autojump_clock) -> None:  # rule B1.60
    f = Fixture(answer_at_once)
    await nursery.start(f.run)
    ours, theirs = memory_stream_pair()
    counting = CountingStream(theirs)
    client = f.client(lambda: (ours, counting))
    for count in (1, 50):
        await client.send(*[QUESTION] * count)
        for _ in range(count):
            assert await client.receive() == ANSWER  # checks the correlation id: in order
    assert len(counting.writes) == 2
    assert counting.writes[1] == 50 * counting.writes[0]


async def test_responses_leave_before_a_later_request_waits(nursery) -> None:  # rules B1.19, B1.60
    """A request that is parked, and one that waits in its handler, do not keep back the response to an earlier one."""
    held: list[Request] = []
    released = trio.Event()

    async def wait_in_handler(request: Request) -> None:
        await released.wait()
        request.respond(ANSWER)

    def handle(request: Request) -> Awaitable[None] | None:
        correlation_id = request.context.header.correlation_id
        if correlation_id == 2:
            held.append(request)
        elif correlation_id == 4:
            return wait_in_handler(request)
        else:
            request.respond(ANSWER)
        return None

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    await client.send(*[QUESTION] * 5)
    assert await client.receive() == ANSWER
    await wait_all_tasks_blocked()
    held[0].respond(ANSWER)
    for _ in range(2):
        assert await client.receive() == ANSWER
    await wait_all_tasks_blocked()
    released.set()
    for _ in range(2):
        assert await client.receive() == ANSWER


async def test_responses_leave_before_a_later_bad_request_closes_the_connection(nursery) -> None:  # rule B1.35
    f = Fixture(answer_at_once)
    await nursery.start(f.run)
    for bad in (wire.frame(b"bad"), b"\xff\xff\xff\xff"):
        client = f.client()
        await client.stream.send_all(client.encoded(QUESTION) + bad)
        assert await client.receive() == ANSWER
        assert await client.closed()
        await client.stream.aclose()
    assert f.metrics.connections_closed_for_bad_requests == 2


SHARED_BYTES = 2048


def shares(together: Callable[[], AbstractContextManager[None]]) -> Sharing:
    return Sharing(together, SHARED_BYTES, lambda message: True)


class Together:
    """Requests that share work: they are answered at the end, the last one first."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.waiting: list[Request] = []
        self.is_open = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.is_open = True
        yield
        self.is_open = False
        self.runs.append([request.context.header.correlation_id for request in self.waiting])
        while self.waiting:
            self.waiting.pop().respond(ANSWER)

    def handle(self, request: Request) -> None:
        if self.is_open:
            self.waiting.append(request)
        else:
            request.respond(ANSWER if request.message == QUESTION else wire.MetadataResponse())

    def fixture(self, **more: int) -> Fixture:
        f = Fixture(self.handle, **more)
        f.processor.apis.sharing[QUESTION.__api_key__] = shares(self)
        return f


async def test_requests_that_share_work_are_in_progress_together(nursery) -> None:  # rules B1.19, B1.60
    together = Together()
    f = together.fixture()
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION)  # alone it shares nothing
    await client.receive()
    await client.send(QUESTION, QUESTION, QUESTION, wire.MetadataRequest(), QUESTION, QUESTION)
    answers = [type(await client.receive()) for _ in range(6)]  # checks the correlation ids: in order
    assert answers == [type(ANSWER)] * 3 + [wire.MetadataResponse] + [type(ANSWER)] * 2
    assert together.runs == [[2, 3, 4], [6, 7]]
    assert f.metrics.of("ApiVersions").requests == 6


async def test_what_follows_them_is_read_when_the_slice_of_time_is_used_up(nursery, mock_clock) -> None:
    together = Together()
    f = together.fixture()
    f.processor.apis.sharing[QUESTION.__api_key__] = shares(lambda: jumping(together, mock_clock))
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION, QUESTION, wire.MetadataRequest(), QUESTION)
    answers = [type(await client.receive()) for _ in range(4)]
    assert answers == [type(ANSWER)] * 2 + [wire.MetadataResponse, type(ANSWER)]
    assert together.runs == [[1, 2]]


@contextmanager
def jumping(together: Together, clock: MockClock) -> Iterator[None]:
    """It takes long."""
    with together():
        yield
    clock.jump(1)


async def test_so_many_requests_are_in_progress_together(nursery) -> None:
    together = Together()
    f = together.fixture()
    await nursery.start(f.run)
    client = f.client()
    await client.send(*[QUESTION] * 500)
    for _ in range(500):
        await client.receive()
    assert sum(map(len, together.runs)) == 500
    size = len(client.encoded(QUESTION)) - 4
    assert max(map(len, together.runs)) == math.ceil(SHARED_BYTES / size)


async def test_a_bad_request_after_some_that_share_work(nursery) -> None:  # rule B1.35
    for bad in (wire.frame(QUESTION.__api_key__.to_bytes(2) + b"bad"), b"\xff\xff\xff\xff"):
        together = Together()
        f = together.fixture()
        await nursery.start(f.run)
        client = f.client()
        await client.stream.send_all(b"".join(client.encoded(QUESTION) for _ in range(3)) + bad)
        for _ in range(3):
            assert await client.receive() == ANSWER
        assert await client.closed()
        assert f.metrics.connections_closed_for_bad_requests == 1


async def test_requests_wait_for_a_handler_one_after_the_other(nursery) -> None:  # rule B1.22
    together = Together()
    f = together.fixture(handlers=0)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION, QUESTION, wire.MetadataRequest())
    await wait_all_tasks_blocked()
    assert f.channel.request_queue_size == 1
    f.channel.resize(1)
    assert [type(await client.receive()) for _ in range(3)] == [type(ANSWER)] * 2 + [wire.MetadataResponse]
    assert together.runs == []


async def test_what_follows_one_that_shares_work_and_waits_is_handled_then() -> None:  # rule B1.60
    """Over a real socket, and in one read: nothing more comes that would wake the connection."""
    waiting: list[Request] = []

    def handle(request: Request) -> None:
        if request.message == QUESTION:
            waiting.append(request)
        else:
            request.respond(wire.MetadataResponse())

    apis = ScriptedApis(handle)
    apis.sharing[QUESTION.__api_key__] = shares(nullcontext)
    async with running_server(apis) as server, connect(listener(server)) as client:
        await client.send(QUESTION, wire.MetadataRequest())
        await until(lambda: bool(waiting))
        await wait_all_tasks_blocked()
        waiting.pop().respond(ANSWER)
        with trio.fail_after(10):
            assert [type(await client.receive()) for _ in range(2)] == [type(ANSWER), wire.MetadataResponse]


async def test_memory_of_requests_that_share_work(nursery) -> None:  # rule B1.25
    together = Together()
    apis = ScriptedApis(together.handle)
    apis.sharing[QUESTION.__api_key__] = shares(together)
    limited = config(queued_max_request_bytes="100000", socket_request_max_bytes="100000")
    async with running_server(apis, limited) as server, connect(listener(server)) as client:
        memory = server.planes[-1].memory
        assert memory is not None
        for last in (QUESTION, wire.MetadataRequest()):
            await client.send(QUESTION, QUESTION, QUESTION, last)
            for _ in range(4):
                await client.receive()
            await wait_all_tasks_blocked()
            assert memory.used == 0
        await client.stream.send_all(client.encoded(QUESTION) * 2 + wire.frame(QUESTION.__api_key__.to_bytes(2)))
        for _ in range(2):
            await client.receive_frame()
        assert await client.closed()
        await until(lambda: memory.used == 0)
    assert max(map(len, together.runs)) > 1


async def test_a_request_that_waits_for_a_handler_gives_its_memory_back_at_the_end() -> None:  # rule B1.25
    async def never(request: Request) -> None:
        await trio.sleep_forever()

    limited = config(queued_max_request_bytes="100000", socket_request_max_bytes="100000", num_io_threads="1")
    async with running_server(ScriptedApis(never), limited) as server:
        memory = server.planes[-1].memory
        assert memory is not None
        async with connect(listener(server)) as first, connect(listener(server)) as second:
            for i, client in enumerate((first, second)):
                await client.send(QUESTION)
                await until(lambda i=i: memory.used > i * 20)
                await wait_all_tasks_blocked()
    assert memory.used == 0


async def test_throttling_interrupts_a_batch(nursery, autojump_clock) -> None:  # rules B1.26, B8.4
    def handle(request: Request) -> None:
        request.respond(wire.ApiVersionsResponse(throttle_time_ms=1000))

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    begin = trio.current_time()
    await client.send(*[QUESTION] * 3)
    arrived = []
    for _ in range(3):
        await client.receive()
        arrived.append(trio.current_time() - begin)
    assert arrived == pytest.approx([0, 1, 2])


async def test_a_closed_connection_lets_its_handler_finish(nursery) -> None:  # rule B1.59
    released, finished = trio.Event(), trio.Event()

    async def handle(request: Request) -> None:
        await released.wait()
        request.respond(ANSWER)
        finished.set()

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION, QUESTION)
    await wait_all_tasks_blocked()
    (connection,) = f.processor.connections.values()
    connection.close()
    await wait_all_tasks_blocked()
    released.set()
    await finished.wait()
    assert await client.closed()
    assert f.metrics.of("ApiVersions").requests == 1


async def test_a_request_that_gives_up_its_place_lets_others_pass(nursery) -> None:  # rules B1.22, B1.56
    """Requests that wait for a handler, and for room in the queue, are cancelled."""
    released = trio.Event()

    async def handle(request: Request) -> None:
        if not released.is_set():
            await released.wait()
        request.respond(ANSWER)

    f = Fixture(handle, queue=1, handlers=1)
    await nursery.start(f.run)
    clients = []
    for _ in range(3):
        clients.append(f.client())
        await clients[-1].send(QUESTION)
        await wait_all_tasks_blocked()
    assert f.channel.request_queue_size == 1
    connections = list(f.processor.connections.values())
    connections[2]._scope.cancel()  # before the queue
    connections[1]._scope.cancel()  # in the queue
    await wait_all_tasks_blocked()
    assert f.channel.request_queue_size == 0
    late = f.client()
    await late.send(QUESTION)
    await wait_all_tasks_blocked()
    assert f.channel.request_queue_size == 1
    released.set()
    await wait_all_tasks_blocked()
    assert await clients[0].receive() == ANSWER
    assert await late.receive() == ANSWER


async def test_nothing_is_read_while_a_request_is_in_progress(nursery) -> None:  # rules B1.20, B1.21
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client(lockstep_stream_pair)
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    sent = trio.Event()

    async def send_more() -> None:
        await client.send(QUESTION)
        sent.set()

    nursery.start_soon(send_more)
    await wait_all_tasks_blocked()
    assert not sent.is_set()
    park.parked[0].respond(ANSWER)
    await client.receive()
    await sent.wait()


async def test_a_parked_request_occupies_no_handler(nursery) -> None:  # rules B1.29, B1.60
    park = Parking()
    f = Fixture(park, handlers=1)
    await nursery.start(f.run)
    clients = [f.client() for _ in range(5)]
    for client in clients:
        await client.send(QUESTION)
    await wait_all_tasks_blocked()
    assert len(park.parked) == 5
    for request in reversed(park.parked):
        request.respond(ANSWER)
    for client in clients:
        assert await client.receive() == ANSWER


async def test_connections_proceed_independently(nursery) -> None:  # rule B1.29
    released = trio.Event()

    async def first_waits(request: Request) -> None:
        if request.connection.context.connection_id.endswith("-0"):
            await released.wait()
        request.respond(ANSWER)

    f = Fixture(first_waits, handlers=2)
    await nursery.start(f.run)
    slow, quick = f.client(), f.client()
    await wait_all_tasks_blocked()
    await slow.send(QUESTION)
    for _ in range(3):
        assert await quick.ask(QUESTION) == ANSWER
    released.set()
    assert await slow.receive() == ANSWER


async def test_a_slow_reader_delays_only_itself(nursery) -> None:
    f = Fixture(answer, handlers=1)
    await nursery.start(f.run)
    slow, quick = f.client(lockstep_stream_pair), f.client(lockstep_stream_pair)
    await slow.send(QUESTION)  # it does not read, so the write cannot complete
    await wait_all_tasks_blocked()
    for _ in range(3):
        assert await quick.ask(QUESTION) == ANSWER
    assert await slow.receive() == ANSWER


async def test_a_full_queue_blocks_the_processor_and_its_responses(nursery) -> None:  # rule B1.22
    """One request occupies the handler, another fills the queue, the third blocks the processor."""
    released = trio.Event()
    park = Parking()

    async def handle(request: Request) -> None:
        if not park.parked:
            await park(request)
        else:
            await released.wait()
            request.respond(ANSWER)

    f = Fixture(handle, queue=1, handlers=1)
    await nursery.start(f.run)
    waiting, *others, late = [f.client() for _ in range(5)]
    await waiting.send(QUESTION)
    for client in others:
        await wait_all_tasks_blocked()
        await client.send(QUESTION)
    await wait_all_tasks_blocked()
    assert f.channel.request_queue_size == 1
    park.parked[0].respond(ANSWER)
    await late.send(QUESTION)
    await wait_all_tasks_blocked()
    assert f.processor.response_queue_size == 1  # a response that nobody writes
    released.set()
    for client in (waiting, *others, late):
        assert await client.receive() == ANSWER
    assert f.metrics.of("ApiVersions").requests == 5


@pytest.mark.kafka("SS-10")
@pytest.mark.kafka("SS-9")
async def test_no_response_continues_with_the_next_request(nursery) -> None:  # rules B1.23, B1.55
    seen = []

    async def handle(request: Request) -> None:
        seen.append(request.context.header.correlation_id)
        request.no_response()

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    await client.send(*[QUESTION] * 10)
    await client.stream.aclose()
    await wait_all_tasks_blocked()
    assert seen == list(range(1, 11))
    assert f.processor.connections == {}


@pytest.mark.kafka("SS-43")
async def test_complete_requests_before_a_close_are_processed(nursery, caplog) -> None:  # rule B1.55
    caplog.set_level(logging.INFO, "kce.broker_stub.reactor")
    f = Fixture(answer)
    await nursery.start(f.run)
    client = f.client()
    await client.stream.send_all(client.encoded(QUESTION, 0) + client.encoded(QUESTION, 0)[:-2])
    await client.stream.send_eof()  # type: ignore[attr-defined]
    assert await client.receive() == ANSWER
    assert await client.closed()
    assert f.metrics.of("ApiVersions").requests == 1
    assert "127.0.0.1:9092-127.0.0.1:50000-0: the client closed the connection within a request" in caplog.text


async def test_close_connection_closes_without_a_response(nursery) -> None:  # rule B1.23
    async def handle(request: Request) -> None:
        request.close_connection()

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION, QUESTION)
    assert await client.closed()
    await wait_all_tasks_blocked()
    assert f.metrics.of("ApiVersions").requests == 1


@pytest.mark.kafka("SS-29")
@pytest.mark.kafka("SS-39")
async def test_a_close_during_a_parked_request_is_detected_by_the_response(nursery) -> None:  # rule B1.21
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    gone, other = f.client(), f.client()
    await gone.send(QUESTION)
    await wait_all_tasks_blocked()
    await gone.stream.aclose()
    await wait_all_tasks_blocked()
    assert len(f.processor.connections) == 2  # not detected yet
    park.parked[0].respond(ANSWER)
    await wait_all_tasks_blocked()
    assert len(f.processor.connections) == 1
    assert f.quotas.open_from(REMOTE[0]) == 1
    assert f.metrics.of("ApiVersions").requests == 1
    await other.send(QUESTION)
    await wait_all_tasks_blocked()
    park.parked[1].respond(ANSWER)
    assert await other.receive() == ANSWER


@pytest.mark.kafka("SS-30")
async def test_a_response_for_a_closed_connection_is_dropped_with_a_warning(nursery, caplog) -> None:  # rule B1.24
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    (connection,) = f.processor.connections.values()
    connection.close()
    await wait_all_tasks_blocked()
    park.parked[0].respond(ANSWER)
    await wait_all_tasks_blocked()
    assert "dropping the response, the connection is closed" in caplog.text
    assert f.metrics.of("ApiVersions").requests == 1


@pytest.mark.kafka("SS-12")
async def test_an_idle_connection_is_closed(nursery, autojump_clock) -> None:  # rule B1.53
    f = Fixture(answer, idle=10)
    await nursery.start(f.run)
    idle, busy = f.client(), f.client()
    begin = trio.current_time()
    for _ in range(3):
        await trio.sleep(4)
        await busy.ask(QUESTION)
    assert await idle.closed()
    assert len(f.processor.connections) == 1
    assert await busy.closed()
    assert trio.current_time() - begin == pytest.approx(22)
    assert f.metrics.connections_expired == 2


@pytest.mark.kafka("SS-12")
async def test_an_idle_connection_with_a_request_in_progress_is_closed_as_well(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:  # rule B1.53
    park = Parking()
    f = Fixture(park, idle=10)
    await nursery.start(f.run)
    one, several, in_time = f.client(), f.client(), f.client()
    await one.send(QUESTION)
    await several.send(QUESTION, QUESTION, QUESTION)
    await trio.sleep(9)
    await in_time.send(QUESTION)
    await trio.sleep(2)
    assert len(f.processor.connections) == 1
    assert await one.closed()
    assert await several.closed()
    for request in park.parked:
        request.respond(ANSWER)
    assert await in_time.receive() == ANSWER
    await wait_all_tasks_blocked()
    assert len(park.parked) == 3  # nothing that was pipelined


async def test_a_request_in_its_handler_outlives_its_idle_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:  # rules B1.53, B1.59
    finished = []

    async def slowly(request: Request) -> None:
        await trio.sleep(15)
        finished.append(request)
        request.respond(ANSWER)

    f = Fixture(slowly, idle=10)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION)
    assert await client.closed()  # without a response
    assert len(finished) == 1
    assert f.metrics.of("ApiVersions").requests == 1


async def test_without_an_idle_limit_no_connection_expires(nursery, autojump_clock) -> None:
    f = Fixture(answer, idle=math.inf)
    await nursery.start(f.run)
    client = f.client()
    await trio.sleep(80_000)
    assert await client.ask(QUESTION) == ANSWER


async def test_a_client_that_never_reads_is_closed_after_the_idle_time(nursery, autojump_clock) -> None:  # rule B1.53
    f = Fixture(answer, idle=10)
    await nursery.start(f.run)
    client = f.client(lockstep_stream_pair)
    await client.send(QUESTION)
    await trio.sleep(11)
    assert f.processor.connections == {}


@pytest.mark.kafka("SS-11")
async def test_connection_ids_have_increasing_indexes(nursery) -> None:  # rule B1.16
    f = Fixture(answer)
    await nursery.start(f.run)
    for _ in range(3):
        f.client()
    await wait_all_tasks_blocked()
    assert sorted(f.processor.connections) == [f"127.0.0.1:9092-127.0.0.1:50000-{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::8a2e:0370", "2001:db8:0:0:0:0:8a2e:370"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("127.0.0.1", "127.0.0.1"),
        ("node-1", "node-1"),
    ],
)
async def test_clients_have_addresses_as_in_java(host: str, written: str, nursery: trio.Nursery) -> None:
    """ACLs name hosts like this."""
    f = Fixture(answer)
    await nursery.start(f.run)
    assert f.quotas.acquire("DATA", host)
    f.processor.accept_nowait(link(memory_stream_pair()[1], LOCAL, (host, 5)))
    await wait_all_tasks_blocked()
    ((connection_id, connection),) = f.processor.connections.items()
    assert connection.context.client_host == written
    assert connection_id == f"127.0.0.1:9092-{written}:5-0"


async def test_the_hand_off_queue_has_room_for_20(nursery) -> None:  # rule B1.15
    f = Fixture(answer)
    clients = [f.client() for _ in range(HAND_OFF_QUEUE_SIZE)]
    with pytest.raises(trio.WouldBlock):
        f.client()
    f.quotas.release("DATA", REMOTE[0])
    await nursery.start(f.run)
    for client in clients:
        assert await client.ask(QUESTION) == ANSWER


async def test_a_processor_that_is_not_blocked_needs_no_hand_off_queue(nursery) -> None:
    f = Fixture(answer)
    await nursery.start(f.run)
    clients = [f.client() for _ in range(HAND_OFF_QUEUE_SIZE + 2)]
    for client in clients:
        assert await client.ask(QUESTION) == ANSWER


async def test_a_connection_that_waits_for_the_hand_off_queue_is_served(nursery) -> None:  # rules B1.15, B1.16
    f = Fixture(answer)
    for _ in range(HAND_OFF_QUEUE_SIZE):
        f.client()
    ours, theirs = memory_stream_pair()
    nursery.start_soon(f.processor.accept, link(theirs, LOCAL, REMOTE))
    await wait_all_tasks_blocked()
    await nursery.start(f.run)
    f.quotas.acquire("DATA", REMOTE[0])
    assert await Client(ours).ask(QUESTION) == ANSWER


@pytest.mark.kafka("SS-6")
async def test_connections_in_the_hand_off_queue_are_closed_at_the_end(nursery) -> None:
    f = Fixture(answer)
    clients = [f.client() for _ in range(3)]
    with trio.CancelScope() as scope:
        scope.cancel()
        await f.processor.run()
    for client in clients:
        assert await client.closed()
    assert f.quotas.open_from(REMOTE[0]) == 0


@pytest.mark.kafka("SS-38")
@pytest.mark.kafka("SS-52")
async def test_a_stream_that_fails_costs_its_connection_only(nursery, caplog) -> None:  # rule B1.18
    f = Fixture(answer)
    await nursery.start(f.run)
    broken = f.client()

    async def fail(data: bytes) -> None:
        raise ValueError("the recorder has a bug")

    await wait_all_tasks_blocked()
    (connection,) = f.processor.connections.values()
    connection._link.send = fail  # type: ignore[method-assign]
    await broken.send(QUESTION)
    assert await broken.closed()
    assert "closed after an unexpected error" in caplog.text
    assert await f.client().ask(QUESTION) == ANSWER


async def test_an_exception_in_a_handler_becomes_the_apis_error_response(nursery, caplog) -> None:  # rules B1.31, B1.41
    async def handle(request: Request) -> None:
        raise RuntimeError("broken for the test")

    f = Fixture(handle, handlers=1)
    await nursery.start(f.run)
    client = f.client()
    for _ in range(2):  # the handler continues
        assert (await client.ask(QUESTION)).error_code == -1
    assert f.metrics.handler_errors == 2
    assert f.metrics.of("ApiVersions").errors == {-1: 2}
    assert "broken for the test" in caplog.text


async def test_an_exception_without_an_error_response_closes_the_connection(nursery, caplog) -> None:  # rule B1.41
    async def handle(request: Request) -> None:
        raise RuntimeError("broken for the test")

    f = Fixture(handle, handlers=1)
    await nursery.start(f.run)
    client = f.client()
    await client.send(wire.MetadataRequest())  # ScriptedApis has no error response for it
    assert await client.closed()
    assert (await f.client().ask(QUESTION)).error_code == -1


async def test_a_response_that_cannot_be_encoded_becomes_an_error_response(nursery, caplog) -> None:  # rule B1.31
    async def handle(request: Request) -> None:
        request.respond(wire.ApiVersionsResponse(error_code=2**40))

    f = Fixture(handle)
    await nursery.start(f.run)
    assert (await f.client().ask(QUESTION)).error_code == -1


async def test_a_failing_error_response_closes_the_connection(nursery, caplog, monkeypatch) -> None:
    async def handle(request: Request) -> None:
        raise RuntimeError("broken for the test")

    def fail(self: ScriptedApis, request: Request, error: Exception) -> None:
        raise KeyError("broken as well")

    monkeypatch.setattr(ScriptedApis, "error_response", fail)
    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION)
    assert await client.closed()
    assert "the error response failed" in caplog.text


async def test_an_exception_after_the_response_is_only_logged(nursery, caplog) -> None:
    async def handle(request: Request) -> None:
        request.respond(ANSWER)
        raise RuntimeError("broken for the test")

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    for _ in range(2):
        assert await client.ask(QUESTION) == ANSWER


async def test_draining_waits_for_requests_in_progress_and_closes_the_rest(nursery) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    idle, half, busy = f.client(), f.client(), f.client()
    await half.stream.send_all(half.encoded(QUESTION)[:-1])
    await busy.send(QUESTION, QUESTION)
    await wait_all_tasks_blocked()
    drained = trio.Event()

    async def drain() -> None:
        await f.processor.drain()
        drained.set()

    nursery.start_soon(drain)
    assert await idle.closed()
    assert await half.closed()
    await wait_all_tasks_blocked()
    assert not drained.is_set()
    park.parked[0].respond(ANSWER)
    assert await busy.receive() == ANSWER
    assert await busy.closed()
    await drained.wait()
    assert len(park.parked) == 1  # the pipelined one was dropped


async def test_each_part_of_the_request_time_is_measured(nursery, autojump_clock) -> None:  # rule B1.33
    park = Parking()

    async def handle(request: Request) -> None:
        await trio.sleep(1)
        await park(request)

    f = Fixture(handle, handlers=1)
    await nursery.start(f.run)
    first, second = f.client(), f.client()
    await first.send(QUESTION)
    await trio.sleep(0.5)
    await second.send(QUESTION)
    await trio.sleep(4.5)
    for request in park.parked:
        request.respond(ANSWER)
    await first.receive()
    await second.receive()
    await wait_all_tasks_blocked()
    metrics = f.metrics.of("ApiVersions")
    assert metrics.requests == 2
    assert metrics.request_queue_time == pytest.approx(0.5)  # the second one waited for the handler
    assert metrics.local_time == pytest.approx(2)
    assert metrics.remote_time == pytest.approx(4 + 3)
    assert metrics.total_time == pytest.approx(5 + 4.5)
    assert metrics.errors == {0: 2}


async def test_how_long_a_response_is_sent_is_measured(nursery, autojump_clock) -> None:  # rule B1.33
    f = Fixture(answer)
    await nursery.start(f.run)
    client = f.client(lockstep_stream_pair)  # which sends when the other end receives
    await client.send(QUESTION)
    await trio.sleep(3)
    await client.receive()
    await wait_all_tasks_blocked()
    metrics = f.metrics.of("ApiVersions")
    assert (metrics.requests, metrics.response_send_time) == (1, pytest.approx(3))
    assert metrics.total_time == pytest.approx(3)


async def test_a_processor_that_ends_closes_what_is_accepted_meanwhile() -> None:
    clients = []

    async def connect_to(f: Fixture) -> None:
        while True:
            clients.append(f.client())
            await trio.lowlevel.checkpoint()

    for _ in range(30):  # which of Trio's tasks is next is random
        f = Fixture(answer)
        async with trio.open_nursery() as nursery:
            await nursery.start(f.run)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), pytest.raises(trio.ClosedResourceError):
                await connect_to(f)
    for client in clients:
        assert await client.closed()
