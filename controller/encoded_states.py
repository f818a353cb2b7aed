"""Partition states of control requests as bytes, in versions that group them by topic.

Many partitions have equal leaderships and replicas. Their states differ only in the partition's index, the first field:
what follows it, the tail, is encoded once.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

from kce import wire
from kce.wire.registry import LEADER_AND_ISR, UPDATE_METADATA
from kce.zookeeper.model import LEADER_DURING_DELETE, BrokerId, Leadership, ReplicaAssignment, TopicPartition

#: the bytes of an index
encoded_index = struct.Struct(">i").pack
_INDEX_BYTES = 4
_REMEMBERED = 1 << 13

_leader_and_isr_state: Callable[..., wire.LeaderAndIsrPartitionState] = wire.LeaderAndIsrPartitionState
_update_metadata_state: Callable[..., wire.UpdateMetadataPartitionState] = wire.UpdateMetadataPartitionState


def leader_and_isr_state(
    tp: TopicPartition, version: int, leadership: Leadership, assignment: ReplicaAssignment, is_new: bool
) -> wire.LeaderAndIsrPartitionState:
    """Rules 13.7-13.11."""
    decided, controller_epoch = leadership
    return _leader_and_isr_state(
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
    return _update_metadata_state(
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
