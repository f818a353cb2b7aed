"""No decision is lost: the process of a controller is killed by SIGKILL before and after what it does to a real
ZooKeeper and sends over TCP to our brokers, of which one then takes over and finishes it.

Points are enumerated from a run in which nobody dies. The suite kills at some of them, `make kill-points` at each; how
many there were is printed. `tests/controller/test_crash_points.py` strikes at all of them in memory, in more ways.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from kce.harness import Cluster
from kce.harness.errors import HarnessError
from kce.harness.members import InProcessMember
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, ReplicaAssignment, TopicPartition
from tests.clusters import create_znode, leaders_and_isrs
from tests.conftest import Struck
from tests.harness.doomed_node import ARMED

pytestmark = pytest.mark.slow

VICTIM = 8
T0 = TopicPartition("t", 0)
EVERY = int(os.environ.get("KCE_KILL_EVERY", "8"))
AT_ONCE = 4
#: a point that is not come by in that time will not be
DEATH_WITHIN_S = 5
VICTIMS_PROPERTIES = {
    "broker.id": str(VICTIM),
    "listeners": "CONTROL://127.0.0.1:0,DATA://127.0.0.1:0",
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT",
    "control.plane.listener.name": "CONTROL",
    "inter.broker.listener.name": "DATA",
    "zookeeper.session.timeout.ms": "1000",
    "auto.leader.rebalance.enable": "false",
}
PROPERTIES = {"controlled.shutdown.max.retries": "100", "controlled.shutdown.retry.backoff.ms": "100"}


class Doomed:
    """The process that forks nodes which die."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        with (folder / "doomed.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.doomed_node"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def start(self, zookeeper: str, point: Sequence[Any] | None) -> tuple[int, Path]:
        """Its process id, and its trace."""
        trace = self._folder / f"{next(self._numbers)}.trace"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        properties = {**VICTIMS_PROPERTIES, "zookeeper.connect": zookeeper}
        order = {"properties": properties, "trace": str(trace), "point": point}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()), trace

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doomed]:
    made = Doomed(tmp_path_factory.mktemp("doomed"))
    yield made
    made.close()


