"""The metrics of a stub broker under Kafka's names (rules 12.9-12.12), read on demand.

Metrics without a meaning for a stub, such as idle times of threads, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from kce.broker_stub import Broker
from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.partition import Partition
from kce.broker_stub.reactor.socket_server import CONTROL_PLANE
from kce.metrics import Gauge, Meter, Metric, MetricName

Named = tuple[MetricName, Metric]
Tags = tuple[tuple[str, str], ...]


def broker_metrics(broker: Broker) -> Iterator[Named]:
    controller = broker.metadata_cache.snapshot.controller_id
    yield _gauge("kafka.server", "MetadataLoader", "CurrentControllerId", -1 if controller is None else controller)
    yield from _replica_manager(broker)
    yield from _groups(broker)
    yield from _network(broker)
    for partition in broker.replica_manager.partitions.values():
        yield from _partition(partition)


def _replica_manager(broker: Broker) -> Iterator[Named]:
    """Rule 12.10."""
    manager = broker.replica_manager
    led = [p for p in manager.partitions.values() if p.is_leader]
    counts = {
        "LeaderCount": len(led),
        "PartitionCount": len(manager.partitions),
        "OfflineReplicaCount": len(manager.offline_partitions),
        "UnderReplicatedPartitions": sum(map(_is_under_replicated, led)),
        "UnderMinIsrPartitionCount": sum(len(p.isr) < p.min_isr for p in led),
        "AtMinIsrPartitionCount": sum(len(p.isr) == p.min_isr for p in led),
        "ReassigningPartitions": sum(bool(p.adding_replicas or p.removing_replicas) for p in led),
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


def _channel_gauge(name: str, value: float, tags: Tags = ()) -> Named:
    return _gauge("kafka.network", "RequestChannel", name, value, tags)


def _gauge(group: str, kind: str, name: str, value: float, tags: Tags = ()) -> Named:
    return MetricName(group, kind, name, tags), Gauge(lambda: value)
