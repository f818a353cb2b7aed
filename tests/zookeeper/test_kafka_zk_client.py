"""Races and lost responses in Kafka's operations on ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

from kce.wire.metadata_version import LATEST
from kce.zookeeper import znodes
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, ControllerEpoch, LeaderAndIsr, Leadership, ReplicaAssignment, TopicPartition
from kce.zookeeper.registration import BrokerIdInUse
from kce.zookeeper.store import Check, Create, Delete, Op, OpResult, SessionExpired, SetData, StoreError
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.controller.support import broker
from tests.zookeeper.conformance.nodes import Fixture, f

__all__ = ["f"]


async def test_a_node_below_a_topic_that_is_being_deleted(f: Fixture) -> None:  # rule 1.55
    """Somebody creates a partition between the listing and the deletion: the deletion starts over."""
    await f.put("/brokers/topics/t/partitions/0/state")
    write, created = f.zk.store.write, False

    async def create_meanwhile(ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        nonlocal created
        if ops and ops[0].path == "/brokers/topics/t/partitions/0/state" and not created:
            created = True
            await write([Create("/brokers/topics/t/partitions/1")])
        return await write(ops, fence=fence)

    f.zk.store.write = create_meanwhile  # type: ignore[method-assign]
    await f.zk.delete_topic_nodes(["t"], f.fence)
    assert created
    assert await f.zk.store.exists(["/brokers/topics/t"]) == [None]


async def test_topics_and_those_expected_are_read_in_one_round_trip(
    f: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await f.put("/brokers/topics/t", znodes.encode_topic(None, {0: ReplicaAssignment((BrokerId(1),))}))
    get_children, get_data, asked, errors = (
        f.zk.store.get_children,
        f.zk.store.get_data,
        trio.Event(),
        list[Exception](),
    )

    async def children(paths: Sequence[str], **more: Any) -> Any:
        await asked.wait()
        return await get_children(paths, **more)

    async def data(paths: Sequence[str], **more: Any) -> Any:
        asked.set()
        for error in errors:
            raise error
        return await get_data(paths, **more)

    monkeypatch.setattr(f.zk.store, "get_children", children)
    monkeypatch.setattr(f.zk.store, "get_data", data)
    with trio.fail_after(5):
        names, found = await f.zk.get_topics_and(["t", "not there yet"])
    assert (names, list(found)) == ({"t"}, ["t"])
    errors.append(SessionExpired("over"))
    with pytest.raises(SessionExpired, match="over"):  # not in a group
        await f.zk.get_topics_and(["t"])


def calls_of(f: Fixture, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store is asked, by method, and of how many written operations."""
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        plain = getattr(f.zk.store, name)

        def counted(of: Sequence[Any], **more: Any) -> Any:
            calls[name] += 1
            calls["operations"] += len(of) if name == "write" else 0
            return plain(of, **more)

        monkeypatch.setattr(f.zk.store, name, counted)

    for name in ("get_children", "write", "multi"):
        count(name)
    return calls


