"""Kafka's metrics (section 12), and events that fail (rule 3.4)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kce.controller.context import ControllerContext
from kce.controller.event_loop import QUEUE_TIME_RESET_SECONDS
from kce.controller.events import BrokersChanged, ControllerEvent, ControllerState, Started, TopicsChanged
from kce.controller.kafka_controller import KafkaController
from kce.controller.metrics import KafkaControllerGauges
from kce.metrics import Gauge, Histogram, Meter, MetricName, Metrics
from kce.zookeeper.store import SetData
from tests.controller.support import IdleLoop, world

QUEUE_TIME = MetricName("kafka.controller", "ControllerEventManager", "EventQueueTimeMs")


def gauges(controller: KafkaController) -> dict[str, float]:
    return gauges_of(controller.metrics)


def gauges_of(metrics: Metrics) -> dict[str, float]:
    return {
        name.name: metric.read()
        for name, metric in metrics.items()
        if name.type == "KafkaController" and isinstance(metric, Gauge)
    }


def count(metrics: Metrics, name: str, kind: str = "ControllerStats") -> int:
    metric = metrics[MetricName("kafka.controller", kind, name)]
    if isinstance(metric, Meter):
        return metric.read()
    assert isinstance(metric, Histogram)
    return metric.count


async def test_gauges_of_a_controller_and_of_another(autojump_clock: MockClock) -> None:  # rules 12.1-12.3
    async with world() as w:
        controller = await w.start_controller(1)
        idle = await w.start_controller(2)
        await w.create_topic("t", {0: [2, 3], 1: [1, 3]})
        await w.create_topic("dying", {0: [3, 2]})
        await w.stop_broker(3)
        await w.settle()
        await w.zk.ensure_paths(["/admin/delete_topics/dying"])
        await w.settle()
        assert gauges(controller) == {
            "ActiveControllerCount": 1,
            "ControllerState": 0,
            "FencedBrokerCount": 0,
            "ZkMigrationState": 4,
            "OfflinePartitionsCount": 0,
            "PreferredReplicaImbalanceCount": 0,  # "dying" counts no more
            "GlobalTopicCount": 2,
            "GlobalPartitionCount": 3,
            "TopicsToDeleteCount": 1,
            "ReplicasToDeleteCount": 1,
            "TopicsIneligibleToDeleteCount": 1,
            "ReplicasIneligibleToDeleteCount": 0,  # the dead one was taken back to Offline (10.41)
            "ActiveBrokerCount": 2,
        }
        assert gauges(idle) == dict.fromkeys(gauges(controller), 0) | {"ZkMigrationState": 4}
        controller.close()
        await w.settle()
        assert gauges(controller) == {}  # rule 12.4; KC-1


async def test_offline_partitions_and_unclean_elections_are_counted(autojump_clock: MockClock) -> None:  # 12.5, 5.19
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        for gone in (3, 2):
            await w.stop_broker(gone)
            await w.settle()
        assert gauges(controller)["OfflinePartitionsCount"] == 1
        await w.zk.ensure_paths(["/config/topics/t"])
        config = b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}'
        await w.store.write([SetData("/config/topics/t", config)])
        assert count(controller.metrics, "UncleanLeaderElectionsPerSec") == 0
        await w.start_broker(3)
        await w.settle()
        assert gauges(controller)["OfflinePartitionsCount"] == 0
        assert count(controller.metrics, "UncleanLeaderElectionsPerSec") == 1
        assert count(controller.metrics, "LeaderElectionRateAndTimeMs") == 3  # one for each change of brokers


def test_states_have_kafkas_codes() -> None:  # rule 3.7
    assert [state.value for state in ControllerState] == list(range(18))
    assert [state.name for state in ControllerState][13:] == [
        "UNCLEAN_LEADER_ELECTION_ENABLE", "TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE", "LIST_PARTITION_REASSIGNMENT",
        "UPDATE_METADATA_RESPONSE_RECEIVED", "UPDATE_FEATURES",
    ]  # fmt: skip


def test_timers_of_states() -> None:  # rules 3.7, 12.5
    names = {state.timer_name for state in ControllerState} - {None}
    assert len(names) == 16
    assert {"LeaderElectionRateAndTimeMs", "PartitionReassignmentRateAndTimeMs"} < names
    assert ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE.timer_name == (
        "TopicUncleanLeaderElectionEnableRateAndTimeMs"
    )
    assert ControllerState.LIST_PARTITION_REASSIGNMENT.timer_name == "ListPartitionReassignmentRateAndTimeMs"
    assert ControllerState.IDLE.timer_name is None
    assert ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED.timer_name is None


async def test_time_in_the_queue(autojump_clock: MockClock, nursery: trio.Nursery) -> None:  # 3.6, 12.6; CEM-1..CEM-4
    metrics = Metrics()

    async def process(event: ControllerEvent) -> None:
        await trio.sleep(0.5)

    loop = IdleLoop(process, metrics)
    size = metrics[MetricName("kafka.controller", "ControllerEventManager", "EventQueueSize")]
    loop.put(BrokersChanged())
    loop.put(TopicsChanged())
    assert isinstance(size, Gauge)
    assert size.read() == 2
    nursery.start_soon(loop.run)
    await loop.wait_idle()
    times = metrics[QUEUE_TIME]
    assert isinstance(times, Histogram)
    assert (times.count, times.min, round(times.max)) == (2, 0, 500)
    assert count(metrics, "TopicChangeRateAndTimeMs") == 1
    await trio.sleep(QUEUE_TIME_RESET_SECONDS - 1)
    assert times.count == 2
    await trio.sleep(2)
    assert times.count == 0
    loop.put(TopicsChanged())
    await loop.wait_idle()
    assert times.count == 1
    loop.close()
    await trio.testing.wait_all_tasks_blocked()
    assert [name for name, _ in metrics.items() if name.type == "ControllerEventManager"] == []


async def test_a_failing_event_is_counted_and_the_loop_goes_on(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:  # rule 3.4; CEM-6
    metrics = Metrics()
    done: list[ControllerEvent] = []

    async def process(event: ControllerEvent) -> None:
        if isinstance(event, BrokersChanged):
            raise ZeroDivisionError
        done.append(event)

    loop = IdleLoop(process, metrics)
    nursery.start_soon(loop.run)
    for event in (BrokersChanged(), TopicsChanged(), Started()):
        loop.put(event)
    await loop.wait_idle()
    loop.put(BrokersChanged())
    await loop.wait_idle()
    assert done == [TopicsChanged(), Started()]
    assert loop.state is ControllerState.IDLE
    assert loop.failures == {"BrokersChanged": 2}
    name = MetricName("kce.controller", "ControllerEventManager", "FailedEventsPerSec", (("event", "BrokersChanged"),))
    failed = metrics[name]
    assert isinstance(failed, Meter)
    assert failed.read() == 2
    assert count(metrics, "LeaderElectionRateAndTimeMs") == 2


async def test_channels(autojump_clock: MockClock) -> None:  # rule 12.7
    async with world() as w:
        controller = await w.start_controller(1)
        w.brokers[3].mute = True
        await w.create_topic("t", {0: [3]})
        of_three = MetricName("kafka.controller", "ControllerChannelManager", "QueueSize", (("broker-id", "3"),))
        total = MetricName("kafka.controller", "ControllerChannelManager", "TotalQueueSize")
        for name in (of_three, total):
            gauge = controller.metrics[name]
            assert isinstance(gauge, Gauge)
            assert gauge.read() == 2
        times = controller.metrics[of_three._replace(name="RequestRateAndQueueTimeMs")]
        assert isinstance(times, Histogram)
        assert times.count == 2
        assert str(of_three) == "kafka.controller:type=ControllerChannelManager,name=QueueSize,broker-id=3"
        await w.stop_broker(3)
        await w.settle()
        assert of_three not in controller.metrics


def test_a_name_is_given_once() -> None:
    metrics = Metrics()
    metrics.add(QUEUE_TIME, Histogram())
    with pytest.raises(ValueError, match=r"kafka\.controller:type=ControllerEventManager,name=EventQueueTimeMs"):
        metrics.add(QUEUE_TIME, Histogram())


def test_quantiles() -> None:
    histogram = Histogram()
    assert (histogram.min, histogram.max, histogram.quantile(0.5)) == (0, 0, 0)
    for value in range(1, 101):
        histogram.update(value)
    assert [histogram.quantile(q) for q in (0.0, 0.5, 0.95, 0.99, 1.0)] == [1, 50, 95, 99, 100]
    for _ in range(5000):
        histogram.update(7)
    assert (histogram.count, histogram.sum, histogram.quantile(0.999)) == (5100, 5050 + 35000, 7)


def test_snapshots_of_an_empty_context() -> None:
    metrics = Metrics()
    made = KafkaControllerGauges(metrics, ControllerContext(), lambda: True, lambda: 0)
    before = gauges_of(metrics)
    made.refresh()
    zeros = dict.fromkeys(before, 0)
    assert gauges_of(metrics) == before == zeros | {"ActiveControllerCount": 1, "ZkMigrationState": 4}
