"""One request to another node over a connection that somebody dialled, and the answer to it."""

from __future__ import annotations

import functools
import importlib.metadata

import wire
from broker_stub.ports import ConnectionLost, FramedConnection
from wire import ApiVersionsRequest, ApiVersionsResponse, ErrorCode

#: every broker that knows AlterPartition knows this one
_API_VERSIONS_VERSION = 3


class NodeClient:
    """Owns one connection; numbers its requests and checks the numbers of the answers."""

    def __init__(self, connection: FramedConnection, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id
        self._correlation_id = 0

    async def request(self, message: wire.Message, api_version: int) -> wire.Message:
        """Raises ConnectionLost, wire.WireError. After either the connection is of no more use."""
        self._correlation_id += 1
        await self._connection.send_frame(
            wire.encode_request(
                message, api_version=api_version, correlation_id=self._correlation_id, client_id=self._client_id
            )
        )
        frame = await self._connection.receive_frame()
        header, response = wire.decode_response(frame, api_key=message.__api_key__, api_version=api_version)
        if header.correlation_id != self._correlation_id:
            raise ConnectionLost(f"answer {header.correlation_id} came where {self._correlation_id} was due")
        return response

    async def api_versions(self) -> dict[int, tuple[int, int]]:
        """What the node serves: API key -> first and last version. Raises like ``request``."""
        name, version = _software()
        asked = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        response = await self.request(asked, _API_VERSIONS_VERSION)
        assert isinstance(response, ApiVersionsResponse)
        if response.error_code != ErrorCode.NONE:
            raise ConnectionLost(f"ApiVersions was answered {wire.error_name(response.error_code)}")
        return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}

    async def aclose(self) -> None:
        await self._connection.aclose()


@functools.cache
def _software() -> tuple[str, str]:
    name = "kafka-controller-emulator"
    return name, importlib.metadata.version(name)
