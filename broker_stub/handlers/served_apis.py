"""The list that ApiVersions answers with."""

from __future__ import annotations

import wire
from broker_stub.finalized_features import FinalizedFeatureCache
from wire import ApiVersion, ApiVersionsResponse, ErrorCode, FinalizedFeatureKey


class ServedApis:
    """Which APIs in which versions. The answer is the same for all who ask, so it is encoded once for each version, and
    again when other features are finalized."""

    def __init__(self, entries: tuple[ApiVersion, ...], features: FinalizedFeatureCache | None = None) -> None:
        self.entries = entries
        self._features = features
        self._encoded: dict[int, bytes] = {}
        if features is not None:
            features.on_change = self._encoded.clear

    def response(self) -> ApiVersionsResponse:
        """No feature is supported, and no migration is ready (rule B1.40): the defaults say so."""
        known = None if self._features is None else self._features.current
        if known is None:
            return ApiVersionsResponse(api_keys=self.entries)
        finalized = tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=1)
            for name, level in sorted(known.features.items())
        )
        return ApiVersionsResponse(
            api_keys=self.entries, finalized_features=finalized, finalized_features_epoch=known.epoch
        )

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
