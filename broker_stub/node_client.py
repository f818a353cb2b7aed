"""Requests to another node over an open connection."""

from __future__ import annotations

import functools
import importlib.metadata

import trio

from kce import wire
from kce.wire import ApiVersionsRequest, ApiVersionsResponse, ErrorCode
from kce.wire.transport import ConnectionLost, FramedConnection

#: every broker with AlterPartition supports it
_API_VERSIONS_VERSION = 3


class NodeClient:
    """Owns one connection; assigns correlation ids and checks those of the responses."""

    def __init__(self, connection: FramedConnection, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id
        self._correlation_id = 0

    async def request(self, message: wire.Message, api_version: int) -> wire.Message:
        """Raises ConnectionLost, wire.WireError; the connection is unusable after either."""
        self._correlation_id += 1
        await self._connection.send_frame(
            wire.encode_request(
                message, api_version=api_version, correlation_id=self._correlation_id, client_id=self._client_id
            )
        )
        frame = await self._connection.receive_frame()
        header, response = wire.decode_response(frame, api_key=message.__api_key__, api_version=api_version)
        if header.correlation_id != self._correlation_id:
            raise ConnectionLost(f"the response has correlation id {header.correlation_id}, not {self._correlation_id}")
        return response

    async def api_versions(self) -> dict[int, tuple[int, int]]:
        """The node's supported versions: API key -> first and last. Raises like ``request``."""
        name, version = _software()
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        response = await self.request(request, _API_VERSIONS_VERSION)
        assert isinstance(response, ApiVersionsResponse)
        if response.error_code != ErrorCode.NONE:
            raise ConnectionLost(f"ApiVersions failed with {wire.error_name(response.error_code)}")
        return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}

    async def aclose(self) -> None:
        """Close the connection, even if the caller is cancelled."""
        with trio.CancelScope(shield=True):
            await self._connection.aclose()


@functools.cache
def _software() -> tuple[str, str]:
    name = "kafka-controller-emulator"
    return name, importlib.metadata.version(name)
