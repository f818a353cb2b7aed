"""The metrics of a stub broker under Kafka's names (rules 12.9-12.12), read on demand.

Metrics without a meaning for a stub, such as idle times of threads, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import trio

from kce.broker_stub import Broker
from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory import Purgatory
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.quotas.entities import Client, sanitize
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.broker_stub.reactor.socket_server import CONTROL_PLANE
from kce.broker_stub.replication.data_plane import DataPlane
from kce.broker_stub.replication.fetcher_manager import FetcherManager
from kce.broker_stub.sampled import now_ms
from kce.metrics import Gauge, Meter, Metric, MetricName
from kce.wire import error_name

#: rule T8.6
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000

Named = tuple[MetricName, Metric]
Tags = tuple[tuple[str, str], ...]


def broker_metrics(broker: Broker) -> Iterator[Named]:
    controller = broker.metadata_cache.snapshot.controller_id
    yield _gauge("kafka.server", "MetadataLoader", "CurrentControllerId", -1 if controller is None else controller)
    yield from _replica_manager(broker)
    yield from _groups(broker)
    yield from _transactions(broker)
    yield from _fetchers(broker.replication.fetchers)
    yield from _conversions(broker.replication.data_plane)
    yield from _reassignments(broker.replication.data_plane)
    yield from _purgatories(broker)
    yield from _network(broker)
    yield from _connections(broker.socket_server.quotas)
    yield from _quotas(broker.client_quotas)
    for partition in broker.replica_manager.partitions.values():
        yield from _partition(partition)


def _replica_manager(broker: Broker) -> Iterator[Named]:
    """Rule 12.10."""
    manager = broker.replica_manager
    led = [p for p in manager.partitions.values() if p.is_leader]
    late_ms = broker.config.transactions.transaction_max_timeout_ms + LATE_TRANSACTION_BUFFER_MS
    counts = {
        "LeaderCount": len(led),
        "PartitionCount": len(manager.partitions),
        "OfflineReplicaCount": len(manager.offline_partitions),
        "UnderReplicatedPartitions": sum(map(_is_under_replicated, led)),
        "UnderMinIsrPartitionCount": sum(len(p.isr) < p.min_isr for p in led),
        "AtMinIsrPartitionCount": sum(len(p.isr) == p.min_isr for p in led),
        "ReassigningPartitions": sum(bool(p.adding_replicas or p.removing_replicas) for p in led),
        "PartitionsWithLateTransactionsCount": sum(
            p.log is not None and p.log.has_late_transaction(late_ms) for p in manager.partitions.values()
        ),
    }
    for name, count in counts.items():
        yield _gauge("kafka.server", "ReplicaManager", name, count)
    isr = broker.replication.isr
    meters: dict[str, Callable[[], int]] = {
        "IsrExpandsPerSec": lambda: isr.expands,
        "IsrShrinksPerSec": lambda: isr.shrinks,
        "FailedIsrUpdatesPerSec": lambda: isr.failures,
    }
    for name, read in meters.items():
        yield MetricName("kafka.server", "ReplicaManager", name), Meter(read)


def _partition(partition: Partition) -> Iterator[Named]:
    """Rule 12.11: all values of a follower are 0, as in Kafka."""
    leads = partition.is_leader
    tags = (("topic", partition.topic_partition.topic), ("partition", str(partition.topic_partition.partition)))
    values = {
        "UnderReplicated": leads and _is_under_replicated(partition),
        "InSyncReplicasCount": len(partition.isr) if leads else 0,
        "UnderMinIsr": leads and len(partition.isr) < partition.min_isr,
        "AtMinIsr": leads and len(partition.isr) == partition.min_isr,
        "ReplicasCount": len(partition.replicas) if leads else 0,
    }
    for name, value in values.items():
        yield _gauge("kafka.cluster", "Partition", name, int(value), tags)


def _is_under_replicated(partition: Partition) -> bool:
    return len(partition.isr) < len(set(partition.replicas).difference(partition.adding_replicas))


def _groups(broker: Broker) -> Iterator[Named]:
    groups = broker.groups.manager.groups.values()
    states = Counter(group.state for group in groups)
    counts = {
        "NumOffsets": sum(len(group.offsets.stored) for group in groups),
        "NumGroups": len(groups),
        **{f"NumGroups{state.value}": states[state] for state in GroupState},
    }
    for name, count in counts.items():
        yield _gauge("kafka.coordinator.group", "GroupMetadataManager", name, count)
    totals = {
        "offset-commit-count": broker.groups.manager.offset_commits,
        "offset-expiration-count": broker.groups.manager.offset_expirations,
        "offset-deletion-count": broker.groups.offset_deletions,
        "group-completed-rebalance-count": broker.groups.completed_rebalances,
    }
    for name, total in totals.items():
        yield _gauge("kafka.server", "group-coordinator-metrics", name, total)


def _transactions(broker: Broker) -> Iterator[Named]:
    """Rules T6.16, T9.19, T10.20; loads of groups, too."""
    verifier, markers = broker.verifier, broker.transactions.markers
    kind = "AddPartitionsToTxnManager"
    yield MetricName("kafka.server", kind, "VerificationFailureRate"), Meter(lambda: verifier.failures)
    yield MetricName("kafka.server", kind, "VerificationTimeMs"), verifier.times
    group, kind = "kafka.coordinator.transaction", "TransactionMarkerChannelManager"
    yield _gauge(group, kind, "UnknownDestinationQueueSize", markers.unknown_destinations)
    yield _gauge(group, kind, "LogAppendRetryQueueSize", markers.appends_to_retry)
    loads = {"group": broker.groups.manager.load_times, "transaction": broker.transactions.manager.load_times}
    for name, times in loads.items():
        kind = f"{name}-coordinator-metrics"
        yield _gauge("kafka.server", kind, "partition-load-time-max", times.max)
        yield _gauge("kafka.server", kind, "partition-load-time-avg", times.avg)


def _fetchers(manager: FetcherManager) -> Iterator[Named]:
    """Of those that run, and of the partitions that they fetch."""
    group, tags = "kafka.server", (("clientId", "Replica"),)
    lags = [state.lag for fetcher in manager.fetchers for state in fetcher.partitions.values()]
    yield _gauge(group, "ReplicaFetcherManager", "MaxLag", max((0, *lags)), tags)
    yield _gauge(group, "ReplicaFetcherManager", "FailedPartitionsCount", manager.failed_partitions, tags)
    for fetcher in manager.fetchers:
        client = (("clientId", fetcher.name),)
        leader = (*client, ("brokerHost", fetcher.endpoint.host), ("brokerPort", str(fetcher.endpoint.port)))
        counts = {"RequestsPerSec": fetcher.requests, "BytesPerSec": fetcher.bytes}
        for name, count in counts.items():
            yield MetricName(group, "FetcherStats", name, leader), Meter(lambda count=count: count)  # type: ignore[misc]
        for (topic, number), state in fetcher.partitions.items():
            of_partition = (*client, ("topic", topic), ("partition", str(number)))
            yield _gauge(group, "FetcherLagMetrics", "ConsumerLag", state.lag, of_partition)


def _reassignments(plane: DataPlane) -> Iterator[Named]:
    meters: dict[str, Callable[[], int]] = {
        "ReassignmentBytesInPerSec": lambda: plane.reassignment_bytes_in,
        "ReassignmentBytesOutPerSec": lambda: plane.reassignment_bytes_out,
    }
    for name, read in meters.items():
        yield MetricName("kafka.server", "BrokerTopicMetrics", name), Meter(read)


def _conversions(plane: DataPlane) -> Iterator[Named]:
    """Of records in other formats: of all topics, and of each that has had some."""
    found = (("Produce", plane.produce_conversions), ("Fetch", plane.fetch_conversions))
    for name, counts in found:
        full = f"{name}MessageConversionsPerSec"
        yield MetricName("kafka.server", "BrokerTopicMetrics", full), Meter(counts.total)
        for topic, count in counts.items():
            of_topic = MetricName("kafka.server", "BrokerTopicMetrics", full, (("topic", topic),))
            yield of_topic, Meter(lambda count=count: count)  # type: ignore[misc]


def _purgatories(broker: Broker) -> Iterator[Named]:
    """Rule B2.9. What waits for this broker's metadata (elections, topics) is in no purgatory here."""
    plane, rebalancing = broker.replication.data_plane, broker.groups.rebalancing
    found: dict[str, tuple[Purgatory[Any, Any], ...]] = {
        "Produce": (plane.produce_purgatory,),
        "Fetch": (plane.fetch_purgatory,),
        "DeleteRecords": (plane.delete_purgatory,),
        "Heartbeat": (rebalancing.heartbeats,),
        "Rebalance": (rebalancing.joins, rebalancing.syncs),
    }
    for name, purgatories in found.items():
        tags = (("delayedOperation", name),)
        group, kind = "kafka.server", "DelayedOperationPurgatory"
        yield _gauge(group, kind, "PurgatorySize", sum(each.watched for each in purgatories), tags)
        yield _gauge(group, kind, "NumDelayedOperations", sum(each.delayed for each in purgatories), tags)


