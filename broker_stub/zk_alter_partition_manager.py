"""Writes ISR changes to ZooKeeper, for inter-broker protocols below 2.7-IV2 (rules 9.60, 9.61).

A leader writes its partition's state if the partition epoch still matches, and later notifies the controller of all
changes at once. It replaces `alter_partition_manager.AlterPartitionManager`.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Callback
from kce.broker_stub.ports import IsrStore
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: rule 9.61: every CHECK_SECONDS, notify of the changes if the last one is LULL_SECONDS old, or the last notification
#: MAX_DELAY_SECONDS
CHECK_SECONDS: Final = 2.5
LULL_SECONDS: Final = 5.0
MAX_DELAY_SECONDS: Final = 60.0


class ZkAlterPartitionManager:
    """Owns the pending changes, and the written ones that the controller has not been notified of."""

    def __init__(self, store: IsrStore) -> None:
        self._store = store
        self._pending: dict[TopicPartition, tuple[AlterPartitionItem, Callback]] = {}
        self._submitted = trio.Event()
        self._changed: dict[TopicPartition, None] = {}
        self._last_change = 0.0
        self._last_notification = 0.0

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool:
        """Write the item; ``callback`` gets the written state or INVALID_UPDATE_VERSION, once.

        Returns False and does nothing while another item for the partition is pending.
        """
        if item.partition in self._pending:
            return False
        self._pending[item.partition] = item, callback
        self._submitted.set()
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write and notify until cancelled. The nursery runs the notifier beside the writer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notify)
            task_status.started()
            while True:
                await self._submitted.wait()
                self._submitted = trio.Event()
                while self._pending:
                    await self._write(next(iter(self._pending)))

    async def _write(self, partition: TopicPartition) -> None:
        item, _ = self._pending[partition]
        try:
            partition_epoch = await self._store.update_isr(item)
        except Exception:
            log.exception("could not write the ISR of %s", partition)
            partition_epoch = None
        _, callback = self._pending.pop(partition)  # before the callback, which may submit the next one
        if partition_epoch is None:  # the next LeaderAndIsr brings the controller's state
            callback(ErrorCode.INVALID_UPDATE_VERSION)
            return
        self._changed[partition] = None
        self._last_change = trio.current_time()
        callback(item.leader_and_isr.with_partition_epoch(partition_epoch))

    async def _notify(self) -> None:
        while True:
            await trio.sleep(CHECK_SECONDS)
            now = trio.current_time()
            is_due = now - self._last_change > LULL_SECONDS or now - self._last_notification > MAX_DELAY_SECONDS
            if self._changed and is_due:
                changed, self._changed = self._changed, {}
                self._last_notification = now
                try:
                    await self._store.notify_isr_changes(tuple(changed))
                except Exception:
                    log.exception("could not notify the controller of ISR changes")
                    self._changed = changed | self._changed
