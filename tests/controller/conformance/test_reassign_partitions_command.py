"""LEC, RPC, OIB: what clients ask of a controller, through the bytes of their requests (section 14 of
docs/controller-semantics.md; rules of sections 11a to 11d, 10e). Kafka's command-line tools send these requests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import wire
from controller import zk_data
from controller.controller import Controller
from controller.model import TopicPartition
from controller.store import Create, SetData, value
from tests.broker_stub.support import Node
from tests.controller.conformance.bench import TP
from tests.controller.conformance.cluster import propose_isr, stop
from tests.controller.conformance.served import restart, served_cluster
from tests.controller.support import World, world
from wire import ErrorCode
from wire.metadata_version import MetadataVersion
from wire.vocabulary import ElectionType

Codes = dict[TopicPartition, int]


async def elect(
    node: Node, partitions: Sequence[TopicPartition] | None, kind: ElectionType = ElectionType.PREFERRED
) -> Codes:
    """ElectLeaders, of all partitions for None: the code of each that the answer names."""
    asked = None
    if partitions is not None:
        asked = tuple(
            wire.ElectLeadersRequestTopicPartitions(
                topic=topic, partitions=tuple(tp.partition for tp in partitions if tp.topic == topic)
            )
            for topic in dict.fromkeys(tp.topic for tp in partitions)
        )
    answer = await node.ask(wire.ElectLeadersRequest(election_type=kind.value, topic_partitions=asked, timeout_ms=1000))
    assert answer.error_code == 0
    return {
        TopicPartition(r.topic, p.partition_id): p.error_code
        for r in answer.replica_election_results
        for p in r.partition_result
    }


async def reassign(node: Node, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Codes:
    """AlterPartitionReassignments; None cancels."""
    topics: dict[str, list[wire.ReassignablePartition]] = {}
    for tp, target in targets.items():
        replicas = None if target is None else tuple(target)
        topics.setdefault(tp.topic, []).append(
            wire.ReassignablePartition(partition_index=tp.partition, replicas=replicas)
        )
    answer = await node.ask(
        wire.AlterPartitionReassignmentsRequest(
            topics=tuple(wire.ReassignableTopic(name=t, partitions=tuple(ps)) for t, ps in topics.items())
        )
    )
    await wait_all_tasks_blocked(0.0001)  # the answer tells of submission
    assert answer.error_code == 0
    return {TopicPartition(t.name, p.partition_index): p.error_code for t in answer.responses for p in t.partitions}


async def reassigning(node: Node) -> dict[TopicPartition, tuple[tuple[int, ...], ...]]:
    """ListPartitionReassignments of all: (replicas, adding, removing)."""
    answer = await node.ask(wire.ListPartitionReassignmentsRequest(topics=None))
    return {
        TopicPartition(t.name, p.partition_index): (p.replicas, p.adding_replicas, p.removing_replicas)
        for t in answer.topics
        for p in t.partitions
    }


async def led_uncleanly_or_not_at_all(w: World, topic: str = "t") -> None:
    """Replicas [1, 2]: 2 fell out of the ISR, 1 is dead, and 2 is back."""
    await w.create_topic(topic, {0: [1, 2]})
    await stop(w, 2)
    await stop(w, 1)
    await restart(w, 2)
    assert await w.state(topic) == (-1, 2, (1,))


async def led_by_the_second(w: World, controller: Controller) -> None:
    """Replicas [1, 2], both in the ISR, led by 2."""
    await w.create_topic("t", {0: [1, 2]})
    await stop(w, 1)
    await restart(w, 1)
    await propose_isr(w, controller, [2, 1])
    assert await w.state("t") == (2, 1, (2, 1))


@pytest.mark.kafka("LEC-1")
async def test_unclean_election_of_all_partitions(autojump_clock: MockClock) -> None:  # rules 11.32, 11.35
    async with world([1, 2]) as w:
        _, nodes = await served_cluster(w)
        await led_uncleanly_or_not_at_all(w)
        await w.create_topic("u", {0: [0]})
        assert await elect(nodes[0], None, ElectionType.UNCLEAN) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (2, 3, (2,))


@pytest.mark.kafka("LEC-3")
async def test_unclean_election_of_one_partition(autojump_clock: MockClock) -> None:  # rule 11.32
    async with world([1, 2]) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("u", {0: [1]})
        await led_uncleanly_or_not_at_all(w)
        assert await elect(nodes[0], [TP], ElectionType.UNCLEAN) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (2, 3, (2,))
        assert await w.state("u") == (-1, 1, (1,))


@pytest.mark.kafka("LEC-5")
async def test_preferred_election(autojump_clock: MockClock) -> None:  # rules 7.12, 11.36
    async with world([1, 2]) as w:
        controller, nodes = await served_cluster(w)
        await led_by_the_second(w, controller)
        assert await elect(nodes[0], [TP]) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (1, 2, (2, 1))
        known = nodes[0].cache.snapshot.partition(TP)
        assert known is not None
        assert known.leader == 1


@pytest.mark.kafka("LEC-6")
async def test_election_of_a_topic_that_does_not_exist(autojump_clock: MockClock) -> None:  # rule 11.30
    async with world([1]) as w:
        _, nodes = await served_cluster(w)
        unknown = TopicPartition("unknown", 0)
        assert await elect(nodes[0], [unknown]) == {unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.kafka("LEC-7")
async def test_elections_of_which_some_are_not_needed(autojump_clock: MockClock) -> None:  # rules 11.30, 11.33
    async with world([1, 2]) as w:
        controller, nodes = await served_cluster(w)
        await led_by_the_second(w, controller)
        await w.create_topic("u", {0: [2, 1], 1: [9, 1]})
        u0, u1 = TopicPartition("u", 0), TopicPartition("u", 1)
        assert await elect(nodes[0], [TP, u0, u1]) == {
            TP: ErrorCode.NONE,
            u0: ErrorCode.ELECTION_NOT_NEEDED,
            u1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        }
        assert (await w.state("t"))[0] == 1


@pytest.mark.kafka("RPC-1")
async def test_reassignment(autojump_clock: MockClock) -> None:  # rules 11.5-11.13, 11.25
    async with world([1, 2, 3]) as w:
        controller, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert await reassign(nodes[0], {TP: [2, 3]}) == {TP: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {TP: ((2, 3, 0, 1), (2, 3), (0, 1))}
        assert TP in nodes[2].replicas.partitions
        await propose_isr(w, controller, [0, 1, 2, 3])
        assert await reassigning(nodes[0]) == {}
        leader, _, isr = await w.state("t")
        assert (leader, isr) == (2, (2, 3))
        assert nodes[2].partition(0, "t").is_leader
        for gone in (0, 1):
            assert not nodes[gone].logs.has_log(TP)


async def isr_by_the_leader(w: World, isr: Sequence[int], *, notify: bool) -> None:
    """As a leader below 2.7-IV2 does it: it writes the state itself, and may say so (rules 1.32, 1.53)."""
    path = zk_data.partition_state_path(TP)
    node = json.loads(await w.get(path) or b"")
    value((await w.store.write([SetData(path, json.dumps({**node, "isr": list(isr)}).encode())]))[0])
    if notify:
        said = zk_data.encode_partition_list([TP])
        value((await w.store.write([Create("/isr_change_notification/isr_change_", said, sequential=True)]))[0])
    await w.settle()


@pytest.mark.kafka("RPC-2")
async def test_reassignment_without_alter_partition(autojump_clock: MockClock) -> None:  # rules 11.3, 11.17
    async with world([1], ibp=MetadataVersion.parse("2.7-IV1")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0]})
        assert await reassign(nodes[0], {TP: [1]}) == {TP: ErrorCode.NONE}
        assert list(await reassigning(nodes[0])) == [TP]
        await isr_by_the_leader(w, [0, 1], notify=False)
        assert await reassigning(nodes[0]) == {}
        assert await w.state("t") == (1, 3, (1,))


@pytest.mark.kafka("RPC-3")
async def test_reassignment_during_an_upgrade(autojump_clock: MockClock) -> None:  # rules 11.17, 11.68
    async with world([1]) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0]})
        assert await reassign(nodes[0], {TP: [1]}) == {TP: ErrorCode.NONE}
        await isr_by_the_leader(w, [0, 1], notify=False)
        assert list(await reassigning(nodes[0])) == [TP]  # a controller of 3.9 does not watch the state
        await isr_by_the_leader(w, [0, 1], notify=True)
        assert await reassigning(nodes[0]) == {}
        assert await w.state("t") == (1, 3, (1,))


@pytest.mark.kafka("RPC-8")
async def test_cancellation(autojump_clock: MockClock) -> None:  # rules 11.19, 11.27
    async with world([1, 2]) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert await reassign(nodes[0], {TP: [0, 2]}) == {TP: ErrorCode.NONE}
        assert TP in nodes[2].replicas.partitions
        assert await reassign(nodes[0], {TP: None}) == {TP: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {}
        assert (await w.zk.get_topic_assignments(["t"]))["t"].partitions[0].replicas == (0, 1)
        leader, _, isr = await w.state("t")
        assert (leader, isr) == (0, (0, 1))
        assert not nodes[2].logs.has_log(TP)
        assert await reassign(nodes[0], {TP: None}) == {TP: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


@pytest.mark.kafka("RPC-9")
async def test_cancellation_when_an_adding_replica_is_in_the_isr(autojump_clock: MockClock) -> None:  # rule 11.19
    async with world([1, 2, 3]) as w:
        controller, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert await reassign(nodes[0], {TP: [0, 2, 3]}) == {TP: ErrorCode.NONE}
        await propose_isr(w, controller, [0, 1, 2])
        assert (await w.state("t"))[2] == (0, 1, 2)
        assert await reassign(nodes[0], {TP: None}) == {TP: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {}
        leader, _, isr = await w.state("t")
        assert (leader, isr) == (0, (0, 1))
        assert not nodes[2].logs.has_log(TP)


async def topic_ids(node: Node) -> dict[str, uuid.UUID]:
    answer = await node.ask(wire.MetadataRequest(topics=None))
    return {topic.name: topic.topic_id for topic in answer.topics}


async def delete(node: Node, state: wire.DeleteTopicState) -> Any:
    with trio.fail_after(60):
        answer = await node.ask(wire.DeleteTopicsRequest(topics=(state,), timeout_ms=1000))
    (result,) = answer.responses
    return result


@pytest.mark.kafka("OIB-1")
async def test_metadata_of_an_old_version_has_no_ids(autojump_clock: MockClock) -> None:  # rules 8.18, 9.37
    async with world([1], ibp=MetadataVersion.parse("2.7")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})  # with an id in ZooKeeper, as a newer version left it
        for node in nodes.values():
            assert await topic_ids(node) == {"t": uuid.UUID(int=0)}


@pytest.mark.kafka("OIB-4")
async def test_deletion_by_name_under_an_old_version(autojump_clock: MockClock) -> None:  # rule 10.35
    async with world([1], ibp=MetadataVersion.parse("2.7")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert (await delete(nodes[0], wire.DeleteTopicState(name="t"))).error_code == ErrorCode.NONE
        await w.settle()
        assert await w.zk.get_topics() == set()


@pytest.mark.kafka("OIB-5")
async def test_deletion_by_id_under_an_old_version(autojump_clock: MockClock) -> None:  # rule 10.35
    async with world([1], ibp=MetadataVersion.parse("2.7")) as w:
        _, nodes = await served_cluster(w)
        topic_id = await w.create_topic("t", {0: [0, 1]})
        result = await delete(nodes[0], wire.DeleteTopicState(topic_id=topic_id))
        assert (result.error_code, result.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
        await w.settle()
        assert await w.zk.get_topics() == {"t"}
