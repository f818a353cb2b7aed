"""Groups and offsets from the records of a partition of `__consumer_offsets` (rules G9.16, G9.17, G9.22)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from kce.broker_stub.groups.group import Group, GroupState
from kce.broker_stub.groups.member import Client, Member
from kce.broker_stub.groups.offsets import Stored
from kce.broker_stub.groups.records import (
    NO_TIMESTAMP,
    GroupKey,
    GroupMetadataValue,
    OffsetKey,
    UnknownKey,
    has_rebalance_timeouts,
    read_group,
    read_key,
    read_offset,
)
from kce.wire.errors import CorruptRecord
from kce.wire.record import ControlRecordType, Record, RecordBatch, control_record_type

log = logging.getLogger(__name__)

_NO_PROTOCOL: Final = ""


class Fold:
    """Takes the batches of a partition in the order of its log."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._offsets: dict[OffsetKey, Stored] = {}
        #: of transactions that have not ended, by producer
        self._pending: dict[int, dict[OffsetKey, Stored]] = {}
        #: as of their last values
        self._groups: dict[str, Group] = {}

    def add(self, batch: RecordBatch) -> None:
        """Raises DecodeError, CorruptRecord, IllegalState, also for a value that a later one replaces (rule G9.19)."""
        if batch.is_control:
            self._end_transaction(batch)
            return
        offsets = self._pending.setdefault(batch.producer_id, {}) if batch.is_transactional else self._offsets
        for record in batch.records:
            self._add(record, offsets, batch.records[0].offset)

    def _end_transaction(self, batch: RecordBatch) -> None:
        if not batch.records:  # compaction has removed the marker
            return
        is_commit = control_record_type(batch.records[0]) == ControlRecordType.COMMIT
        for key, stored in self._pending.pop(batch.producer_id, {}).items():
            known = self._offsets.get(key)
            if is_commit and (known is None or known.is_older_than(stored)):
                self._offsets[key] = stored

    def _add(self, record: Record, offsets: dict[OffsetKey, Stored], batch_offset: int) -> None:
        if record.key is None:
            raise CorruptRecord(f"record at offset {record.offset}: without a key")
        value = record.value
        match read_key(record.key):
            case OffsetKey() as key:
                if value is None:
                    offsets.pop(key, None)
                else:
                    offsets[key] = Stored(read_offset(value), batch_offset)
            case GroupKey(group):
                if value is None:
                    self._groups.pop(group, None)
                else:
                    self._groups[group] = group_of(group, value, self._now_ms)
            case UnknownKey(version):
                log.warning("the record at offset %d is of unknown type %d, and ignored", record.offset, version)

    def groups(self) -> Iterator[Group]:
        """Each with its offsets."""
        found, now_ms = dict(self._groups), self._now_ms
        for (group_id, partition), stored in self._offsets.items():
            group = found.get(group_id) or found.setdefault(group_id, Group(group_id, now_ms))
            group.offsets.stored[partition] = stored
        pending: defaultdict[tuple[str, int], dict[OffsetKey, Stored]] = defaultdict(dict)
        for producer_id, of_producer in self._pending.items():
            for key, stored in of_producer.items():
                pending[key.group, producer_id][key] = stored
        for (group_id, producer_id), of_group in pending.items():
            group = found.get(group_id) or found.setdefault(group_id, Group(group_id, now_ms))
            group.offsets.pending_of_producers[producer_id] = {key.partition: s for key, s in of_group.items()}
        yield from found.values()


def group_of(group_id: str, data: bytes, now_ms: Callable[[], int]) -> Group:
    """A group from its record. Raises DecodeError, IllegalState for two members with one instance id (rule G9.19)."""
    value = read_group(data)
    group = Group(group_id, now_ms, GroupState.STABLE if value.members else GroupState.EMPTY)
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader = value.leader
    group.state_since_ms = None if value.current_state_timestamp == NO_TIMESTAMP else value.current_state_timestamp
    for member in _members(value, has_timeouts=has_rebalance_timeouts(data)):
        group.add(member)
    group.note_subscriptions()
    return group


def _members(value: GroupMetadataValue, *, has_timeouts: bool) -> Iterator[Member]:
    for member in value.members:
        yield Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client=Client(member.client_id, member.client_host),
            rebalance_timeout_ms=member.rebalance_timeout if has_timeouts else member.session_timeout,
            session_timeout_ms=member.session_timeout,
            protocol_type=value.protocol_type,
            protocols=((value.protocol or _NO_PROTOCOL, bytes(member.subscription)),),
            assignment=bytes(member.assignment),
        )
