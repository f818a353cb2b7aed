"""The broker's own way to whichever broker is controller, found in the metadata cache (rules 9.56, 9.57, 8.20)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import trio

import wire
from broker_stub.metadata_cache import MetadataCache
from broker_stub.node_client import NodeClient
from broker_stub.ports import Dial
from wire import ErrorCode
from wire.vocabulary import Endpoint

logger = logging.getLogger("broker_stub.node_to_controller")

#: while no controller is known, or after one was lost
LOOK_AGAIN_SECONDS: Final = 0.1


class NodeToControllerChannel:
    """Owns at most one connection; one request at a time. Negotiates versions, unlike controllers' own channels."""

    def __init__(
        self,
        metadata_cache: MetadataCache,
        listener: str,
        dial: Dial,
        *,
        client_id: str,
        request_timeout_seconds: float,
    ) -> None:
        self._metadata_cache = metadata_cache
        self._listener = listener
        self._dial = dial
        self._client_id = client_id
        self._request_timeout_seconds = request_timeout_seconds
        self._client: NodeClient | None = None
        self._versions: dict[int, tuple[int, int]] = {}

    async def request(
        self,
        api_key: int,
        max_version: int,
        build: Callable[[int], wire.Message],
        error_codes: Callable[[wire.Message], Iterable[int]],
    ) -> wire.Message:
        """See ``ControllerChannel``. A request that times out counts as a lost connection (rule 3.38)."""
        while True:
            endpoint = await self._controller()
            try:
                with trio.fail_after(self._request_timeout_seconds):
                    client = await self._connected(endpoint)
                    version = self._negotiated(api_key, max_version)
                    response = await client.request(build(version), version)
            except wire.UnsupportedVersion:
                raise
            except (OSError, trio.TooSlowError, wire.DecodeError) as e:
                logger.info("the controller cannot be asked: %s", e or type(e).__name__)
            else:
                if ErrorCode.NOT_CONTROLLER not in error_codes(response):
                    return response
                logger.info("whoever was asked is not the controller")
            await self.forget()
            await trio.sleep(LOOK_AGAIN_SECONDS)

    async def forget(self) -> None:
        """Close the connection: the next request looks for the controller anew."""
        client, self._client = self._client, None
        if client is not None:
            with trio.CancelScope(shield=True):
                await client.aclose()

    async def _connected(self, endpoint: Endpoint) -> NodeClient:
        """The connection there is, wherever it leads, or else a new one."""
        if self._client is None:
            self._client = NodeClient(await self._dial(endpoint.host, endpoint.port), self._client_id)
            self._versions = await self._client.api_versions()
        return self._client

    async def _controller(self) -> Endpoint:
        while True:
            endpoint = self._metadata_cache.snapshot.controller_endpoint(self._listener)
            if endpoint is not None:
                return endpoint
            await trio.sleep(LOOK_AGAIN_SECONDS)

    def _negotiated(self, api_key: int, max_version: int) -> int:
        """Raises wire.UnsupportedVersion."""
        first, last = self._versions.get(api_key, (0, -1))
        version = min(last, max_version)
        if version < first:
            raise wire.UnsupportedVersion(f"the controller has versions {first}-{last} of API {api_key}, not {version}")
        return version
