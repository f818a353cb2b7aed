"""SS, beside test_socket_server.py: throttled, closing and failing connections of one processor (section 12a of
docs/broker-semantics.md; rules B1.16 to B1.28, B1.53 to B1.55).

Upstream buffers requests in the layer of TLS; here they wait in the stream, as on every listener. What is not plain in
upstream's cases is that nothing is read while a request is in progress.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce.broker_stub.reactor import Request
from kce.broker_stub.security import ANONYMOUS
from tests.broker_stub.support import Client
from tests.broker_stub.test_processor import ANSWER, QUESTION, REMOTE, Fixture, Parking, answer

kafka = pytest.mark.kafka

Complete = Callable[[Request], None]


def respond(request: Request) -> None:
    request.respond(ANSWER)


async def healthy(f: Fixture, park: Parking, *clients: Client) -> None:
    """New clients and these are served."""
    for client in (*clients, f.client()):
        await client.send(QUESTION)
        await wait_all_tasks_blocked()
        park.parked.pop().respond(ANSWER)
        assert await client.receive() == ANSWER


@kafka("SS-28")
async def test_nobody_logs_in_on_a_plaintext_listener(nursery: trio.Nursery) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    await f.client().send(QUESTION)
    await wait_all_tasks_blocked()
    assert park.parked[0].context.principal == ANONYMOUS


@kafka("SS-13")
async def test_an_id_in_use_is_not_taken_by_another_connection(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)

    async def connect() -> Client:
        f.processor._next_index = 0
        client = f.client()
        await wait_all_tasks_blocked()
        return client

    first = await connect()
    (opened,) = f.processor.connections.values()
    assert await (await connect()).closed()
    assert "there is already a connection of this id" in caplog.text
    assert list(f.processor.connections.values()) == [opened]
    assert f.quotas.open_from(REMOTE[0]) == 1
    await first.stream.aclose()
    await wait_all_tasks_blocked()
    assert f.processor.connections == {}

    closing = await connect()
    (opened,) = f.processor.connections.values()
    await closing.send(QUESTION)
    await wait_all_tasks_blocked()
    await closing.stream.aclose()
    assert await (await connect()).closed()
    assert list(f.processor.connections.values()) == [opened]
    assert f.quotas.open_from(REMOTE[0]) == 1
    park.parked.pop().respond(ANSWER)
    await wait_all_tasks_blocked()
    assert f.processor.connections == {}
    assert f.quotas.open_from(REMOTE[0]) == 0

    await healthy(f, park, await connect())


@pytest.mark.parametrize(
    ("complete", "done"),
    [
        pytest.param(respond, False, marks=kafka("SS-14"), id="in progress"),
        pytest.param(respond, True, marks=kafka("SS-15"), id="done"),
        pytest.param(Request.no_response, False, marks=kafka("SS-16"), id="in progress, no response"),
        pytest.param(Request.no_response, True, marks=kafka("SS-17"), id="done, no response"),
    ],
)
async def test_a_throttled_connection_is_read_again_when_both_are_done(
    nursery: trio.Nursery, autojump_clock: MockClock, *, complete: Complete, done: bool
) -> None:  # rules B1.26, B1.27
    """The response leaves at once; the next request is read when it has left and the throttling has ended."""
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION, QUESTION)
    await wait_all_tasks_blocked()
    begin = trio.current_time()
    park.parked[0].connection.throttle(0.1)
    if done:
        await trio.sleep(0.2)
    complete(park.parked[0])
    if complete is respond:
        assert await client.receive() == ANSWER
        assert trio.current_time() - begin == pytest.approx(0.2 if done else 0)
    await wait_all_tasks_blocked()
    assert len(park.parked) == (2 if done else 1)
    await trio.sleep(0.11)
    assert len(park.parked) == 2


@kafka("SS-32")
async def test_requests_of_a_closed_client_are_processed_until_a_response_fails(nursery: trio.Nursery) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client()
    await client.send(*[QUESTION] * 100)
    await client.stream.aclose()
    for done in range(2):
        await wait_all_tasks_blocked()
        assert len(park.parked) == done + 1
        park.parked[done].no_response()
    await wait_all_tasks_blocked()
    park.parked[2].respond(ANSWER)
    await wait_all_tasks_blocked()
    assert f.processor.connections == {}
    assert len(park.parked) == 3
    assert f.metrics.of("ApiVersions").requests == 3


async def requests_in_progress(f: Fixture, park: Parking, count: int) -> list[Client]:
    """So many clients, each with one."""
    clients = [f.client() for _ in range(count)]
    for client in clients:
        await client.send(QUESTION)
        await wait_all_tasks_blocked()
    assert len(park.parked) == count
    return clients


@kafka("SS-37")
async def test_a_send_that_fails_closes_its_connection_only(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*data: bytes) -> None:
        raise RuntimeError("it cannot be sent")

    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    broken, other = await requests_in_progress(f, park, 2)
    park.parked[0].connection._link.send = fail  # type: ignore[attr-defined]
    for request in park.parked:
        request.respond(ANSWER)
    assert await broken.closed()
    assert "closed after an unexpected error" in caplog.text
    assert await other.receive() == ANSWER
    await healthy(f, park, other)


@kafka("SS-51")
async def test_a_request_that_cannot_be_taken_closes_its_connection_only(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    clients = [f.client() for _ in range(2)]
    parse, failures = f.processor.parse, [RuntimeError("it cannot be parsed")]

    def fail_once(*arguments: object) -> Request:
        if failures:
            raise failures.pop()
        return parse(*arguments)  # type: ignore[arg-type]

    f.processor.parse = fail_once  # type: ignore[method-assign]
    for client in clients:
        await client.send(QUESTION)
    await wait_all_tasks_blocked()
    assert "closed after an unexpected error" in caplog.text
    (request,) = park.parked
    assert list(f.processor.connections.values()) == [request.connection]
    request.respond(ANSWER)
    served = clients[int(request.connection.context.connection_id[-1])]  # type: ignore[attr-defined]
    assert await served.receive() == ANSWER
    await healthy(f, park, served)


@kafka("SS-40")
async def test_a_closing_connection_whose_client_is_gone_is_released_by_its_response(nursery: trio.Nursery) -> None:
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    gone, other = await requests_in_progress(f, park, 2)
    await gone.stream.aclose()
    connection = park.parked[0].connection
    connection.finish()  # type: ignore[attr-defined]
    await wait_all_tasks_blocked()
    assert len(f.processor.connections) == 2
    for request in park.parked:
        request.respond(ANSWER)
    assert await other.receive() == ANSWER
    await wait_all_tasks_blocked()
    assert connection not in f.processor.connections.values()
    assert f.quotas.open_from(REMOTE[0]) == 1
    await healthy(f, park, other)


@pytest.mark.parametrize(
    ("complete", "incomplete", "answered"),
    [
        pytest.param(3, False, None, marks=kafka("SS-41"), id="buffered"),
        pytest.param(0, False, None, marks=kafka("SS-42"), id="nothing buffered"),
        pytest.param(0, True, None, marks=kafka("SS-43"), id="incomplete"),
        pytest.param(3, True, None, marks=[kafka("SS-44"), kafka("SS-47")], id="complete and incomplete"),
        pytest.param(3, False, 1, marks=[kafka("SS-45"), kafka("SS-48")], id="a response fails"),
    ],
)
async def test_what_a_closed_client_has_sent_is_processed(
    nursery: trio.Nursery, *, complete: int, incomplete: bool, answered: int | None
) -> None:  # rule B1.55
    """``answered``: index of the request that gets a response, which fails."""
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    (connection,) = f.processor.connections.values()
    if complete:
        await client.send(*[QUESTION] * complete)
    if incomplete:
        await client.stream.send_all(client.encoded(QUESTION)[:-1])
    await client.stream.aclose()
    await wait_all_tasks_blocked()
    park.parked.pop().no_response()
    for index in range(complete if answered is None else answered + 1):
        await wait_all_tasks_blocked()
        assert list(f.processor.connections.values()) == [connection]
        request = park.parked.pop()
        if index == answered:
            request.respond(ANSWER)
        else:
            request.no_response()
    await wait_all_tasks_blocked()
    assert f.processor.connections == {}
    assert park.parked == []
    assert f.quotas.open_from(REMOTE[0]) == 0
    await healthy(f, park)


@kafka("SS-49")
async def test_what_is_buffered_does_not_keep_an_idle_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:  # rule B1.53
    park = Parking()
    f = Fixture(park, idle=60)
    await nursery.start(f.run)
    client = f.client()
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    await client.send(QUESTION, QUESTION)
    await trio.sleep(59)
    assert len(f.processor.connections) == 1
    await trio.sleep(2)
    assert f.processor.connections == {}
    assert f.metrics.connections_expired == 1
    assert len(park.parked) == 1
    await healthy(f, park)


@kafka("SS-50")
@kafka("SS-61")
async def test_what_is_buffered_is_processed_without_delay(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Though nothing arrives any more."""
    park = Parking()
    f = Fixture(park)
    await nursery.start(f.run)
    begin = trio.current_time()
    client = f.client()
    await client.send(QUESTION)
    await wait_all_tasks_blocked()
    await client.send(QUESTION, QUESTION)
    await client.stream.send_eof()  # type: ignore[attr-defined]
    for done in range(3):
        await wait_all_tasks_blocked()
        assert len(park.parked) == done + 1
        park.parked[done].respond(ANSWER)
        assert await client.receive() == ANSWER
    assert await client.closed()
    assert trio.current_time() == begin


@kafka("SS-55")
async def test_what_is_no_exception_ends_the_processor() -> None:
    class Fatal(BaseException):
        pass

    def fail(*arguments: object) -> Request:
        raise Fatal

    f = Fixture(answer)
    clients: list[Client] = []

    async def serve() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await nursery.start(f.run)
                clients.extend(f.client() for _ in range(2))
                assert await clients[0].ask(QUESTION) == ANSWER
                f.processor.parse = fail  # type: ignore[method-assign]
                await clients[1].send(QUESTION)

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve()
    assert caught.group_contains(Fatal)
    assert f.processor.connections == {}
    for client in clients:
        assert await client.closed()
