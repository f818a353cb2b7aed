"""The metrics of a broker under Kafka's names (rules 12.9-12.12)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub import Broker, TopicPartition
from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.groups.offsets import Stored
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.log import Origin
from kce.broker_stub.metrics import broker_metrics
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory import DelayedOperation
from kce.broker_stub.reactor import RequestMetrics
from kce.broker_stub.sampled import now_ms
from kce.broker_stub.topic_stats import TopicStats
from kce.harness import Cluster
from kce.metrics import Histogram
from kce.wire.vocabulary import Endpoint
from tests.broker_stub.log.support import a_log, batch, marker, produced
from tests.broker_stub.logs import MemoryLogManager
from tests.broker_stub.support import (
    Client,
    config,
    lai_state,
    leader_and_isr,
    make_broker,
    ungrouped_leader_and_isr,
    until,
    update_metadata,
)
from tests.clusters import node, request

SENDER = SimpleNamespace(client_software_name="0", client_software_version="1")
MIN_ISR_2 = {"min.insync.replicas": "2"}


def values(broker: Broker) -> dict[str, float]:
    """Value by MBean name."""
    found = {}
    for name, metric in broker_metrics(broker):
        assert str(name) not in found
        found[str(name)] = metric.count if isinstance(metric, Histogram) else metric.read()
    return found


async def test_metrics_of_partitions() -> None:
    broker = make_broker(config(), log_manager=MemoryLogManager(MIN_ISR_2))
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
        "PartitionsWithLateTransactionsCount": 0,
        "ProducerIdCount": 0,
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


@pytest.mark.parametrize(
    ("isr", "under_replicated", "under_min_isr", "at_min_isr"),
    [
        pytest.param((1, 2), 1, 0, 1, marks=pytest.mark.kafka("PT-4")),
        pytest.param((1, 2, 3), 0, 0, 0, marks=pytest.mark.kafka("PT-30")),
        pytest.param((1,), 1, 1, 0, marks=pytest.mark.kafka("PT-5")),
    ],
)
async def test_metrics_of_a_partition_follow_its_isr(isr, under_replicated, under_min_isr, at_min_isr) -> None:
    broker = make_broker(config(), log_manager=MemoryLogManager(MIN_ISR_2))
    manager = broker.replica_manager

    def found() -> tuple[float, ...]:
        known = values(broker)
        names = ("UnderReplicated", "UnderMinIsr", "AtMinIsr")
        return tuple(known[f"kafka.cluster:type=Partition,name={name},topic=a,partition=0"] for name in names)

    manager.become_leader_or_follower(leader_and_isr(lai_state(isr=(2, 1))), 1)
    assert found() == (1, 0, 1)
    manager.become_leader_or_follower(leader_and_isr(lai_state(leader_epoch=1, isr=isr)), 2)
    assert found() == (under_replicated, under_min_isr, at_min_isr)
    manager.maybe_update_metadata_cache(update_metadata(), 3)
    manager.become_leader_or_follower(leader_and_isr(lai_state(leader=2, leader_epoch=2, isr=(2,))), 4)
    assert found() == (0, 0, 0)  # a follower does not count


@pytest.mark.kafka("AS-1")
@pytest.mark.parametrize(
    ("isr", "replicas", "adding", "removing", "is_under_replicated"),
    [
        ((1, 2, 3), (1, 2, 3), (), (), False),
        ((1, 2), (1, 2, 3), (), (), True),
        ((1, 2, 3), (1, 2, 3), (4, 5), (2,), False),
        ((1, 2, 3), (1, 2, 3), (4, 5), (), False),
        ((1, 2, 3), (1, 2, 3), (), (2,), False),
        ((2, 3), (2, 3), (1,), (), False),
        ((3, 4, 5), (1, 2, 3), (4, 5, 6), (), False),
        ((3, 4), (1, 2, 3), (4, 5, 6), (), True),
        ((1, 2), (1, 2, 3), (3,), (), False),
    ],
)
async def test_under_replicated_and_reassigning_partitions(
    isr, replicas, adding, removing, is_under_replicated
) -> None:
    broker = make_broker(config())
    manager = broker.replica_manager
    # not by a request, which must name this broker as a replica
    partition = Partition(TopicPartition("a", 0), 1, manager._log_manager)
    state = lai_state(isr=isr, replicas=replicas, adding_replicas=adding, removing_replicas=removing)
    assert partition.make_leader(state, None, 0)
    manager.partitions[partition.topic_partition] = partition
    found = values(broker)
    assert found["kafka.cluster:type=Partition,name=UnderReplicated,topic=a,partition=0"] == is_under_replicated
    assert found["kafka.server:type=ReplicaManager,name=ReassigningPartitions"] == bool(adding or removing)
    assert (partition.adding_replicas, partition.removing_replicas) == (adding, removing)


async def test_queue_sizes_of_both_planes() -> None:
    """Rules 12.12 and B1.33."""
    broker = make_broker(config(num_network_threads="2"))
    control, data = broker.socket_server.planes
    for processor in data.acceptors[0].processors:
        processor.block()  # responses stay in its queue
        for _ in range(1 + processor.processor_id):
            processor.send_response(None)  # type: ignore[arg-type]
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


@pytest.mark.kafka("GMM-66")
async def test_metrics_of_groups() -> None:
    broker = make_broker(config())
    manager = broker.groups.manager
    prefix = "kafka.coordinator.group:type=GroupMetadataManager,name=Num"

    def counts() -> dict[str, float]:
        """Those that are not 0."""
        found = values(broker)
        return {name.removeprefix(prefix): n for name, n in found.items() if name.startswith(prefix) and n}

    assert counts() == {}
    group = manager.get_or_create("foo2")
    for state in (
        GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE, GroupState.DEAD,
    ):  # fmt: skip
        group.move_to(state)
        assert counts() == {"Groups": 1, f"Groups{state.value}": 1}
    other = manager.get_or_create("other")
    other.offsets.stored[TopicPartition("a", 0)] = Stored(CommittedOffset(offset=1, commit_timestamp=0), 0)
    assert counts() == {"Groups": 2, "GroupsDead": 1, "GroupsEmpty": 1, "Offsets": 1}


async def test_totals_of_groups() -> None:
    broker = make_broker(config())
    broker.groups.manager.offset_commits, broker.groups.manager.offset_expirations = 5, 3
    broker.groups.offset_deletions, broker.groups.completed_rebalances = 2, 4
    found, prefix = values(broker), "kafka.server:type=group-coordinator-metrics,name="
    assert {name.removeprefix(prefix): n for name, n in found.items() if name.startswith(prefix) and n > 0} == {
        "offset-commit-count": 5,
        "offset-expiration-count": 3,
        "offset-deletion-count": 2,
        "group-completed-rebalance-count": 4,
    }


async def test_requests_and_their_errors() -> None:  # rule B1.33
    broker = make_broker(config())
    of_api = broker.socket_server.metrics.of("Heartbeat")
    of_api.requests = 7
    of_api.versions.update({3: 7})
    of_api.errors.update({0: 4, 27: 1})
    of_api.add([(4, {27: 2}, 0, 0.001, 0.003, 0.006, 0.01, 0.015, 500)])
    found, prefix = values(broker), "kafka.network:type=RequestMetrics,name="
    times = {name: metric for (_, kind, name, _), metric in broker_metrics(broker) if name.endswith("TimeMs")
             and kind == "RequestMetrics" and isinstance(metric, Histogram)}  # fmt: skip
    assert {name: (metric.count, metric.sum, metric.quantile(1)) for name, metric in times.items()} == {
        name: (8, pytest.approx(ms), pytest.approx(ms))
        for name, ms in (
            ("RequestQueueTimeMs", 1), ("LocalTimeMs", 2), ("RemoteTimeMs", 3), ("ResponseQueueTimeMs", 4),
            ("ResponseSendTimeMs", 5), ("ThrottleTimeMs", 500), ("TotalTimeMs", 15),
        )
    }  # fmt: skip
    rates = {name.removeprefix(prefix): n for name, n in found.items() if name.startswith(prefix) and "Sec" in name}
    assert rates == {
        "RequestsPerSec,request=Heartbeat,version=3": 7,
        "RequestsPerSec,request=Heartbeat,version=4": 1,
        "ErrorsPerSec,request=Heartbeat,error=NONE": 4,
        "ErrorsPerSec,request=Heartbeat,error=REBALANCE_IN_PROGRESS": 3,
    }


@pytest.mark.kafka("SS-4")
async def test_requests_by_version() -> None:
    """Those of versions that Kafka will drop are counted by the client's software, too (KIP-896)."""
    data = wire.TopicProduceData(name="a", partition_data=(wire.PartitionProduceData(index=0, records=b""),))
    produce, latest = wire.ProduceRequest(acks=1, topic_data=(data,)), 11
    prefix = "kafka.network:type=RequestMetrics,name="
    async with Cluster(1) as cluster:
        broker = node(cluster, 1).broker
        host, _, port = cluster.member(1).addresses["DATA"].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            client = Client(stream)
            await client.ask(wire.ApiVersionsRequest(client_software_name="name", client_software_version="1.2.3"))
            for version, deprecated in ((latest, None), (3, 1), (3, 2)):
                await client.ask(produce, version)
                of_version = f"request=Produce,version={version}"
                before = (deprecated or 1) - 1
                await until(lambda v=of_version, n=before: values(broker).get(f"{prefix}RequestsPerSec,{v}", 0) > n)
                of_client = f"{of_version},clientSoftwareName=name,clientSoftwareVersion=1.2.3"
                assert values(broker).get(f"{prefix}DeprecatedRequestsPerSec,{of_client}") == deprecated


