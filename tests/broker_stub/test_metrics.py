"""The metrics of a broker under Kafka's names (rules 12.9-12.12)."""

from __future__ import annotations

from kce.broker_stub import Broker, TopicPartition
from kce.broker_stub.metrics import broker_metrics
from kce.broker_stub.reactor.request import Action, Response
from kce.metrics import Gauge, Meter
from tests.broker_stub.support import config, lai_state, leader_and_isr, make_broker, update_metadata


def values(broker: Broker) -> dict[str, float]:
    """Value by MBean name. min.insync.replicas is 2."""
    found = {}
    for name, metric in broker_metrics(broker, 2):
        assert isinstance(metric, Gauge | Meter)
        assert str(name) not in found
        found[str(name)] = metric.read()
    return found


def test_metrics_of_partitions() -> None:
    broker = make_broker(config())
    controller_id = "kafka.server:type=MetadataLoader,name=CurrentControllerId"
    assert values(broker)[controller_id] == -1
    manager = broker.replica_manager
    manager.maybe_update_metadata_cache(update_metadata(alive=(1, 2)), 1)
    states = (
        lai_state(0, isr=(1, 2)),
        lai_state(1, isr=(1, 2), replicas=(3, 1, 2), adding_replicas=(3,)),
        lai_state(2, isr=(1,)),
        lai_state(3, leader=2),
    )
    manager.become_leader_or_follower(leader_and_isr(*states), 2)
    manager.offline_partitions.add(TopicPartition("a", 9))
    found = values(broker)
    prefix = "kafka.server:type=ReplicaManager,name="
    assert {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)} == {
        "LeaderCount": 3,
        "PartitionCount": 4,
        "OfflineReplicaCount": 1,
        "UnderReplicatedPartitions": 2,
        "UnderMinIsrPartitionCount": 1,
        "AtMinIsrPartitionCount": 2,
        "ReassigningPartitions": 1,
        "IsrExpandsPerSec": 0,
        "IsrShrinksPerSec": 0,
        "FailedIsrUpdatesPerSec": 0,
    }
    assert found[controller_id] == 9

    def partition(name: str, number: int) -> float:
        return found[f"kafka.cluster:type=Partition,name={name},topic=a,partition={number}"]

    assert partition("InSyncReplicasCount", 2) == 1
    assert partition("UnderMinIsr", 2) == 1
    assert partition("ReplicasCount", 3) == 0  # a follower


def test_queue_sizes_of_both_planes() -> None:
    """Rules 12.12 and B1.33."""
    broker = make_broker(config(num_network_threads="2"))
    control, data = broker.socket_server.planes
    for processor in data.acceptors[0].processors:
        processor.block()  # responses stay in its queue
        for _ in range(1 + processor.processor_id):
            processor.send_response(Response(None, Action.NO_OP))  # type: ignore[arg-type]
    prefix = "kafka.network:type=RequestChannel,name="
    ids = [p.processor_id for plane in (control, data) for a in plane.acceptors for p in a.processors]
    assert len(ids) == 3
    found = values(broker)
    assert {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)} == {
        "RequestQueueSize": 0,
        "ResponseQueueSize": sum(1 + i for i in ids[1:]),
        **{f"ResponseQueueSize,processor={i}": 1 + i for i in ids[1:]},
        "ControlPlaneRequestQueueSize": 0,
        "ControlPlaneResponseQueueSize": 0,
        f"ControlPlaneResponseQueueSize,processor={ids[0]}": 0,
    }
