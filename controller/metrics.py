"""Numbers under the names by which Kafka shows them through JMX (section 12), and the registry that holds them.

Nothing here knows how they are shown; `harness.prometheus` is one way.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, ItemsView
from dataclasses import dataclass
from typing import NamedTuple

from controller.context import ControllerContext, ReplicaState
from controller.store import SessionState

#: samples that a histogram looks back on: those of Kafka's metrics library
RESERVOIR_SIZE = 1028


class MetricName(NamedTuple):
    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The name of its MBean."""
        keys = (("type", self.type), ("name", self.name), *self.tags)
        return f"{self.group}:{','.join(f'{key}={value}' for key, value in keys)}"


@dataclass(frozen=True, slots=True)
class Gauge:
    read: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Meter:
    """``read`` gives how many there have been; whoever looks at it twice knows the rate."""

    read: Callable[[], int]


class Histogram:
    """``count`` and ``sum`` are of all values since the last ``clear``, quantiles of the latest `RESERVOIR_SIZE`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._latest: collections.deque[float] = collections.deque(maxlen=RESERVOIR_SIZE)

    def update(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self._latest.append(value)

    @property
    def min(self) -> float:
        return min(self._latest, default=0.0)

    @property
    def max(self) -> float:
        return max(self._latest, default=0.0)

    def quantile(self, q: float) -> float:
        """The smallest value that at least the share ``q`` of the latest is not above; 0 without any."""
        if not self._latest:
            return 0.0
        return sorted(self._latest)[max(0, math.ceil(q * len(self._latest)) - 1)]


class Timer(Histogram):
    """Of durations, in ms; its ``count`` is a meter's."""


Metric = Gauge | Meter | Histogram


class Metrics:
    """What there is now. Names come and go with what they tell of."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Metric] = {}

    def add(self, name: MetricName, metric: Metric) -> None:
        """Raises ValueError for a name that is taken."""
        if name in self._metrics:
            raise ValueError(f"there is a metric {name} already")
        self._metrics[name] = metric

    def remove(self, name: MetricName) -> None:
        del self._metrics[name]

    def __getitem__(self, name: MetricName) -> Metric:
        return self._metrics[name]

    def __contains__(self, name: MetricName) -> bool:
        return name in self._metrics

    def items(self) -> ItemsView[MetricName, Metric]:
        return self._metrics.items()


def _replicas_to_delete(context: ControllerContext, wanted: Callable[[ReplicaState], bool]) -> int:
    return sum(wanted(context.replica_state(r)) for t in context.topics_to_delete for r in context.replicas_of_topic(t))


#: rules 12.1-12.3: what is counted anew after each event of an active controller
SNAPSHOTS: dict[str, Callable[[ControllerContext], int]] = {
    "OfflinePartitionsCount": lambda c: c.offline_partition_count,
    "PreferredReplicaImbalanceCount": lambda c: c.preferred_replica_imbalance_count,
    "GlobalTopicCount": lambda c: len(c.topics),
    "GlobalPartitionCount": lambda c: len(c.leadership),
    "TopicsToDeleteCount": lambda c: len(c.topics_to_delete),
    "ReplicasToDeleteCount": lambda c: _replicas_to_delete(c, lambda s: s is not ReplicaState.DELETION_SUCCESSFUL),
    "TopicsIneligibleToDeleteCount": lambda c: len(c.topics_ineligible_for_deletion),
    "ReplicasIneligibleToDeleteCount": lambda c: _replicas_to_delete(
        c, lambda s: s is ReplicaState.DELETION_INELIGIBLE
    ),
    "ActiveBrokerCount": lambda c: len(c.broker_epochs),
}
#: ZkMigrationState of a cluster that is not being migrated
ZK = 4


class KafkaControllerGauges:
    """The 13 gauges of `kafka.controller:type=KafkaController` (rule 12.1)."""

    def __init__(
        self, metrics: Metrics, context: ControllerContext, is_active: Callable[[], bool], state: Callable[[], int]
    ) -> None:
        self._metrics = metrics
        self._context = context
        self._is_active = is_active
        self._snapshot = dict.fromkeys(SNAPSHOTS, 0)
        gauges: dict[str, Callable[[], float]] = {
            "ActiveControllerCount": lambda: int(is_active()),
            "ControllerState": state,
            "FencedBrokerCount": lambda: 0,
            "ZkMigrationState": lambda: ZK,
        }
        for name in SNAPSHOTS:
            gauges[name] = lambda name=name: self._snapshot[name]  # type: ignore[misc]
        self._names = [MetricName("kafka.controller", "KafkaController", name) for name in gauges]
        for metric_name, read in zip(self._names, gauges.values(), strict=True):
            metrics.add(metric_name, Gauge(read))

    def refresh(self) -> None:
        """After each event (rule 12.2)."""
        active = self._is_active()
        self._snapshot = {name: count(self._context) if active else 0 for name, count in SNAPSHOTS.items()}

    def remove(self) -> None:
        """Rule 12.4."""
        for name in self._names:
            self._metrics.remove(name)


class SessionMetrics:
    """`kafka.server:type=SessionExpireListener` (rule 12.8).

    Meters of what no session of ours can go through, which is never read-only and knows no SASL, are 0 for good.
    SessionState is 1 while there is a
    connection: where Kafka shows the name of the state, a number has to do.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._seen = collections.Counter({"SyncConnects": 1})  # whoever makes this is connected
        self._connected = True
        for name in (
            "Disconnects",
            "SyncConnects",
            "AuthFailures",
            "ReadOnlyConnects",
            "SaslAuthentications",
            "Expires",
        ):
            metrics.add(_session_metric(f"ZooKeeper{name}PerSec"), Meter(lambda name=name: self._seen[name]))  # type: ignore[misc]
        metrics.add(_session_metric("SessionState"), Gauge(lambda: int(self._connected)))

    def changed(self, state: SessionState) -> None:
        self._connected = state in (SessionState.CONNECTED, SessionState.ESTABLISHED)
        match state:
            case SessionState.CONNECTED:  # ESTABLISHED is told beside it
                self._seen["SyncConnects"] += 1
            case SessionState.DISCONNECTED:
                self._seen["Disconnects"] += 1
            case SessionState.EXPIRED:
                self._seen["Expires"] += 1
            case SessionState.AUTH_FAILED:
                self._seen["AuthFailures"] += 1


def _session_metric(name: str) -> MetricName:
    return MetricName("kafka.server", "SessionExpireListener", name)
