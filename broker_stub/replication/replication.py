"""Replication of one broker: puts followers, fetchers, ISR changes and waiting requests together.

It is the replica manager's ISR policy, so the replica manager reports each partition's role to it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import Partition
from kce.broker_stub.ports import NoTopicSettings, TopicSettings
from kce.broker_stub.purgatory import Timer
from kce.broker_stub.replication.appends import Appends
from kce.broker_stub.replication.data_plane import DataPlane, HostedPartitions
from kce.broker_stub.replication.fetcher import FollowerPort
from kce.broker_stub.replication.fetcher_manager import FetcherManager
from kce.broker_stub.replication.isr import FollowersCatchUp, ItemSubmitter
from kce.broker_stub.replication.log_dir_moves import LogDirMoves
from kce.broker_stub.replication.throttle import ReplicationQuotas
from kce.wire.metadata_version import MetadataVersion
from kce.wire.transport import Dial
from kce.wire.vocabulary import TopicPartition

_ZSTD_SINCE = MetadataVersion.parse("2.1-IV0")


class Replication:
    """``data_plane`` serves clients and followers; ``fetchers`` follow other leaders. ``run`` runs all of it.

    ``log_dir_moves`` moves replicas between log directories; ``quotas`` limit what replicas take that catch up.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metadata_cache: MetadataCache,
        submitter: ItemSubmitter,
        hosted: Callable[[], HostedPartitions],
        log_manager: LogManager,
        dial: Dial,
        broker_epoch: Callable[[], int],
        random: Random,
        quotas: ReplicationQuotas,
        topic_settings: TopicSettings | None = None,
    ) -> None:
        self._listener = config.inter_broker_listener_name
        self._metadata_cache = metadata_cache
        self.quotas = quotas
        #: of every request that waits; ``run`` runs it
        self.timer = Timer()
        self.isr = FollowersCatchUp(metadata_cache, submitter, hosted, max_lag_ms=config.replica_lag_time_max_ms)
        self.data_plane = DataPlane(
            hosted,
            metadata_cache,
            self.isr.follower_fetched,
            self.timer,
            random,
            max_lag_ms=config.replica_lag_time_max_ms,
            session_slots=config.max_incremental_fetch_session_cache_slots,
            quota=self.quotas.leader,
            future_log=log_manager.future.logs.get,
        )
        self.appends = Appends(self.data_plane, zstd_allowed=config.inter_broker_protocol_version >= _ZSTD_SINCE)
        self.log_dir_moves = LogDirMoves(
            hosted, log_manager, self._log_replaced, self.quotas.log_dirs, config.replica_fetch_max_bytes
        )
        self.isr.isr_changed = self.data_plane.isr_changed
        self._broker_id = config.broker_id
        self._hosted = hosted
        #: no fetcher starts any more: a follower that is about to go must not join the ISR again (rule 9.26)
        self.is_shutting_down = False
        #: who lags on command, by partition
        self.laggards: dict[TopicPartition, set[int]] = {}
        self.fetchers = FetcherManager(
            FollowerPort(
                config,
                dial,
                broker_epoch,
                self.data_plane.high_watermark_moved,
                self._is_held,
                self.quotas.follower,
                topic_settings or NoTopicSettings(),
                self._fetched,
            )
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.timer.run)
            nursery.start_soon(self.isr.run)
            nursery.start_soon(self.fetchers.run)
            nursery.start_soon(self.log_dir_moves.run)

    # the ISR policy of the replica manager

    def partition_changed(self, partition: Partition) -> None:
        """Rules B5.1, B5.6."""
        partition.followers.laggards = self.laggards.get(partition.topic_partition, ())
        self.isr.partition_changed(partition)
        self._follow(partition)
        if partition.is_leader:
            self.data_plane.became_leader(partition)
        else:
            self.data_plane.role_changed(partition)
        self.log_dir_moves.partition_changed(partition)

    def _log_replaced(self, partition: Partition) -> None:
        """It moved to another log directory."""
        assert partition.log is not None
        self.fetchers.replace_log(partition.topic_partition, partition.log)
        self.data_plane.role_changed(partition)

    def _follow(self, partition: Partition) -> None:
        if partition.log is not None and not partition.is_leader and not self.is_shutting_down:
            endpoint = self._metadata_cache.snapshot.endpoint(partition.leader, self._listener)
            if endpoint is not None:
                self.fetchers.follow(
                    partition.topic_partition, partition.log, partition.leader, partition.leader_epoch, endpoint,
                    partition.requested_topic_id,
                )  # fmt: skip
                self.fetchers.stop_idle()
                return
        self.fetchers.stop([partition.topic_partition])
        self.fetchers.stop_idle()

    def topic_id_changed(self, partition: Partition) -> None:
        """Rules B5.41, 9.26."""
        if self.is_shutting_down:
            return
        self.fetchers.update_topic_id(partition.topic_partition, partition.requested_topic_id)

    def partition_stopped(self, partition: Partition) -> None:
        """A StopReplica without deletion: it is hosted, but not fetched (rules 9.31, 9.34)."""
        self.fetchers.stop([partition.topic_partition])
        self.fetchers.stop_idle()
        self.data_plane.role_changed(partition)

    def metadata_changed(self, controller_epoch: int) -> None:
        """Ignored: only followers' fetches matter."""

    # lagging on command

    def lag(self, partition: TopicPartition, broker_id: int, wanted: bool) -> None:
        """That broker lags from now on, or not any more: it does not fetch, and the leader removes it from the ISR.

        Every broker must hear of it, because each may become leader.
        """
        laggards = self.laggards.setdefault(partition, set())
        if wanted:
            laggards.add(broker_id)
        else:
            laggards.discard(broker_id)
        hosted = self._hosted().partitions.get(partition)
        if hosted is None:
            return
        hosted.followers.laggards = laggards
        if broker_id == self._broker_id:
            self.fetchers.reconsider(partition)
        elif hosted.is_leader:
            self.isr.shrink_laggards(hosted)

    def _fetched(self, partition: TopicPartition, size: int) -> None:
        hosted = self._hosted().partitions.get(partition)
        if hosted is not None and self._broker_id in hosted.adding_replicas:
            self.data_plane.stats.reassignment_bytes_in += size
        self.data_plane.stats.replication_bytes_in += size

    def _is_held(self, partition: TopicPartition) -> bool:
        return self._broker_id in self.laggards.get(partition, ())