def test_clients_of_deprecated_versions_are_not_counted_without_limit() -> None:
    metrics, times = RequestMetrics(), (0.0,) * 7
    for i in range(1001):
        client = SimpleNamespace(client_software_name=str(i), client_software_version="1")
        metrics.add(0, (3, {0: 1, i: 1}, *times), client, wire.ProduceRequest())
    metrics.add(0, (3, {0: 1}, *times), SENDER, wire.ProduceRequest())
    found = metrics.of("Produce")
    assert (found.requests, len(found.deprecated), found.deprecated[3, "0", "1"]) == (1002, 1000, 2)
    assert (found.versions, found.errors[0], found.errors[1000]) == ({3: 1002}, 1002, 1)


async def test_metrics_of_connections(autojump_clock: MockClock) -> None:  # rules B1.47 to B1.51
    broker = make_broker(config(max_connection_creation_rate="2"))
    quotas = broker.socket_server.quotas
    quotas.ip_config_changed("1.2.3.4", 0.1)
    for _ in range(40):
        await quotas.wait_for_slot("EXTERNAL")
    assert quotas.ip_delay("EXTERNAL", "1.2.3.4") == 0
    assert quotas.ip_delay("EXTERNAL", "1.2.3.4") > 0
    found, of_listener = values(broker), "listener=EXTERNAL"
    prefix = "kafka.server:type=socket-server-metrics,name="
    assert found[f"{prefix}broker-connection-accept-rate"] == pytest.approx(2, abs=0.5)
    assert found[f"{prefix}connection-accept-rate,{of_listener}"] == pytest.approx(2, abs=0.5)
    assert found[f"{prefix}connection-accept-rate,ip=1.2.3.4"] == pytest.approx(0.1)
    assert found[f"{prefix}connection-accept-throttle-time,{of_listener}"] > 100
    assert found[f"{prefix}ip-connection-accept-throttle-time,{of_listener}"] > 100
    blocked = found[f"kafka.network:type=Acceptor,name=AcceptorBlockedPercent,{of_listener}"]
    assert blocked == pytest.approx(trio.current_time() * 1e9, rel=0.5)


