"""Sends requests to the current controller, which is in the metadata cache (rules 9.56, 9.57, 8.20)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import trio

from kce import wire
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.node_client import NodeClient
from kce.wire import ErrorCode
from kce.wire.transport import Dial
from kce.wire.vocabulary import Endpoint

log = logging.getLogger(__name__)

#: before a retry without a known controller, or after a lost connection
RETRY_SECONDS: Final = 0.1


class NodeToControllerChannel:
    """Owns at most one connection; one request at a time. Negotiates versions, unlike the controller's channels."""

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
        """See ``ControllerChannel``. A timeout counts as a lost connection (rule 3.38)."""
        while True:
            controller_id, endpoint = await self._controller()
            try:
                with trio.fail_after(self._request_timeout_seconds):
                    client = await self._connected(controller_id, endpoint)
                    version = self._negotiated(api_key, max_version)
                    response = await client.request(build(version), version)
            except wire.UnsupportedVersion:
                raise
            except (OSError, trio.TooSlowError, wire.DecodeError) as e:
                log.info("the request to the controller failed: %s", e or type(e).__name__)
            else:
                if ErrorCode.NOT_CONTROLLER not in error_codes(response):
                    return response
                log.info("the broker that answered is not the controller")
            await self.disconnect()
            await trio.sleep(RETRY_SECONDS)

    async def disconnect(self) -> None:
        """Close the connection; the next request looks for the controller again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _connected(self, controller_id: int, endpoint: Endpoint) -> NodeClient:
        """The open connection, even if the controller has moved, or else a new one."""
        if self._client is None:
            connection = await self._dial(endpoint.host, endpoint.port, to=controller_id, listener=endpoint.listener)
            self._client = NodeClient(connection, self._client_id)
            self._versions = await self._client.api_versions()
        return self._client

    async def _controller(self) -> tuple[int, Endpoint]:
        while True:
            snapshot = self._metadata_cache.snapshot
            endpoint = snapshot.controller_endpoint(self._listener)
            if endpoint is not None and snapshot.controller_id is not None:
                return snapshot.controller_id, endpoint
            await trio.sleep(RETRY_SECONDS)

    def _negotiated(self, api_key: int, max_version: int) -> int:
        """Raises wire.UnsupportedVersion."""
        first, last = self._versions.get(api_key, (0, -1))
        version = min(last, max_version)
        if version < first:
            raise wire.UnsupportedVersion(f"the controller has versions {first}-{last} of API {api_key}, not {version}")
        return version
