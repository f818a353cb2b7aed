"""The HTTP server: whole requests, several on a connection, and what is not HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.harness import http_server
from kce.harness.http_server import MAX_BODY_BYTES, REQUEST_TIMEOUT_S, HttpRequest, HttpResponse
from kce.harness.world import memory


async def echo(request: HttpRequest) -> HttpResponse:
    if request.path == "/fail":
        raise ZeroDivisionError
    return HttpResponse(200, "text/plain", f"{request.method} {request.path} {request.body!r}".encode())


@asynccontextmanager
async def connected() -> AsyncIterator[trio.abc.Stream]:
    world = memory()
    async with world.running(None, None), trio.open_nursery() as nursery:
        port = await nursery.start(http_server.serve, echo, world.observer(), 0)
        stream = (await world.observer().connect("127.0.0.1", port)).stream
        yield stream
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def rest(stream: trio.abc.Stream) -> bytes:
    received = b""
    while data := await stream.receive_some():
        received += data
    return received


def get(path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *length, *headers, "", ""]).encode() + body


async def test_several_requests_on_a_connection() -> None:
    async with connected() as stream:
        await stream.send_all(get("/a?q=1") + get("/b", method="POST", body=b"{}"))
        await stream.send_all(get("/c", "Connection: close"))
        received = await rest(stream)
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 3
    for text in (b"GET /a b''", b"POST /b b'{}'", b"GET /c b''"):
        assert text in received


async def test_a_request_in_pieces() -> None:
    async with connected() as stream:
        for byte in get("/a", "Connection: close", method="POST", body=b"xyz"):
            await stream.send_all(bytes([byte]))
        assert b"POST /a b'xyz'" in await rest(stream)


async def test_the_client_may_ask_before_it_sends_the_body() -> None:
    async with connected() as stream:
        await stream.send_all(
            get("/a", "Expect: 100-continue", "Connection: close", "Content-Length: 3", method="POST")
        )
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"xyz")
        assert b"POST /a b'xyz'" in await rest(stream)


async def test_a_handler_that_fails_costs_one_response(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as stream:
        await stream.send_all(get("/fail") + get("/a", "Connection: close"))
        received = await rest(stream)
    assert b"HTTP/1.1 500 " in received
    assert b"Content-Type: application/json\r\n" in received
    assert b'{"error": "the request failed; the log says why"}' in received
    assert b"GET /a" in received
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b" 400 "),
        (b"GET /" + b"x" * 40_000, b" 431 "),
        (get("/", "Content-Length: -1"), b" 400 "),
        (get("/", f"Content-Length: {MAX_BODY_BYTES + 1}", method="POST") + bytes(MAX_BODY_BYTES + 1), b" 413 "),
    ],
)
async def test_what_is_refused(sent: bytes, status: bytes) -> None:
    async with connected() as stream:
        await stream.send_all(sent)
        received = await rest(stream)
    head, _, body = received.partition(b"\r\n\r\n")
    assert status in head.partition(b"\r\n")[0]
    assert json.loads(body).keys() == {"error"}


async def test_a_slow_request_ends_with_its_connection() -> None:
    async with connected() as stream:
        begin = trio.current_time()
        await stream.send_all(b"GET / HTTP/1.1\r\n")
        assert await rest(stream) == b""
        assert trio.current_time() - begin == pytest.approx(REQUEST_TIMEOUT_S)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_get_an_end(data: bytes) -> None:
    async def main() -> None:
        async with connected() as stream:
            await stream.send_all(data)
            await rest(stream)

    trio.run(main)
