"""AZC: what administrators write into ZooKeeper (section 14 of docs/controller-semantics.md; rules of sections 10a
to 10c; 1.35)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.quotas.client_quota import UNLIMITED as NO_LIMIT
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.zookeeper.config_changes import ConfigChangeListener
from kce.wire import ErrorCode
from kce.zookeeper import admin, client_configs, znodes
from kce.zookeeper.assignment import RackAwareMode
from kce.zookeeper.model import ReplicaAssignment
from kce.zookeeper.store import Create, value
from kce.zookeeper.topic_plans import AdminError
from tests.controller.conformance.bench import ids
from tests.controller.support import World, world
from tests.zookeeper.conformance.topics import BROKERS, create, placed, refusal


@pytest.mark.kafka("AZC-1")
async def test_invalid_assignments(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world(BROKERS) as w:
        for assignment in (
            {0: []},
            {0: [0, 0]},
            {0: [0, 1], 1: [0]},
            {0: [0, 1], 1: []},
            {1: [0, 1]},
            {0: [0, 1], 2: [1, 2]},
            {1: [1, 2], 2: [1, 2]},
            {0: [1, 2], 3: [1, 2]},
            {-1: [0, 1]},
            {-1: [1, 2], 1: [1, 2], 2: [1, 2], 4: [1, 2]},
            {},
        ):
            assert await refusal(w, "t", assignment) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await create(w, "t", {0: [0, 1, 2], 1: [1, 2, 3]})
        found = (await w.zk.get_topic_assignments(["t"]))["t"].partitions
        assert found == {0: ReplicaAssignment(ids(0, 1, 2)), 1: ReplicaAssignment(ids(1, 2, 3))}


@pytest.mark.kafka("AZC-2")
async def test_creation(autojump_clock: MockClock) -> None:  # rules 10.5, 10.7
    async with world(BROKERS) as w:
        assignment = {p: [p % 4, (p + 1) % 4, (p + 3) % 4] for p in range(12)}
        await create(w, "t", assignment)
        assert await placed(w, "t") == {p: tuple(replicas) for p, replicas in assignment.items()}
        assert await refusal(w, "t", assignment) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.kafka("AZC-3")
async def test_names_that_collide(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world(BROKERS) as w:
        await admin.create_topic(w.zk, "foo.bar", partitions=3, random=Random(0))
        assert await refusal(w, "foo_bar", {0: [0]}) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.kafka("AZC-4")
async def test_a_topic_that_is_being_deleted(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world(BROKERS) as w:
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        assert await refusal(w, "t", {0: [0]}) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.kafka("AZC-5")
async def test_a_lost_race(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 10.7
    async with world(BROKERS) as w:
        check = admin.check_new_topic

        async def checked_too_early(*args: object) -> None:
            await check(*args)  # type: ignore[arg-type]
            winner = znodes.encode_topic(None, {0: ReplicaAssignment(ids(3))})
            value((await w.store.write([Create(znodes.topic_path("t"), winner)]))[0])

        monkeypatch.setattr(admin, "check_new_topic", checked_too_early)
        with pytest.raises(AdminError) as refused:
            await create(w, "t", {0: [0]})
        assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await placed(w, "t") == {0: (3,)}


@pytest.mark.kafka("AZC-6")
async def test_two_at_once(autojump_clock: MockClock) -> None:  # rule 10.7
    async with world(BROKERS) as w:
        refused: list[ErrorCode] = []
        config = {"min.insync.replicas": "2"}

        async def attempt(seed: int) -> None:
            try:
                await admin.create_topic(w.zk, "t", partitions=3, config=config, random=Random(seed))
            except AdminError as e:
                refused.append(e.code)
            assert [len(replicas) for replicas in (await placed(w, "t")).values()] == [1, 1, 1]
            assert await w.zk.get_config("topics", "t") == config

        async with trio.open_nursery() as nursery:
            for seed in (0, 1):
                nursery.start_soon(attempt, seed)
        assert refused == [ErrorCode.TOPIC_ALREADY_EXISTS]


async def changed(w: World, kind: str, name: str, config: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    """(path of the configuration, content of the notification) after a change."""
    await w.start_controller(0)
    w.nodes[0].zk.unregister_child_handler(znodes.CONFIG_CHANGES)
    await w.zk.change_config(kind, name, config)
    await w.settle()
    (notification,) = await w.zk.get_children(znodes.CONFIG_CHANGES)
    assert notification.startswith("config_change_")
    path = f"/config/{kind}/{name}"
    assert json.loads(await w.get(path) or b"") == {"version": 1, "config": dict(config)}
    assert await w.zk.get_config(kind, name) == config
    return path, json.loads(await w.get(f"{znodes.CONFIG_CHANGES}/{notification}") or b"")


@pytest.mark.parametrize("broker", ["1", znodes.DEFAULT_ENTITY])
async def test_broker_configuration(autojump_clock: MockClock, broker: str) -> None:  # rules 1.34, 1.35
    async with world([]) as w:
        throttles = {"leader.replication.throttled.rate": "100000", "follower.replication.throttled.rate": "100000"}
        path, notification = await changed(w, "brokers", broker, throttles)
        assert path == f"/config/brokers/{broker}"
        assert notification == {"version": 2, "entity_path": f"brokers/{broker}"}
        doubled = {key: str(2 * int(value)) for key, value in throttles.items()}
        for config in (doubled, {}):
            await w.zk.change_config("brokers", broker, config)
            assert await w.zk.get_config("brokers", broker) == config


QUOTA = {"producer_byte_rate": "1000"}


@pytest.mark.kafka("AZC-9")
async def test_configuration_of_clients_that_is_there_at_the_start(autojump_clock: MockClock) -> None:  # rule B8.9
    async with world([]) as w:
        await w.zk.put_config("clients", znodes.DEFAULT_ENTITY, {"producer_byte_rate": "2000"})
        await w.zk.put_config("clients", "my%20client", {"producer_byte_rate": "1000", "consumer_byte_rate": "3000"})
        await w.zk.put_config("users", "ANONYMOUS", {"SCRAM-SHA-256": "salt=,iterations=1"})
        await w.zk.put_config("users", "ANONYMOUS/clients/of%20mine", {"producer_byte_rate": "10"})
        quotas = ClientQuotas()
        configs = ConfigChangeListener(w.zk, 1, static_unclean=False, on_client_config=quotas.changed)
        await configs.read()

        def limit(client_id: str, key: str = "producer_byte_rate") -> float | None:
            quota = quotas.produce if key == "producer_byte_rate" else quotas.fetch
            limit = quota.limit_of("ANONYMOUS", client_id)
            return None if limit == NO_LIMIT else limit

        assert (limit("my client"), limit("other"), limit("of mine")) == (1000, 2000, 10)
        assert (limit("my client", "consumer_byte_rate"), limit("other", "consumer_byte_rate")) == (3000, None)
        await w.start_controller(0)
        await w.zk.change_config("clients", "my%20client", {"consumer_byte_rate": "4000"})
        await configs.read_notifications()
        assert (limit("my client"), limit("my client", "consumer_byte_rate")) == (2000, 4000)


@pytest.mark.kafka("AZC-10")
async def test_racks_that_are_heeded(autojump_clock: MockClock) -> None:  # rules 10.15, 10.17
    async with world([]) as w:
        for broker_id, rack in {0: "a", 1: "b", 2: "c", 3: "c", 5: None}.items():
            await w.start_broker(broker_id, rack)

        async def heeded(mode: RackAwareMode, among: Sequence[int] | None = None) -> dict[int, str | None]:
            return await admin.get_brokers_with_racks(w.zk, mode, among)

        with pytest.raises(AdminError, match=r"brokers \[5\] have no rack, others have one"):
            await heeded(RackAwareMode.ENFORCED)
        for mode in (RackAwareMode.DISABLED, RackAwareMode.SAFE):
            assert await heeded(mode) == dict.fromkeys([0, 1, 2, 3, 5])
        for mode in (RackAwareMode.ENFORCED, RackAwareMode.SAFE):
            assert await heeded(mode, [2, 1, 0]) == {0: "a", 1: "b", 2: "c"}
        assert await heeded(RackAwareMode.DISABLED, [0, 1]) == {0: None, 1: None}
        assert await heeded(RackAwareMode.ENFORCED, [5]) == {5: None}
        with pytest.raises(AdminError):
            await admin.create_topic(w.zk, "t", random=Random(0))
        await admin.create_topic(w.zk, "t", replication_factor=5, rack_aware_mode=RackAwareMode.SAFE, random=Random(0))
        assert sorted((await placed(w, "t"))[0]) == [0, 1, 2, 3, 5]


@pytest.mark.kafka("AZC-11")
async def test_configuration_of_a_client_of_a_user(autojump_clock: MockClock) -> None:  # rules 1.35, B8.15
    async with world([]) as w:
        path, notification = await changed(w, "users", "u/clients/c", QUOTA)
        assert path == "/config/users/u/clients/c"
        assert notification == {"version": 2, "entity_path": "users/u/clients/c"}
        await client_configs.change(w.zk, "users", "u/clients/c", {})
        assert await w.zk.get_children("/config/users") == []
        await client_configs.change(w.zk, "users", "u", QUOTA)
        assert await w.zk.get_config("users", "u") == QUOTA
        await client_configs.change(w.zk, "users", "u/clients/c", QUOTA)
        assert await w.zk.get_config("users", "u/clients/c") == QUOTA
        await client_configs.change(w.zk, "users", "u/clients/c", {})
        assert await w.zk.get_children("/config/users") == ["u"]
        assert await w.zk.get_config("users", "u") == QUOTA


@pytest.mark.parametrize(
    ("kind", "name", "config"),
    [
        pytest.param("users", "u", QUOTA, marks=pytest.mark.kafka("AZC-12")),
        pytest.param("clients", "c", QUOTA, marks=pytest.mark.kafka("AZC-13")),
        pytest.param("ips", "127.0.0.1", {"connection_creation_rate": "10"}, marks=pytest.mark.kafka("AZC-14")),
    ],
)
async def test_configuration_of_a_client(
    kind: str, name: str, config: dict[str, str], autojump_clock: MockClock
) -> None:  # rules 1.35, B8.15
    async with world([]) as w:
        path, notification = await changed(w, kind, name, config)
        assert path == f"/config/{kind}/{name}"
        assert notification == {"version": 2, "entity_path": f"{kind}/{name}"}
        await client_configs.change(w.zk, kind, name, {})
        assert await w.zk.get_children(f"/config/{kind}") == []
        await w.settle()
        assert len(await w.zk.get_children(znodes.CONFIG_CHANGES)) == 2  # brokers are told of that, too