def _network(broker: Broker) -> Iterator[Named]:
    """Rules 12.12 and B1.33."""
    for plane in broker.socket_server.planes:
        prefix = "ControlPlane" if plane.name == CONTROL_PLANE else ""
        processors = [processor for acceptor in plane.acceptors for processor in acceptor.processors]
        responses = f"{prefix}ResponseQueueSize"
        yield _channel_gauge(f"{prefix}RequestQueueSize", plane.channel.request_queue_size)
        for processor in processors:
            tags = (("processor", str(processor.processor_id)),)
            yield _channel_gauge(responses, processor.response_queue_size, tags)
        yield _channel_gauge(responses, sum(processor.response_queue_size for processor in processors))
    for api, of_api in broker.socket_server.metrics.apis.items():
        yield (
            MetricName("kafka.network", "RequestMetrics", "RequestsPerSec", (("request", api),)),
            Meter(lambda of_api=of_api: of_api.requests),  # type: ignore[misc]
        )
        for name, times in of_api.histograms():
            yield MetricName("kafka.network", "RequestMetrics", name, (("request", api),)), times
        for code, count in of_api.errors.items():
            of_error = ("request", api), ("error", error_name(code))
            errors = MetricName("kafka.network", "RequestMetrics", "ErrorsPerSec", of_error)
            yield errors, Meter(lambda count=count: count)  # type: ignore[misc]


