"""Topics and partition states of control requests as bytes, in versions that group partitions by topic.

Many partitions have equal leaderships and replicas. Their states differ only in the partition's index, the first field:
what follows it, the tail, is encoded once.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable

from kce import wire
from kce.wire.codegen import write_uvarint
from kce.wire.registry import LEADER_AND_ISR, UPDATE_METADATA
from kce.wire.schema import Struct
from kce.zookeeper.model import LEADER_DURING_DELETE, BrokerId, Leadership, ReplicaAssignment, TopicPartition

#: the bytes of an index
encoded_index = struct.Struct(">i").pack
_INDEX_BYTES = 4
_REMEMBERED = 1 << 13
#: topics that several brokers are told of in one step
_TOPICS_REMEMBERED = 64
#: of a topic without one
ZERO = uuid.UUID(int=0)


def leader_and_isr_state(
    tp: TopicPartition, version: int, leadership: Leadership, assignment: ReplicaAssignment, is_new: bool
) -> wire.LeaderAndIsrPartitionState:
    """Rules 13.7-13.11."""
    decided, controller_epoch = leadership
    return wire.LeaderAndIsrPartitionState(
        topic_name=tp.topic if version < 2 else "",
        partition_index=tp.partition,
        controller_epoch=controller_epoch,
        leader=decided.leader,
        leader_epoch=decided.leader_epoch,
        isr=decided.isr,
        partition_epoch=decided.partition_epoch,
        replicas=assignment.replicas,
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
        is_new=is_new,
        leader_recovery_state=decided.recovery_state if version >= 6 else 0,
    )


@functools.lru_cache(maxsize=_REMEMBERED)
def leader_and_isr_tail(version: int, leadership: Leadership, assignment: ReplicaAssignment, is_new: bool) -> bytes:
    """Raises EncodeError."""
    state = leader_and_isr_state(_ANY, version, leadership, assignment, is_new)
    return wire.encode_part(state, api_key=LEADER_AND_ISR, api_version=version)[_INDEX_BYTES:]


def update_metadata_state(
    tp: TopicPartition,
    version: int,
    leadership: Leadership,
    replicas: tuple[BrokerId, ...],
    offline: tuple[BrokerId, ...],
    is_deleting: bool,
) -> wire.UpdateMetadataPartitionState:
    """Rules 8.8-8.10, 13.16-13.21."""
    state, controller_epoch = leadership
    return wire.UpdateMetadataPartitionState(
        topic_name=tp.topic if version < 5 else "",
        partition_index=tp.partition,
        controller_epoch=controller_epoch,
        leader=LEADER_DURING_DELETE if is_deleting else state.leader,
        leader_epoch=0 if is_deleting else state.leader_epoch,
        isr=state.isr,
        zk_version=0 if is_deleting else state.partition_epoch,
        replicas=replicas,
        offline_replicas=offline,
    )


class EncodedTopic:
    """A topic of a request, without its partitions. ``made`` is the maker of its class. Raises EncodeError."""

    __slots__ = ("_behind", "_name", "_number")

    def __init__(
        self, made: Callable[..., Struct], topic: str, topic_id: uuid.UUID | None, api_key: int, version: int
    ) -> None:
        alone = made(topic_name=topic, topic_id=topic_id or ZERO, partition_states=wire.Encoded(0, ()))
        whole = wire.encode_part(alone, api_key=api_key, api_version=version)
        is_flexible = version in wire.api(api_key).flexible
        self._number = _compact_length if is_flexible else encoded_index
        self._behind = b"\0" * is_flexible  # the number of tagged fields
        self._name = whole[: -len(self._number(0) + self._behind)]

    def around(self, partitions: int) -> tuple[bytes, bytes]:
        """The bytes before and behind the states of so many partitions."""
        return self._name + self._number(partitions), self._behind


def _compact_length(elements: int) -> bytes:
    return write_uvarint(elements + 1)


@functools.lru_cache(maxsize=_TOPICS_REMEMBERED)
def leader_and_isr_topic(version: int, topic: str, topic_id: uuid.UUID | None) -> EncodedTopic:
    return EncodedTopic(wire.LeaderAndIsrTopicState, topic, topic_id, LEADER_AND_ISR, version)


def update_metadata_topic(version: int, topic: str, topic_id: uuid.UUID | None) -> EncodedTopic:
    return EncodedTopic(wire.UpdateMetadataTopicState, topic, topic_id, UPDATE_METADATA, version)


@functools.lru_cache(maxsize=_REMEMBERED)
def update_metadata_tail(
    version: int,
    leadership: Leadership,
    replicas: tuple[BrokerId, ...],
    offline: tuple[BrokerId, ...],
    is_deleting: bool,
) -> bytes:
    """Raises EncodeError."""
    state = update_metadata_state(_ANY, version, leadership, replicas, offline, is_deleting)
    return wire.encode_part(state, api_key=UPDATE_METADATA, api_version=version)[_INDEX_BYTES:]


_ANY = TopicPartition("", 0)
