"""The fetchers of a broker: which of them fetches a partition, and from whom (rules B5.2, B5.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from uuid import UUID

import trio

from kce.broker_stub.log import Log
from kce.broker_stub.replication.fetcher import FollowerPort, ReplicaFetcher
from kce.wire.vocabulary import Endpoint, TopicPartition

_INT32: Final = 2**32


class FetcherManager:
    """``run`` runs them."""

    def __init__(self, port: FollowerPort) -> None:
        self._port = port
        self._threads = port.config.num_replica_fetchers
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def fetchers(self) -> Collection[ReplicaFetcher]:
        return self._fetchers.values()

    @property
    def failed_partitions(self) -> int:
        return sum(len(fetcher.failed) for fetcher in self._fetchers.values())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            for fetcher in self._fetchers.values():
                nursery.start_soon(fetcher.run)
            timeout_s = self._port.config.replica_socket_timeout_ms / 1000
            while True:
                now = trio.current_time()
                wake_at = now + timeout_s  # what is asked meanwhile takes longer
                for fetcher in list(self._fetchers.values()):
                    wake_at = min(wake_at, await fetcher.give_up_slow(now))
                await trio.sleep_until(wake_at)

    def follow(
        self,
        partition: TopicPartition,
        log: Log,
        leader: int,
        leader_epoch: int,
        endpoint: Endpoint,
        topic_id: UUID | None,
    ) -> None:
        """Fetch the partition from that leader from now on."""
        key = leader, fetcher_id(partition, self._threads)
        fetcher = self._fetchers.get(key)
        if fetcher is not None and fetcher.endpoint != endpoint:
            fetcher.scope.cancel()
            moved = fetcher.partitions
            fetcher = self._start(key, endpoint)
            fetcher.partitions = moved
            for one in moved:
                fetcher.reconsider(one)
        elif fetcher is None:
            fetcher = self._start(key, endpoint)
        for other in self._fetchers.values():
            if other is not fetcher and (partition in other.partitions or partition in other.failed):
                other.remove([partition])
        fetcher.add(partition, log, leader_epoch, topic_id)

    def _start(self, key: tuple[int, int], endpoint: Endpoint) -> ReplicaFetcher:
        leader, number = key
        fetcher = self._fetchers[key] = ReplicaFetcher(leader, number, endpoint, self._port)
        if self._nursery is not None:
            self._nursery.start_soon(fetcher.run)
        return fetcher

    def resize(self, threads: int) -> None:
        """`num.replica.fetchers` is this from now on: every partition goes to the fetcher of its new id."""
        if threads == self._threads:
            return
        self._threads = threads
        former, self._fetchers = self._fetchers, {}
        for (leader, _), fetcher in former.items():
            fetcher.scope.cancel()
            for partition in (*fetcher.partitions, *fetcher.failed):
                key = leader, fetcher_id(partition, threads)
                successor = self._fetchers.get(key) or self._start(key, fetcher.endpoint)
                if partition in fetcher.failed:
                    successor.failed.add(partition)
                else:
                    successor.partitions[partition] = fetcher.partitions[partition]
                    successor.reconsider(partition)

    def update_topic_id(self, partition: TopicPartition, topic_id: UUID | None) -> None:
        for fetcher in self._fetchers.values():
            fetcher.update_topic_id(partition, topic_id)

    def replace_log(self, partition: TopicPartition, log: Log) -> None:
        for fetcher in self._fetchers.values():
            fetcher.replace_log(partition, log)

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these no more."""
        stopped = list(partitions)
        for fetcher in self._fetchers.values():
            fetcher.remove(stopped)

    def stop_idle(self) -> None:
        """End the tasks without partitions."""
        for key, fetcher in list(self._fetchers.items()):
            if not fetcher.partitions and not fetcher.failed:
                fetcher.scope.cancel()
                del self._fetchers[key]

    def reconsider(self, partition: TopicPartition) -> None:
        """It is held now, or not any more."""
        for fetcher in self._fetchers.values():
            fetcher.reconsider(partition)


def fetcher_id(partition: TopicPartition, fetchers: int) -> int:
    """Rule B5.2: by Java's hash of the topic."""
    value = 0
    for unit in memoryview(partition.topic.encode("utf-16-be")).cast("B").tolist()[1::2]:
        value = (31 * value + unit) % _INT32
    mixed = (31 * value + partition.partition) % _INT32
    signed = mixed - _INT32 if mixed >= _INT32 // 2 else mixed
    return abs(signed) % fetchers
