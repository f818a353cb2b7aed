"""Older releases of Kafka, back to 0.10.2: their brokers under our controller, and our brokers under theirs.

Where current Kafka tools cannot query such brokers, read ZooKeeper.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kce.harness import Cluster
from kce.harness.members import InProcessMember
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, TopicPartition
from tests.clusters import create_znode, leaders_and_isrs
from tests.interop.kafka_jars import RELEASES, VERSION, Release
from tests.interop.operations import (
    TOPIC,
    Operation,
    Outcome,
    Peers,
    create_topic,
    delete_topics,
    kill_broker,
    lose_the_controller,
    of_release,
    peers,
    produce_and_consume,
    regain_the_controller,
    restart_broker,
    run_all,
    shut_down_broker,
)
from tests.interop.real_kafka import real_brokers

OLD = [release for release in RELEASES.values() if release.version != VERSION]

Assignment = dict[int, tuple[int, ...]]


async def _elect_preferred(cluster: Cluster, partitions: Sequence[int]) -> None:
    data = cluster_nodes.encode_partition_list([TopicPartition(TOPIC, n) for n in partitions])
    await create_znode(cluster, znodes.PREFERRED_REPLICA_ELECTION, data)
    await _is_gone(cluster, znodes.PREFERRED_REPLICA_ELECTION)


async def _reassign(cluster: Cluster, target: Assignment) -> None:
    wanted = {TopicPartition(TOPIC, n): tuple(map(BrokerId, replicas)) for n, replicas in target.items()}
    await create_znode(cluster, znodes.REASSIGN_PARTITIONS, cluster_nodes.encode_partition_reassignment(wanted))
    await _is_gone(cluster, znodes.REASSIGN_PARTITIONS)


async def _is_gone(cluster: Cluster, path: str) -> None:
    async def gone() -> bool:
        return not await cluster.exists(path)

    await cluster.wait_until(gone, f"{path} to be deleted by the controller")


# their brokers under our controller


async def elect_preferred(p: Peers) -> str:
    before = await p.states()
    await _elect_preferred(p.cluster, list(before))
    await p.until("preferred leaders", lambda replicas, leader, _: leader == replicas[0])
    return f"{sum(leader != replicas[0] for replicas, leader, _ in before.values())} leaders moved, all are preferred"


async def reassign(p: Peers) -> str:
    original = {n: replicas for n, (replicas, _, _) in (await p.states()).items()}
    fewer = {n: replicas[1:] for n, replicas in original.items()}
    for target in (fewer, {n: (original[n][0], *reversed(replicas)) for n, replicas in fewer.items()}):
        await _reassign(p.cluster, target)
        await p.until("the ISRs of the reassignment", lambda replicas, _, isr: isr == set(replicas))
        assert {n: replicas for n, (replicas, _, _) in (await p.states()).items()} == target
    return f"{len(original)} partitions to 2 replicas, and to 3 in another order"


OPERATIONS: list[Operation] = [
    ("create a topic", create_topic),
    ("produce and consume", produce_and_consume),
    ("kill a broker", kill_broker),
    ("restart it", restart_broker),
    ("preferred election", elect_preferred),
    ("reassign", reassign),
    ("controlled shutdown of a broker", shut_down_broker),
    ("lose the controller", lose_the_controller),
    ("regain the controller", regain_the_controller),
    ("delete the topic", delete_topics),
]


async def under_ours(
    zookeeper: str, folder: Path, release: Release, on_outcome: Callable[[Outcome], object]
) -> tuple[list[Outcome], int]:
    """What was seen, and how many records were acknowledged and are there. Raises whatever goes wrong."""
    async with peers(zookeeper, folder, ours=True, release=release) as p:
        p.on_outcome = on_outcome
        await run_all(p, OPERATIONS)
        return p.outcomes, p.acknowledged


# our brokers under their controller

CONTROLLER = 9


@dataclass(frozen=True, slots=True)
class Ours:
    """Nodes 1, 2 and 3 are ours, and hold the topic; node 9 is a real broker, and the controller."""

    cluster: Cluster

    async def until(self, wanted: dict[int, tuple[int, set[int]]]) -> None:
        """Wait until leaders and ISRs are these, and each of our brokers knows them."""

        async def reached() -> bool:
            (described,) = await self.cluster.describe_topics([TOPIC])
            replicas = {p.partition: p.assignment.replicas for p in described.partitions}
            return await leaders_and_isrs(self.cluster, TOPIC) == wanted and all(
                node.broker.replica_manager.partitions[TopicPartition(TOPIC, n)].leader == leader
                for member in self.cluster.members
                if isinstance(member, InProcessMember)
                and member.state == "running"
                and (node := member.node) is not None
                for n, (leader, _) in wanted.items()
                if member.id in replicas[n] and TopicPartition(TOPIC, n) in node.broker.replica_manager.partitions
            )

        await self.cluster.wait_until(reached, f"leaders and ISRs {wanted}")


async def _create_topic(o: Ours) -> str:
    await o.cluster.create_topic(TOPIC, assignment={0: [1, 2, 3], 1: [2, 3, 1]})
    await o.until({0: (1, {1, 2, 3}), 1: (2, {1, 2, 3})})
    return "2 partitions on 3 brokers"


async def _kill(o: Ours) -> str:
    await o.cluster.kill(1)
    await o.until({0: (2, {2, 3}), 1: (2, {2, 3})})
    return "broker 1 led a partition and left 2 ISRs"


async def _restart(o: Ours) -> str:
    await o.cluster.start(1)
    await o.until({0: (2, {1, 2, 3}), 1: (2, {1, 2, 3})})
    return "it is in both ISRs again"


async def _preferred(o: Ours) -> str:
    await _elect_preferred(o.cluster, [0, 1])
    await o.until({0: (1, {1, 2, 3}), 1: (2, {1, 2, 3})})
    return "broker 1 leads again"


async def _move(o: Ours) -> str:
    await _reassign(o.cluster, {0: (3, 2)})
    await o.until({0: (3, {2, 3}), 1: (2, {1, 2, 3})})
    return "a partition to 2 replicas, led by another"


async def _stop(o: Ours) -> str:
    await o.cluster.stop(2)
    await o.until({0: (3, {3}), 1: (3, {1, 3})})
    await o.cluster.start(2)
    await o.until({0: (3, {2, 3}), 1: (3, {1, 2, 3})})
    return "broker 2 gave its leadership away, and is in its ISRs again"


async def _new_controller(o: Ours) -> str:
    old = await o.cluster.wait_for_controller()
    await o.cluster.delete_controller()
    new = await o.cluster.wait_for_controller(other_than=old)
    assert new.epoch == old.epoch + 1
    return "whichever wins, of ours or it, goes on with the next epoch"


async def _delete(o: Ours) -> str:
    await o.cluster.delete_topic(TOPIC)
    return "gone from ZooKeeper"


UNDER_THEIRS: list[tuple[str, Callable[[Ours], Awaitable[str]]]] = [
    ("create a topic", _create_topic),
    ("kill a broker", _kill),
    ("restart it", _restart),
    ("preferred election", _preferred),
    ("reassign", _move),
    ("controlled shutdown of a broker", _stop),
    ("elect a controller", _new_controller),
    ("delete the topic", _delete),
]


async def under_theirs(
    zookeeper: str, folder: Path, release: Release, on_outcome: Callable[[Outcome], object]
) -> list[Outcome]:
    """What was seen. Raises whatever goes wrong."""
    outcomes = []
    async with real_brokers([CONTROLLER], zookeeper, folder, release):
        properties = {"zookeeper.session.timeout.ms": "4000", **of_release(release)}
        async with Cluster(3, zookeeper=zookeeper, properties=properties) as cluster:
            assert (await cluster.wait_for_controller()).id == CONTROLLER
            for name, operation in UNDER_THEIRS:
                start = time.monotonic()
                seen = await operation(Ours(cluster))
                outcomes.append(Outcome(name, seen, time.monotonic() - start))
                on_outcome(outcomes[-1])
    return outcomes
