"""FFC and FFL: the cache of finalized features and its listener (section 14 of docs/controller-semantics.md; rules
1.41, 2.1, 4.22)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.errors import BrokerFailure
from kce.broker_stub.finalized_features import FeatureCacheUpdateFailed, FinalizedFeatureCache
from kce.broker_stub.handlers.kafka_apis import served_apis
from kce.broker_stub.zookeeper.feature_listener import FinalizedFeatureChangeListener
from kce.harness import Cluster
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import Delete
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.clusters import request

SUPPORTED = {"f": (1, 4), "g": (1, 3)}


@pytest.mark.kafka("FFC-1")
def test_a_new_cache_is_empty() -> None:
    assert FinalizedFeatureCache(SUPPORTED).current is None


@pytest.mark.kafka("FFC-2")
def test_an_older_epoch_is_refused() -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    cache.update({"f": 3}, 10)
    assert cache.current == ({"f": 3}, 10)
    with pytest.raises(FeatureCacheUpdateFailed, match="epoch 9 is older than the known epoch 10"):
        cache.update({"f": 4}, 9)
    assert cache.current == ({"f": 3}, 10)
    cache.update({"f": 4}, 10)
    assert cache.current == ({"f": 4}, 10)


@pytest.mark.kafka("FFC-3")
@pytest.mark.parametrize("features", [{"f": 5}, {"f": 1, "unknown": 1}])
def test_features_that_are_not_supported_are_refused(features: dict[str, int]) -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    with pytest.raises(FeatureCacheUpdateFailed, match="does not support"):
        cache.update(features, 10)
    assert cache.current is None


@pytest.mark.kafka("FFC-4")
def test_features_are_cached() -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    cache.update({"f": 3}, 12)
    assert cache.current == ({"f": 3}, 12)


@pytest.mark.kafka("FFC-5")
def test_the_cache_can_be_cleared() -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    cache.update({"f": 3}, 12)
    assert cache.current == ({"f": 3}, 12)
    cache.clear()
    assert cache.current is None


class Fixture:
    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.store: MemoryStore = self.server.connect()
        self.zk = KafkaZkClient(self.store, now_ms=lambda: 0)
        self.cache = FinalizedFeatureCache(SUPPORTED)
        self.listener = FinalizedFeatureChangeListener(self.zk, self.cache)
        self.store.on_session = self.listener.session_changed
        self._exists = False

    async def put(self, features: dict[str, int], *, enabled: bool = True) -> None:
        data = cluster_nodes.encode_feature(2, enabled=enabled, features=features)
        await self.zk.put_feature(data, create=not self._exists)
        self._exists = True
        await wait_all_tasks_blocked()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.listener.run)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def f() -> Fixture:
    return Fixture()


@pytest.mark.kafka("FFL-1")
async def test_features_are_read_at_the_start_and_when_they_change(f: Fixture) -> None:
    async with f.listening():
        assert f.cache.current is None
        await f.put({"f": 2})
        assert f.cache.current == ({"f": 2}, 0)
    f.cache.clear()
    async with f.listening():
        assert f.cache.current == ({"f": 2}, 0)
        for version, features in enumerate(({"f": 4}, {"f": 4, "g": 3}), 1):
            await f.put(features)
            await f.cache.wait_until_epoch(version, 5)
            assert f.cache.current == (features, version)


@pytest.mark.kafka("FFL-2")
async def test_deleting_the_node_clears_the_cache(f: Fixture) -> None:
    await f.put({"f": 2})
    async with f.listening():
        assert f.cache.current == ({"f": 2}, 0)
        await f.store.write([Delete(znodes.FEATURE)])
        await wait_all_tasks_blocked()
        assert f.cache.current is None
        f._exists = False
        await f.put({"f": 3})
        assert f.cache.current == ({"f": 3}, 0)  # it listens still


@pytest.mark.kafka("FFL-3")
async def test_disabled_features_clear_the_cache(f: Fixture) -> None:
    await f.put({"f": 2})
    async with f.listening():
        assert f.cache.current == ({"f": 2}, 0)
        await f.put({}, enabled=False)
        assert f.cache.current is None


@pytest.mark.kafka("FFL-4")
async def test_waiting_for_an_epoch_times_out(f: Fixture, autojump_clock: MockClock) -> None:  # rule 4.22
    await f.put({"f": 2})
    async with f.listening():
        await f.cache.wait_until_epoch(0, 5)
        with pytest.raises(TimeoutError, match="feature epoch 1 did not arrive within 5 s; the latest is 0"):
            await f.cache.wait_until_epoch(1, 5)
        assert trio.current_time() == pytest.approx(5)
        await f.put({}, enabled=False)
        with pytest.raises(TimeoutError, match="feature epoch 1 did not arrive within 5 s; the latest is None"):
            await f.cache.wait_until_epoch(1, 5)
        assert f.cache.current is None


async def test_waiting_for_an_epoch_ends_when_it_arrives(f: Fixture) -> None:  # rule 4.22
    async with f.listening(), trio.open_nursery() as nursery:
        nursery.start_soon(f.cache.wait_until_epoch, 1, 5)
        await f.put({"f": 2})
        assert nursery.child_tasks
        await f.put({"f": 3})
        assert not nursery.child_tasks


@pytest.mark.kafka("FFL-5")
async def test_unsupported_features_fail_the_start(f: Fixture) -> None:
    await f.put({"f": 5})
    with pytest.RaisesGroup(pytest.RaisesExc(BrokerFailure, match="/feature cannot be followed: .* not support")):
        async with f.listening():
            pass
    assert f.cache.current is None


async def test_a_negative_timeout_is_refused(f: Fixture) -> None:
    with pytest.raises(ValueError, match="the timeout -1 s is negative"):
        await f.cache.wait_until_epoch(0, -1)


@pytest.mark.kafka("FFL-7")
async def test_unsupported_features_fail_a_running_listener(f: Fixture) -> None:
    await f.put({"f": 4})
    with pytest.RaisesGroup(pytest.RaisesExc(BrokerFailure, match="/feature cannot be followed: .* not support")):
        async with f.listening():
            assert f.cache.current == ({"f": 4}, 0)
            await f.put({"f": 5})
            await trio.sleep_forever()
    assert f.cache.current == ({"f": 4}, 0)


async def test_features_are_followed_in_the_next_session(f: Fixture) -> None:
    await f.put({"f": 2})
    async with f.listening():
        f.server.disconnect(f.store)
        f.server.expire(f.store)
        await wait_all_tasks_blocked()
        await f.put({"f": 3})
        assert f.cache.current == ({"f": 3}, 1)


def test_api_versions_has_the_finalized_features() -> None:  # rule B1.40
    cache = FinalizedFeatureCache(SUPPORTED)
    apis = served_apis(features=cache)

    def response() -> wire.ApiVersionsResponse:
        _, message = wire.decode_response(apis.encoded_response(4), api_key=18, api_version=4)
        assert isinstance(message, wire.ApiVersionsResponse)
        return message

    assert (response().finalized_features_epoch, response().finalized_features) == (-1, ())
    cache.update({"f": 3}, 7)
    assert response().finalized_features_epoch == 7
    assert [(key.name, key.max_version_level) for key in response().finalized_features] == [("f", 3)]
    cache.clear()
    assert response().finalized_features_epoch == -1


@pytest.mark.slow
async def test_a_node_has_the_features_that_its_controller_wrote(zookeeper: str) -> None:  # rules 4.22, B1.40
    async with Cluster(brokers=1, zookeeper=f"{zookeeper}/features") as cluster:
        controller = await cluster.wait_for_controller()

        async def failover_is_over() -> bool:  # an election comes before the failover that writes /feature
            return (await cluster.node_status(controller.id)).controller_epoch == controller.epoch

        await cluster.wait_until(failover_is_over, "the failover to end")
        message = wire.ApiVersionsRequest(client_software_name="kce", client_software_version="1")
        answer = await request(cluster.bootstrap_servers(), message, 3)
        assert isinstance(answer, wire.ApiVersionsResponse)
        assert (answer.finalized_features_epoch, answer.finalized_features) == (0, ())


@pytest.mark.parametrize("version", [1, 2])
def test_levels_in_the_node(version: int) -> None:  # rule 1.41
    def node(level: object, lowest: int = 1) -> bytes:
        entry = {"min_version_level": lowest, "max_version_level": level}
        return json.dumps({"version": version, "status": 1, "features": {"f": entry}}).encode()

    for level in (1, 2**15 - 1):
        assert cluster_nodes.decode_feature(node(level)) == (True, {"f": level})
    for bad in (node(0), node(2**15), *([node(1, 0), node(2**15, 2**15), node(2, 3)] if version == 1 else [])):
        with pytest.raises(znodes.BadZNode):
            cluster_nodes.decode_feature(bad)
