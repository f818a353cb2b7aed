"""UF: updates of finalized features (section 14 of docs/controller-semantics.md; rules 1.41, 11.83)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.finalized_features import FinalizedFeatureCache
from kce.broker_stub.handlers.kafka_apis import served_apis
from kce.broker_stub.zookeeper.feature_listener import FinalizedFeatureChangeListener
from kce.controller.errors import OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import FeatureUpdate, UpgradeType
from kce.zookeeper.store import Create, value
from tests.controller import requests
from tests.controller.conformance.cluster import data_version
from tests.controller.conformance.served import serve
from tests.controller.support import World, world

UP, DOWN = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE
#: of the controller and of the brokers alike
SUPPORTED = {"f": (1, 3), "g": (2, 5)}


class Cluster:
    """Controller 0, broker 1, and broker 2, which perhaps supports less. ``seen``: what a client learns."""

    def __init__(self, w: World, controller: KafkaController) -> None:
        self.w = w
        self.controller = controller
        self.seen = FinalizedFeatureCache(SUPPORTED)

    async def update(self, *updates: tuple[str, int, UpgradeType]) -> dict[str, OperationResult] | OperationResult:
        answers: list[Any] = []
        requests.update_features(self.controller, [FeatureUpdate(*u) for u in updates], answers.append)
        await self.w.settle()
        (answer,) = answers
        return answer  # type: ignore[no-any-return]

    async def finalized(self) -> tuple[dict[str, int], int]:
        """Levels in /feature, and the version of its data; a broker says the same."""
        node = json.loads(await self.w.get(znodes.FEATURE) or b"")
        assert (node["version"], node["status"]) == (2, 1)
        levels = {name: entry["max_version_level"] for name, entry in node["features"].items()}
        version = await data_version(self.w, znodes.FEATURE)
        _, found = wire.decode_response(served_apis(features=self.seen).encoded_response(4), api_key=18, api_version=4)
        assert isinstance(found, wire.ApiVersionsResponse)
        assert {key.name: key.max_version_level for key in found.finalized_features} == levels
        assert found.finalized_features_epoch == version
        return levels, version


@asynccontextmanager
async def cluster(
    finalized: Mapping[str, int], one_broker: Mapping[str, tuple[int, int]] = SUPPORTED
) -> AsyncIterator[Cluster]:
    """Some features are finalized already."""
    async with world([], features=SUPPORTED) as w, trio.open_nursery() as nursery:
        node = cluster_nodes.encode_feature(2, enabled=True, features=finalized)
        value((await w.store.write([Create(znodes.FEATURE, node)]))[0])
        made = Cluster(w, await w.start_controller(0, supported_features=SUPPORTED))
        await w.start_broker(1)
        w.features = one_broker
        await w.start_broker(2)
        await nursery.start(FinalizedFeatureChangeListener(w.zk, made.seen).run)
        await w.settle()
        yield made
        nursery.cancel_scope.cancel()


def codes(answer: dict[str, OperationResult] | OperationResult) -> dict[str, ErrorCode]:
    assert isinstance(answer, dict)
    return {feature: result.code for feature, result in answer.items()}


async def is_invalid(
    before: Mapping[str, int],
    change: tuple[str, int, UpgradeType],
    why: str,
    one_broker: Mapping[str, tuple[int, int]] = SUPPORTED,
) -> bool:
    """Refused with INVALID_REQUEST and a reason that matches upstream's pattern, and /feature is as it was."""
    async with cluster(before, one_broker) as c:
        answer = await c.update(change)
        assert isinstance(answer, dict)
        (refused,) = answer.values()
        assert refused.code is ErrorCode.INVALID_REQUEST
        assert re.search(why, refused.message or "")
        return await c.finalized() == (before, 0)


@pytest.mark.kafka("UF-1")
async def test_not_the_controller(autojump_clock: MockClock) -> None:
    async with cluster({"f": 2}) as c:
        await c.w.start_controller(3)
        updates = (wire.FeatureUpdateKey(feature="f", max_version_level=3),)
        answer = await serve(c.w, 3).ask(wire.UpdateFeaturesRequest(feature_updates=updates))
        assert (answer.error_code, answer.results) == (ErrorCode.NOT_CONTROLLER, ())
        assert answer.error_message
        assert await c.finalized() == ({"f": 2}, 0)


