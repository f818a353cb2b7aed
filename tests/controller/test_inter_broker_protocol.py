"""What `inter.broker.protocol.version` decides (rules 8.18-8.25, and those that name a version)."""

from __future__ import annotations

import json

import pytest
from trio.testing import MockClock

from kce import wire
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import TopicPartition
from kce.zookeeper.store import Create, SetData, value
from tests.controller import requests
from tests.controller.support import World, join_isr, stopped, world

TP = TopicPartition("t", 0)

#: rule 8.18 at each boundary, and just below it
ROWS = [
    ("0.8.2", 0, 0, 0),
    ("0.9.0", 0, 1, 0),
    ("0.10.0-IV0", 0, 1, 0),
    ("0.10.0-IV1", 0, 2, 0),
    ("0.10.1", 0, 2, 0),
    ("0.10.2", 0, 3, 0),
    ("0.11.0", 0, 3, 0),
    ("1.0", 1, 4, 0),
    ("2.1", 1, 4, 0),
    ("2.2-IV0", 2, 5, 1),
    ("2.3", 2, 5, 1),
    ("2.4-IV0", 3, 5, 1),
    ("2.4-IV1", 4, 6, 2),
    ("2.5", 4, 6, 2),
    ("2.6", 4, 6, 3),
    ("2.7", 4, 6, 3),
    ("2.8-IV0", 4, 6, 3),
    ("2.8-IV1", 5, 7, 3),
    ("3.1", 5, 7, 3),
    ("3.2", 6, 7, 3),
    ("3.3", 6, 7, 3),
    ("3.4", 7, 8, 4),
    ("3.9", 7, 8, 4),
]


def leaderships(message: wire.LeaderAndIsrRequest) -> dict[TopicPartition, tuple[int, bool]]:
    """Leader and is_new by partition, of any version."""
    grouped = {
        TopicPartition(t.topic_name, p.partition_index): (p.leader, p.is_new)
        for t in message.topic_states
        for p in t.partition_states
    }
    flat = {
        TopicPartition(p.topic_name, p.partition_index): (p.leader, p.is_new)
        for p in message.ungrouped_partition_states
    }
    return grouped | flat


async def grow_isr(w: World, isr: tuple[int, ...]) -> None:
    """Grow the ISR as a leader of that protocol does: by AlterPartition, or by a write and a notification."""
    controller = w.nodes[1].controller
    if w.ibp.supports_alter_partition:
        assert await join_isr(w, controller, TP, isr) == 0
        return
    path = znodes.partition_state_path(TP)
    state = json.loads(await w.get(path) or b"")
    note = Create(znodes.ISR_CHANGE_PREFIX, cluster_nodes.encode_partition_list([TP]), sequential=True)
    await w.store.write([SetData(path, json.dumps(state | {"isr": isr}).encode()), note])
    await w.settle()


@pytest.mark.parametrize(("ibp", "leader_and_isr", "update_metadata", "stop_replica"), ROWS)
async def test_a_life_under_each_protocol(
    autojump_clock: MockClock, ibp: str, leader_and_isr: int, update_metadata: int, stop_replica: int
) -> None:
    version = MetadataVersion.parse(ibp)
    async with world(ibp=version) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        assert await w.state("t") == (3, 1, (3,))
        await w.start_broker(2)
        await w.settle()
        await grow_isr(w, (3, 2))
        answers: list[object] = []
        requests.elect_leaders(controller, [TP], wire.vocabulary.ElectionType.PREFERRED, answers.append)
        await w.settle()
        assert answers == [{TP: 2}]
        requests.alter_partition_reassignments(controller, {TP: [1, 2]}, lambda _: None)
        await w.settle()
        await grow_isr(w, (3, 2, 1))
        assert (await w.zk.get_topic_assignments(["t"]))["t"].partitions[0].replicas == (1, 2)
        requests.controlled_shutdown(controller, 2, -1, lambda _: None)
        await w.settle()
        assert (await w.state("t"))[::2] == (1, (1,))
        await w.stop_broker(2)
        await w.settle()
        await w.start_broker(2)
        await w.settle()
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        await w.settle()
        assert await w.get("/brokers/topics/t") is None
        sent = w.take()
        used = {type(s.message): set[int]() for s in sent}
        for s in sent:
            used[type(s.message)].add(s.header.api_version)
            if version < MetadataVersion.parse("2.2-IV0"):
                assert s.message.broker_epoch == -1  # no broker epochs before 2.2
            else:
                assert s.message.broker_epoch > 0
        assert used == {
            wire.LeaderAndIsrRequest: {leader_and_isr},
            wire.UpdateMetadataRequest: {update_metadata},
            wire.StopReplicaRequest: {stop_replica},
        }
        states = [leaderships(s.message)[TP] for s in sent if isinstance(s.message, wire.LeaderAndIsrRequest)]
        assert states[0][0] == 2
        assert any(new for _, new in states) == (leader_and_isr >= 1)
        assert any(stopped(s.message)[TP] for s in sent if isinstance(s.message, wire.StopReplicaRequest))


@pytest.mark.parametrize("ibp", ["2.7-IV2", "2.8-IV0"])
async def test_topic_ids_from_2_8_on(autojump_clock: MockClock, ibp: str) -> None:  # rules 4.7, 10.27; CI-45, CI-46
    async with world(ibp=MetadataVersion.parse(ibp)) as w:
        controller = await w.start_controller(1)
        made = b'{"version":1,"partitions":{"0":[2,3]}}'
        value((await w.store.write([Create("/brokers/topics/t", made)]))[0])
        await w.settle()
        node = json.loads(await w.get("/brokers/topics/t") or b"")
        assert ("topic_id" in node) == ("t" in controller.context.topic_ids) == (ibp == "2.8-IV0")


@pytest.mark.parametrize(("ibp", "recovering"), [("3.1", False), ("3.2", True)])
async def test_recovery_after_unclean_election_from_3_2_on(
    autojump_clock: MockClock, ibp: str, recovering: bool
) -> None:  # rules 7.6, 8.4, 1.28
    async with world(ibp=MetadataVersion.parse(ibp)) as w:
        await w.start_controller(1, unclean_leader_election_enable=True)
        await w.create_topic("t", {0: [2, 3]})
        for gone in (3, 2):
            await w.stop_broker(gone)
            await w.settle()
        await w.start_broker(3)
        await w.settle()
        node = json.loads(await w.get(znodes.partition_state_path(TP)) or b"")
        assert node["leader"] == 3
        assert node.get("leader_recovery_state", 0) == int(recovering)


async def test_the_state_nodes_of_moving_partitions_are_watched_below_2_7_only(autojump_clock: MockClock) -> None:
    for ibp, watched in (("2.6", True), ("2.7-IV2", False)):  # rules 1.60, 4.28, 11.3
        async with world(ibp=MetadataVersion.parse(ibp)) as w:
            controller = await w.start_controller(1)
            await w.create_topic("t", {0: [2]})
            requests.alter_partition_reassignments(controller, {TP: [3]}, lambda _: None)
            await w.settle()
            handlers = w.nodes[1].zk._change_handlers
            assert (znodes.partition_state_path(TP) in handlers) == watched
            controller.close()
            await w.settle()
            assert znodes.partition_state_path(TP) not in handlers
