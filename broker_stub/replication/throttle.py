"""Replication quotas: how many bytes a second replicas that catch up may take (rule B8.11).

`leader.replication.throttled.rate` and `follower.replication.throttled.rate` of a broker apply to the partitions that
topics name in `leader.` and `follower.replication.throttled.replicas`. All traffic of these counts; only replicas that
are not in sync wait. `replica.alter.log.dirs.io.max.bytes.per.second` applies to all moves between log directories.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Mapping
from typing import Final

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.sampled import SimpleRate, now_ms
from kce.wire.configuration import ConfigError, Properties
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
ALTER_LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


class _All(Container[int]):
    def __contains__(self, partition: object) -> bool:
        return True


ALL_PARTITIONS: Final = _All()


def throttled_partitions(value: str, broker_id: int) -> Container[int]:
    """Read `PARTITION:BROKER,...` or `*`: which partitions that broker throttles. Raises ValueError."""
    value = value.strip()
    if value == "*":
        return ALL_PARTITIONS
    pairs = [entry.strip().split(":") for entry in value.split(",") if entry.strip()]
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)


class ReplicationQuota:
    """Bytes a second, over a window of samples. ``rate``: what is allowed."""

    def __init__(self, samples: int, sample_seconds: float) -> None:
        self.rate = math.inf
        self.measured = SimpleRate(samples, round(sample_seconds * 1000))
        self._topics: dict[str, Container[int]] = {}

    def set_throttled(self, topic: str, partitions: Container[int] | None) -> None:
        """``partitions`` of the topic are throttled; None: not any more."""
        if partitions is None:
            self._topics.pop(topic, None)
        else:
            self._topics[topic] = partitions

    def is_throttled(self, partition: TopicPartition) -> bool:
        return bool(self._topics) and partition.partition in self._topics.get(partition.topic, ())

    def record(self, size: int) -> None:
        self.measured.record(size, now_ms())

    @property
    def is_exceeded(self) -> bool:
        return self.rate < math.inf and self.measured.measure(now_ms()) > self.rate

    def delay(self) -> float:
        """Seconds after which it may be exceeded no more; 0 if it is not exceeded."""
        return self.measured.window_ms / 10_000 if self.is_exceeded else 0.0


class ReplicationQuotas:
    """Those of one broker: for replicas that it leads, that it follows, and that move between its directories."""

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_id = config.broker_id
        self.leader, self.follower = (
            ReplicationQuota(config.replication_quota_window_num, config.replication_quota_window_size_seconds)
            for _ in ("leader", "follower")
        )
        self.log_dirs = ReplicationQuota(
            config.alter_log_dirs_replication_quota_window_num,
            config.alter_log_dirs_replication_quota_window_size_seconds,
        )

    def broker_config_changed(self, config: Mapping[str, str]) -> None:
        """The broker's dynamic settings are these now. Raises ConfigError."""
        read = Properties(config)
        for quota, key in (
            (self.leader, LEADER_RATE),
            (self.follower, FOLLOWER_RATE),
            (self.log_dirs, ALTER_LOG_DIRS_RATE),
        ):
            quota.rate = read.integer(key) if key in config else math.inf

    def topic_config_changed(self, topic: str, config: Mapping[str, str]) -> None:
        """The topic's own settings are these now. A list that cannot be read is logged, and throttles nothing."""
        for quota, key in ((self.leader, LEADER_REPLICAS), (self.follower, FOLLOWER_REPLICAS)):
            value = config.get(key, "").strip()
            try:
                partitions = throttled_partitions(value, self._broker_id) if value else None
            except ValueError:
                log.error("%s", ConfigError(f"{key}={value} of topic {topic}: must be PARTITION:BROKER,... or *"))
                partitions = None
            quota.set_throttled(topic, partitions)
