"""DescribeCluster (key 60), versions 0-1."""

from kce.wire.primitives import BOOL, INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["DescribeClusterBroker", "DescribeClusterRequest", "DescribeClusterResponse"]


@request(api_key=60, versions="0-1", flexible="0+")
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = field(BOOL, "0+")
    endpoint_type: int = field(INT8, "1+", default=1)


@struct
class DescribeClusterBroker(Struct):
    broker_id: int = field(INT32, "0+")
    host: str = field(STRING, "0+")
    port: int = field(INT32, "0+")
    rack: str | None = field(STRING, "0+", default=None, nullable="0+")


@response(api_key=60, versions="0-1", flexible="0+")
class DescribeClusterResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", default=None, nullable="0+")
    endpoint_type: int = field(INT8, "1+", default=1)
    cluster_id: str = field(STRING, "0+")
    controller_id: int = field(INT32, "0+", default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = field([DescribeClusterBroker], "0+")
    cluster_authorized_operations: int = field(INT32, "0+", default=-2147483648)
