"""DescribeUserScramCredentials (key 50), versions 0."""

from kce.wire.primitives import INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "CredentialInfo",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "DescribeUserScramCredentialsResult",
    "UserName",
]


@struct
class UserName(Struct):
    name: str = field(STRING, "0+")


@request(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest(Message):
    users: tuple[UserName, ...] | None = field([UserName], "0+", nullable="0+")


@struct
class CredentialInfo(Struct):
    mechanism: int = field(INT8, "0+")
    iterations: int = field(INT32, "0+")


@struct
class DescribeUserScramCredentialsResult(Struct):
    user: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    credential_infos: tuple[CredentialInfo, ...] = field([CredentialInfo], "0+")


@response(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    results: tuple[DescribeUserScramCredentialsResult, ...] = field([DescribeUserScramCredentialsResult], "0+")
