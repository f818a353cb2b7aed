"""Requests to another node over an open connection."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable

import trio

from kce import wire
from kce.wire import ApiVersionsRequest, ApiVersionsResponse, ErrorCode
from kce.wire.transport import ConnectionLost, DirectConnection, FramedConnection

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
        await self._connection.send_frame(self._next(encode))
        return self._checked(await self._connection.receive_frame())

    def _next(self, encode: Callable[[int], bytes]) -> bytes:
        self._correlation_id += 1
        return encode(self._correlation_id)

    def _checked(self, frame: bytes) -> bytes:
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


class DirectClient(NodeClient):
    """Exchanges without a task, too, as long as nothing must be waited for. All raise ConnectionLost."""

    def __init__(self, connection: DirectConnection, client_id: str) -> None:
        super().__init__(connection, client_id)
        self._direct = connection
        #: a request that ``begin`` could not send
        self._unsent: bytes | None = None

    def begin(self, encode: Callable[[int], bytes]) -> bool:
        """Send a request if that need not wait. Whether all of it was sent; ``finish`` sends the rest."""
        request = self._next(encode)
        is_sent = self._direct.send_nowait(request)
        self._unsent = None if is_sent else request
        return is_sent and not self._direct.is_unsent

    def response(self) -> bytes | None:
        """The response, if it has come and nobody but ``finish`` must look at it."""
        try:
            frame = self._direct.receive_nowait()
        except trio.BrokenResourceError as e:
            raise ConnectionLost("the connection broke while receiving") from e
        return None if frame is None else self._checked(frame)

    async def finish(self) -> bytes:
        """The response to the request that was begun."""
        request, self._unsent = self._unsent, None
        if request is not None:
            await self._direct.send_frame(request)
        try:
            await self._direct.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            raise ConnectionLost("the connection broke while sending") from e
        return self._checked(await self._direct.receive_frame())

    async def wait_for_input(self, on_input: Callable[[], bool]) -> None:
        """See wire.transport.DirectConnection."""
        try:
            await self._direct.wait_for_input(on_input)
        except trio.ClosedResourceError as e:
            raise ConnectionLost("the connection was closed") from e


@functools.cache
def _software() -> tuple[str, str]:
    name = "kafka-controller-emulator"
    return name, importlib.metadata.version(name)