NO_DOWNGRADE = r"Can not downgrade finalized feature from existing versionLevel:\d+ to provided versionLevel:\d+"


@pytest.mark.kafka("UF-2")
async def test_a_downgrade_that_does_not_say_so(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 1, UP), NO_DOWNGRADE)


@pytest.mark.kafka("UF-3")
async def test_a_downgrade_to_a_higher_level(autojump_clock: MockClock) -> None:
    why = r"When the downgradeType is set to SAFE in the request, the provided versionLevel:3.*existing versionLevel:2"
    assert await is_invalid({"f": 2}, ("f", 3, DOWN), why)


@pytest.mark.kafka("UF-4")
async def test_a_deletion_that_does_not_say_so(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 0, UP), "Can not provide versionLevel: 0 less than 1")


@pytest.mark.kafka("UF-5")
async def test_a_downgrade_of_what_nobody_supports(autojump_clock: MockClock) -> None:
    why = "Could not apply finalized feature update because the provided feature is not supported"
    assert await is_invalid({"f": 2}, ("nope", 3, DOWN), why)


async def test_a_deletion_of_what_is_not_there(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("g", 0, DOWN), "Can not delete non-existing finalized feature")


@pytest.mark.kafka("UF-6")
async def test_an_upgrade_to_the_same_level(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 2, UP), "Can not upgrade a finalized feature.*to the same value")


TOO_OLD = r"brokers.*incompatible.*: \[2\] do not support versionLevel 3"


@pytest.mark.kafka("UF-7")
async def test_a_broker_that_is_too_old_for_the_upgrade(autojump_clock: MockClock) -> None:
    assert await is_invalid({"f": 2}, ("f", 3, UP), TOO_OLD, one_broker={"f": (1, 2)})


@pytest.mark.kafka("UF-8")
async def test_a_broker_that_is_too_old_for_a_first_level(autojump_clock: MockClock) -> None:
    assert await is_invalid({}, ("f", 3, UP), TOO_OLD, one_broker={"f": (1, 2)})


@pytest.mark.kafka("UF-9")
async def test_first_levels(autojump_clock: MockClock) -> None:
    async with cluster({}) as c:
        answer = await c.update(("f", 3, UP), ("g", 3, UP))
        assert codes(answer) == {"f": ErrorCode.NONE, "g": ErrorCode.NONE}
        assert await c.finalized() == ({"f": 3, "g": 3}, 1)


@pytest.mark.kafka("UF-10")
async def test_one_up_and_one_down(autojump_clock: MockClock) -> None:
    async with cluster({"f": 2, "g": 4}) as c:
        answer = await c.update(("f", 3, UP), ("g", 3, DOWN))
        assert codes(answer) == {"f": ErrorCode.NONE, "g": ErrorCode.NONE}
        assert await c.finalized() == ({"f": 3, "g": 3}, 1)


@pytest.mark.kafka("UF-11")
async def test_a_valid_upgrade_beside_an_invalid_downgrade(autojump_clock: MockClock) -> None:
    async with cluster({"f": 2, "g": 4}) as c:
        answer = await c.update(("f", 3, UP), ("g", 3, UP))
        assert codes(answer) == {"f": ErrorCode.NONE, "g": ErrorCode.INVALID_REQUEST}
        assert isinstance(answer, dict)
        assert re.search(NO_DOWNGRADE, answer["g"].message or "")
        assert await c.finalized() == ({"f": 3, "g": 4}, 1)


@pytest.mark.kafka("UF-12")
async def test_an_invalid_upgrade_beside_a_valid_downgrade(autojump_clock: MockClock) -> None:
    async with cluster({"f": 2, "g": 4}, one_broker={**SUPPORTED, "f": (1, 2)}) as c:
        answer = await c.update(("f", 3, UP), ("g", 3, DOWN))
        assert codes(answer) == {"f": ErrorCode.INVALID_REQUEST, "g": ErrorCode.NONE}
        assert isinstance(answer, dict)
        assert re.search(TOO_OLD, answer["f"].message or "")
        assert await c.finalized() == ({"f": 2, "g": 3}, 1)
