"""A small HTTP server on loopback (h11 does the protocol): metrics, and commands for tests in any language."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

import h11
import trio

from kce.harness.world import World

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
BACKLOG = 50
MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 65_536
#: for a whole request, also for the first byte of the next one on a connection
REQUEST_TIMEOUT_S = 60.0
ACCEPT_RETRY_S = 0.1
_CHUNK_BYTES = 65_536


class HttpRequest(NamedTuple):
    """``path`` is without the query; names of ``headers`` are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class HttpResponse(NamedTuple):
    status: int
    content_type: str
    body: bytes


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


async def serve(
    handler: Handler, world: World, port: int, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve on 127.0.0.1 until cancelled; port 0 is an ephemeral one. Starts with the port.

    A request that cannot be read gives 400, 413, 431 or 501, a handler that raises 500: with {"error": text} as
    JSON. Raises OSError for a port that is taken.
    """
    listener = await world.bind(HOST, port)
    try:
        listener.listen(BACKLOG)
        task_status.started(listener.address[1])
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    accepted = await listener.accept()
                except OSError as e:
                    log.warning("an HTTP connection cannot be accepted: %s", e)
                    await trio.sleep(ACCEPT_RETRY_S)
                else:
                    nursery.start_soon(_serve_connection, accepted.stream, handler)
    finally:
        listener.close()


async def _serve_connection(stream: trio.abc.Stream, handler: Handler) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        async with stream:
            while (response := await _next(stream, connection, handler)) is not None:
                await stream.send_all(_encoded(connection, response))
                if set(connection.states.values()) != {h11.DONE}:
                    return
                connection.start_next_cycle()
    except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
        pass


async def _next(stream: trio.abc.Stream, connection: h11.Connection, handler: Handler) -> HttpResponse | None:
    """The response to the next request; None when the client has closed, or takes too long."""
    try:
        request = None
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            request = await _receive(stream, connection)
        if request is None:
            return None
        response = await handler(request)
        return HttpResponse(response.status, response.content_type, b"") if request.method == "HEAD" else response
    except h11.RemoteProtocolError as e:
        return _error(e.error_status_hint, str(e))
    except Exception:
        log.exception("an HTTP request failed")
        return _error(500, "the request failed; the log says why")


def _error(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, "application/json", json.dumps({"error": text}).encode() + b"\n")


async def _receive(stream: trio.abc.Stream, connection: h11.Connection) -> HttpRequest | None:
    """Raises h11.RemoteProtocolError, also for a body that is too large."""
    head: h11.Request | None = None
    body = b""
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    await stream.send_all(
                        connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                    )
                connection.receive_data(bytes(await stream.receive_some(_CHUNK_BYTES)))
            case h11.Request() as head:
                pass
            case h11.Data(data=data):
                body += data
                if len(body) > MAX_BODY_BYTES:
                    raise h11.RemoteProtocolError(f"the body has more than {MAX_BODY_BYTES} bytes", 413)
            case h11.EndOfMessage():
                assert head is not None
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                path = head.target.decode("latin-1").partition("?")[0]
                return HttpRequest(head.method.decode(), path, headers, body)
            case _:  # closed
                return None


def _encoded(connection: h11.Connection, response: HttpResponse) -> bytes:
    headers = [("Content-Type", response.content_type), ("Content-Length", str(len(response.body)))]
    reason = HTTPStatus(response.status).phrase
    head = h11.Response(status_code=response.status, headers=headers, reason=reason)
    events: list[h11.Event] = [head, h11.Data(response.body), h11.EndOfMessage()]
    return b"".join(connection.send(event) or b"" for event in events)