@pytest.mark.kafka("AFT-1")
@pytest.mark.kafka("AFT-2")
async def test_metrics_of_fetchers_come_and_go() -> None:
    broker = make_broker(config())
    prefixes = ("kafka.server:type=Fetcher", "kafka.server:type=ReplicaFetcherManager")

    def found() -> dict[str, float]:
        return {name[18:]: value for name, value in values(broker).items() if name.startswith(prefixes)}

    manager = {
        "ReplicaFetcherManager,name=MaxLag,clientId=Replica": 0.0,
        "ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica": 0,
    }
    assert found() == manager
    fetchers, endpoint = broker.replication.fetchers, Endpoint("DATA", "PLAINTEXT", "h", 9)
    for number in range(2):
        fetchers.follow(TopicPartition("a", number), a_log(), 2, 1, endpoint, None)
    (fetcher,) = fetchers.fetchers
    fetcher.requests, fetcher.bytes = 3, 400
    fetcher.partitions[TopicPartition("a", 0)].lag = 7
    client = "clientId=ReplicaFetcherThread-0-2"
    of_fetcher = {
        f"FetcherStats,name=RequestsPerSec,{client},brokerHost=h,brokerPort=9": 3,
        f"FetcherStats,name=BytesPerSec,{client},brokerHost=h,brokerPort=9": 400,
    }
    first = {f"FetcherLagMetrics,name=ConsumerLag,{client},topic=a,partition=0": 7}
    second = {f"FetcherLagMetrics,name=ConsumerLag,{client},topic=a,partition=1": -1}
    manager["ReplicaFetcherManager,name=MaxLag,clientId=Replica"] = 7
    assert found() == manager | of_fetcher | first | second
    fetchers.stop([TopicPartition("a", 1)])
    assert found() == manager | of_fetcher | first
    fetchers.stop([TopicPartition("a", 0)])
    fetchers.stop_idle()
    manager["ReplicaFetcherManager,name=MaxLag,clientId=Replica"] = 0
    assert found() == manager