def _connections(quotas: ConnectionQuotas) -> Iterator[Named]:
    """Of each listener that has had a connection, and of each address with a limit (rules B1.47 to B1.51)."""
    now, group, kind = trio.current_time(), "kafka.server", "socket-server-metrics"
    yield _gauge(group, kind, "broker-connection-accept-rate", quotas.rate.measure(now))
    for listener, meters in quotas.listeners.items():
        tags = (("listener", listener),)
        yield _gauge(group, kind, "connection-accept-rate", meters.rate.measure(now), tags)
        for name, time in (("connection", meters.throttle_time), ("ip-connection", meters.ip_throttle_time)):
            yield _gauge(group, kind, f"{name}-accept-throttle-time", time.measure(int(now * 1000)), tags)
        blocked = MetricName("kafka.network", "Acceptor", "AcceptorBlockedPercent", tags)
        yield blocked, Meter(lambda meters=meters: meters.blocked_ns)  # type: ignore[misc]
    for address, rate in quotas.addresses.items():
        yield _gauge(group, kind, "connection-accept-rate", rate.measure(now), (("ip", address),))


def _quotas(quotas: ClientQuotas) -> Iterator[Named]:
    """Of each client that was measured; the mean throttle time in ms is that of those that were throttled."""
    now = now_ms()
    rates = (("Produce", "byte-rate", quotas.produce), ("Fetch", "byte-rate", quotas.fetch),
             ("Request", "request-time", quotas.request))  # fmt: skip
    for kind, name, quota in rates:
        yield _gauge("kafka.server", kind, "queue-size", quota.queue_size(now))
        for client, sensors in quota.clients.items():
            yield _gauge("kafka.server", kind, name, sensors.measured.measure(now), _tags(client))
            yield _gauge("kafka.server", kind, "throttle-time", sensors.throttle_time.measure(now), _tags(client))
    yield _gauge("kafka.server", "Request", "exempt-request-time", quotas.exempt_time.measure(now))
    mutations, kind = quotas.controller_mutation, "ControllerMutation"
    yield _gauge("kafka.server", kind, "queue-size", mutations.queue_size(now))
    for client, of_client in mutations.clients.items():
        yield _gauge("kafka.server", kind, "mutation-rate", of_client.measured.rate.measure(now), _tags(client))
        yield _gauge("kafka.server", kind, "tokens", of_client.measured.bucket.measure(now), _tags(client))
        yield _gauge("kafka.server", kind, "throttle-time", of_client.throttle_time.measure(now), _tags(client))


def _tags(client: Client) -> Tags:
    return ("user", sanitize(client.user)), ("client-id", client.client_id)


def _channel_gauge(name: str, value: float, tags: Tags = ()) -> Named:
    return _gauge("kafka.network", "RequestChannel", name, value, tags)


def _gauge(group: str, kind: str, name: str, value: float, tags: Tags = ()) -> Named:
    return MetricName(group, kind, name, tags), Gauge(lambda: value)
