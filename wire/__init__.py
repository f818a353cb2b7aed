"""Bytes <-> frozen messages of Kafka's protocol. Pure: no event loop, no sockets, no clocks.

    header, message = wire.decode_request(frame)
    reply = wire.encode_response(wire.LeaderAndIsrResponse(), api_version=header.api_version,
                                 correlation_id=header.correlation_id)
    stream.send_all(wire.frame(reply))

Messages are named as Kafka's own definitions name them, with fields in snake_case, arrays as tuples and Kafka's
defaults: ``wire.LeaderAndIsrRequest``, and inside it ``wire.LeaderAndIsrTopicState``. Where Kafka gives several
messages a structure of one name, the message's name stands before it: ``wire.AlterPartitionRequestTopicData``.

primitives   Kafka's types as Construct classes        schema     tables -> dataclasses and a Struct per version
messages/    one table file per API                    headers    request and response headers
registry     API keys, names, versions                 protocol   whole frames: the four functions above
framing      the length before each frame              errors     error codes; the WireError tree
records      record sets <-> batches of records        record     what a batch is made of
consumer_protocol  what is inside JoinGroup and SyncGroup
descriptions the layout of a version as text
plain        messages as dicts, for JSON               outline    what a record set holds, unopened
codec        the fast engine, written from the Structs (codegen, layouts)
shared_request  one control request for many brokers  columnar   many control requests as flat arrays, and back
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wire.codegen import maker
from wire.error_counts import error_counts
from wire.errors import (
    CorruptRecord,
    DecodeError,
    EncodeError,
    ErrorCode,
    InvalidValue,
    LimitExceeded,
    TrailingBytes,
    Truncated,
    UnknownApiKey,
    UnsupportedVersion,
    WireError,
    error_name,
)
from wire.framing import DEFAULT_MAX_FRAME_BYTES, FrameBuffer, frame
from wire.headers import Header
from wire.plain import as_dict
from wire.primitives import TaggedField
from wire.protocol import decode_request, decode_request_header, decode_response, encode_request, encode_response
from wire.registry import API_KEYS, ApiKey, api, message_module
from wire.schema import Message, Struct
from wire.shared_request import SharedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wire.columnar import Columns
    from wire.compression import MAX_DECOMPRESSED_BYTES
    from wire.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolAssignmentTopicPartition,
        ConsumerProtocolSubscription,
        ConsumerProtocolSubscriptionTopicPartition,
        decode_assignment,
        decode_subscription,
        encode_consumer_protocol,
    )
    from wire.descriptions import describe, describe_json
    from wire.messages.add_offsets_to_txn import *
    from wire.messages.add_partitions_to_txn import *
    from wire.messages.allocate_producer_ids import *
    from wire.messages.alter_client_quotas import *
    from wire.messages.alter_configs import *
    from wire.messages.alter_partition import *
    from wire.messages.alter_partition_reassignments import *
    from wire.messages.alter_replica_log_dirs import *
    from wire.messages.alter_user_scram_credentials import *
    from wire.messages.api_versions import *
    from wire.messages.consumer_group_describe import *
    from wire.messages.consumer_group_heartbeat import *
    from wire.messages.controlled_shutdown import *
    from wire.messages.create_acls import *
    from wire.messages.create_delegation_token import *
    from wire.messages.create_partitions import *
    from wire.messages.create_topics import *
    from wire.messages.delete_acls import *
    from wire.messages.delete_groups import *
    from wire.messages.delete_records import *
    from wire.messages.delete_topics import *
    from wire.messages.describe_acls import *
    from wire.messages.describe_client_quotas import *
    from wire.messages.describe_cluster import *
    from wire.messages.describe_configs import *
    from wire.messages.describe_delegation_token import *
    from wire.messages.describe_groups import *
    from wire.messages.describe_log_dirs import *
    from wire.messages.describe_producers import *
    from wire.messages.describe_transactions import *
    from wire.messages.describe_user_scram_credentials import *
    from wire.messages.elect_leaders import *
    from wire.messages.end_txn import *
    from wire.messages.envelope import *
    from wire.messages.expire_delegation_token import *
    from wire.messages.fetch import *
    from wire.messages.find_coordinator import *
    from wire.messages.heartbeat import *
    from wire.messages.incremental_alter_configs import *
    from wire.messages.init_producer_id import *
    from wire.messages.join_group import *
    from wire.messages.leader_and_isr import *
    from wire.messages.leave_group import *
    from wire.messages.list_groups import *
    from wire.messages.list_offsets import *
    from wire.messages.list_partition_reassignments import *
    from wire.messages.list_transactions import *
    from wire.messages.metadata import *
    from wire.messages.offset_commit import *
    from wire.messages.offset_delete import *
    from wire.messages.offset_fetch import *
    from wire.messages.offset_for_leader_epoch import *
    from wire.messages.produce import *
    from wire.messages.renew_delegation_token import *
    from wire.messages.sasl_authenticate import *
    from wire.messages.sasl_handshake import *
    from wire.messages.stop_replica import *
    from wire.messages.sync_group import *
    from wire.messages.txn_offset_commit import *
    from wire.messages.update_features import *
    from wire.messages.update_metadata import *
    from wire.messages.write_txn_markers import *
    from wire.record import (
        Codec,
        ControlRecordType,
        EndTransactionMarker,
        Record,
        RecordBatch,
        RecordHeader,
        TimestampType,
        control_record_type,
    )
    from wire.records import RecordSet, read_records, write_records

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
    "EndTransactionMarker",
    "ErrorCode",
    "FrameBuffer",
    "Header",
    "InvalidValue",
    "LimitExceeded",
    "Message",
    "Record",
    "RecordBatch",
    "RecordHeader",
    "RecordSet",
    "SharedRequest",
    "Struct",
    "TaggedField",
    "TimestampType",
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
    "decode_request",
    "decode_request_header",
    "decode_response",
    "decode_subscription",
    "describe",
    "describe_json",
    "encode_consumer_protocol",
    "encode_request",
    "encode_response",
    "error_counts",
    "error_name",
    "frame",
    "from_columns",
    "maker",
    "read_records",
    "write_records",
]

#: what else there is, and the module that is imported when it is first asked for
_LATER = {
    "wire.compression": ("MAX_DECOMPRESSED_BYTES",),
    "wire.consumer_protocol": (
        "ConsumerProtocolAssignment", "ConsumerProtocolAssignmentTopicPartition", "ConsumerProtocolSubscription",
        "ConsumerProtocolSubscriptionTopicPartition", "decode_assignment", "decode_subscription",
        "encode_consumer_protocol",
    ),
    "wire.descriptions": ("describe", "describe_json"),
    "wire.record": (
        "Codec", "ControlRecordType", "EndTransactionMarker", "Record", "RecordBatch", "RecordHeader",
        "TimestampType", "control_record_type",
    ),
    "wire.records": ("RecordSet", "read_records", "write_records"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}


def columns(api_key: int, version: int, frames: Sequence[bytes]) -> Columns:
    """LeaderAndIsr, StopReplica or UpdateMetadata requests as numpy arrays: see `wire.columnar`. Raises DecodeError."""
    from wire import columnar

    return columnar.columns(api_key, version, frames)


def from_columns(api_key: int, version: int, columns: Mapping[str, Any]) -> list[bytes]:
    """The way back from ``columns``. Raises EncodeError."""
    from wire import columnar

    return columnar.from_columns(api_key, version, columns)


def __getattr__(name: str) -> Any:
    """A message, structure or other thing by name; its module is imported when it is first asked for."""
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
        return value
    if name[:1].isupper():
        # the API whose name begins the structure's first, so that as a rule one module is imported
        for known in sorted(API_KEYS, key=lambda known: (not name.startswith(known.name), -len(known.name))):
            module = message_module(known.key)
            if module is not None and name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'wire' has no attribute {name!r}")
