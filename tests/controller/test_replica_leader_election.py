"""Elections by request, by znode and for balance; producer ids; features (sections 11d, 11e, 11l; 4.17-4.25)."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from controller import zk_data
from controller.controller import Controller
from controller.errors import ApiError
from controller.events import ElectLeadersResult
from controller.model import BrokerId, ElectionType, FeatureUpdate, ProducerIdsBlock, TopicPartition, UpgradeType
from controller.store import Create, Delete, SetData, StoreError, value
from tests.controller.support import World, join_isr, texts, world
from wire import ErrorCode
from wire.metadata_version import MetadataVersion

TP = TopicPartition("t", 0)
PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


async def elect(
    w: World, controller: Controller, partitions: Collection[TopicPartition], kind: ElectionType = PREFERRED
) -> dict[TopicPartition, BrokerId | ErrorCode]:
    answers: list[dict[TopicPartition, BrokerId | ApiError]] = []
    controller.elect_leaders(partitions, kind, answers.append)
    await w.settle()
    (answer,) = answers
    return {tp: result.code if isinstance(result, ApiError) else result for tp, result in answer.items()}


async def led_by_the_second(w: World, controller: Controller, topic: str = "t", partitions: int = 1) -> None:
    """[2, 3] with leader 3 and both in the ISR."""
    await w.create_topic(topic, {p: [2, 3] for p in range(partitions)})
    await w.stop_broker(2)
    await w.settle()
    await w.start_broker(2)
    await w.settle()
    for p in range(partitions):
        assert await join_isr(w, controller, TopicPartition(topic, p), (3, 2)) == 0


async def by_znode(w: World, partitions: Collection[TopicPartition]) -> None:
    data = zk_data.encode_partition_list(partitions)
    value((await w.store.write([Create(zk_data.PREFERRED_REPLICA_ELECTION, data)]))[0])
    await w.settle()


async def test_preferred_election_by_request(autojump_clock: MockClock) -> None:  # rules 11.30, 11.33, 7.12
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        w.take()
        unknown = [TopicPartition("t", 5), TopicPartition("u", 0)]
        result = await elect(w, controller, [TP, *unknown])
        assert result == {TP: 2} | dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert await w.state("t") == (2, 2, (3, 2))  # the ISR is left as it is
        assert texts(w.take(), 2) == ["LAI t-0:2@2[3, 2]", "UMR alive=[1, 2, 3] t-0:2@2[3, 2]"]
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.ELECTION_NOT_NEEDED}


async def test_no_preferred_leader(autojump_clock: MockClock) -> None:  # rules 7.20, 11.33
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


async def test_unclean_election_by_request(autojump_clock: MockClock) -> None:  # rules 11.30, 11.32; 7.6
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        assert await elect(w, controller, [TP], UNCLEAN) == {TP: ErrorCode.ELECTION_NOT_NEEDED}
        for gone in (3, 2):
            await w.stop_broker(gone)
            await w.settle()
        assert await elect(w, controller, [TP], UNCLEAN) == {TP: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        await w.start_broker(3)
        await w.settle()
        assert await elect(w, controller, [TP], UNCLEAN) == {TP: 3}
        assert await w.state("t") == (3, 3, (3,))


async def test_elections_that_are_refused(autojump_clock: MockClock) -> None:  # rules 11.30, 3.26, 11.31
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.create_topic("new", {0: [9]})
        w.brokers[3].mute = True
        await w.zk.ensure_paths([zk_data.delete_topic_path("t")])
        await w.settle()
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.INVALID_TOPIC_EXCEPTION}
        idle = await w.start_controller(2)
        assert await elect(w, idle, [TP]) == {TP: ErrorCode.NOT_CONTROLLER}
        answers: list[object] = []
        controller.elect_leaders([TopicPartition("new", 0)], PREFERRED, answers.append)  # without leadership
        await w.settle()
        assert answers == []
        assert controller.is_active


async def test_election_by_znode_twice(autojump_clock: MockClock) -> None:  # rules 11.29, 11.34; CI-16, CI-17
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        await by_znode(w, [TP, TopicPartition("u", 0)])
        assert await w.get(zk_data.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (2, 2, (3, 2))
        await w.stop_broker(2)
        await w.settle()
        await w.start_broker(2)
        await w.settle()
        await join_isr(w, controller, TP, (3, 2))
        await by_znode(w, [TP])
        assert await w.get(zk_data.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (2, 4, (3, 2))


async def test_election_by_znode_without_the_preferred(autojump_clock: MockClock) -> None:  # CI-18
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        await by_znode(w, [TP])
        assert await w.get(zk_data.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (3, 1, (3,))


async def test_an_election_that_waits_for_the_next_controller(autojump_clock: MockClock) -> None:  # 4.17, 4.18
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        controller.close()
        await w.settle()
        await by_znode(w, [TP, TopicPartition("u", 3)])
        await w.start_controller(3)
        await w.kill_controller(1)
        await w.settle()
        assert (await w.state("t"))[0] == 2
        assert await w.get(zk_data.PREFERRED_REPLICA_ELECTION) is None
        await by_znode(w, [TP])  # watched again
        assert await w.get(zk_data.PREFERRED_REPLICA_ELECTION) is None


async def test_a_pending_election_without_leadership_fails_the_failover(autojump_clock: MockClock) -> None:  # 4.19
    async with world() as w:
        first = await w.start_controller(1)
        await w.create_topic("t", {0: [9]})
        first.close()
        await w.settle()
        await by_znode(w, [TP])
        w.spawn_controller(3)
        await w.kill_controller(1)
        while (await w.get("/controller_epoch") or b"0") < b"3":
            await trio.lowlevel.checkpoint()
        assert w.nodes[3].controller.failovers == 0
        await w.store.write([Delete(zk_data.PREFERRED_REPLICA_ELECTION)])
        await w.settle()
        assert w.nodes[3].controller.failovers == 1


async def test_a_leader_that_shuts_down_is_none_to_keep(autojump_clock: MockClock) -> None:  # rules 11.30, 11.45
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [3]})
        for is_live, code in (
            (True, ErrorCode.ELECTION_NOT_NEEDED),
            (False, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ):
            if not is_live:
                controller.controlled_shutdown(3, -1, lambda _: None)
                await w.settle()
            answers: list[ElectLeadersResult] = []
            controller.elect_leaders([TP], ElectionType.UNCLEAN, answers.append)
            await w.settle()
            (result,) = answers
            refusal = result[TP]
            assert isinstance(refusal, ApiError)
            assert refusal.code == code
        assert (await w.state("t"))[0] == 3


async def test_leaders_are_rebalanced(autojump_clock: MockClock) -> None:  # rules 11.37-11.40; CI-19
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        assert controller.context.preferred_replica_imbalance_count == 1
        assert (await w.state("t"))[0] == 3
        await trio.sleep(5.1)
        await w.settle()
        assert await w.state("t") == (2, 2, (3, 2))
        assert controller.context.preferred_replica_imbalance_count == 0
        await led_by_the_second(w, controller, "u")
        await trio.sleep(290)
        assert (await w.state("u"))[0] == 3
        await trio.sleep(11)
        await w.settle()
        assert (await w.state("u"))[0] == 2


@pytest.mark.parametrize(("percentage", "balanced"), [(49, True), (50, False)])
async def test_the_imbalance_has_to_be_above_the_limit(
    autojump_clock: MockClock, percentage: int, balanced: bool
) -> None:  # rule 11.39
    async with world() as w:
        controller = await w.start_controller(1, leader_imbalance_per_broker_percentage=percentage)
        await led_by_the_second(w, controller)
        await w.create_topic("u", {0: [2, 3]})
        await trio.sleep(5.1)
        await w.settle()
        assert (await w.state("t"))[0] == (2 if balanced else 3)


async def test_topics_to_be_deleted_do_not_count_for_the_balance(autojump_clock: MockClock) -> None:  # rule 11.38
    async with world() as w:
        controller = await w.start_controller(1, leader_imbalance_per_broker_percentage=50)
        await led_by_the_second(w, controller)
        await w.create_topic("balanced", {0: [2, 3], 1: [2, 3]})
        await w.create_topic("going", {number: [2, 9] for number in range(3)})  # 9 cannot delete its replicas
        await w.zk.ensure_paths([zk_data.delete_topic_path("going")])
        await w.settle()
        assert controller.context.is_queued_for_deletion("going")
        assert [(await w.state("going", number))[0] for number in range(3)] == [-1, -1, -1]
        await trio.sleep(5.1)
        await w.settle()
        assert (await w.state("t"))[0] == 3  # one of three is misplaced; with those that go it would be four of six


async def test_what_is_not_rebalanced(autojump_clock: MockClock) -> None:  # rules 11.38, 11.40
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        await w.start_broker(2)  # not in the ISR
        await w.settle()
        await trio.sleep(5.1)
        await w.settle()
        assert await w.state("t") == (3, 1, (3,))
        controller.close()  # the timer goes with the role
        await w.settle()
        await trio.sleep(1000)


async def test_a_partition_under_reassignment_is_rebalanced_too(autojump_clock: MockClock) -> None:  # 11.40; CI-21
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        controller.alter_partition_reassignments({TP: [2, 3, 9]}, lambda _: None)
        await w.start_broker(9)
        await w.settle()
        controller.alter_partition_reassignments({TP: [2, 3, 9]}, lambda _: None)
        await w.settle()
        assert controller.context.being_reassigned == {TP}
        await trio.sleep(5.1)
        await w.settle()
        assert (await w.state("t"))[0] == 2


async def test_producer_ids(autojump_clock: MockClock) -> None:  # rules 11.82, 1.43
    async with world() as w:
        controller = await w.start_controller(1)
        answers: list[ProducerIdsBlock | ErrorCode] = []
        epoch = controller.context.broker_epochs[BrokerId(2)]
        for broker, broker_epoch in ((2, epoch), (2, epoch), (9, 1), (2, epoch - 1), (2, epoch + 1)):
            controller.allocate_producer_ids(broker, broker_epoch, answers.append)
        await w.settle()
        assert answers == [
            ProducerIdsBlock(BrokerId(2), 0, 999),
            ProducerIdsBlock(BrokerId(2), 1000, 1999),
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.STALE_BROKER_EPOCH,
        ]
        node = json.loads(await w.get(zk_data.PRODUCER_ID_BLOCK) or b"")
        assert node == {"version": 1, "broker": 2, "block_start": "1000", "block_end": "1999"}
        last = b'{"version":1,"broker":1,"block_start":"0","block_end":"9223372036854775807"}'
        for content in (last, b'{"version":1}'):
            await w.store.write([SetData(zk_data.PRODUCER_ID_BLOCK, content)])
            controller.allocate_producer_ids(2, epoch, answers.append)
            await w.settle()
            assert answers.pop() == ErrorCode.UNKNOWN_SERVER_ERROR
        idle = await w.start_controller(3)
        idle.allocate_producer_ids(2, epoch, answers.append)
        await w.settle()
        assert answers.pop() == ErrorCode.NOT_CONTROLLER


async def test_a_producer_id_block_that_another_took(autojump_clock: MockClock) -> None:  # rule 1.43
    from controller.admin_nodes import allocate_producer_ids

    async with world(brokers=()) as w:
        blocks: list[ProducerIdsBlock] = []

        async def allocate(broker: int) -> None:
            blocks.append(await allocate_producer_ids(w.zk, BrokerId(broker)))

        async with trio.open_nursery() as nursery:
            for broker in range(5):
                nursery.start_soon(allocate, broker)
        assert sorted(b.first for b in blocks) == [0, 1000, 2000, 3000, 4000]


UP, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


async def update(w: World, controller: Controller, *updates: FeatureUpdate) -> dict[str, ErrorCode] | ApiError:
    answers: list[dict[str, ApiError] | ApiError] = []
    controller.update_features(updates, answers.append)
    await w.settle()
    (answer,) = answers
    return answer if isinstance(answer, ApiError) else {name: result.code for name, result in answer.items()}


async def test_feature_updates(autojump_clock: MockClock) -> None:  # rule 11.83
    supported = {"f": (1, 5), "g": (2, 3)}
    async with world(brokers=(), features=supported) as w:
        controller = await w.start_controller(1, supported_features=supported)
        node = json.loads(await w.get("/feature") or b"")
        assert node["features"] == {"f": {"max_version_level": 5}, "g": {"max_version_level": 3}}  # rule 4.22
        invalid = ErrorCode.INVALID_REQUEST
        for wrong in (
            FeatureUpdate("", 1, UP),
            FeatureUpdate("f", 1, UpgradeType.UNKNOWN),
            FeatureUpdate("unknown", 0, SAFE),  # not finalized
            FeatureUpdate("unknown", 1, UP),  # not supported
            FeatureUpdate("f", 0, UP),
            FeatureUpdate("f", 5, UP),
            FeatureUpdate("f", 4, UP),
            FeatureUpdate("f", 4, UNSAFE),
            FeatureUpdate("f", 6, SAFE),
            FeatureUpdate("f", 6, UP),
            FeatureUpdate("g", 1, SAFE),
        ):
            assert await update(w, controller, wrong) == {wrong.feature: invalid}, wrong
        good, bad = FeatureUpdate("f", 2, SAFE), FeatureUpdate("g", 9, UP)
        answers: list[dict[str, ApiError] | ApiError] = []
        controller.update_features([good, bad], answers.append, validate_only=True)
        await w.settle()
        assert [{name: result.code for name, result in a.items()} for a in answers if isinstance(a, dict)] == [
            {"f": ErrorCode.NONE, "g": invalid}
        ]
        assert json.loads(await w.get("/feature") or b"") == node
        assert await update(w, controller, good, bad) == {"f": ErrorCode.NONE, "g": invalid}
        assert await update(w, controller, FeatureUpdate("g", 0, SAFE)) == {"g": ErrorCode.NONE}
        node = json.loads(await w.get("/feature") or b"")
        assert node == {"version": 2, "status": 1, "features": {"f": {"max_version_level": 2}}}
        idle = await w.start_controller(2, supported_features=supported)
        assert await update(w, idle, good) == ApiError(ErrorCode.NOT_CONTROLLER)


async def test_features_that_cannot_be_written(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 11.83
    async with world(brokers=(), features={"f": (1, 5)}) as w:
        controller = await w.start_controller(1, supported_features={"f": (1, 5), "g": (1, 5)})

        async def refused(data: bytes, *, create: bool) -> None:
            await trio.lowlevel.checkpoint()
            raise StoreError("no")

        monkeypatch.setattr(w.nodes[1].zk, "put_feature", refused)
        good, bad = FeatureUpdate("f", 3, SAFE), FeatureUpdate("g", 9, UP)
        assert await update(w, controller, good, bad) == {
            "f": ErrorCode.FEATURE_UPDATE_FAILED,
            "g": ErrorCode.INVALID_REQUEST,
        }
        monkeypatch.undo()
        assert await update(w, controller, good) == {"f": ErrorCode.NONE}  # it was not taken for done


async def test_a_broker_without_a_finalized_feature(autojump_clock: MockClock) -> None:  # rules 4.5, 11.53, 11.83
    async with world(brokers=(), features={"f": (1, 2)}) as w:
        controller = await w.start_controller(1, supported_features={"f": (1, 3)})
        assert controller.context.broker_epochs == {}  # the level finalized at first, 3, is above its own
        w.take()
        await w.create_topic("t", {0: [1]})
        assert w.take() == []
        await w.store.write([SetData("/feature", b'{"version":2,"status":1,"features":{}}'), Delete("/controller")])
        await w.settle()
        assert set(controller.context.broker_epochs) == {1}
        assert await update(w, controller, FeatureUpdate("f", 3, UP)) == {"f": ErrorCode.INVALID_REQUEST}
        assert await update(w, controller, FeatureUpdate("f", 2, UP)) == {"f": ErrorCode.NONE}
        w.features = {}
        await w.start_broker(5)
        await w.settle()
        assert set(controller.context.broker_epochs) == {1}


@pytest.mark.parametrize(
    ("ibp", "before", "after"),
    [
        ("2.6", None, {"version": 1, "status": 0, "features": {}}),
        ("2.6", {"version": 1, "status": 0, "features": {}}, None),
        (
            "2.6",
            {"version": 1, "status": 1, "features": {"f": {"min_version_level": 1, "max_version_level": 2}}},
            {"version": 1, "status": 0, "features": {}},
        ),
        ("2.7", {"version": 1, "status": 1, "features": {"f": {"min_version_level": 1, "max_version_level": 2}}}, None),
        (
            "3.3",
            {"version": 1, "status": 1, "features": {}},
            {"version": 2, "status": 1, "features": {}},
        ),
    ],
)
async def test_the_feature_node_at_failover(
    autojump_clock: MockClock, ibp: str, before: dict[str, object] | None, after: dict[str, object] | None
) -> None:  # rules 4.22-4.24; CI-30..CI-35
    async with world(brokers=(), ibp=MetadataVersion.parse(ibp), features={"f": (1, 2)}) as w:
        if before is not None:
            value((await w.store.write([Create("/feature", json.dumps(before).encode())]))[0])
        await w.start_controller(1)
        stat = (await w.store.exists(["/feature"]))[0]
        assert stat is not None
        assert stat.version == (0 if before is None or after is None else 1)
        assert json.loads(await w.get("/feature") or b"") == (after or before)


@pytest.mark.parametrize(
    ("ibp", "waited"), [("3.9", [(0, 18.0)]), ("2.6", [])], ids=["features are versioned", "they are not"]
)
async def test_a_failover_waits_for_what_it_wrote_of_features(
    autojump_clock: MockClock, ibp: str, waited: list[tuple[int, float]]
) -> None:  # rules 4.22-4.24
    async with world(brokers=(), ibp=MetadataVersion.parse(ibp)) as w:
        seen: list[tuple[int, float]] = []

        async def wait(version: int, timeout_s: float) -> None:
            seen.append((version, timeout_s))
            await trio.sleep(1)

        w.wait_for_features = wait
        controller = await w.start_controller(1)
        assert seen == waited
        assert controller.is_settled == (not waited)
        await trio.sleep(2)
        assert controller.is_settled
        await w.zk.delete_controller(controller.context.epoch_zk_version)
        await w.settle()
        assert controller.context.epoch == 2
        assert seen == waited  # nothing is written the second time


async def test_a_failover_fails_when_its_broker_learns_of_no_features(autojump_clock: MockClock) -> None:  # 4.21, 4.22
    async with world(brokers=()) as w:

        async def wait(version: int, timeout_s: float) -> None:
            await trio.sleep(timeout_s)
            raise TimeoutError

        w.wait_for_features = wait
        controller = await w.start_controller(1)
        assert (controller.context.epoch, controller.failovers) == (1, 0)
        await trio.sleep(18.1)
        # it has resigned, and found in the next election that /feature is as it should be
        assert (controller.context.epoch, controller.failovers) == (2, 1)


async def test_an_update_of_features_that_the_broker_does_not_learn_of(autojump_clock: MockClock) -> None:  # rule 11.83
    async with world(brokers=(), features={"f": (1, 2)}) as w:
        seen: list[tuple[int, float]] = []

        async def wait(version: int, timeout_s: float) -> None:
            seen.append((version, timeout_s))
            if version:
                raise TimeoutError("too late")

        w.wait_for_features = wait
        controller = await w.start_controller(1, supported_features={"f": (1, 2)})
        answers: list[Any] = []
        controller.update_features([FeatureUpdate("f", 1, UpgradeType.SAFE_DOWNGRADE)], answers.append)
        await w.settle()
        assert answers == [{"f": ApiError(ErrorCode.FEATURE_UPDATE_FAILED, "too late")}]
        assert seen == [(0, 18.0), (1, 30.0)]
