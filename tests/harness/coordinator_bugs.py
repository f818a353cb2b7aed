"""Bugs of coordinators, and of what is read in transactions, for the simulation to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kce.broker_stub.groups import coordinator
from kce.broker_stub.groups.group import Group
from kce.broker_stub.groups.manager import GroupManager
from kce.broker_stub.groups.offsets import GroupOffsets
from kce.broker_stub.groups.rebalancing import Rebalancing
from kce.broker_stub.internal_log import InternalTopicLog
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log import Log
from kce.broker_stub.log.segments import Segments
from kce.broker_stub.transactions.coordinator import TransactionCoordinator
from kce.wire import RecordBatch

Patch = pytest.MonkeyPatch


def coordinators_answer_before_replication(patch: Patch) -> None:
    """A commit is acknowledged when the leader has it (rules G7.13, T9.5)."""
    append = InternalTopicLog.append_and_wait

    def at_once(self: InternalTopicLog, partition: int, records: bytes, acks: int, *more: Any) -> None:
        append(self, partition, records, 1, *more)

    patch.setattr(InternalTopicLog, "append_and_wait", at_once)


def generations_not_checked(patch: Patch) -> None:
    """Whoever has been a member may commit (rule G7.5)."""
    patch.setattr(coordinator, "_commit_error", lambda *_, **more: None)


def the_end_of_the_log_not_loaded(patch: Patch) -> None:
    """A coordinator does not read the last batch (rule G9.14)."""
    read = InternalTopicLog.read

    def all_but_the_last(self: InternalTopicLog, partition: int) -> Iterator[RecordBatch]:
        yield from list(read(self, partition))[:-1]

    patch.setattr(InternalTopicLog, "read", all_but_the_last)


def members_share_an_assignment(patch: Patch) -> None:
    """Each member gets the leader's (rule G4.6)."""
    assign = Rebalancing.assign

    def assign_alike(self: Rebalancing, group: Group, assignments: dict[str, bytes]) -> None:
        assign(self, group, dict.fromkeys(assignments, assignments.get(group.leader or "", b"")))

    patch.setattr(Rebalancing, "assign", assign_alike)


def uncommitted_records_read(patch: Patch) -> None:
    """A read_committed consumer reads up to the high watermark (rule B3.65)."""
    patch.setattr(Log, "located_last_stable", Log.located_high_watermark)


def aborted_transactions_not_named(patch: Patch) -> None:
    """Consumers cannot leave them out (rule B4.17)."""
    patch.setattr(Segments, "aborted", lambda self, *_: ())


def offsets_of_transactions_forgotten(patch: Patch) -> None:
    """The marker does not make them the group's (rule G7.21)."""
    patch.setattr(GroupManager, "transaction_ended", lambda self, *_, **more: None)


def offsets_loaded_without_transactions(patch: Patch) -> None:
    """What was committed in transactions is not loaded (rule G9.16)."""
    read = InternalTopicLog.read

    def plain(self: InternalTopicLog, partition: int) -> Iterator[RecordBatch]:
        is_offsets = self._named(partition).topic == GROUP_METADATA_TOPIC
        return (batch for batch in read(self, partition) if not (is_offsets and batch.is_transactional))

    patch.setattr(InternalTopicLog, "read", plain)


def unstable_offsets_answered(patch: Patch) -> None:
    """With require_stable, too, what was committed before a transaction that has not ended (rule G7.27)."""
    patch.setattr(GroupOffsets, "is_unstable", lambda self, partition: False)


def groups_kept_when_their_partition_moves(patch: Patch) -> None:
    """A coordinator goes on with what it had when it leads the partition again (rule G9.20)."""

    def unload(self: GroupManager, partition: int, leader_epoch: int | None) -> None:
        if self._is_current(partition, leader_epoch):
            self._owned.discard(partition)

    patch.setattr(GroupManager, "_unload", unload)


def older_producer_epochs_heard(patch: Patch) -> None:
    """The coordinator of transactions does not look at the epoch (rule T5.4)."""
    known = TransactionCoordinator._known

    def any_epoch(self: TransactionCoordinator, transactional_id: str, producer_id: int, epoch: int) -> Any:
        metadata = self._gate(transactional_id).ids.get(transactional_id)
        current = epoch if metadata is None else metadata.values.producer_epoch
        return known(self, transactional_id, producer_id, current)

    patch.setattr(TransactionCoordinator, "_known", any_epoch)


def markers_not_sent_after_a_failover(patch: Patch) -> None:
    """A coordinator does not finish the transactions that it has loaded (rule T9.14)."""
    patch.setattr(TransactionCoordinator, "_loaded", lambda self, *_: None)


#: each with a seed that found it, which is tried first
BUGS: tuple[tuple[Callable[[Patch], None], int], ...] = (
    (coordinators_answer_before_replication, 17), (generations_not_checked, 13),
    (the_end_of_the_log_not_loaded, 6), (members_share_an_assignment, 0),
    (uncommitted_records_read, 9), (aborted_transactions_not_named, 17), (offsets_of_transactions_forgotten, 7),
    (offsets_loaded_without_transactions, 17), (unstable_offsets_answered, 75),
    (groups_kept_when_their_partition_moves, 155), (older_producer_epochs_heard, 35),
    (markers_not_sent_after_a_failover, 207),
)  # fmt: skip
