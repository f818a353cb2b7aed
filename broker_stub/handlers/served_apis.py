"""The APIs and versions in ApiVersions responses."""

from __future__ import annotations

from kce import wire
from kce.broker_stub.finalized_features import FinalizedFeatureCache
from kce.wire import ApiVersion, ApiVersionsResponse, ErrorCode, FinalizedFeatureKey


class ServedApis:
    """Caches the encoded response of each version, the same for all clients, until finalized features change."""

    def __init__(self, entries: tuple[ApiVersion, ...], features: FinalizedFeatureCache | None = None) -> None:
        self.entries = entries
        self._features = features
        self._encoded: dict[int, bytes] = {}
        if features is not None:
            features.on_change = self._encoded.clear

    def response(self) -> ApiVersionsResponse:
        """No supported features and no migration to KRaft, which are the message's defaults (rule B1.40)."""
        current = None if self._features is None else self._features.current
        if current is None:
            return ApiVersionsResponse(api_keys=self.entries)
        finalized = tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=1)
            for name, level in sorted(current.features.items())
        )
        return ApiVersionsResponse(
            api_keys=self.entries, finalized_features=finalized, finalized_features_epoch=current.epoch
        )

    def unsupported_version_response(self) -> ApiVersionsResponse:
        """Only the versions of ApiVersions, so that the client can retry (rule B1.37)."""
        own = tuple(entry for entry in self.entries if entry.api_key == wire.ApiVersionsRequest.__api_key__)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)

    def encoded_response(self, api_version: int) -> bytes:
        """``response()`` as bytes, with correlation id 0."""
        encoded = self._encoded.get(api_version)
        if encoded is None:
            encoded = wire.encode_response(self.response(), api_version=api_version, correlation_id=0)
            self._encoded[api_version] = encoded
        return encoded
