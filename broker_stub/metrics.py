"""The metrics of a stub broker under Kafka's names (rules 12.9-12.12), read on demand.

Metrics without a meaning for a stub, such as idle times of threads, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import trio

from kce.broker_stub import Broker
from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.log.directory import LogDirectory
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory import Purgatory
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.quotas.entities import Client, sanitize
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.broker_stub.reactor.socket_server import CONTROL_PLANE
from kce.broker_stub.replication.fetch_sessions import FetchSessions
from kce.broker_stub.replication.fetcher_manager import FetcherManager
from kce.broker_stub.sampled import now_ms
from kce.metrics import Gauge, Meter, Metric, MetricName
from kce.wire import error_name

#: rule T8.6
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000

_OF_TOPICS: Final = {
    "MessagesInPerSec": "messages_in",
    "BytesInPerSec": "bytes_in",
    "BytesRejectedPerSec": "bytes_rejected",
    "BytesOutPerSec": "bytes_out",
    "TotalProduceRequestsPerSec": "produces",
    "FailedProduceRequestsPerSec": "failed_produces",
    "FailedFetchRequestsPerSec": "failed_fetches",
    "ProduceMessageConversionsPerSec": "produce_conversions",
    "FetchMessageConversionsPerSec": "fetch_conversions",
}

Named = tuple[MetricName, Metric]
Tags = tuple[tuple[str, str], ...]


def broker_metrics(broker: Broker) -> Iterator[Named]:
    controller = broker.metadata_cache.snapshot.controller_id
    yield _gauge("kafka.server", "MetadataLoader", "CurrentControllerId", -1 if controller is None else controller)
    yield _gauge("kafka.server", "KafkaServer", "BrokerState", broker.state)
    yield from _replica_manager(broker)
    yield from _groups(broker)
    yield from _transactions(broker)
    yield from _fetchers(broker.replication.fetchers)
    yield from _topics(broker)
    yield from _fetch_sessions(broker.replication.data_plane.sessions)
    yield from _purgatories(broker)
    yield from _network(broker)
    yield from _connections(broker.socket_server.quotas)
    yield from _quotas(broker.client_quotas)
    yield from _log_directories(broker.log_manager.directories)
    for partition in broker.replica_manager.partitions.values():
        yield from _partition(partition)
        yield from _log(partition)


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
        "ProducerIdCount": sum(len(p.log.known_producers()) for p in manager.partitions.values() if p.log is not None),
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
    """Rule 12.11: all values of a follower but the last are 0, as in Kafka."""
    leads, log = partition.is_leader, partition.log
    tags = (("topic", partition.topic_partition.topic), ("partition", str(partition.topic_partition.partition)))
    values = {
        "UnderReplicated": leads and _is_under_replicated(partition),
        "InSyncReplicasCount": len(partition.isr) if leads else 0,
        "UnderMinIsr": leads and len(partition.isr) < partition.min_isr,
        "AtMinIsr": leads and len(partition.isr) == partition.min_isr,
        "ReplicasCount": len(partition.replicas) if leads else 0,
        "LastStableOffsetLag": 0 if log is None else log.high_watermark - log.last_stable_offset,
    }
    for name, value in values.items():
        yield _gauge("kafka.cluster", "Partition", name, int(value), tags)


def _log_directories(directories: Collection[LogDirectory]) -> Iterator[Named]:
    offline = sum(directory.is_offline for directory in directories)
    yield _gauge("kafka.log", "LogManager", "OfflineLogDirectoryCount", offline)
    for directory in directories:
        tags = (("logDirectory", directory.path),)
        yield _gauge("kafka.log", "LogManager", "LogDirectoryOffline", int(directory.is_offline), tags)


def _log(partition: Partition) -> Iterator[Named]:
    log = partition.log
    if log is None:
        return
    tags = (("topic", partition.topic_partition.topic), ("partition", str(partition.topic_partition.partition)))
    values = {
        "NumLogSegments": log.segment_count,
        "LogStartOffset": log.log_start_offset,
        "LogEndOffset": log.log_end_offset,
        "Size": log.size,
    }
    for name, value in values.items():
        yield _gauge("kafka.log", "Log", name, value, tags)


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


def _topics(broker: Broker) -> Iterator[Named]:
    """Of all topics, and of each that is hosted what is not 0.

    Left out: TotalFetchRequestsPerSec, which counts each partition of a session, for idle ones are not looked at; and
    why records were invalid.
    """
    stats = broker.replication.data_plane.stats
    hosted = broker.replica_manager.partitions
    stats.keep({name.topic for name in hosted}, {name.topic for name, p in hosted.items() if p.is_leader})
    for name, attribute in _OF_TOPICS.items():
        yield _meter(name, stats.total(attribute))
        for topic, of_topic in stats.topics.items():
            if count := getattr(of_topic, attribute):
                yield _meter(name, count, (("topic", topic),))
    yield _meter("ReplicationBytesInPerSec", stats.replication_bytes_in)
    yield _meter("ReplicationBytesOutPerSec", stats.replication_bytes_out)
    yield _meter("ReassignmentBytesInPerSec", stats.reassignment_bytes_in)
    yield _meter("ReassignmentBytesOutPerSec", stats.reassignment_bytes_out)


def _fetch_sessions(sessions: FetchSessions) -> Iterator[Named]:
    kind = "FetchSessionCache"
    yield _gauge("kafka.server", kind, "NumIncrementalFetchSessions", len(sessions))
    yield _gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached", sessions.cached_partitions)
    evictions = MetricName("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec")
    yield evictions, Meter(lambda: sessions.evictions)


def _meter(name: str, count: int, tags: Tags = ()) -> Named:
    return MetricName("kafka.server", "BrokerTopicMetrics", name, tags), Meter(lambda: count)


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
    killed = broker.socket_server.metrics.expired_connections_killed
    yield _gauge("kafka.network", "SocketServer", "ExpiredConnectionsKilledCount", killed)
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
        for version, count in of_api.versions.items():
            of_version = ("request", api), ("version", str(version))
            requests = MetricName("kafka.network", "RequestMetrics", "RequestsPerSec", of_version)
            yield requests, Meter(lambda count=count: count)  # type: ignore[misc]
        for (version, software, of_software), count in of_api.deprecated.items():
            of_client = (
                ("request", api), ("version", str(version)), ("clientSoftwareName", software),
                ("clientSoftwareVersion", of_software),
            )  # fmt: skip
            deprecated = MetricName("kafka.network", "RequestMetrics", "DeprecatedRequestsPerSec", of_client)
            yield deprecated, Meter(lambda count=count: count)  # type: ignore[misc]
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
