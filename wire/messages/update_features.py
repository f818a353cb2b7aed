"""UpdateFeatures (key 57), versions 0-1."""

from kce.wire.primitives import BOOL, INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["FeatureUpdateKey", "UpdatableFeatureResult", "UpdateFeaturesRequest", "UpdateFeaturesResponse"]


@struct
class FeatureUpdateKey(Struct):
    feature: str = field(STRING, "0+")
    max_version_level: int = field(INT16, "0+")
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)


@request(api_key=57, versions="0-1", flexible="0+")
class UpdateFeaturesRequest(Message):
    timeout_ms: int = field(INT32, "0+", default=60000)
    feature_updates: tuple[FeatureUpdateKey, ...] = field([FeatureUpdateKey], "0+")
    validate_only: bool = field(BOOL, "1+")


@struct
class UpdatableFeatureResult(Struct):
    feature: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")


@response(api_key=57, versions="0-1", flexible="0+")
class UpdateFeaturesResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    results: tuple[UpdatableFeatureResult, ...] = field([UpdatableFeatureResult], "0+")
