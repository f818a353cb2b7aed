"""Requests to another node over an open connection."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable

import trio

from kce import wire
from kce.wire import ApiVersionsRequest, ApiVersionsResponse, ErrorCode
from kce.wire.transport import ConnectionLost, FramedConnection

_API_VERSIONS, (_, _LAST_VERSION) = ApiVersionsRequest.__api_key__, ApiVersionsRequest.__versions__


class NodeClient:
    """Owns one connection; assigns correlation ids and checks those of the responses."""

    def __init__(self, connection: FramedConnection, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id
        self._correlation_id = 0

    async def request(self, message: wire.Message, api_version: int) -> wire.Message:
        """Raises ConnectionLost, wire.WireError; the connection is unusable after either."""

        def encode(correlation_id: int) -> bytes:
            return wire.encode_request(
                message, api_version=api_version, correlation_id=correlation_id, client_id=self._client_id
            )

        frame = await self.exchange(encode)
        return wire.decode_response(frame, api_key=message.__api_key__, api_version=api_version)[1]

    async def exchange(self, encode: Callable[[int], bytes]) -> bytes:
        """Send what ``encode`` makes of a correlation id; the response to it. Raises ConnectionLost."""
        self._correlation_id += 1
        await self._connection.send_frame(encode(self._correlation_id))
        frame = await self._connection.receive_frame()
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != self._correlation_id:
            raise ConnectionLost(f"the response has correlation id {correlation_id}, not {self._correlation_id}")
        return frame

    async def api_versions(self) -> dict[int, tuple[int, int]]:
        """The node's supported versions: API key -> first and last. Raises like ``request``.

        Asks as Kafka's NetworkClient does: with the last version of ApiVersions, and if the node refuses it, with the
        last that it names, or with version 0.
        """
        name, version = _software()
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        api_version = _LAST_VERSION
        while True:
            response = await self.request(request, api_version)
            assert isinstance(response, ApiVersionsResponse)
            supported = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
            if response.error_code == ErrorCode.NONE:
                return supported
            lower = supported.get(_API_VERSIONS, (0, 0))[1]
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or not 0 <= lower < api_version:
                raise ConnectionLost(f"ApiVersions {api_version} failed with {wire.error_name(response.error_code)}")
            api_version = lower

    async def aclose(self) -> None:
        """Close the connection, even if the caller is cancelled."""
        with trio.CancelScope(shield=True):
            await self._connection.aclose()


@functools.cache
def _software() -> tuple[str, str]:
    name = "kafka-controller-emulator"
    return name, importlib.metadata.version(name)