class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


async def test_metrics_of_purgatories() -> None:  # rule B2.9
    broker = make_broker(config())
    prefix = "kafka.server:type=DelayedOperationPurgatory,name="

    def counts() -> dict[str, float]:
        found = values(broker).items()
        return {name.removeprefix(prefix): n for name, n in found if name.startswith(prefix) and n}

    assert counts() == {}
    assert len([name for name in values(broker) if name.startswith(prefix)]) == 10
    plane, rebalancing = broker.replication.data_plane, broker.groups.rebalancing
    watched: list[tuple[str, Any, int]] = [
        ("Produce", plane.produce_purgatory, 1),
        ("Fetch", plane.fetch_purgatory, 2),
        ("DeleteRecords", plane.delete_purgatory, 3),
        ("Heartbeat", rebalancing.heartbeats, 4),
    ]
    expected: dict[str, float] = {}
    for name, purgatory, keys in watched:
        purgatory.watch(Waiting(1000), range(keys))
        tag = f"delayedOperation={name}"
        expected |= {f"PurgatorySize,{tag}": keys, f"NumDelayedOperations,{tag}": 1}
        assert counts() == expected
    waiting: Any = (rebalancing.joins, rebalancing.syncs)
    for purgatory in waiting:
        purgatory.watch(Waiting(1000), "ab")
    tag = "delayedOperation=Rebalance"
    assert counts() == expected | {f"PurgatorySize,{tag}": 4, f"NumDelayedOperations,{tag}": 2}


async def test_metrics_of_conversions() -> None:
    broker = make_broker(config())
    plane = broker.replication.data_plane
    states = [lai_state(topic=topic) for topic in ("a", "b")]
    broker.replica_manager.become_leader_or_follower(ungrouped_leader_and_isr(*states), 2)
    plane.stats.of("a").produce_conversions, plane.stats.of("b").produce_conversions = 3, 4
    plane.stats.of("a").fetch_conversions = 5
    found, prefix = values(broker), "kafka.server:type=BrokerTopicMetrics,name="
    assert {name.removeprefix(prefix): n for name, n in found.items() if "Conversions" in name} == {
        "ProduceMessageConversionsPerSec": 7,
        "ProduceMessageConversionsPerSec,topic=a": 3,
        "ProduceMessageConversionsPerSec,topic=b": 4,
        "FetchMessageConversionsPerSec": 5,
        "FetchMessageConversionsPerSec,topic=a": 5,
    }


async def test_metrics_of_logs() -> None:  # rules 12.10, 12.11
    logs = MemoryLogManager(log_dirs=("/one", "/two"))
    broker = make_broker(config(), log_manager=logs)
    broker.replica_manager.become_leader_or_follower(leader_and_isr(lai_state(isr=(1,), replicas=(1,))), 2)
    log = broker.replica_manager.partitions[TopicPartition("a", 0)].log
    assert log is not None

    def found() -> dict[str, float]:
        of_logs = (
            "kafka.log:",
            "kafka.cluster:type=Partition,name=LastStable",
            "kafka.server:type=ReplicaManager,name=Prod",
        )
        return {name.partition("name=")[2]: n for name, n in values(broker).items() if name.startswith(of_logs) and n}

    assert found() == {"NumLogSegments,topic=a,partition=0": 1}
    log.append_as_leader(batch(b"one"), 1)
    log.roll()
    log.append_as_leader(produced(7, 0, 0, transactional=True), 1)
    log.set_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(1)
    assert found() == {
        "NumLogSegments,topic=a,partition=0": 2,
        "LogStartOffset,topic=a,partition=0": 1,
        "LogEndOffset,topic=a,partition=0": 2,
        "Size,topic=a,partition=0": log.size,
        "LastStableOffsetLag,topic=a,partition=0": 1,
        "ProducerIdCount": 1,
    }
    broker.replica_manager.partitions.clear()
    logs.directories[1].is_offline = True
    assert found() == {"OfflineLogDirectoryCount": 1, "LogDirectoryOffline,logDirectory=/two": 1}


