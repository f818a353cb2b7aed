"""UF: updates of finalized features (section 14 of docs/controller-semantics.md; rules 1.41, 11.83)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock

from kce.controller.errors import OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.zookeeper import znodes
from kce.zookeeper.model import FeatureUpdate, UpgradeType
from kce.zookeeper.store import Create, value
from tests.controller import requests
from tests.controller.conformance.cluster import data_version
from tests.controller.support import World, world

UP, DOWN = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE
#: of the controller and of the brokers alike
SUPPORTED = {"f": (1, 3), "g": (2, 5)}
Answer = dict[str, ErrorCode] | ErrorCode


@asynccontextmanager
async def cluster(
    finalized: Mapping[str, int], brokers: Mapping[str, tuple[int, int]] = SUPPORTED
) -> AsyncIterator[tuple[World, KafkaController]]:
    """Controller 0 and broker 1, which supports ``brokers``; features that are finalized already."""
    async with world([], features=SUPPORTED) as w:
        node = znodes.encode_feature(2, enabled=True, features=finalized)
        value((await w.store.write([Create(znodes.FEATURE, node)]))[0])
        controller = await w.start_controller(0, supported_features=SUPPORTED)
        w.features = brokers
        await w.start_broker(1)
        await w.settle()
        yield w, controller


async def update(w: World, controller: KafkaController, *updates: tuple[str, int, UpgradeType]) -> Answer:
    answers: list[Any] = []
    requests.update_features(controller, [FeatureUpdate(*u) for u in updates], answers.append)
    await w.settle()
    (answer,) = answers
    if isinstance(answer, OperationResult):
        return answer.code
    return {feature: result.code for feature, result in answer.items()}


async def finalized(w: World) -> tuple[dict[str, int], int]:
    """Levels in /feature, and the version of its data."""
    node = json.loads(await w.get(znodes.FEATURE) or b"")
    assert node["status"] == 1
    levels = {name: entry["max_version_level"] for name, entry in node["features"].items()}
    return levels, await data_version(w, znodes.FEATURE)


async def is_invalid(
    before: Mapping[str, int], change: tuple[str, int, UpgradeType], brokers: Mapping[str, tuple[int, int]] = SUPPORTED
) -> bool:
    """Refused with INVALID_REQUEST, and /feature is as it was."""
    async with cluster(before, brokers) as (w, controller):
        answer = await update(w, controller, change)
        return answer == {change[0]: ErrorCode.INVALID_REQUEST} and await finalized(w) == (before, 0)


@pytest.mark.kafka("UF-1")
async def test_not_the_controller(autojump_clock: MockClock) -> None:
    async with cluster({"f": 1}) as (w, _):
        other = await w.start_controller(2)
        assert await update(w, other, ("f", 2, UP)) == ErrorCode.NOT_CONTROLLER
        assert await finalized(w) == ({"f": 1}, 0)


@pytest.mark.kafka("UF-2")
async def test_a_downgrade_that_does_not_say_so(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 1, UP))


@pytest.mark.kafka("UF-3")
async def test_a_downgrade_to_a_higher_level(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 3, DOWN))


@pytest.mark.kafka("UF-4")
async def test_a_deletion_that_does_not_say_so(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 0, UP))


@pytest.mark.kafka("UF-5")
async def test_a_deletion_of_what_is_not_there(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("g", 0, DOWN))


@pytest.mark.kafka("UF-6")
async def test_an_upgrade_to_the_same_level(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 2, UP))


@pytest.mark.kafka("UF-7")
async def test_a_broker_that_is_too_old_for_the_upgrade(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 3, UP), brokers={"f": (1, 2)})


@pytest.mark.kafka("UF-8")
async def test_a_broker_that_is_too_old_for_a_first_level(autojump_clock: MockClock) -> None:
    assert await is_invalid({}, ("f", 3, UP), brokers={"f": (1, 2)})


@pytest.mark.kafka("UF-9")
async def test_first_levels(autojump_clock: MockClock) -> None:
    async with cluster({}) as (w, controller):
        answer = await update(w, controller, ("f", 3, UP), ("g", 4, UP))
        assert answer == {"f": ErrorCode.NONE, "g": ErrorCode.NONE}
        assert await finalized(w) == ({"f": 3, "g": 4}, 1)


@pytest.mark.kafka("UF-10")
async def test_one_up_and_one_down(autojump_clock: MockClock) -> None:
    async with cluster({"f": 1, "g": 4}) as (w, controller):
        answer = await update(w, controller, ("f", 3, UP), ("g", 2, DOWN))
        assert answer == {"f": ErrorCode.NONE, "g": ErrorCode.NONE}
        assert await finalized(w) == ({"f": 3, "g": 2}, 1)


@pytest.mark.kafka("UF-11")
async def test_a_valid_upgrade_beside_an_invalid_downgrade(autojump_clock: MockClock) -> None:
    async with cluster({"f": 1, "g": 4}) as (w, controller):
        answer = await update(w, controller, ("f", 3, UP), ("g", 2, UP))
        assert answer == {"f": ErrorCode.NONE, "g": ErrorCode.INVALID_REQUEST}
        assert await finalized(w) == ({"f": 3, "g": 4}, 1)


@pytest.mark.kafka("UF-12")
async def test_an_invalid_upgrade_beside_a_valid_downgrade(autojump_clock: MockClock) -> None:
    async with cluster({"f": 1, "g": 4}) as (w, controller):
        answer = await update(w, controller, ("f", 9, UP), ("g", 2, DOWN))
        assert answer == {"f": ErrorCode.INVALID_REQUEST, "g": ErrorCode.NONE}
        assert await finalized(w) == ({"f": 1, "g": 2}, 1)
