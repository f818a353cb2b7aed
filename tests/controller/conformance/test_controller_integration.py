"""CI-1 to CI-11, CI-22 to CI-27, CI-30 to CI-37: life of controllers, brokers and topics in a cluster (section 14 of
docs/controller-semantics.md)."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.events import BrokersChanged, TopicsChanged
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId
from kce.zookeeper.store import Create, Delete, value
from tests.controller import requests
from tests.controller.conformance.cluster import (
    Metadata,
    add_partitions,
    another_takes_over_unseen,
    data_version,
    decided_in,
    event_thread_blocked,
    has_resigned,
    propose_isr,
    start,
    stop,
)
from tests.controller.support import World, texts, world

FEATURE = znodes.FEATURE


@pytest.mark.kafka("CI-1")
async def test_empty_cluster(autojump_clock: MockClock) -> None:  # rule 1.13
    async with world([]) as w:
        controller = await w.start_controller(0)
        assert controller.is_active
        assert await w.get("/controller_epoch") == b"1"


@pytest.mark.kafka("CI-2")
async def test_the_epoch_persists_when_all_brokers_are_down(autojump_clock: MockClock) -> None:
    async with world([]) as w:
        await w.start_controller(0)
        await stop(w, 0)
        assert await w.get("/controller") is None
        assert await w.get("/controller_epoch") == b"1"


@pytest.mark.kafka("CI-3")
async def test_a_move_increments_the_epoch(autojump_clock: MockClock) -> None:
    async with world([]) as w:
        await w.start_controller(0)
        await stop(w, 0)
        controller = await w.start_controller(0)
        assert (controller.context.epoch, await w.get("/controller_epoch")) == (2, b"2")


@pytest.mark.kafka("CI-4")
async def test_metadata_goes_to_the_control_plane(autojump_clock: MockClock) -> None:  # rule 8.28
    async with world([]) as w:
        ports: list[int] = []
        dial = w.dial

        async def recorded(host: str, port: int, **target: Any) -> Any:
            ports.append(port)
            return await dial(host, port, **target)

        w.dial = recorded  # type: ignore[method-assign]
        await w.start_controller(0)
        assert ports == [1000]  # the control plane's; the data plane listens on 2000
        assert texts(w.take(), 0) == ["UMR alive=[0]"]


@pytest.mark.kafka("CI-5")
async def test_metadata_has_a_follower_that_dies_and_returns(autojump_clock: MockClock) -> None:  # rule 11.59
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0, 2], 1: [0, 1]})
        await stop(w, 2)
        for broker in (0, 1):
            partition = Metadata(w, broker).of("t", 0)
            assert (partition.replicas, partition.isr, partition.offline_replicas) == ((0, 2), (0,), (2,))
            partition = Metadata(w, broker).of("t", 1)
            assert (partition.replicas, partition.offline_replicas) == ((0, 1), ())
        await start(w, 2)
        await propose_isr(w, controller, [0, 2])
        for broker in (0, 1, 2):
            partition = Metadata(w, broker).of("t", 0)
            assert (partition.replicas, partition.isr, partition.offline_replicas) == ((0, 2), (0, 2), ())
            partition = Metadata(w, broker).of("t", 1)
            assert (partition.replicas, partition.offline_replicas) == ((0, 1), ())


@pytest.mark.kafka("CI-6")
async def test_metadata_has_offline_replicas_after_cold_restarts(autojump_clock: MockClock) -> None:  # 11.60
    async with world([1, 2]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [2]})
        await stop(w, 1)
        await stop(w, 2)  # takes the leadership with it
        await stop(w, 0)
        await w.start_controller(0)
        partition = Metadata(w, 0).of("t")
        known = partition.leader, partition.replicas, partition.isr, partition.offline_replicas
        assert known == (-1, (2,), (2,), (2,))
        await start(w, 1)
        for broker in (0, 1):
            partition = Metadata(w, broker).of("t")
            assert (partition.leader, partition.replicas, partition.isr, partition.offline_replicas) == known


@pytest.mark.kafka("CI-7")
async def test_metadata_drops_brokers_without_replicas(autojump_clock: MockClock) -> None:  # rule 11.61
    async with world([1, 2]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [1]})
        assert Metadata(w, 0).alive == {0, 1, 2}
        await stop(w, 1)
        await stop(w, 2)
        assert Metadata(w, 0).alive == {0}


@pytest.mark.kafka("CI-8")
async def test_topic_creation(autojump_clock: MockClock) -> None:  # rules 6.7, 10.28
    async with world([]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        assert await w.state("t") == (0, 0, (0,))
        assert await decided_in(w, "t") == 1


@pytest.mark.kafka("CI-9")
async def test_topic_creation_with_an_offline_replica(autojump_clock: MockClock) -> None:  # rule 10.30
    async with world([1]) as w:
        await w.start_controller(0)
        await stop(w, 1)
        await w.create_topic("t", {0: [1, 0]})
        assert await w.state("t") == (0, 0, (0,))
        assert await decided_in(w, "t") == 1


@pytest.mark.kafka("CI-10")
async def test_topic_expansion(autojump_clock: MockClock) -> None:  # rule 10.32
    async with world([]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        await add_partitions(w, "t", {1: [0]})
        assert await w.state("t", 1) == (0, 0, (0,))
        assert await decided_in(w, "t", 1) == 1
        assert Metadata(w, 0).of("t", 1).leader == 0


@pytest.mark.kafka("CI-11")
async def test_topic_expansion_with_an_offline_replica(autojump_clock: MockClock) -> None:  # rules 10.30, 10.32
    async with world([1]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [1, 0]})
        await stop(w, 1)
        await add_partitions(w, "t", {1: [1, 0]})
        assert await w.state("t", 1) == (0, 0, (0,))
        assert await decided_in(w, "t", 1) == 1
        assert Metadata(w, 0).of("t", 1).leader == 0


async def state_after_the_whole_isr_died(*, unclean: bool) -> tuple[int, int, tuple[int, ...]]:
    async with world([1]) as w:
        await w.start_controller(0, unclean_leader_election_enable=unclean)
        await w.create_topic("t", {0: [1]})
        assert await w.state("t") == (1, 0, (1,))
        await stop(w, 1)
        assert await decided_in(w, "t") == 1
        return await w.state("t")


@pytest.mark.kafka("CI-22")
async def test_the_whole_isr_dies_and_unclean_election_is_off(autojump_clock: MockClock) -> None:  # rule 11.60
    assert await state_after_the_whole_isr_died(unclean=False) == (-1, 1, (1,))


@pytest.mark.kafka("CI-23")
async def test_the_whole_isr_dies_and_unclean_election_is_on(autojump_clock: MockClock) -> None:  # rule 7.18
    assert await state_after_the_whole_isr_died(unclean=True) == (-1, 1, (1,))


async def shut_down(w: World, controller: KafkaController, broker: int, broker_epoch: int = -1) -> Any:
    answers: list[wire.ControlledShutdownResponse] = []
    requests.controlled_shutdown(controller, broker, broker_epoch, answers.append)
    await w.settle()
    (answer,) = answers
    return answer


@pytest.mark.kafka("CI-24")
async def test_controlled_shutdown(autojump_clock: MockClock) -> None:  # rules 11.43, 11.44
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0, 1, 2]})
        epochs = dict(controller.context.broker_epochs)
        for broker, remaining, leader, isr in ((2, 0, 0, (0, 1)), (1, 0, 0, (0,)), (0, 1, 0, (0,))):
            answer = await shut_down(w, controller, broker, epochs[BrokerId(broker)])
            assert (answer.error_code, len(answer.remaining_partitions)) == (ErrorCode.NONE, remaining)
            state = await w.state("t")
            assert (state[0], state[2]) == (leader, isr)
            known = Metadata(w, 0).of("t")
            assert (known.leader, known.isr) == (leader, isr)
        assert [Metadata(w, broker).of("t").leader for broker in (0, 1, 2)] == [0, 0, 0]


@pytest.mark.kafka("CI-25")
async def test_controlled_shutdown_with_a_stale_broker_epoch(autojump_clock: MockClock) -> None:  # rule 11.41
    async with world([1]) as w:
        controller = await w.start_controller(0)
        epoch = controller.context.broker_epochs[BrokerId(1)]
        assert (await shut_down(w, controller, 1, epoch - 1)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert controller.context.shutting_down == set()


@pytest.mark.kafka("CI-26")
async def test_a_moved_controller_meets_a_new_topic(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules 2.18, 1.47
    caplog.set_level("INFO")
    async with world([]) as w:
        controller = await w.start_controller(0)
        w.take()
        await another_takes_over_unseen(w, controller)
        await w.create_topic("t", {0: [0]})
        assert has_resigned(controller, caplog)
        assert await w.get("/brokers/topics/t/partitions/0/state") is None
        assert w.take() == []


@pytest.mark.kafka("CI-27")
async def test_a_moved_controller_meets_a_deletion(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules 2.18, 1.47
    caplog.set_level("INFO")
    async with world([]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        before = await w.state("t")
        await another_takes_over_unseen(w, controller)
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        await w.settle()
        assert has_resigned(controller, caplog)
        assert await w.state("t") == before
        assert await w.get(znodes.delete_topic_path("t")) is not None


async def feature_node(ibp: str, before: bytes | None) -> tuple[bytes | None, int]:
    """/feature, and its version in ZooKeeper, after a controller of that version has come."""
    async with world([], ibp=MetadataVersion.parse(ibp)) as w:
        if before is not None:
            value((await w.store.write([Create(FEATURE, before)]))[0])
        await w.start_controller(0)
        node = await w.get(FEATURE)
        version = await data_version(w, FEATURE)
        await w.store.write([Delete("/controller")])  # once more: it is written no more
        await w.settle()
        assert await data_version(w, FEATURE) == version
        return node, version


def features(ibp: str, *, enabled: bool, **levels: int) -> bytes:
    """The /feature content that a 3.9 controller with this inter.broker.protocol.version writes."""
    version = 2 if ibp == "3.9" else 1
    return cluster_nodes.encode_feature(version, enabled=enabled, features=levels)


since_2_7 = pytest.mark.parametrize("ibp", ["2.7-IV0", "3.9"])


@pytest.mark.kafka("CI-30")
@since_2_7
async def test_features_enabled_and_no_node(autojump_clock: MockClock, ibp: str) -> None:  # rule 4.22
    assert await feature_node(ibp, None) == (features(ibp, enabled=True), 0)


@pytest.mark.kafka("CI-31")
@since_2_7
async def test_features_enabled_and_a_disabled_node(autojump_clock: MockClock, ibp: str) -> None:  # rule 4.23
    assert await feature_node(ibp, features(ibp, enabled=False)) == (features(ibp, enabled=True), 1)


@pytest.mark.kafka("CI-32")
@since_2_7
@pytest.mark.parametrize("levels", [{}, {"f": 3}])
async def test_features_enabled_and_an_enabled_node(
    autojump_clock: MockClock, ibp: str, levels: dict[str, int]
) -> None:  # rule 4.23
    before = features(ibp, enabled=True, **levels)
    assert await feature_node(ibp, before) == (before, 0)


@pytest.mark.kafka("CI-33")
async def test_features_disabled_and_no_node(autojump_clock: MockClock) -> None:  # rule 4.24
    assert await feature_node("2.6-IV0", None) == (features("2.6-IV0", enabled=False), 0)


@pytest.mark.kafka("CI-34")
async def test_features_disabled_and_a_disabled_node(autojump_clock: MockClock) -> None:  # rule 4.24
    before = features("2.6-IV0", enabled=False)
    assert await feature_node("2.6-IV0", before) == (before, 0)


@pytest.mark.kafka("CI-35")
@pytest.mark.parametrize("levels", [{}, {"f": 3}])
async def test_features_disabled_and_an_enabled_node(
    autojump_clock: MockClock, levels: dict[str, int]
) -> None:  # rule 4.24
    before = features("2.6-IV0", enabled=True, **levels)
    assert await feature_node("2.6-IV0", before) == (features("2.6-IV0", enabled=False), 1)


@pytest.mark.kafka("CI-36")
async def test_a_bounced_broker_is_detected(autojump_clock: MockClock) -> None:  # rules 11.50, 11.54
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [1]})
        epoch = controller.context.broker_epochs[BrokerId(1)]
        async with event_thread_blocked(w, controller):
            await w.bounce_broker(1)
            w.take()
        assert controller.context.broker_epochs[BrokerId(1)] > epoch
        assert controller.context.live_broker_ids == {0, 1}
        sent = w.take()
        assert "UMR alive=[0, 1] t-0:-1@1[1]" in texts(sent, 1)  # everything again
        assert any(text.startswith("LAI t-0:1@2") for text in texts(sent, 1))
        assert await w.state("t") == (1, 2, (1,))


@pytest.mark.kafka("CI-37")
async def test_queued_events_are_preempted_by_the_shutdown(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 2.21, 3.5, 3.37
    processed: list[object] = []
    preempted: list[object] = []
    monkeypatch.setattr("kce.controller.dispatch.preempt", preempted.append)
    async with world([]) as w:
        controller = await w.start_controller(0)
        dispatch = controller._dispatch

        async def recorded(event: Any) -> None:
            processed.append(event)
            await dispatch(event)

        monkeypatch.setattr(controller, "_dispatch", recorded)
        async with event_thread_blocked(w, controller):
            queued = [TopicsChanged(), BrokersChanged()]
            for event in queued:
                controller.loop.put(event)
            controller.close()
            assert preempted == queued
            assert not controller.stopped.is_set()
        assert controller.stopped.is_set()
        assert not any(event in processed for event in queued)
