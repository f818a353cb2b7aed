"""A controller's metrics under Kafka's names (section 12): gauges of its state, meters of its ZooKeeper session."""

from __future__ import annotations

import collections
from collections.abc import Callable

from kce.controller.context import ControllerContext
from kce.controller.states import ReplicaState
from kce.metrics import Gauge, Meter, MetricName, Metrics
from kce.zookeeper.store import SessionState


def _replicas_to_delete(context: ControllerContext, wanted: Callable[[ReplicaState], bool]) -> int:
    if not context.topics_to_delete:
        return 0
    state = context.replica_states.of
    return sum(wanted(state(r)) for topic in context.topics_to_delete for r in context.replicas_of_topic(topic))


def _counts(c: ControllerContext) -> dict[str, int]:
    """Rules 12.1 - 12.3."""
    return {
        "OfflinePartitionsCount": c.offline_partition_count,
        "PreferredReplicaImbalanceCount": c.preferred_replica_imbalance_count,
        "GlobalTopicCount": len(c.topics),
        "GlobalPartitionCount": len(c.leadership),
        "TopicsToDeleteCount": len(c.topics_to_delete),
        "ReplicasToDeleteCount": _replicas_to_delete(c, lambda s: s is not ReplicaState.DELETION_SUCCESSFUL),
        "TopicsIneligibleToDeleteCount": len(c.topics_ineligible_for_deletion),
        "ReplicasIneligibleToDeleteCount": _replicas_to_delete(c, lambda s: s is ReplicaState.DELETION_INELIGIBLE),
        "ActiveBrokerCount": len(c.broker_epochs),
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
        self._inactive = dict.fromkeys(_counts(context), 0)
        self._snapshot = self._inactive
        gauges: dict[str, Callable[[], float]] = {
            "ActiveControllerCount": lambda: int(is_active()),
            "ControllerState": state,
            "FencedBrokerCount": lambda: 0,
            "ZkMigrationState": lambda: ZK,
        }
        for name in self._inactive:
            gauges[name] = lambda name=name: self._snapshot[name]  # type: ignore[misc]
        self._names = [MetricName("kafka.controller", "KafkaController", name) for name in gauges]
        for metric_name, read in zip(self._names, gauges.values(), strict=True):
            metrics.add(metric_name, Gauge(read))

    def refresh(self) -> None:
        """Recompute the gauges, after each event (rule 12.2)."""
        self._snapshot = _counts(self._context) if self._is_active() else self._inactive

    def remove(self) -> None:
        """Rule 12.4."""
        for name in self._names:
            self._metrics.remove(name)


class SessionMetrics:
    """`kafka.server:type=SessionExpireListener` (rule 12.8).

    Our sessions are never read-only and never use SASL: those meters stay 0. SessionState, whose value is a name in
    Kafka, is 1 while connected and 0 otherwise.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._seen = collections.Counter({"SyncConnects": 1})  # the session is connected at the start
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
            case SessionState.CONNECTED:  # reported beside ESTABLISHED
                self._seen["SyncConnects"] += 1
            case SessionState.DISCONNECTED:
                self._seen["Disconnects"] += 1
            case SessionState.EXPIRED:
                self._seen["Expires"] += 1
            case SessionState.AUTH_FAILED:
                self._seen["AuthFailures"] += 1


def _session_metric(name: str) -> MetricName:
    return MetricName("kafka.server", "SessionExpireListener", name)
