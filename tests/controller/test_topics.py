"""Topics and partitions that appear (section 10 of docs/controller-semantics.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from uuid import uuid4

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.topics import _moved
from kce.zookeeper import admin, topic_plans, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create, SetData
from tests.controller.conformance.bench import ids
from tests.controller.support import FakeBroker, broker, texts, world


async def test_traffic_of_a_fresh_topic(autojump_clock: MockClock) -> None:  # rule 10.29; CI-8
    async with world() as w:
        controller = await w.start_controller(1)
        w.take()
        topic_id = await w.create_topic("t", {0: [1, 2], 1: [2, 1]})
        sent = w.take()
        expected = ["LAI t-1:2@0[2, 1]new t-0:1@0[1, 2]new", "UMR alive=[1, 2, 3] t-1:2@0[2, 1] t-0:1@0[1, 2]"]
        assert texts(sent, 1) == expected
        assert texts(sent, 2) == expected
        assert texts(sent, 3) == expected[1:]
        assert await w.state("t", 1) == (2, 0, (2, 1))
        assert controller.context.topic_ids == {"t": topic_id}
        node = json.loads(await w.get("/brokers/topics/t/partitions/0/state") or b"")
        assert node == {"version": 1, "leader": 1, "leader_epoch": 0, "controller_epoch": 1, "isr": [1, 2]}
        leaders = [s.message.live_leaders for s in sent if isinstance(s.message, wire.LeaderAndIsrRequest)]
        assert [{(x.broker_id, x.port) for x in some} for some in leaders] == [{(1, 2001), (2, 2002)}] * 2  # rule 8.15


async def test_a_topic_whose_node_is_no_json_has_no_partitions(autojump_clock: MockClock) -> None:  # rules 1.26, 4.7
    async with world() as w:
        await w.zk.create_top_level_paths()
        for topic, content in {"before": b"{nonsense", "fine": b'{"version":1,"partitions":{"0":[1]}}'}.items():
            await w.store.write([Create(znodes.topic_path(topic), content)])
        controller = await w.start_controller(1)
        await w.store.write([Create(znodes.topic_path("after"), b"nonsense")])
        await w.settle()
        assert controller.context.topics == {"before", "fine", "after"}
        assert controller.context.topic_ids.keys() == {"before", "fine", "after"}
        for topic in ("before", "after"):  # written again, for its id
            node = json.loads(await w.get(znodes.topic_path(topic)) or b"")
            assert (node["version"], node["partitions"]) == (3, {})
        assert await w.state("fine") == (1, 0, (1,))
        found, added = await admin.plan_partitions(w.zk, "fine", 2, None, random=Random(0))
        await admin.add_partitions(w.zk, found, added)
        await w.settle()
        assert len(controller.context.topic_assignments("fine")) == 2


async def test_a_dead_replica_is_assigned_but_not_in_the_isr(autojump_clock: MockClock) -> None:  # rule 10.30; CI-9
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [9, 2, 3]})
        assert await w.state("t") == (2, 0, (2, 3))


async def test_no_live_replica_leaves_it_new_until_one_comes(autojump_clock: MockClock) -> None:  # rule 10.31
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [8, 9]})
        assert await w.get("/brokers/topics/t/partitions/0/state") is None
        await w.start_broker(9)
        await w.settle()
        assert await w.state("t") == (9, 0, (9,))


async def test_added_partitions(autojump_clock: MockClock) -> None:  # rules 10.32, 10.33; CI-10
    async with world() as w:
        controller = await w.start_controller(1)
        topic_id = await w.create_topic("t", {0: [1, 2]})
        w.take()
        grown = {0: ReplicaAssignment((BrokerId(3),)), 1: ReplicaAssignment((BrokerId(2), BrokerId(3)))}
        await w.store.write([SetData("/brokers/topics/t", znodes.encode_topic(topic_id, grown))])
        await w.settle()
        assert await w.state("t", 1) == (2, 0, (2, 3))
        assert controller.context.replicas(TopicPartition("t", 0)) == (1, 2)  # ignored until failover
        assert texts(w.take(), 2) == ["LAI t-1:2@0[2, 3]new", "UMR alive=[1, 2, 3] t-1:2@0[2, 3]"]


async def test_create_topic_by_admin(autojump_clock: MockClock) -> None:  # rules 10.5, 10.7; AZC-2, AZC-3, AZC-4
    async with world() as w:
        await w.start_controller(1)
        topic_id = await admin.create_topic(
            w.zk, "orders.v1", partitions=4, replication_factor=2, config={"retention.ms": "5"}, random=Random(3)
        )
        await w.settle()
        (described,) = await admin.describe_topics(w.zk)
        assert (described.topic_id, described.config) == (topic_id, {"retention.ms": "5"})
        assert [len(p.assignment.replicas) for p in described.partitions] == [2] * 4
        assert all(p.leadership is not None for p in described.partitions)
        for bad, why in (
            ("orders.v1", "already exists"),
            ("orders_v1", "collides"),
            ("a/b", "contains one or more characters"),
            ("", "the empty string is not allowed"),
            ("..", "is not allowed"),
            ("x" * 250, "longer than the max allowed length 249"),
        ):
            with pytest.raises(topic_plans.AdminError, match=why):
                await admin.create_topic(w.zk, bad, random=Random(1))
        with pytest.raises(topic_plans.AdminError, match="larger than available brokers: 3"):
            await admin.create_topic(w.zk, "wide", replication_factor=4, random=Random(1))
        for assignment in ({1: [1]}, {0: [1], 1: [1, 2]}, {0: [1, 1]}, {0: []}, {}):
            with pytest.raises(topic_plans.AdminError, match="manual"):
                await admin.create_topic(w.zk, "manual", assignment=assignment, random=Random(1))
        await w.store.write([Create("/admin/delete_topics/gone")])
        w.nodes[1].controller.close()
        await w.settle()
        await w.zk.ensure_paths(["/admin/delete_topics/gone"])
        with pytest.raises(topic_plans.AdminError, match="is marked for deletion"):
            await admin.create_topic(w.zk, "gone", random=Random(1))
        with pytest.raises(topic_plans.AdminError, match="The topic 'nope' does not exist"):
            await admin.delete_topic(w.zk, "nope")
        with pytest.raises(topic_plans.AdminError, match=r"unknown topic nope; existing topics: orders.v1"):
            await admin.describe_topics(w.zk, ["nope"])


async def test_replicas_move_from_nodes_that_are_controllers_only(autojump_clock: MockClock) -> None:
    """Real brokers place topics themselves, and know nothing of such nodes."""
    async with world() as w:
        w.brokers[7] = FakeBroker(7, w.log)
        only = replace(broker(7), controller_only=True)
        await KafkaZkClient(w.server.connect(), now_ms=lambda: 0).register_broker(only, w.ibp)
        controller = await w.start_controller(1)
        await admin.write_topic(w.zk, "t", {0: [1, 7], 1: [7, 2, 3], 2: [7, 1, 2, 3], 3: [3]}, {}, uuid4())
        await w.settle()
        found = (await w.zk.get_topic_assignments(["t"]))["t"].partitions
        assert {p: a.replicas for p, a in found.items()} == {0: (1, 3), 1: (1, 2, 3), 2: (1, 2, 3), 3: (3,)}
        assert {p: controller.context.replicas(TopicPartition("t", p)) for p in found} == {
            p: a.replicas for p, a in found.items()
        }


def test_where_replicas_move_to() -> None:
    def moved(replicas: Sequence[int], partition: int, brokers: Sequence[int]) -> tuple[int, ...]:
        return _moved(ReplicaAssignment(ids(*replicas)), partition, ids(8, 9), ids(*brokers)).replicas

    assert [moved([9], p, [1, 2, 3]) for p in range(4)] == [(1,), (2,), (3,), (1,)]
    assert [moved([1, 9], p, [1, 2, 3]) for p in range(3)] == [(1, 3), (1, 2), (1, 3)]
    assert moved([8, 9], 0, [1, 2, 3]) == (1, 3)
    assert moved([8, 9, 1], 0, [1, 2]) == (2, 1)
    assert moved([9], 0, []) == ()
    unchanged = ReplicaAssignment(ids(1, 2), ids(2), ids(1))
    assert _moved(unchanged, 0, ids(8, 9), ids(1, 2, 3)) is unchanged
