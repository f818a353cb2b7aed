"""The groups of a broker: which partitions of `__consumer_offsets` it owns, what it writes there (sections 8 and 9).

Loads, unloads and cleanups happen one after the other, in the task of ``run``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

import trio

from kce.broker_stub.background_work import BackgroundWork, LoadTimes, fold
from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.groups.commits import TOO_LARGE, CommitLog, Records
from kce.broker_stub.groups.group import DEAD, EMPTY, Group, IllegalState
from kce.broker_stub.groups.loading import Fold
from kce.broker_stub.groups.records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupMetadataValue,
    MemberMetadataValue,
    group_key,
    group_version,
    offset_key,
    offset_version,
    write_group,
    write_offset,
)
from kce.broker_stub.groups.storage import OffsetsLog
from kce.broker_stub.internal_topics import partition_for
from kce.broker_stub.log.verification import VerificationGuard
from kce.wire import ErrorCode, WireError
from kce.wire.errors import NO_ERROR
from kce.wire.metadata_version import MetadataVersion
from kce.wire.record import NO_PRODUCER
from kce.wire.record_batch import write_values
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]


_UNAVAILABLE: Final = dict.fromkeys(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
) | dict.fromkeys((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR), ErrorCode.NOT_COORDINATOR)
#: what an append's code becomes; others stay (rules G7.13, G9.13)
COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **_UNAVAILABLE,
    **dict.fromkeys(TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
GROUP_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **_UNAVAILABLE,
    **dict.fromkeys(TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
}


class Producer:
    """Whose transaction a commit belongs to. ``guard``: of its verification, if there was one."""

    __slots__ = ("epoch", "guard", "id")

    def __init__(self, producer_id: int, epoch: int, guard: VerificationGuard | None = None) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.guard = guard


class GroupManager:
    """``on_loaded`` and ``on_unloaded`` are the coordinator's."""

    def __init__(
        self,
        config: GroupConfig,
        ibp: MetadataVersion,
        offsets_log: OffsetsLog,
        now_ms: Callable[[], int],
        partition_count: int,
    ) -> None:
        """``partition_count``: of `__consumer_offsets`, as of the broker's start (rule G1.3)."""
        self.groups: dict[str, Group] = {}
        self.on_loaded: Callable[[Group], None] = lambda group: None
        self.on_unloaded: Callable[[Group], None] = lambda group: None
        self.partition_count = partition_count
        self.now_ms = now_ms
        self._config = config
        self._group_version, self._offset_version = group_version(ibp), offset_version(ibp)
        self._log = offsets_log
        self.commits = CommitLog(offsets_log, self._commit_batch)
        self._owned: set[int] = set()
        self._loading: set[int] = set()
        #: highest leader epoch seen, by partition (rule G9.21)
        self._epochs: dict[int, int] = {}
        self._work = BackgroundWork(log)
        self.load_times = LoadTimes(now_ms)
        #: how many offsets were committed, in transactions, too; and how many have expired
        self.offset_commits = self.offset_expirations = 0

    # which groups there are

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self.partition_count)

    def is_owned(self, group_id: str) -> bool:
        return self.partition_of(group_id) in self._owned

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    @property
    def loaded(self) -> Mapping[int, int]:
        """The partitions whose groups are loaded, with the latest leader epoch."""
        return {number: self._epochs[number] for number in self._owned - self._loading}

    def refusal(self, group_id: str) -> ErrorCode | None:
        """Of a group that is not for this broker, or not yet (rules G1.12, G1.13)."""
        if group_id in self.groups and not self._loading:  # what is known is of owned partitions
            return None
        partition = self.partition_of(group_id)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return None if partition in self._owned else ErrorCode.NOT_COORDINATOR

    def does_not_exist(self, group_id: str) -> bool:
        """Whether that is known for certain (rule G7.31)."""
        group = self.groups.get(group_id)
        return self.is_owned(group_id) and (group is None or group.is_dead)

    def get_or_create(self, group_id: str) -> Group:
        """Rule G2.11."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.now_ms)
        return group

    # what runs in the background

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clean_up_regularly)
            await self._work.run()

    async def _clean_up_regularly(self) -> None:
        while True:
            self._work.later(self._clean_up)
            await trio.sleep(self._config.offsets_retention_check_interval_ms / 1000)

    async def _clean_up(self) -> None:
        self.remove_expired_offsets()

    def load(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition now (rule G13.1)."""
        started_ms = self.now_ms()

        async def work() -> None:
            await self._load(partition, leader_epoch, started_ms)

        self._work.later(work)

    def unload(self, partition: int, leader_epoch: int | None) -> None:
        """This broker does not lead the partition any more (rules G13.2, G13.4)."""

        async def work() -> None:
            self._unload(partition, leader_epoch)

        self._work.later(work)

    def transaction_ended(self, producer_id: int, partitions: Iterable[int], *, committed: bool) -> None:
        """The marker is in the log of these partitions (rule G7.21)."""
        ended = frozenset(partitions)

        async def work() -> None:
            for group in list(self.groups.values()):
                if self.partition_of(group.group_id) in ended and not group.is_dead:
                    group.offsets.transaction_ended(producer_id, committed=committed)

        self._work.later(work)

    def _is_current(self, partition: int, leader_epoch: int | None) -> bool:
        """Rule G9.21."""
        known = self._epochs.get(partition)
        if leader_epoch is None:
            return True
        if known is not None and leader_epoch < known:
            log.info("partition %d of groups: epoch %d is older than %d", partition, leader_epoch, known)
            return False
        self._epochs[partition] = leader_epoch
        return True

    async def _load(self, partition: int, leader_epoch: int, started_ms: int) -> None:
        """Rules G9.14 to G9.19."""
        if not self._is_current(partition, leader_epoch) or partition in self._owned | self._loading:
            return
        self._loading.add(partition)
        found = Fold(self.now_ms)
        try:
            await fold(self._log.read(partition), found.add)
            for group in found.groups():
                if group.group_id not in self.groups:
                    self.groups[group.group_id] = group
                    self.on_loaded(group)
        except (ApiException, WireError, IllegalState) as e:
            log.error("groups of partition %d are not loaded: %s", partition, e)
        finally:
            self._owned.add(partition)
            self._loading.discard(partition)
            self.load_times.add(started_ms)
        log.info("loaded partition %d of groups in leader epoch %d", partition, leader_epoch)

    def _unload(self, partition: int, leader_epoch: int | None) -> None:
        """Rule G9.20."""
        if not self._is_current(partition, leader_epoch):
            return
        self._owned.discard(partition)
        self._loading.discard(partition)
        for group in [g for g in self.groups.values() if self.partition_of(g.group_id) == partition]:
            self.on_unloaded(group)
            del self.groups[group.group_id]
        log.info("unloaded partition %d of groups", partition)

    # what is written

    def store_group(
        self, group: Group, assignments: Mapping[str, bytes], on_stored: Callable[[ErrorCode], None]
    ) -> None:
        """Append the group's record (rules G9.7, G9.9, G9.10). Raises EncodeError."""
        partition = self.partition_of(group.group_id)
        if not self._log.is_online(partition):
            on_stored(ErrorCode.NOT_COORDINATOR)
            return
        value = write_group(group_value(group, assignments), self._group_version)

        def appended(first_offset: int, code: ErrorCode) -> None:
            if code is not NO_ERROR:
                log.warning("the record of %r could not be appended: %s", group, code.name)
            on_stored(GROUP_ERRORS.get(code, code))

        self._log.append(partition, self._batch([(group_key(group.group_id), value)]), appended)

    def store_offsets(
        self,
        group: Group,
        offsets: Offsets,
        on_stored: Callable[[Mapping[TopicPartition, ErrorCode]], None],
        producer: Producer | None = None,
    ) -> None:
        """Append offsets, and remember them once they are there (rules G7.9 to G7.13, G7.19, G7.20).

        Raises EncodeError, Refused.
        """
        too_large = {tp for tp, committed in offsets.items() if not self.fits(committed.metadata)}
        fitting = {tp: offsets[tp] for tp in offsets if tp not in too_large} if too_large else offsets
        partition = self.partition_of(group.group_id)
        if not fitting:
            on_stored(dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE))
            return
        if not self._log.is_online(partition):
            on_stored(dict.fromkeys(offsets, ErrorCode.NOT_COORDINATOR))
            return
        if producer is not None and producer.id == NO_PRODUCER:  # what was not verified may name none
            producer = None
        elif producer is not None and producer.epoch == NO_PRODUCER:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"producer {producer.id} commits offsets without an epoch")
        records = [
            (offset_key(group.group_id, topic_partition), write_offset(committed, self._offset_version))
            for topic_partition, committed in fitting.items()
        ]

        def appended(first_offset: int, code: ErrorCode) -> None:
            if code is NO_ERROR:
                self.offset_commits += len(records)
            if not group.is_dead:
                _appended(group, fitting, producer, first_offset if code is NO_ERROR else None)
            codes = dict.fromkeys(offsets, COMMIT_ERRORS.get(code, code))
            if too_large:
                codes.update(dict.fromkeys(too_large, ErrorCode.OFFSET_METADATA_TOO_LARGE))
            on_stored(codes)

        if producer is None:
            group.offsets.prepare(fitting)
            self.commits.append(partition, records, appended)
        else:
            group.offsets.prepare_in_transaction(producer.id, fitting)
            self._log.append(partition, self._transactional_batch(records, producer), appended, producer.guard)

    def fits(self, metadata: str) -> bool:
        """Rule G7.9: Java's length, at most two for a character."""
        if 2 * len(metadata) <= self._config.offset_metadata_max_bytes:
            return True
        return len(metadata.encode("utf-16-be", "surrogatepass")) // 2 <= self._config.offset_metadata_max_bytes

    def _batch(self, values: Collection[tuple[bytes, bytes | None]], **of_producer: Any) -> bytes:
        """Rules G9.10, G9.12."""
        return write_values(values, self.now_ms(), self._config.offsets_topic_compression_codec, **of_producer)

    def _commit_batch(self, records: Records) -> bytes:
        return self._batch(records, base_sequence=0)

    def _transactional_batch(self, records: Records, producer: Producer) -> bytes:
        return self._batch(
            records, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0, is_transactional=True
        )

    # what is removed

    def remove_expired_offsets(self) -> int:
        """Rule G8.1. How many there were."""
        now = self.now_ms()
        removed = self.clean_up(
            list(self.groups.values()), lambda group: group.expire_offsets(now, self._config.offsets_retention_ms)
        )
        self.offset_expirations += removed
        if removed:
            log.info("removed %d expired offsets", removed)
        return removed

    def clean_up(self, groups: Iterable[Group], select: Callable[[Group], Collection[TopicPartition]]) -> int:
        """Write tombstones for the offsets that ``select`` has removed, and for groups that end with that.

        Returns how many offsets were removed (rules G8.8 to G8.10).
        """
        return sum(self._clean_up_group(group, select(group)) for group in groups)

    def _clean_up_group(self, group: Group, removed: Collection[TopicPartition]) -> int:
        if group.state is EMPTY and group.offsets.is_empty:
            group.move_to(DEAD)
        partition = self.partition_of(group.group_id)
        if not self._log.is_online(partition):
            return 0
        tombstones = [offset_key(group.group_id, topic_partition) for topic_partition in removed]
        if group.is_dead and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            if group.generation > 0:
                tombstones.append(group_key(group.group_id))
        if not tombstones:
            return 0
        try:
            self._log.append_without_waiting(partition, self._batch([(key, None) for key in tombstones]))
        except ApiException as e:
            log.error("%d tombstones of %r could not be appended: %s", len(tombstones), group, e)
            return 0
        return len(removed)


def _appended(group: Group, offsets: Offsets, producer: Producer | None, first_offset: int | None) -> None:
    """``first_offset``: None if the append failed."""
    if producer is None and first_offset is None:
        group.offsets.failed(offsets)
    elif producer is None:
        assert first_offset is not None
        group.offsets.appended(offsets, first_offset)
    elif first_offset is None:
        group.offsets.failed_in_transaction(producer.id, offsets)
    else:
        group.offsets.appended_in_transaction(producer.id, offsets, first_offset)


def group_value(group: Group, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
    """The record's value, with these assignments. Raises IllegalState for members without a protocol."""
    protocol = group.protocol_name
    if group.members and protocol is None:
        raise IllegalState(f"{group!r} has members and no protocol")
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader,
        current_state_timestamp=NO_TIMESTAMP if group.state_since_ms is None else group.state_since_ms,
        members=tuple(
            [
                MemberMetadataValue(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client.client_id,
                    client_host=member.client.host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(protocol or ""),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in group.members.values()
            ]
        ),
    )
