"""The connection of one broker to another about transactions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import trio

from kce import wire
from kce.broker_stub.node_client import NodeClient
from kce.wire.transport import Dial
from kce.wire.vocabulary import Endpoint

T = TypeVar("T")


class UnsupportedByBroker(Exception):
    """The broker knows no version of the request that is new enough."""


class BrokerConnection:
    """At most one connection, made when it is needed; ``timeout_ms`` limits a request."""

    def __init__(self, broker_id: int, dial: Dial, client_id: str, timeout_ms: int) -> None:
        self.broker_id = broker_id
        self._dial = dial
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._client: NodeClient | None = None
        self._endpoint: Endpoint | None = None
        #: API key -> first and last version; None until it is asked
        self._versions: dict[int, tuple[int, int]] | None = None

    async def request(self, endpoint: Endpoint, message: wire.Message, version: int) -> wire.Message:
        """Raises what the dial raises, OSError, TooSlowError, WireError; it is closed then."""
        return await self._limited(self._request(endpoint, message, version))

    async def _request(self, endpoint: Endpoint, message: wire.Message, version: int) -> wire.Message:
        client = await self._connected(endpoint)
        return await client.request(message, version)

    async def request_newest(self, endpoint: Endpoint, message: wire.Message, least: int) -> wire.Message:
        """In the newest version that both know, from ``least`` on. Raises like ``request``, or UnsupportedByBroker."""
        answer = await self._limited(self._request_newest(endpoint, message, least))
        if isinstance(answer, int):
            raise UnsupportedByBroker(f"broker {self.broker_id} knows versions up to {answer}")
        return answer

    async def _request_newest(self, endpoint: Endpoint, message: wire.Message, least: int) -> wire.Message | int:
        """The answer, or the newest version that the broker knows if that is too old."""
        client = await self._connected(endpoint)
        if self._versions is None:
            self._versions = await client.api_versions()
        _, theirs = self._versions.get(message.__api_key__, (0, -1))
        version = min(theirs, message.__versions__[1])
        return await client.request(message, version) if version >= least else theirs

    async def _limited(self, request: Awaitable[T]) -> T:
        """Closed if it fails, or takes too long."""
        try:
            with trio.move_on_after(self._timeout_ms / 1000):
                return await request
            raise trio.TooSlowError  # noqa: TRY301 - it is closed then, too
        except BaseException:
            await self.aclose()
            raise

    async def _connected(self, endpoint: Endpoint) -> NodeClient:
        if endpoint != self._endpoint:
            await self.aclose()
        if self._client is None:
            connection = await self._dial(endpoint.host, endpoint.port, to=self.broker_id, listener=endpoint.listener)
            self._client, self._endpoint = NodeClient(connection, self._client_id), endpoint
        return self._client

    async def aclose(self) -> None:
        client, self._client, self._endpoint, self._versions = self._client, None, None, None
        if client is not None:
            await client.aclose()
