"""One processor with connections in memory, so that "nothing happens" can be asserted (rules B1.16-B1.24, B1.53)."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

import wire
from broker_stub.ports import no_tap
from broker_stub.reactor import Request, RequestMetrics
from broker_stub.reactor.handler_pool import HandlerPool
from broker_stub.reactor.processor import HAND_OFF_QUEUE_SIZE, Accepted, Processor
from broker_stub.reactor.quotas import ConnectionQuotas
from broker_stub.reactor.request_channel import RequestChannel
from tests.broker_stub.support import Client, ScriptedApis

LOCAL, REMOTE = ("127.0.0.1", 9092), ("127.0.0.1", 50000)
QUESTION = wire.ApiVersionsRequest()
ANSWER = wire.ApiVersionsResponse()


class Fixture:
    """A processor, its queue, its handlers, and clients of it."""

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[None]],
        *,
        queue: int = 500,
        handlers: int = 8,
        idle: float = 600,
        tap: Any = no_tap,
    ) -> None:
        self.metrics = RequestMetrics()
        self.quotas = ConnectionQuotas(1000)
        self.channel = RequestChannel(queue)
        apis = ScriptedApis(handle)
        self.pool = HandlerPool("data-plane", handlers, self.channel, apis, self.metrics)
        self.processor = Processor(
            0, "DATA", self.channel, apis,
            tap=tap, quotas=self.quotas, metrics=self.metrics, max_frame_bytes=10_000, max_idle_seconds=idle,
        )  # fmt: skip

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.pool.run)
            await nursery.start(self.processor.run)
            task_status.started()

    def client(self, pair: Callable[[], Any] = memory_stream_pair) -> Client:
        """A client whose connection has been accepted."""
        ours, theirs = pair()
        assert self.quotas.acquire(REMOTE[0])
        self.processor.accept_nowait(Accepted(theirs, LOCAL, REMOTE))
        return Client(ours)


async def answer(request: Request) -> None:
    request.respond(ANSWER)


class Parking:
    """Requests are kept until the test answers them."""

    def __init__(self) -> None:
        self.parked: list[Request] = []

    async def __call__(self, request: Request) -> None:
        self.parked.append(request)


async def test_one_request_of_a_connection_is_in_progress_at_a_time(nursery) -> None:  # rule B1.19
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


async def test_a_slow_reader_holds_up_only_itself(nursery) -> None:
    f = Fixture(answer, handlers=1)
    await nursery.start(f.run)
    slow, quick = f.client(lockstep_stream_pair), f.client(lockstep_stream_pair)
    await slow.send(QUESTION)  # and does not read: the write cannot complete
    await wait_all_tasks_blocked()
    for _ in range(3):
        assert await quick.ask(QUESTION) == ANSWER
    assert await slow.receive() == ANSWER


async def test_a_full_queue_stops_the_processor_and_its_waiting_answers(nursery) -> None:  # rule B1.22
    """The handler is busy with one request, another fills the queue, the third stops the processor."""
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
    assert f.processor.response_queue_size == 1  # there is an answer, and nobody to write it
    released.set()
    for client in (waiting, *others, late):
        assert await client.receive() == ANSWER
    assert f.metrics.of("ApiVersions").requests == 5


@pytest.mark.kafka("SS-10")
@pytest.mark.kafka("SS-9")
async def test_no_response_lets_the_next_one_in_also_after_the_client_has_closed(nursery) -> None:  # rules B1.23, B1.55
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
async def test_whole_requests_before_a_close_are_processed_a_broken_one_is_not(nursery, caplog) -> None:  # rule B1.55
    caplog.set_level(logging.INFO, "broker_stub.reactor")
    f = Fixture(answer)
    await nursery.start(f.run)
    client = f.client()
    await client.stream.send_all(client.encoded(QUESTION, 0) + client.encoded(QUESTION, 0)[:-2])
    await client.stream.send_eof()  # type: ignore[attr-defined]
    assert await client.receive() == ANSWER
    assert await client.closed()
    assert f.metrics.of("ApiVersions").requests == 1
    assert "127.0.0.1:9092-127.0.0.1:50000-0: the peer closed inside a request" in caplog.text


async def test_close_connection(nursery) -> None:  # rule B1.23
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
async def test_a_client_that_closes_during_a_parked_request_is_noticed_by_its_answer(nursery) -> None:  # rule B1.21
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    gone, other = f.client(), f.client()
    await gone.send(QUESTION)
    await wait_all_tasks_blocked()
    await gone.stream.aclose()
    await wait_all_tasks_blocked()
    assert len(f.processor.connections) == 2  # not noticed yet
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
async def test_an_answer_for_a_connection_that_is_gone_is_dropped_with_a_warning(nursery, caplog) -> None:  # rule B1.24
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
    assert "the connection is gone, its answer is dropped" in caplog.text
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
async def test_one_with_a_request_in_progress_is_closed_when_its_answer_is_due(nursery, autojump_clock) -> None:
    park = Parking()  # rule B1.53
    f = Fixture(park, idle=10)
    await nursery.start(f.run)
    kept, in_time = f.client(), f.client()
    await kept.send(QUESTION)
    await trio.sleep(9)
    await in_time.send(QUESTION)
    await trio.sleep(2)
    assert len(f.processor.connections) == 2
    for request in park.parked:
        request.respond(ANSWER)
    assert await kept.closed()  # without a byte
    assert await in_time.receive() == ANSWER


async def test_without_a_limit_no_connection_expires(nursery, autojump_clock) -> None:
    f = Fixture(answer, idle=math.inf)
    await nursery.start(f.run)
    client = f.client()
    await trio.sleep(80_000)
    assert await client.ask(QUESTION) == ANSWER


async def test_a_peer_that_never_reads_is_given_up_after_the_idle_time(nursery, autojump_clock) -> None:  # rule B1.53
    f = Fixture(answer, idle=10)
    await nursery.start(f.run)
    client = f.client(lockstep_stream_pair)
    await client.send(QUESTION)
    await trio.sleep(11)
    assert f.processor.connections == {}


@pytest.mark.kafka("SS-11")
async def test_connection_ids_count_up(nursery) -> None:  # rule B1.16
    f = Fixture(answer)
    await nursery.start(f.run)
    for _ in range(3):
        f.client()
    await wait_all_tasks_blocked()
    assert sorted(f.processor.connections) == [f"127.0.0.1:9092-127.0.0.1:50000-{i}" for i in range(3)]


async def test_the_hand_off_queue_has_room_for_20(nursery) -> None:  # rule B1.15
    f = Fixture(answer)
    clients = [f.client() for _ in range(HAND_OFF_QUEUE_SIZE)]
    with pytest.raises(trio.WouldBlock):
        f.client()
    f.quotas.release(REMOTE[0])
    await nursery.start(f.run)
    for client in clients:
        assert await client.ask(QUESTION) == ANSWER


async def test_one_that_waits_for_room_in_the_hand_off_queue_is_served_too(nursery) -> None:  # rules B1.15, B1.16
    f = Fixture(answer)
    for _ in range(HAND_OFF_QUEUE_SIZE):
        f.client()
    ours, theirs = memory_stream_pair()
    nursery.start_soon(f.processor.accept, Accepted(theirs, LOCAL, REMOTE))  # type: ignore[arg-type]
    await wait_all_tasks_blocked()
    await nursery.start(f.run)
    f.quotas.acquire(REMOTE[0])
    assert await Client(ours).ask(QUESTION) == ANSWER


@pytest.mark.kafka("SS-6")
async def test_connections_in_the_hand_off_queue_are_closed_at_the_end(nursery) -> None:
    class Socket:
        closed = 0

        def close(self) -> None:
            Socket.closed += 1

    class Stream:
        socket = Socket()

    f = Fixture(answer)
    for _ in range(3):
        f.quotas.acquire(REMOTE[0])
        f.processor.accept_nowait(Accepted(Stream(), LOCAL, REMOTE))  # type: ignore[arg-type]
    with trio.CancelScope() as scope:
        scope.cancel()
        await f.processor.run()
    assert Socket.closed == 3
    assert f.quotas.open_from(REMOTE[0]) == 0


@pytest.mark.kafka("SS-36")
async def test_a_tap_that_fails_costs_its_connection_only(nursery, caplog) -> None:
    class Socket:
        closed = False

        def close(self) -> None:
            self.closed = True

    class Stream:
        socket = Socket()

    def tap(stream: Any) -> Any:
        if isinstance(stream, Stream):
            raise OSError("the disk is full")
        return stream

    f = Fixture(answer, tap=tap)
    await nursery.start(f.run)
    f.processor.accept_nowait(Accepted(Stream(), LOCAL, REMOTE))  # type: ignore[arg-type]
    f.quotas.acquire(REMOTE[0])
    await wait_all_tasks_blocked()
    assert Stream.socket.closed
    assert "could not be set up" in caplog.text
    assert await f.client().ask(QUESTION) == ANSWER
    assert f.quotas.open_from(REMOTE[0]) == 1


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
    connection._stream.send_all = fail  # type: ignore[method-assign]
    await broken.send(QUESTION)
    assert await broken.closed()
    assert "closed after an unexpected error" in caplog.text
    assert await f.client().ask(QUESTION) == ANSWER


async def test_a_stream_that_cannot_be_closed_costs_nothing(nursery, caplog) -> None:
    f = Fixture(answer)
    await nursery.start(f.run)
    client = f.client()
    await client.ask(QUESTION)
    (connection,) = f.processor.connections.values()

    async def fail() -> None:
        raise OSError("the disk is full")

    connection._stream.aclose = fail  # type: ignore[method-assign]
    await client.stream.aclose()
    await wait_all_tasks_blocked()
    assert "cannot be closed properly" in caplog.text
    assert f.processor.connections == {}
    assert await f.client().ask(QUESTION) == ANSWER


async def test_an_exception_in_a_handler_is_the_apis_error_answer(nursery, caplog) -> None:  # rules B1.31, B1.41
    async def handle(request: Request) -> None:
        raise RuntimeError("broken for the test")

    f = Fixture(handle, handlers=1)
    await nursery.start(f.run)
    client = f.client()
    for _ in range(2):  # the handler lives on
        assert (await client.ask(QUESTION)).error_code == -1
    assert f.metrics.handler_errors == 2
    assert f.metrics.of("ApiVersions").errors == {-1: 2}
    assert "broken for the test" in caplog.text


async def test_an_exception_where_there_is_no_error_answer_closes(nursery, caplog) -> None:  # rule B1.41
    async def handle(request: Request) -> None:
        raise RuntimeError("broken for the test")

    f = Fixture(handle, handlers=1)
    await nursery.start(f.run)
    client = f.client()
    await client.send(wire.MetadataRequest())  # ScriptedApis has no error answer for it
    assert await client.closed()
    assert (await f.client().ask(QUESTION)).error_code == -1


async def test_an_answer_that_cannot_be_encoded_becomes_an_error_answer(nursery, caplog) -> None:  # rule B1.31
    async def handle(request: Request) -> None:
        request.respond(wire.ApiVersionsResponse(error_code=2**40))

    f = Fixture(handle)
    await nursery.start(f.run)
    assert (await f.client().ask(QUESTION)).error_code == -1


async def test_an_error_answer_that_fails_itself_closes(nursery, caplog, monkeypatch) -> None:
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
    assert "cannot be answered" in caplog.text


async def test_an_exception_after_the_answer_changes_nothing(nursery, caplog) -> None:
    async def handle(request: Request) -> None:
        request.respond(ANSWER)
        raise RuntimeError("broken for the test")

    f = Fixture(handle)
    await nursery.start(f.run)
    client = f.client()
    for _ in range(2):
        assert await client.ask(QUESTION) == ANSWER


async def test_draining_answers_what_is_in_progress_and_closes_the_rest(nursery) -> None:
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


async def test_times_are_booked_where_they_were_spent(nursery, autojump_clock) -> None:  # rule B1.33
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
    assert metrics.request_queue_time == pytest.approx(0.5)  # the second waited for the handler
    assert metrics.local_time == pytest.approx(2)
    assert metrics.remote_time == pytest.approx(4 + 3)
    assert metrics.total_time == pytest.approx(5 + 4.5)
    assert metrics.errors == {0: 2}
