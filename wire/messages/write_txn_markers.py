"""WriteTxnMarkers (key 27), versions 0-1."""

from kce.wire.primitives import BOOL, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "WritableTxnMarker",
    "WritableTxnMarkerPartitionResult",
    "WritableTxnMarkerResult",
    "WritableTxnMarkerTopic",
    "WritableTxnMarkerTopicResult",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]


@struct
class WritableTxnMarkerTopic(Struct):
    name: str = field(STRING, "0+")
    partition_indexes: tuple[int, ...] = field([INT32], "0+")


@struct
class WritableTxnMarker(Struct):
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    transaction_result: bool = field(BOOL, "0+")
    topics: tuple[WritableTxnMarkerTopic, ...] = field([WritableTxnMarkerTopic], "0+")
    coordinator_epoch: int = field(INT32, "0+")


@request(api_key=27, versions="0-1", flexible="1+")
class WriteTxnMarkersRequest(Message):
    markers: tuple[WritableTxnMarker, ...] = field([WritableTxnMarker], "0+")


@struct
class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@struct
class WritableTxnMarkerTopicResult(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = field([WritableTxnMarkerPartitionResult], "0+")


@struct
class WritableTxnMarkerResult(Struct):
    producer_id: int = field(INT64, "0+")
    topics: tuple[WritableTxnMarkerTopicResult, ...] = field([WritableTxnMarkerTopicResult], "0+")


@response(api_key=27, versions="0-1", flexible="1+")
class WriteTxnMarkersResponse(Message):
    markers: tuple[WritableTxnMarkerResult, ...] = field([WritableTxnMarkerResult], "0+")