async def test_metrics_of_topics_come_and_go() -> None:
    """What was counted remains part of the totals."""
    broker = make_broker(config())
    stats = broker.replication.data_plane.stats
    stats.of("a").bytes_in = stats.of("gone").bytes_in = 5
    stats.of("gone").failed_fetches = 1
    stats.of("a").bytes_out = 3
    broker.replica_manager.become_leader_or_follower(leader_and_isr(lai_state(topic="a")), 2)
    prefix = "kafka.server:type=BrokerTopicMetrics,name="
    for _ in range(2):
        found = {name.removeprefix(prefix): n for name, n in values(broker).items() if name.startswith(prefix) and n}
        of_all = {"BytesInPerSec": 10, "BytesOutPerSec": 3, "FailedFetchRequestsPerSec": 1}
        assert found == of_all | {"BytesInPerSec,topic=a": 5, "BytesOutPerSec,topic=a": 3}
    assert list(stats.topics) == ["a"]


@pytest.mark.parametrize(
    "led",
    [pytest.param((1,), marks=pytest.mark.kafka("RMT-9")), pytest.param((0, 1), marks=pytest.mark.kafka("RMT-10"))],
)
async def test_who_leads_no_partition_has_no_metrics_of_leaders(led: tuple[int, ...]) -> None:
    broker = make_broker(config())
    stats = broker.replication.data_plane.stats
    prefix = "kafka.server:type=BrokerTopicMetrics,name="

    def become(leading: tuple[int, ...], epoch: int) -> set[str]:
        states = [lai_state(n, leader=1 if n in leading else 2, leader_epoch=epoch) for n in (0, 1)]
        broker.replica_manager.become_leader_or_follower(leader_and_isr(*states), 2)
        of_topic = (name for name in values(broker) if name.startswith(prefix) and name.endswith(",topic=a"))
        return {name.removeprefix(prefix).partition(",")[0] for name in of_topic}

    broker.replica_manager.maybe_update_metadata_cache(update_metadata(alive=(1, 2)), 1)
    for name in TopicStats.__slots__:
        setattr(stats.of("a"), name, 1)
    everything = become(led, 0)
    assert len(everything) == len(TopicStats.__slots__)
    assert not [name for name in everything if name.startswith("Replication")]  # a follower's are of all topics
    others = {"BytesOutPerSec", "FailedFetchRequestsPerSec", "FetchMessageConversionsPerSec"}
    assert become((), 1) == others
    assert stats.total("bytes_in") == stats.total("bytes_out") == 1


async def test_replicated_bytes() -> None:
    async with Cluster(2) as cluster:
        await cluster.create_topic("a", assignment={0: (1, 2)})
        records = batch(b"value")
        data = wire.TopicProduceData(name="a", partition_data=(wire.PartitionProduceData(index=0, records=records),))
        for _ in range(3):  # the follower is in sync, and waits for the next
            message = wire.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(data,))
            produced: Any = await request(cluster.member(1).addresses["DATA"], message, 9)
            assert produced.responses[0].partition_responses[0].error_code == 0
        leader, follower = (node(cluster, i).broker.replication.data_plane.stats for i in (1, 2))
        assert leader.of("a").bytes_in == leader.replication_bytes_out == follower.replication_bytes_in
        assert leader.of("a").bytes_in == 3 * len(records)
        assert leader.of("a").messages_in == leader.of("a").produces == 3
        assert follower.total("bytes_in") == follower.replication_bytes_out == leader.replication_bytes_in == 0


async def test_metrics_of_reassignments() -> None:
    broker = make_broker(config())
    plane = broker.replication.data_plane
    plane.stats.reassignment_bytes_in, plane.stats.reassignment_bytes_out = 5, 7
    found, prefix = values(broker), "kafka.server:type=BrokerTopicMetrics,name=ReassignmentBytes"
    assert (found[f"{prefix}InPerSec"], found[f"{prefix}OutPerSec"]) == (5, 7)


