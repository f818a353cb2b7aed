"""FFC and FFL: what a broker knows of finalized features, and how it learns of them (section 14 of
docs/controller-semantics.md; rules 1.41, 2.1, 4.22)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import wire
from broker_stub.finalized_features import FeatureCacheUpdateFailed, FinalizedFeatureCache
from broker_stub.handlers.kafka_apis import served_apis
from controller import zk_data
from controller.kafka_zk_client import KafkaZkClient
from controller.store import Delete
from controller.store.memory import MemoryStore, MemoryZooKeeper
from harness import Cluster, HarnessError
from harness.feature_listener import FinalizedFeatureChangeListener
from harness.transport import Dialer

SUPPORTED = {"f": (1, 4)}


@pytest.mark.kafka("FFC-1")
def test_nothing_is_known_at_first() -> None:
    assert FinalizedFeatureCache(SUPPORTED).current is None


@pytest.mark.kafka("FFC-2")
def test_an_older_epoch_is_refused() -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    cache.update({"f": 3}, 10)
    with pytest.raises(FeatureCacheUpdateFailed, match="epoch 9 is older than 10"):
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
def test_features_are_kept() -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    cache.update({"f": 3}, 12)
    assert cache.current == ({"f": 3}, 12)


@pytest.mark.kafka("FFC-5")
def test_features_are_forgotten() -> None:
    cache = FinalizedFeatureCache(SUPPORTED)
    cache.update({"f": 3}, 12)
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
        data = zk_data.encode_feature(2, enabled=enabled, features=features)
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
        for level in (3, 4):
            await f.put({"f": level})
            assert f.cache.current == ({"f": level}, level - 2)


@pytest.mark.kafka("FFL-2")
async def test_features_whose_node_is_deleted(f: Fixture) -> None:
    await f.put({"f": 2})
    async with f.listening():
        await f.store.write([Delete(zk_data.FEATURE)])
        await wait_all_tasks_blocked()
        assert f.cache.current is None


@pytest.mark.kafka("FFL-3")
async def test_features_that_are_disabled(f: Fixture) -> None:
    await f.put({"f": 2})
    async with f.listening():
        await f.put({}, enabled=False)
        assert f.cache.current is None


@pytest.mark.kafka("FFL-4")
async def test_a_version_that_never_comes(f: Fixture, autojump_clock: MockClock) -> None:  # rule 4.22
    await f.put({"f": 2})
    async with f.listening():
        await f.cache.wait_until_epoch(0, 5)
        with pytest.raises(TimeoutError, match="epoch 1 of the features was not seen within 5 s, only 0"):
            await f.cache.wait_until_epoch(1, 5)
        assert trio.current_time() == pytest.approx(5)


async def test_a_version_that_comes(f: Fixture) -> None:  # rule 4.22
    async with f.listening(), trio.open_nursery() as nursery:
        nursery.start_soon(f.cache.wait_until_epoch, 1, 5)
        await f.put({"f": 2})
        assert nursery.child_tasks
        await f.put({"f": 3})
        assert not nursery.child_tasks


@pytest.mark.kafka("FFL-5")
async def test_features_that_are_not_supported_at_the_start(f: Fixture) -> None:
    await f.put({"f": 5})
    with pytest.RaisesGroup(pytest.RaisesExc(HarnessError, match="/feature cannot be followed: .* not support")):
        async with f.listening():
            pass


@pytest.mark.kafka("FFL-6")
async def test_less_than_no_time_to_wait(f: Fixture) -> None:
    with pytest.raises(ValueError, match="-1 s cannot be waited"):
        await f.cache.wait_until_epoch(0, -1)


@pytest.mark.kafka("FFL-7")
async def test_features_that_are_no_longer_supported(f: Fixture) -> None:
    await f.put({"f": 4})
    with pytest.RaisesGroup(pytest.RaisesExc(HarnessError, match="/feature cannot be followed: .* not support")):
        async with f.listening():
            await f.put({"f": 5})
            await trio.sleep_forever()


async def test_features_are_followed_in_the_next_session(f: Fixture) -> None:
    await f.put({"f": 2})
    async with f.listening():
        f.server.disconnect(f.store)
        f.server.expire(f.store)
        await wait_all_tasks_blocked()
        await f.put({"f": 3})
        assert f.cache.current == ({"f": 3}, 1)


def test_clients_are_told() -> None:  # rule B1.40
    cache = FinalizedFeatureCache(SUPPORTED)
    apis = served_apis(features=cache)

    def told() -> wire.ApiVersionsResponse:
        _, message = wire.decode_response(apis.encoded_response(4), api_key=18, api_version=4)
        assert isinstance(message, wire.ApiVersionsResponse)
        return message

    assert (told().finalized_features_epoch, told().finalized_features) == (-1, ())
    cache.update({"f": 3}, 7)
    assert told().finalized_features_epoch == 7
    assert [(key.name, key.max_version_level) for key in told().finalized_features] == [("f", 3)]
    cache.clear()
    assert told().finalized_features_epoch == -1


@pytest.mark.slow
async def test_a_node_knows_what_its_controller_wrote(zookeeper: str) -> None:  # rules 4.22, B1.40
    async with Cluster(brokers=1, zookeeper=f"{zookeeper}/features") as cluster:
        await cluster.wait_for_controller()
        host, _, port = cluster.bootstrap_servers().rpartition(":")
        connection = await Dialer()(host, int(port))
        request = wire.ApiVersionsRequest(client_software_name="kce", client_software_version="1")
        await connection.send_frame(wire.encode_request(request, api_version=3, correlation_id=1, client_id="test"))
        _, answer = wire.decode_response(await connection.receive_frame(), api_key=18, api_version=3)
        await connection.aclose()
        assert isinstance(answer, wire.ApiVersionsResponse)
        assert (answer.finalized_features_epoch, answer.finalized_features) == (0, ())
