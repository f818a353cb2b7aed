"""Bytes <-> frozen messages of Kafka's protocol. Pure: no event loop, no sockets, no clocks.

    header, message = wire.decode_request(frame)
    reply = wire.encode_response(wire.LeaderAndIsrResponse(), api_version=header.api_version,
                                 correlation_id=header.correlation_id)
    stream.send_all(wire.frame(reply))

Messages have Kafka's names, with fields in snake_case, arrays as tuples and Kafka's defaults:
``wire.LeaderAndIsrRequest`` contains ``wire.LeaderAndIsrTopicState``. Where several messages have a structure of the
same name, it is prefixed with the message's: ``wire.AlterPartitionRequestTopicData``.

primitives   Kafka's types as Construct classes        schema     tables -> dataclasses and a Struct per version
messages/    one table file per API                    headers    request and response headers
registry     API keys, names, versions                 protocol   whole frames: the four functions above
framing      the length before each frame              errors     error codes; the WireError tree
records      record sets <-> batches of records        record     what a batch is made of
consumer_protocol  the payloads of JoinGroup and SyncGroup
descriptions the layout of a version as text
plain        messages as dicts, for JSON               outline    summary of a record set, without reading records
configuration/  the settings of brokers and topics, each declared once
codec        the fast codec, generated from the Structs (codegen, layouts)
shared_request  one control request for many brokers  columnar   control requests as flat arrays, and back
payload      messages with parts that are not in memory
single_fetch Fetch of a single topic, as followers in sync send it
java_text    text that is not UTF-8, as Kafka reads it
produce_response  to a Produce request whose records were all appended
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kce.extras import require
from kce.wire.codegen import Encoded
from kce.wire.error_counts import error_counts, own_code
from kce.wire.errors import (
    CorruptRecord,
    DecodeError,
    EncodeError,
    ErrorCode,
    InvalidValue,
    LimitExceeded,
    SpeaksTls,
    TooManyElements,
    TrailingBytes,
    Truncated,
    UnknownApiKey,
    UnsupportedVersion,
    WireError,
    error_name,
)
from kce.wire.framing import DEFAULT_MAX_FRAME_BYTES, FrameBuffer, frame, frame_prefix, frames
from kce.wire.headers import Header
from kce.wire.payload import Part, Parts, Payload, Stored, frame_parts
from kce.wire.plain import as_dict
from kce.wire.primitives import TaggedField
from kce.wire.protocol import (
    decode_like_kafka,
    decode_request,
    decode_request_header,
    decode_request_in_steps,
    decode_response,
    encode_part,
    encode_payload,
    encode_request,
    encode_response,
)
from kce.wire.registry import API_KEYS, ApiKey, api, message_module
from kce.wire.schema import Message, Struct
from kce.wire.shared_request import SharedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kce.wire.columnar import Columns
    from kce.wire.compression import MAX_DECOMPRESSED_BYTES
    from kce.wire.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolAssignmentTopicPartition,
        ConsumerProtocolSubscription,
        ConsumerProtocolSubscriptionTopicPartition,
        decode_assignment,
        decode_subscription,
        encode_consumer_protocol,
    )
    from kce.wire.descriptions import describe, describe_json
    from kce.wire.messages.add_offsets_to_txn import *
    from kce.wire.messages.add_partitions_to_txn import *
    from kce.wire.messages.allocate_producer_ids import *
    from kce.wire.messages.alter_client_quotas import *
    from kce.wire.messages.alter_configs import *
    from kce.wire.messages.alter_partition import *
    from kce.wire.messages.alter_partition_reassignments import *
    from kce.wire.messages.alter_replica_log_dirs import *
    from kce.wire.messages.alter_user_scram_credentials import *
    from kce.wire.messages.api_versions import *
    from kce.wire.messages.consumer_group_describe import *
    from kce.wire.messages.consumer_group_heartbeat import *
    from kce.wire.messages.controlled_shutdown import *
    from kce.wire.messages.create_acls import *
    from kce.wire.messages.create_delegation_token import *
    from kce.wire.messages.create_partitions import *
    from kce.wire.messages.create_topics import *
    from kce.wire.messages.delete_acls import *
    from kce.wire.messages.delete_groups import *
    from kce.wire.messages.delete_records import *
    from kce.wire.messages.delete_topics import *
    from kce.wire.messages.describe_acls import *
    from kce.wire.messages.describe_client_quotas import *
    from kce.wire.messages.describe_cluster import *
    from kce.wire.messages.describe_configs import *
    from kce.wire.messages.describe_delegation_token import *
    from kce.wire.messages.describe_groups import *
    from kce.wire.messages.describe_log_dirs import *
    from kce.wire.messages.describe_producers import *
    from kce.wire.messages.describe_transactions import *
    from kce.wire.messages.describe_user_scram_credentials import *
    from kce.wire.messages.elect_leaders import *
    from kce.wire.messages.end_txn import *
    from kce.wire.messages.envelope import *
    from kce.wire.messages.expire_delegation_token import *
    from kce.wire.messages.fetch import *
    from kce.wire.messages.find_coordinator import *
    from kce.wire.messages.heartbeat import *
    from kce.wire.messages.incremental_alter_configs import *
    from kce.wire.messages.init_producer_id import *
    from kce.wire.messages.join_group import *
    from kce.wire.messages.leader_and_isr import *
    from kce.wire.messages.leave_group import *
    from kce.wire.messages.list_groups import *
    from kce.wire.messages.list_offsets import *
    from kce.wire.messages.list_partition_reassignments import *
    from kce.wire.messages.list_transactions import *
    from kce.wire.messages.metadata import *
    from kce.wire.messages.offset_commit import *
    from kce.wire.messages.offset_delete import *
    from kce.wire.messages.offset_fetch import *
    from kce.wire.messages.offset_for_leader_epoch import *
    from kce.wire.messages.produce import *
    from kce.wire.messages.renew_delegation_token import *
    from kce.wire.messages.sasl_authenticate import *
    from kce.wire.messages.sasl_handshake import *
    from kce.wire.messages.stop_replica import *
    from kce.wire.messages.sync_group import *
    from kce.wire.messages.txn_offset_commit import *
    from kce.wire.messages.update_features import *
    from kce.wire.messages.update_metadata import *
    from kce.wire.messages.write_txn_markers import *
    from kce.wire.record import (
        Codec,
        ControlRecordType,
        EndTransactionMarker,
        Record,
        RecordBatch,
        RecordHeader,
        TimestampType,
        control_record_type,
    )
    from kce.wire.records import RecordSet, read_records, write_records

__all__ = [
    "API_KEYS",
    "DEFAULT_MAX_FRAME_BYTES",
    "MAX_DECOMPRESSED_BYTES",
    "ApiKey",
    "Codec",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolAssignmentTopicPartition",
    "ConsumerProtocolSubscription",
    "ConsumerProtocolSubscriptionTopicPartition",
    "ControlRecordType",
    "CorruptRecord",
    "DecodeError",
    "EncodeError",
    "Encoded",
    "EndTransactionMarker",
    "ErrorCode",
    "FrameBuffer",
    "Header",
    "InvalidValue",
    "LimitExceeded",
    "Message",
    "Part",
    "Parts",
    "Payload",
    "Record",
    "RecordBatch",
    "RecordHeader",
    "RecordSet",
    "SharedRequest",
    "SpeaksTls",
    "Stored",
    "Struct",
    "TaggedField",
    "TimestampType",
    "TooManyElements",
    "TrailingBytes",
    "Truncated",
    "UnknownApiKey",
    "UnsupportedVersion",
    "WireError",
    "api",
    "as_dict",
    "columns",
    "control_record_type",
    "decode_assignment",
    "decode_like_kafka",
    "decode_request",
    "decode_request_header",
    "decode_request_in_steps",
    "decode_response",
    "decode_subscription",
    "describe",
    "describe_json",
    "encode_consumer_protocol",
    "encode_part",
    "encode_payload",
    "encode_request",
    "encode_response",
    "error_counts",
    "error_name",
    "frame",
    "frame_parts",
    "frame_prefix",
    "frames",
    "from_columns",
    "own_code",
    "read_records",
    "topic_names",
    "write_records",
]

#: names imported on first use, by module
_LATER = {
    "kce.wire.compression": ("MAX_DECOMPRESSED_BYTES",),
    "kce.wire.consumer_protocol": (
        "ConsumerProtocolAssignment", "ConsumerProtocolAssignmentTopicPartition", "ConsumerProtocolSubscription",
        "ConsumerProtocolSubscriptionTopicPartition", "decode_assignment", "decode_subscription",
        "encode_consumer_protocol",
    ),
    "kce.wire.descriptions": ("describe", "describe_json"),
    "kce.wire.record": (
        "Codec", "ControlRecordType", "EndTransactionMarker", "Record", "RecordBatch", "RecordHeader",
        "TimestampType", "control_record_type",
    ),
    "kce.wire.records": ("RecordSet", "read_records", "write_records"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}


def columns(api_key: int, version: int, frames: Sequence[bytes]) -> Columns:
    """LeaderAndIsr, StopReplica or UpdateMetadata requests as numpy arrays (`wire.columnar`).

    Raises DecodeError, MissingExtra.
    """
    require("numpy", "numba", purpose="wire.columns")
    from kce.wire import columnar

    return columnar.columns(api_key, version, frames)


def from_columns(api_key: int, version: int, columns: Mapping[str, Any]) -> list[bytes]:
    """The inverse of ``columns``. Raises EncodeError, MissingExtra."""
    require("numpy", "numba", purpose="wire.from_columns")
    from kce.wire import columnar

    return columnar.from_columns(api_key, version, columns)


def topic_names(columns: Mapping[str, Any]) -> list[str]:
    """The names of the topics of ``columns``. Raises MissingExtra."""
    require("numpy", "numba", purpose="wire.topic_names")
    from kce.wire import columnar

    return columnar.topic_names(columns)


def __getattr__(name: str) -> Any:
    """Import a message, structure or other public name on first use."""
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
        return value
    if name[:1].isupper():
        # APIs whose name is a prefix come first: usually only one module is imported
        for known in sorted(API_KEYS, key=lambda known: (not name.startswith(known.name), -len(known.name))):
            module = message_module(known.key)
            if module is not None and name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
