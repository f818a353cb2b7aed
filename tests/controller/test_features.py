"""Finalized features (rules 4.17-4.25, 11.83)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller.errors import OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper.model import FeatureUpdate, UpgradeType
from kce.zookeeper.store import Create, Delete, SetData, StoreError, value
from tests.controller import requests
from tests.controller.support import World, world

UP, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


async def update(
    w: World, controller: KafkaController, *updates: FeatureUpdate
) -> dict[str, ErrorCode] | OperationResult:
    answers: list[dict[str, OperationResult] | OperationResult] = []
    requests.update_features(controller, updates, answers.append)
    await w.settle()
    (answer,) = answers
    if isinstance(answer, OperationResult):
        return answer
    assert all(bool(result.message) == (result.code is not ErrorCode.NONE) for result in answer.values())
    return {name: result.code for name, result in answer.items()}


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
        answers: list[dict[str, OperationResult] | OperationResult] = []
        requests.update_features(controller, [good, bad], answers.append, validate_only=True)
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
        assert await update(w, idle, good) == OperationResult(ErrorCode.NOT_CONTROLLER)


async def test_an_answer_to_an_update_of_features(autojump_clock: MockClock) -> None:  # rule 11.83
    async with world(brokers=(), features={"f": (1, 5)}) as w:
        controller = await w.start_controller(1, supported_features={"f": (1, 5)})
        answers: list[wire.Message | None] = []
        for level in (3, 9):
            key = wire.FeatureUpdateKey(feature="f", max_version_level=level, upgrade_type=2)
            controller.submit(wire.UpdateFeaturesRequest(feature_updates=(key,)), 1, answers.append)
        await w.settle()
        for answer, code in zip(answers, (ErrorCode.NONE, ErrorCode.INVALID_REQUEST), strict=True):
            assert isinstance(answer, wire.UpdateFeaturesResponse)
            assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
            (result,) = answer.results
            assert (result.feature, result.error_code, bool(result.error_message)) == (
                "f",
                code,
                code is not ErrorCode.NONE,
            )


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
        requests.update_features(controller, [FeatureUpdate("f", 1, UpgradeType.SAFE_DOWNGRADE)], answers.append)
        await w.settle()
        assert answers == [{"f": OperationResult(ErrorCode.FEATURE_UPDATE_FAILED, "too late")}]
        assert seen == [(0, 18.0), (1, 30.0)]


async def test_features_that_cannot_be_read_any_more(autojump_clock: MockClock) -> None:  # rule 4.22
    """What was finalized before the last failover does not count."""
    async with world(brokers=(), features={"f": (1, 5)}) as w:
        controller = await w.start_controller(1, supported_features={"f": (1, 5)})
        assert await update(w, controller, FeatureUpdate("f", 3, UP)) == {"f": ErrorCode.INVALID_REQUEST}
        await w.store.write([SetData("/feature", b"rubbish"), Delete("/controller")])
        await w.settle()
        assert controller.context.epoch == 2
        assert await update(w, controller, FeatureUpdate("f", 3, UP)) == {"f": ErrorCode.NONE}
