"""The list that ApiVersions answers with."""

from __future__ import annotations

import wire
from wire import ApiVersion, ApiVersionsResponse, ErrorCode


class ServedApis:
    """Which APIs in which versions. The answer is the same for all who ask, so it is encoded once for each version."""

    def __init__(self, entries: tuple[ApiVersion, ...]) -> None:
        self.entries = entries
        self._encoded: dict[int, bytes] = {}

    def response(self) -> ApiVersionsResponse:
        """No feature is supported or finalized, and no migration is ready (rule B1.40): the defaults say so."""
        return ApiVersionsResponse(api_keys=self.entries)

    def unsupported_version_response(self) -> ApiVersionsResponse:
        """Just enough for the client to ask again (rule B1.37)."""
        own = tuple(entry for entry in self.entries if entry.api_key == wire.ApiVersionsRequest.__api_key__)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)

    def encoded_response(self, api_version: int) -> bytes:
        """``response()`` as bytes, under correlation id 0."""
        found = self._encoded.get(api_version)
        if found is None:
            found = wire.encode_response(self.response(), api_version=api_version, correlation_id=0)
            self._encoded[api_version] = found
        return found