class Operation(ABC):
    """What is decided by the controller that dies, and finished by the next."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def prepare(self) -> None:
        await self.cluster.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1]})

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    async def is_done(self) -> bool:
        """According to ZooKeeper."""

    async def assignment(self) -> ReplicaAssignment:
        (topic,) = await self.cluster.describe_topics(["t"])
        return topic.partitions[0].assignment

    async def states(self) -> dict[int, tuple[int, set[int]]]:
        """Leader and ISR by partition."""
        return await leaders_and_isrs(self.cluster, "t")


class Creation(Operation):
    async def prepare(self) -> None:
        pass

    async def begin(self) -> None:
        await self.cluster.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1]}, wait=False)

    async def is_done(self) -> bool:
        return await self.states() == {0: (1, {1, 2, 3}), 1: (2, {1, 2, 3})}


class Deletion(Operation):
    async def begin(self) -> None:
        await self.cluster.delete_topic("t", wait=False)

    async def is_done(self) -> bool:
        return not any([await self.cluster.exists(p) for p in ("/brokers/topics/t", "/admin/delete_topics/t")])


class Reassignment(Operation):
    async def prepare(self) -> None:
        await self.cluster.create_topic("t", assignment={0: [1, 2]})

    async def begin(self) -> None:
        target = {T0: (BrokerId(3), BrokerId(2))}
        await create_znode(
            self.cluster, znodes.REASSIGN_PARTITIONS, cluster_nodes.encode_partition_reassignment(target)
        )

    async def is_done(self) -> bool:
        states, assigned = await self.states(), await self.assignment()
        is_reached = 0 in states and states[0][1] == {2, 3} and assigned == ReplicaAssignment((3, 2))  # type: ignore[arg-type]
        return is_reached and not await self.cluster.exists(znodes.REASSIGN_PARTITIONS)


class Election(Operation):
    """The election of the preferred replica, after a change of the preferred replica."""

    async def prepare(self) -> None:
        await self.cluster.create_topic("t", assignment={0: [1, 2, 3]})
        target = {T0: (BrokerId(2), BrokerId(1), BrokerId(3))}
        await create_znode(
            self.cluster, znodes.REASSIGN_PARTITIONS, cluster_nodes.encode_partition_reassignment(target)
        )

        async def reordered() -> bool:
            done = await self.assignment() == ReplicaAssignment((2, 1, 3))  # type: ignore[arg-type]
            return done and not await self.cluster.exists(znodes.REASSIGN_PARTITIONS)

        await self.cluster.wait_until(reordered, "another preferred replica")
        assert (await self.states())[0][0] == 1

    async def begin(self) -> None:
        await create_znode(self.cluster, znodes.PREFERRED_REPLICA_ELECTION, cluster_nodes.encode_partition_list([T0]))

    async def is_done(self) -> bool:
        is_pending = await self.cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
        return await self.states() == {0: (2, {1, 2, 3})} and not is_pending


class ControlledShutdown(Operation):
    """Controlled shutdown of broker 2, which leads a partition and retries until it may stop."""

    async def begin(self) -> None:
        member = self.cluster.member(2)
        assert isinstance(member, InProcessMember)
        member._tasks.start_soon(member.stop)

    async def is_done(self) -> bool:
        is_gone = 2 not in await self.cluster.registered()
        return is_gone and await self.states() == {0: (1, {1, 3}), 1: (3, {1, 3})}


async def goes_by_zookeeper(cluster: Cluster) -> bool:
    """Whether every broker in an ISR has the partition as ZooKeeper has it, and no broker has one that is gone."""
    running = {m.id: m.node for m in cluster.members if isinstance(m, InProcessMember) and m.state == "running"}
    topics = {topic.name: topic for topic in await cluster.describe_topics()}
    for broker, node in running.items():
        assert node is not None
        hosted = node.broker.replica_manager.partitions
        if any(tp.topic not in topics for tp in hosted):
            return False
        for topic in topics.values():
            for number, partition in enumerate(topic.partitions):
                state = partition.state
                assert state is not None
                mine = hosted.get(TopicPartition(topic.name, number))
                if broker in state.isr and (
                    mine is None or (mine.leader, mine.leader_epoch) != (state.leader, state.leader_epoch)
                ):
                    return False
    return True


async def knows_all(cluster: Cluster) -> bool:
    """Whether no control request is pending."""
    nodes = [member.node for member in cluster.members if isinstance(member, InProcessMember)]
    known = [set(node.broker.metadata_cache.snapshot.alive_brokers) for node in nodes if node is not None]
    return known == 3 * [{1, 2, 3, VICTIM}] and await goes_by_zookeeper(cluster)


async def was_persisted(cluster: Cluster, sent: Sequence[dict[str, Any]]) -> None:
    """What a victim sent was in ZooKeeper: versions only grow there, and a version has one content."""
    topics = {topic.name: topic for topic in await cluster.describe_topics()}
    for state_sent in sent:
        if state_sent["topic"] not in topics:
            continue
        state = topics[state_sent["topic"]].partitions[state_sent["partition"]].state
        assert state is not None, state_sent
        assert state_sent["partition_epoch"] <= state.partition_epoch, state_sent
        if state_sent["partition_epoch"] == state.partition_epoch:
            assert (state_sent["leader"], tuple(state_sent["isr"]), state_sent["leader_epoch"]) == (
                state.leader, state.isr, state.leader_epoch,
            ), state_sent  # fmt: skip


async def run(
    doomed: Doomed, zookeeper: str, operation: type[Operation], point: Sequence[Any] | None
) -> tuple[list[list[Any]], bool]:
    """The operation, with a death at that point; gives the points that were passed, and whether it died."""
    pid, trace = doomed.start(zookeeper, point)

    def reported() -> list[Any]:
        return [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []

    def is_alive() -> bool:
        try:
            return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            return False

    try:
        async with Cluster(0, zookeeper=zookeeper) as waiting:
            await waiting.wait_for_controller()
        async with Cluster(3, zookeeper=zookeeper, properties=PROPERTIES) as cluster:
            first = await cluster.controller()
            assert first is not None
            assert first.id == VICTIM
            done = operation(cluster)
            await done.prepare()
            await cluster.wait_until(lambda: knows_all(cluster), "brokers that know of each other")
            os.kill(pid, signal.SIGUSR1)
            await cluster.wait_until(lambda: _holds(lambda: ARMED in reported()), "the controller to be armed")
            await done.begin()
            if point is not None:
                with contextlib.suppress(HarnessError):
                    await cluster.wait_until(
                        lambda: _holds(lambda: not is_alive()), "a death", timeout_s=DEATH_WITHIN_S
                    )
            await cluster.wait_until(done.is_done, f"{operation.__name__} after a death at {point}")
            await cluster.wait_until(lambda: goes_by_zookeeper(cluster), f"brokers that agree after a death at {point}")
            died, lines = not is_alive(), reported()  # before the end of the brokers, which it would see, too
            if died:
                assert (await cluster.wait_for_controller(other_than=first)).id != VICTIM
            await was_persisted(cluster, [line for line in lines if isinstance(line, dict)])
            for member in cluster.members:
                assert isinstance(member, InProcessMember)
                assert member.node is None or not member.node.controller.loop.failures
    finally:
        if is_alive():
            os.kill(pid, signal.SIGKILL)
    return [line for line in lines if isinstance(line, list)], died


async def _holds(condition: Any) -> bool:
    return bool(condition())


@pytest.mark.parametrize("operation", [Creation, Deletion, Reassignment, Election, ControlledShutdown])
async def test_killed(doomed: Doomed, zookeeper: str, operation: type[Operation], struck: Struck) -> None:
    numbers = itertools.count()

    def chroot() -> str:
        return f"{zookeeper}/kill-points-{operation.__name__}-{next(numbers)}"

    passed, died = await run(doomed, chroot(), operation, None)
    assert not died
    points = [json.loads(point) for point in dict.fromkeys(map(json.dumps, passed))]
    assert len(points) > 8
    deaths, missed = 0, []
    limit = trio.CapacityLimiter(AT_ONCE)

    async def die(point: list[Any]) -> None:
        nonlocal deaths
        async with limit:
            _, died = await run(doomed, chroot(), operation, point)
            deaths += died
            if not died:
                missed.append(point)

    chosen = points[::EVERY]
    async with trio.open_nursery() as nursery:
        for point in chosen:
            nursery.start_soon(die, point)
    # what happens next to what is a matter of time; a point that was not come by is no death
    assert deaths >= 0.8 * len(chosen), missed
    struck(operation.__name__, f"kill -9, process, of {len(points)}", deaths)
