"""Subscriptions and assignments, which the consumers of a group exchange through its coordinator.

They are the ``metadata`` and ``assignment`` bytes of JoinGroup, SyncGroup and DescribeGroups for protocol type
"consumer" (KIP-429, KIP-792, KIP-881): an int16 version, then the message. Versions only append fields, so an unknown
version is decoded as the newest known one, and the rest is ignored, as in Kafka.
"""

from __future__ import annotations

import io
import struct
from typing import TypeVar

import construct

from kce.wire import errors
from kce.wire.codec import REFUSALS, codec_for, step_decoder_for
from kce.wire.primitives import BYTES, INT32, STRING, explain
from kce.wire.schema import Struct, Versions, field, struct_for
from kce.wire.schema import struct as table
from kce.wire.steps import finish

VERSIONS = Versions.parse("0-3")

_VERSION = struct.Struct(">h")


@table
class ConsumerProtocolSubscriptionTopicPartition(Struct):
    topic: str = field(STRING, "1+")
    partitions: tuple[int, ...] = field([INT32], "1+")


@table
class ConsumerProtocolSubscription(Struct):
    topics: tuple[str, ...] = field([STRING], "0+")
    user_data: bytes | None = field(BYTES, "0+", default=None, nullable="0+")
    owned_partitions: tuple[ConsumerProtocolSubscriptionTopicPartition, ...] = field(
        [ConsumerProtocolSubscriptionTopicPartition], "1+", ignorable=True
    )
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", default=None, nullable="3+", ignorable=True)


@table
class ConsumerProtocolAssignmentTopicPartition(Struct):
    topic: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@table
class ConsumerProtocolAssignment(Struct):
    assigned_partitions: tuple[ConsumerProtocolAssignmentTopicPartition, ...] = field(
        [ConsumerProtocolAssignmentTopicPartition], "0+"
    )
    user_data: bytes | None = field(BYTES, "0+", default=None, nullable="0+")


S = TypeVar("S", ConsumerProtocolSubscription, ConsumerProtocolAssignment)


def encode_consumer_protocol(
    message: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int = VERSIONS.last
) -> bytes:
    """Encode the message, with its version before it. Raises EncodeError, UnsupportedVersion."""
    name = type(message).__name__
    if version not in VERSIONS:
        raise errors.UnsupportedVersion(f"{name} has versions {VERSIONS}, not {version}")
    stream = io.BytesIO()
    stream.write(_VERSION.pack(version))
    try:
        struct_for(type(message), version, flexible=False).build_stream(message, stream)
    except construct.ConstructError as e:
        _, reason, where = explain(e)
        raise errors.EncodeError(f"{name} {version}: {reason} at {where}") from None
    except (struct.error, TypeError, ValueError, AttributeError) as e:
        raise errors.EncodeError(f"{name} {version}: {e}") from e
    return stream.getvalue()


def decode_subscription(data: bytes | memoryview) -> tuple[int, ConsumerProtocolSubscription]:
    """(encoded version, subscription). Raises DecodeError."""
    return _decode(ConsumerProtocolSubscription, data)


def decode_subscription_topics(data: bytes | memoryview) -> tuple[str, ...]:
    """What a coordinator reads of a subscription: its topics, in the layout of version 0. Raises DecodeError."""
    cls = ConsumerProtocolSubscription
    version = _encoded_version(cls, data)
    try:  # as Kafka reads it
        return finish(step_decoder_for(cls, 0, False, like_kafka=True)(bytes(data), _VERSION.size))[0].topics  # type: ignore[no-any-return]
    except REFUSALS:
        return _parse(cls, data, version, 0).topics


def decode_assignment(data: bytes | memoryview) -> tuple[int, ConsumerProtocolAssignment]:
    """(encoded version, assignment). Raises DecodeError."""
    return _decode(ConsumerProtocolAssignment, data)


def _decode(cls: type[S], data: bytes | memoryview) -> tuple[int, S]:
    version = _encoded_version(cls, data)
    if version < 0:
        raise errors.UnsupportedVersion(f"{cls.__name__} has versions {VERSIONS}, not {version}")
    return version, _parse(cls, data, version, min(version, VERSIONS.last))


def _encoded_version(cls: type[S], data: bytes | memoryview) -> int:
    if len(data) < _VERSION.size:
        raise errors.Truncated(f"{cls.__name__}: {_VERSION.size} bytes needed for its version, {len(data)} there")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def _parse(cls: type[S], data: bytes | memoryview, version: int, layout: int) -> S:
    try:
        return codec_for(cls, layout, False).decode(bytes(data), _VERSION.size)[0]  # type: ignore[no-any-return]
    except REFUSALS:  # the Construct says what is wrong
        pass
    stream = io.BytesIO(data)
    stream.seek(_VERSION.size)
    try:
        message: S = struct_for(cls, layout, flexible=False).parse_stream(stream)
    except construct.ConstructError as e:
        kind, reason, where = explain(e)
        raise kind(f"{cls.__name__} {version}: {reason} at {where}, offset {stream.tell()}") from None
    return message