async def test_metrics_of_quotas(autojump_clock: MockClock) -> None:  # section 8 of docs/broker-semantics.md
    broker = make_broker(config())
    quotas = broker.client_quotas
    server = "kafka.server:type="
    assert values(broker)[f"{server}Request,name=exempt-request-time"] == 0
    quotas.changed("users", "a b", {"producer_byte_rate": "10", "controller_mutation_rate": "2"})
    now = now_ms()
    quotas.produce.throttled("a b", "c", quotas.produce.record("a b", "c", 200, now), now)
    assert quotas.controller_mutation.record("a b", "c", 30, now) == 0
    quotas.charge_exempt(0.6)
    found = {name: value for name, value in values(broker).items() if "user=" in name or "name=queue-size" in name}
    tags = "user=a%20b,client-id="
    assert found == pytest.approx(
        {
            f"{server}Produce,name=byte-rate,{tags}": 20,
            f"{server}Produce,name=throttle-time,{tags}": 10_000,
            f"{server}Produce,name=queue-size": 1,
            f"{server}Fetch,name=queue-size": 0,
            f"{server}Request,name=queue-size": 0,
            f"{server}ControllerMutation,name=queue-size": 0,
            f"{server}ControllerMutation,name=mutation-rate,{tags}": 1,
            f"{server}ControllerMutation,name=tokens,{tags}": -8,
            f"{server}ControllerMutation,name=throttle-time,{tags}": math.nan,
        },
        nan_ok=True,
    )
    assert values(broker)[f"{server}Request,name=exempt-request-time"] == 2


@pytest.mark.kafka("TMC-1")
@pytest.mark.kafka("TMC-12")
async def test_metrics_of_transactions() -> None:  # rules T6.16, T10.20
    """They are read from the broker, and so are there from its start to its end."""
    broker = make_broker(config())
    broker.verifier.failures = 3
    broker.verifier.times.update(7)
    found = values(broker)
    prefix = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name="
    assert found[f"{prefix}UnknownDestinationQueueSize"] == 0
    assert found[f"{prefix}LogAppendRetryQueueSize"] == 0
    assert found["kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate"] == 3
    assert found["kafka.server:type=AddPartitionsToTxnManager,name=VerificationTimeMs"] == 1


@pytest.mark.kafka("TRM-1")
async def test_late_transactions(mock_clock: MockClock) -> None:  # rule T8.6
    logs = MemoryLogManager()
    broker = make_broker(config(), log_manager=logs)
    name = "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount"
    assert values(broker)[name] == 0
    broker.replica_manager.become_leader_or_follower(leader_and_isr(lai_state(is_new=True)), 2)
    partition = broker.replica_manager.partitions[TopicPartition("a", 0)]
    partition.append(produced(234, 9, epoch=5, transactional=True, timestamp=logs.now_ms()), 1)
    mock_clock.jump(900 + 300)
    assert values(broker)[name] == 0
    mock_clock.jump(0.001)
    assert values(broker)[name] == 1
    partition.append(marker(234, committed=False, epoch=5), 1, origin=Origin.COORDINATOR)
    assert values(broker)[name] == 0


@pytest.mark.kafka("GMM-67")
@pytest.mark.kafka("TSM-33")
@pytest.mark.parametrize("name", ["group", "transaction"])
async def test_times_of_loads(name: str, mock_clock: MockClock) -> None:  # rule T9.19
    broker = make_broker(config())
    manager = broker.groups.manager if name == "group" else broker.transactions.manager
    prefix = f"kafka.server:type={name}-coordinator-metrics,name=partition-load-time-"

    def times() -> list[float]:
        found = values(broker)
        return [found[f"{prefix}max"], found[f"{prefix}avg"]]

    assert all(map(math.isnan, times()))
    for partition, seconds in enumerate((0.5, 1.5)):
        manager.load(partition, 1)
        mock_clock.jump(seconds)
        while manager._work:
            await manager._work.do_next()
    assert times() == [1500, 1000]
    mock_clock.jump(29)
    assert times() == [1500, 1500]
    mock_clock.jump(1)
    assert all(map(math.isnan, times()))
