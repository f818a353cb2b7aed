"""ADD and AZC: what administrators write into ZooKeeper (section 14 of docs/controller-semantics.md; rules of sections
10a to 10c; 1.35)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random

import pytest
import trio
from trio.testing import MockClock

from broker_stub.client_quotas import ClientQuotas
from controller import admin, zk_data
from controller.admin import AdminError
from controller.assignment import RackAwareMode
from controller.config_changes import ConfigChanges
from controller.model import BrokerId, ReplicaAssignment, TopicPartition
from controller.store import Create, value
from tests.controller.conformance.bench import ids
from tests.controller.support import World, world
from wire import ErrorCode

BROKERS = [0, 1, 2, 3]


async def create(w: World, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    await admin.create_topic(w.zk, topic, assignment=assignment, random=Random(0))
    await w.settle()


async def refusal(w: World, topic: str, assignment: Mapping[int, Sequence[int]]) -> ErrorCode:
    """Why the topic is not created; nothing of it is left."""
    before = await w.zk.get_topics()
    with pytest.raises(AdminError) as refused:
        await create(w, topic, assignment)
    assert await w.zk.get_topics() == before
    return refused.value.code


async def grow(w: World, topic: str, count: int, assignments: Sequence[Sequence[int]] | None = None) -> None:
    found, added = await admin.plan_partitions(w.zk, topic, count, assignments, random=Random(0))
    await admin.add_partitions(w.zk, found, added)
    await w.settle()


async def grow_refusal(w: World, topic: str, count: int, assignments: Sequence[Sequence[int]]) -> ErrorCode:
    before = await placed(w, topic)
    with pytest.raises(AdminError) as refused:
        await grow(w, topic, count, assignments)
    assert await placed(w, topic) == before
    return refused.value.code


async def placed(w: World, topic: str) -> dict[int, tuple[int, ...]]:
    found = (await w.zk.get_topic_assignments([topic]))[topic].partitions
    return {p: assignment.replicas for p, assignment in found.items()}


@pytest.mark.kafka("ADD-1")
async def test_wrong_number_of_replicas(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1]})
        code = await grow_refusal(w, "t", 2, [[0, 1, 2]])
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.kafka("ADD-2")
async def test_a_gap_between_partitions(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world(BROKERS) as w:
        code = await refusal(w, "t", {0: [0, 1], 2: [0, 1]})
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.kafka("ADD-3")
async def test_fewer_assignments_than_partitions(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1]})
        assert await grow_refusal(w, "t", 3, [[0, 1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.kafka("ADD-4")
async def test_added_partitions_get_leaders(autojump_clock: MockClock) -> None:  # rules 10.15, 10.32
    async with world(BROKERS) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [0, 1]})
        await grow(w, "t", 3)
        for partition in (1, 2):
            replicas = controller.context.replicas(TopicPartition("t", partition))
            assert len(set(replicas)) == 2
            assert await w.state("t", partition) == (replicas[0], 0, replicas)


@pytest.mark.kafka("ADD-5")
async def test_manual_assignment(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await w.start_controller(0)
        await create(w, "t", {0: [0, 2]})
        await grow(w, "t", 3, [[0, 1], [2, 3]])
        assert await placed(w, "t") == {0: (0, 2), 1: (0, 1), 2: (2, 3)}
        assert await w.state("t", 2) == (2, 0, (2, 3))


@pytest.mark.kafka("ADD-6")
async def test_placement_on_all_brokers(autojump_clock: MockClock) -> None:  # rules 10.15, 10.18-10.20
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1, 2, 3]})
        await grow(w, "t", 7)
        assert await placed(w, "t") == {
            0: (0, 1, 2, 3),
            1: (1, 2, 3, 0),
            2: (2, 3, 0, 1),
            3: (3, 0, 1, 2),
            4: (0, 2, 3, 1),  # past as many partitions as there are brokers the shift is 1
            5: (1, 3, 0, 2),
            6: (2, 0, 1, 3),
        }


@pytest.mark.kafka("ADD-7")
async def test_placement_on_some_brokers(autojump_clock: MockClock) -> None:  # rules 10.15, 10.25
    async with world(BROKERS) as w:
        await create(w, "t", {0: [1, 2]})
        await grow(w, "t", 3)
        assert await placed(w, "t") == {0: (1, 2), 1: (2, 0), 2: (3, 1)}  # broker 1 is both the start and the shift


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
            {-1: [0, 1]},
            {},
        ):
            assert await refusal(w, "t", assignment) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


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
        await create(w, "foo.bar", {0: [0]})
        assert await refusal(w, "foo_bar", {0: [0]}) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.kafka("AZC-4")
async def test_a_topic_that_is_being_deleted(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world(BROKERS) as w:
        await w.zk.ensure_paths([zk_data.delete_topic_path("t")])
        assert await refusal(w, "t", {0: [0]}) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.kafka("AZC-5")
async def test_a_lost_race(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 10.7
    async with world(BROKERS) as w:
        check = admin.check_new_topic

        async def checked_too_early(*args: object) -> None:
            await check(*args)  # type: ignore[arg-type]
            winner = zk_data.encode_topic(None, {0: ReplicaAssignment(ids(3))})
            value((await w.store.write([Create(zk_data.topic_path("t"), winner)]))[0])

        monkeypatch.setattr(admin, "check_new_topic", checked_too_early)
        with pytest.raises(AdminError) as refused:
            await create(w, "t", {0: [0]})
        assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await placed(w, "t") == {0: (3,)}


@pytest.mark.kafka("AZC-6")
async def test_two_at_once(autojump_clock: MockClock) -> None:  # rule 10.7
    async with world(BROKERS) as w:
        refused: list[ErrorCode] = []

        async def attempt(broker: int) -> None:
            try:
                await create(w, "t", {0: [broker]})
            except AdminError as e:
                refused.append(e.code)

        async with trio.open_nursery() as nursery:
            for broker in (0, 1):
                nursery.start_soon(attempt, broker)
        assert refused == [ErrorCode.TOPIC_ALREADY_EXISTS]
        assert (await placed(w, "t"))[0] in ((0,), (1,))


async def changed(w: World, kind: str, name: str, config: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    """(path of the configuration, content of the notification) after a change."""
    await w.start_controller(0)
    w.nodes[0].zk.unregister_child_handler(zk_data.CONFIG_CHANGES)
    await w.zk.change_config(kind, name, config)
    await w.settle()
    (notification,) = await w.zk.get_children(zk_data.CONFIG_CHANGES)
    assert notification.startswith("config_change_")
    path = f"/config/{kind}/{name}"
    assert json.loads(await w.get(path) or b"") == {"version": 1, "config": dict(config)}
    assert await w.zk.get_config(kind, name) == config
    return path, json.loads(await w.get(f"{zk_data.CONFIG_CHANGES}/{notification}") or b"")


@pytest.mark.kafka("AZC-7")
async def test_topic_configuration(autojump_clock: MockClock) -> None:  # rules 1.34, 1.35
    async with world([]) as w:
        path, notification = await changed(w, "topics", "t", {"max.message.bytes": "5"})
        assert path == zk_data.topic_config_path("t")
        assert notification == {"version": 2, "entity_path": "topics/t"}


@pytest.mark.kafka("AZC-8")
@pytest.mark.parametrize("broker", ["1", zk_data.DEFAULT_ENTITY])
async def test_broker_configuration(autojump_clock: MockClock, broker: str) -> None:  # rules 1.34, 1.35
    async with world([]) as w:
        throttles = {"leader.replication.throttled.rate": "100000", "follower.replication.throttled.rate": "100000"}
        path, notification = await changed(w, "brokers", broker, throttles)
        assert path == f"/config/brokers/{broker}"
        assert notification == {"version": 2, "entity_path": f"brokers/{broker}"}


QUOTA = {"producer_byte_rate": "1000"}


@pytest.mark.kafka("AZC-9")
async def test_configuration_of_clients_that_is_there_at_the_start(autojump_clock: MockClock) -> None:  # rule B8.9
    async with world([]) as w:
        await w.zk.put_config("clients", zk_data.DEFAULT_ENTITY, {"producer_byte_rate": "2000"})
        await w.zk.put_config("clients", "my%20client", {"producer_byte_rate": "1000", "consumer_byte_rate": "3000"})
        await w.zk.put_config("users", "ANONYMOUS", {"SCRAM-SHA-256": "salt=,iterations=1"})
        await w.zk.put_config("users", "ANONYMOUS/clients/of%20mine", {"producer_byte_rate": "10"})
        quotas = ClientQuotas()
        configs = ConfigChanges(
            w.zk, BrokerId(1), static=False, put=lambda event: None, on_client_config=quotas.changed
        )
        await configs.start()

        def limit(client_id: str, key: str = "producer_byte_rate") -> float | None:
            found = quotas.quota(key, "ANONYMOUS", client_id)
            return None if found is None else found[1]

        assert (limit("my client"), limit("other"), limit("of mine")) == (1000, 2000, 10)
        assert (limit("my client", "consumer_byte_rate"), limit("other", "consumer_byte_rate")) == (3000, None)
        await w.start_controller(0)
        await w.zk.change_config("clients", "my%20client", {"consumer_byte_rate": "4000"})
        await configs.notified()
        assert (limit("my client"), limit("my client", "consumer_byte_rate")) == (2000, 4000)


@pytest.mark.kafka("AZC-10")
async def test_racks_that_are_heeded(autojump_clock: MockClock) -> None:  # rules 10.15, 10.17
    async with world([]) as w:
        for broker_id, rack in {0: "a", 1: "b", 2: "c", 3: "c", 5: None}.items():
            await w.start_broker(broker_id, rack)

        async def heeded(mode: RackAwareMode, among: Sequence[int] | None = None) -> dict[int, str | None]:
            return await admin.get_brokers_with_racks(w.zk, mode, among)

        with pytest.raises(AdminError, match=r"brokers \[5\] have no rack while others have one"):
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
async def test_configuration_of_a_client_of_a_user(autojump_clock: MockClock) -> None:  # rule 1.35
    async with world([]) as w:
        path, notification = await changed(w, "users", "u/clients/c", QUOTA)
        assert path == "/config/users/u/clients/c"
        assert notification == {"version": 2, "entity_path": "users/u/clients/c"}


@pytest.mark.kafka("AZC-12")
async def test_configuration_of_a_user(autojump_clock: MockClock) -> None:  # rule 1.35
    async with world([]) as w:
        path, notification = await changed(w, "users", "u", QUOTA)
        assert path == "/config/users/u"
        assert notification == {"version": 2, "entity_path": "users/u"}


@pytest.mark.kafka("AZC-13")
async def test_configuration_of_a_client(autojump_clock: MockClock) -> None:  # rule 1.35
    async with world([]) as w:
        path, notification = await changed(w, "clients", "c", QUOTA)
        assert path == "/config/clients/c"
        assert notification == {"version": 2, "entity_path": "clients/c"}


@pytest.mark.kafka("AZC-14")
async def test_configuration_of_an_address(autojump_clock: MockClock) -> None:  # rule 1.35
    async with world([]) as w:
        path, notification = await changed(w, "ips", "127.0.0.1", {"connection_creation_rate": "10"})
        assert path == "/config/ips/127.0.0.1"
        assert notification == {"version": 2, "entity_path": "ips/127.0.0.1"}
