"""ISR changes where brokers write them into ZooKeeper themselves: inter-broker protocols below 2.7-IV2 (9.60, 9.61).

A leader writes the state of its partition, on condition of the partition epoch, and later tells the controller in one
notification what has changed. It takes the place of `alter_partition_manager.AlterPartitionManager`.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from broker_stub.alter_partition_manager import AlterPartitionItem, Callback, LeaderAndIsr
from broker_stub.ports import IsrStore
from wire import ErrorCode
from wire.vocabulary import TopicPartition

logger = logging.getLogger("broker_stub.alter_partition")

#: rule 9.61: how often changes are looked at; how long a lull lets them go; how long none of them waits
CHECK_SECONDS: Final = 2.5
LULL_SECONDS: Final = 5.0
MAX_DELAY_SECONDS: Final = 60.0


class ZkAlterPartitionManager:
    """Owns the changes that are not written yet, and those that are not yet told of."""

    def __init__(self, store: IsrStore) -> None:
        self._store = store
        self._unwritten: dict[TopicPartition, tuple[AlterPartitionItem, Callback]] = {}
        self._submitted = trio.Event()
        self._changed: dict[TopicPartition, None] = {}
        self._last_change = 0.0
        self._last_notification = 0.0

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool:
        """Have ``callback`` called once with what was written, or INVALID_UPDATE_VERSION.

        False, and nothing is done, while another item for the partition is under way.
        """
        if item.partition in self._unwritten:
            return False
        self._unwritten[item.partition] = item, callback
        self._submitted.set()
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write and notify until cancelled. Its nursery holds the notifier beside the writer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notify)
            task_status.started()
            while True:
                await self._submitted.wait()
                self._submitted = trio.Event()
                while self._unwritten:
                    await self._write(next(iter(self._unwritten)))

    async def _write(self, partition: TopicPartition) -> None:
        item, _ = self._unwritten[partition]
        try:
            partition_epoch = await self._store.update_isr(item)
        except Exception:
            logger.exception("the ISR of %s could not be written", partition)
            partition_epoch = None
        _, callback = self._unwritten.pop(partition)  # before the callback, which may submit the next one
        if partition_epoch is None:  # what the controller knows better comes with its next LeaderAndIsr
            callback(ErrorCode.INVALID_UPDATE_VERSION)
            return
        self._changed[partition] = None
        self._last_change = trio.current_time()
        callback(
            LeaderAndIsr(
                leader=item.leader,
                leader_epoch=item.leader_epoch,
                isr=item.isr,
                leader_recovery_state=item.leader_recovery_state,
                partition_epoch=partition_epoch,
            )
        )

    async def _notify(self) -> None:
        while True:
            await trio.sleep(CHECK_SECONDS)
            now = trio.current_time()
            is_due = now - self._last_change > LULL_SECONDS or now - self._last_notification > MAX_DELAY_SECONDS
            if self._changed and is_due:
                told, self._changed = self._changed, {}
                self._last_notification = now
                try:
                    await self._store.notify_isr_changes(tuple(told))
                except Exception:
                    logger.exception("the controller could not be told of ISR changes")
                    self._changed = told | self._changed
