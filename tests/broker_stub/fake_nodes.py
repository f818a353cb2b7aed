"""Fake nodes behind a ``dial`` that opens no socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from kce import wire
from kce.wire.transport import ConnectionLost

#: the response to one request; None: no response. Raising ConnectionLost closes the connection.
Behaviour: TypeAlias = Callable[[wire.Header, wire.Message], Awaitable[wire.Message | None]]


class FakeNodes:
    """Nodes by (host, port). Records ``dialled`` addresses and received ``requests``."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[str, int], Behaviour] = {}
        self.dialled: list[tuple[str, int]] = []
        self.requests: list[tuple[str, wire.Header, wire.Message]] = []
        self.open = 0

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> FakeConnection:
        self.dialled.append((host, port))
        if (host, port) not in self.nodes:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        self.open += 1
        return FakeConnection(self, host, self.nodes[host, port])


class FakeConnection:
    def __init__(self, nodes: FakeNodes, host: str, behaviour: Behaviour) -> None:
        self._nodes = nodes
        self._host = host
        self._behaviour = behaviour
        self._requests: list[bytes] = []
        self._closed = False

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        payload += rest
        assert not self._closed
        await trio.lowlevel.checkpoint()
        self._requests.append(payload)

    async def receive_frame(self) -> bytes:
        assert not self._closed
        header, message = wire.decode_request(self._requests.pop(0))
        self._nodes.requests.append((self._host, header, message))
        answer = await self._behaviour(header, message)
        if answer is None:
            await trio.sleep_forever()
        assert answer is not None
        refused = (
            isinstance(answer, wire.ApiVersionsResponse) and answer.error_code == wire.ErrorCode.UNSUPPORTED_VERSION
        )
        version = 0 if refused else header.api_version  # rule B1.37
        return wire.encode_response(answer, api_version=version, correlation_id=header.correlation_id)

    async def aclose(self) -> None:
        assert not self._closed
        self._closed = True
        self._nodes.open -= 1


def serves(api_key: int, first: int, last: int) -> wire.ApiVersionsResponse:
    entry = wire.ApiVersion(api_key=api_key, min_version=first, max_version=last)
    return wire.ApiVersionsResponse(api_keys=(entry,))


def answering(*answers: wire.Message | Exception | None) -> Behaviour:
    """Send the answers in turn, then raise ConnectionLost. An exception is raised, ApiVersions is always answered."""
    remaining = list(answers)

    async def behave(header: wire.Header, message: wire.Message) -> wire.Message | None:
        if isinstance(message, wire.ApiVersionsRequest):
            return serves(56, 0, 3)
        if not remaining:
            raise ConnectionLost("closed for the test")
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return behave