@pytest.mark.parametrize("left", ["everything", "no configuration", "no marker"])
async def test_many_topics_are_deleted_together(
    f: Fixture, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:  # rule 10.48
    topics = [f"t{number}" for number in range(60)]
    before = f.tree()
    for topic in topics:
        await f.put(f"/brokers/topics/{topic}/partitions/0/state")
        await f.put(f"/config/topics/{topic}")
        await f.put(f"/admin/delete_topics/{topic}")
    missing = {"no configuration": "/config/topics/t7", "no marker": "/admin/delete_topics/t7"}.get(left)
    if missing is not None:
        await f.zk.store.write([Delete(missing)])
    calls = calls_of(f, monkeypatch)
    await f.zk.delete_topic_nodes(topics, f.fence)
    assert f.tree().keys() == before.keys()
    if missing is None:
        assert calls == {"get_children": 4, "write": 1, "operations": 3 * len(topics), "multi": 2}


async def test_a_state_that_is_handled_is_watched_when_many_are_read(f: Fixture) -> None:  # rule 1.56
    partitions, fired = [TopicPartition("t", number) for number in range(9)], list[str]()
    state = Leadership(LeaderAndIsr(BrokerId(1), (BrokerId(1),)), ControllerEpoch(1))
    await f.put("/brokers/topics/t")
    await f.zk.create_partition_states(dict.fromkeys(partitions, state), f.fence)
    watched = znodes.partition_state_path(partitions[3])
    f.zk.register_change_handler(watched, ChangeHandler(changed=lambda: fired.append(watched)))
    assert await f.zk.get_partition_states(partitions) == dict.fromkeys(partitions, state)
    await f.zk.store.write([SetData(znodes.partition_state_path(tp), b"") for tp in partitions])
    assert fired == [watched]


async def test_states_of_a_new_topic_are_made_together(
    f: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 1.30
    await f.put("/brokers/topics/t")
    calls = calls_of(f, monkeypatch)
    state = Leadership(LeaderAndIsr(BrokerId(1), (BrokerId(1),)), ControllerEpoch(1))
    first, second, third = (TopicPartition("t", number) for number in range(3))
    assert await f.zk.create_partition_states({first: state, second: state}, f.fence) == {first: None, second: None}
    assert calls == {"write": 1, "operations": 5}
    assert await f.zk.create_partition_states({third: state}, f.fence) == {third: None}
    assert calls == {"write": 2, "operations": 5 + 2}


async def test_states_are_made_whatever_parent_is_missing(f: Fixture) -> None:  # rule 1.30
    """A topic that lost its first partition has none of the parents."""
    await f.put("/brokers/topics/t")
    state = Leadership(LeaderAndIsr(BrokerId(1), (BrokerId(1),)), ControllerEpoch(1))
    later = TopicPartition("t", 5)
    assert await f.zk.create_partition_states({later: state}, f.fence) == {later: None}
    assert await f.zk.get_partition_states([later]) == {later: state}


async def test_an_address_belongs_to_one_broker(f: Fixture) -> None:  # rule 1.24
    await f.zk.register_broker(broker(1), LATEST)
    await f.zk.check_endpoints_free(broker(1))  # our own
    await f.zk.check_endpoints_free(broker(2))
    taken = replace(broker(2), endpoints=(broker(2).endpoints[0], broker(1).endpoints[1]))
    with pytest.raises(BrokerIdInUse, match=r"127.0.0.1:2001 of broker 2 is already registered by broker 1 in /brok"):
        await f.zk.check_endpoints_free(taken)
    other_host = replace(taken, endpoints=tuple(e._replace(host="h") for e in taken.endpoints))
    await f.zk.check_endpoints_free(other_host)


@pytest.mark.parametrize(("kraft_epoch", "refused"), [(-1, False), (0, False), (1, True)])
async def test_a_kraft_controller_has_a_positive_epoch(f: Fixture, kraft_epoch: int, refused: bool) -> None:  # 1.54
    data = b'{"version":2,"brokerid":1,"timestamp":"1","kraftControllerEpoch":%d}' % kraft_epoch
    await f.zk.store.write([SetData("/controller", data)])
    if refused:
        with pytest.raises(ControllerMoved, match="KRaft"):
            await f.zk.change_config("topics", "t", {"a": "1"})
    else:
        await f.zk.change_config("topics", "t", {"a": "1"})
        assert await f.zk.get_config("topics", "t") == {"a": "1"}


async def test_a_claim_is_ours_with_the_epoch_of_the_claim_alone() -> None:  # rule 2.10
    """Our broker id holds /controller, but with a later epoch: an attempt of a later election."""
    server = MemoryZooKeeper()

    class Late(MemoryStore):
        """Another election of the same broker is won just before the claim."""

        async def multi(self, groups: Sequence[Sequence[Op]]):  # type: ignore[no-untyped-def]
            claim = Create("/controller", znodes.encode_controller(1, 0))
            await super().write([claim, SetData("/controller_epoch", b"9")])
            return await super().multi(groups)

    zk = KafkaZkClient(Late(server, 1), now_ms=lambda: 0)
    with pytest.raises(ControllerMoved):
        await zk.register_controller(BrokerId(1))


async def test_a_broker_that_goes_while_brokers_are_read(f: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    await f.zk.register_broker(broker(1), LATEST)
    await f.put("/brokers/ids/3", b"rubbish")
    listed = f.zk.get_children

    async def with_one_that_is_gone(path: str, *, watch: bool = True) -> list[str]:
        return ["0", *await listed(path, watch=watch), "9"]

    monkeypatch.setattr(f.zk, "get_children", with_one_that_is_gone)
    found = await f.zk.get_brokers()
    assert {id: known.id for id, (known, _) in found.items()} == {1: 1}


async def test_partitions_that_exist(f: Fixture) -> None:
    assert await f.zk.existing_partitions("t") == set()
    for name in ("0", "12", "x"):
        await f.put(f"/brokers/topics/t/partitions/{name}")
    assert await f.zk.existing_partitions("t") == {0, 12}


@pytest.mark.parametrize("name", ["t", "user/clients/c"])
async def test_a_new_configuration_is_never_there_without_its_content(f: Fixture, name: str) -> None:  # rule 1.54
    await f.zk.change_config("users", name, {"a": "1"})
    (stat,) = await f.zk.exists([znodes.config_path("users", name)])
    assert stat is not None
    assert stat.version == 0
    await f.zk.change_config("users", name, {"a": "2"})
    (stat,) = await f.zk.exists([znodes.config_path("users", name)])
    assert stat is not None
    assert stat.version == 1
    assert await f.zk.get_config("users", name) == {"a": "2"}
