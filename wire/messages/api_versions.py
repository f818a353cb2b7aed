"""ApiVersions (key 18), versions 0-4."""

from kce.wire.primitives import BOOL, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["ApiVersion", "ApiVersionsRequest", "ApiVersionsResponse", "FinalizedFeatureKey", "SupportedFeatureKey"]


@request(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest(Message):
    client_software_name: str = field(STRING, "3+", ignorable=True)
    client_software_version: str = field(STRING, "3+", ignorable=True)


@struct
class ApiVersion(Struct):
    api_key: int = field(INT16, "0+")
    min_version: int = field(INT16, "0+")
    max_version: int = field(INT16, "0+")


@struct
class SupportedFeatureKey(Struct):
    name: str = field(STRING, "3+")
    min_version: int = field(INT16, "3+")
    max_version: int = field(INT16, "3+")


@struct
class FinalizedFeatureKey(Struct):
    name: str = field(STRING, "3+")
    max_version_level: int = field(INT16, "3+")
    min_version_level: int = field(INT16, "3+")


@response(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse(Message):
    error_code: int = field(INT16, "0+")
    api_keys: tuple[ApiVersion, ...] = field([ApiVersion], "0+")
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    supported_features: tuple[SupportedFeatureKey, ...] = field(
        [SupportedFeatureKey], "3+", ignorable=True, tag=0, tagged="3+"
    )
    finalized_features_epoch: int = field(INT64, "3+", default=-1, ignorable=True, tag=1, tagged="3+")
    finalized_features: tuple[FinalizedFeatureKey, ...] = field(
        [FinalizedFeatureKey], "3+", ignorable=True, tag=2, tagged="3+"
    )
    zk_migration_ready: bool = field(BOOL, "3+", ignorable=True, tag=3, tagged="3+")
