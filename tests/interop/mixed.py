"""Random faults on a cluster in which our brokers and real Kafka's replicate each other's partitions.

An idempotent producer with acks=all works all the time. Nodes 1 and 2 are ours, 3 and 4 real; any of them may be
controller. Topic "t" has replicas of both kinds and needs two in sync; topic "u" has one of each, and unclean
elections. After every step all replicas are in sync again. At the end no acknowledged record is lost and none is there
twice, and the logs of all replicas are the same, byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio
from confluent_kafka import KafkaError, Producer

from kce import wire
from kce.harness import Cluster, HarnessError
from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.admin import TopicDescription
from kce.zookeeper.model import BrokerId, TopicPartition
from tests.clusters import create_znode, is_registered, request
from tests.interop.kafka_jars import Release
from tests.interop.operations import Outcome
from tests.interop.real_kafka import OFFSETS_TOPIC, RealBroker, real_brokers
from tests.interop.records import Ledger, Traffic
from tests.interop.tools import Tools

OURS, THEIRS = (1, 2), (3, 4)
TOPIC, UNCLEAN = "t", "u"
_ASSIGNMENTS: Final[Mapping[str, Mapping[int, Sequence[int]]]] = {
    TOPIC: {0: (1, 3, 2), 1: (3, 1, 4), 2: (2, 4, 1), 3: (4, 2, 3)},
    UNCLEAN: {0: (2, 4)},
}
_DUMP = "kafka.tools.DumpLogSegments"
_UNCLEAN_ELECTION = 1
_STUCK = "Failed to enqueue ISR change state"
_PATIENCE_S = 120.0
#: acknowledged after every step
RECORDS = 20


@dataclass(slots=True)
class Mixed:
    """``brokers``: the real ones. ``folder`` has the logs of ours."""

    cluster: Cluster
    brokers: dict[int, RealBroker]
    folder: Path
    ledger: Ledger
    random: Random
    #: the step that goes on
    step: str = ""
    #: how far the log of each real broker is read
    read_logs: dict[int, int] = field(default_factory=dict)

    # what there is

    async def topics(self) -> list[TopicDescription]:
        return await self.cluster.describe_topics(list(_ASSIGNMENTS))

    async def leader(self, partition: TopicPartition) -> int:
        (topic,) = await self.cluster.describe_topics([partition.topic])
        states = {p.partition: p.state for p in topic.partitions}
        state = states[partition.partition]
        return -1 if state is None else state.leader

    async def isr(self, partition: TopicPartition) -> set[int]:
        (topic,) = await self.cluster.describe_topics([partition.topic])
        states = {p.partition: p.state for p in topic.partitions}
        state = states[partition.partition]
        return set() if state is None else set(state.isr)

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        await self.cluster.wait_until(holds, f"{what}, after: {self.step}", timeout_s=_PATIENCE_S)

    async def until_registered(self, broker: int, wanted: bool) -> None:
        async def holds() -> bool:
            return await is_registered(self.cluster, broker) == wanted

        await self.until(f"broker {broker} to be {'registered' if wanted else 'gone'}", holds)

    async def recover(self) -> None:
        """Until every replica is in sync, and records are acknowledged."""

        lagging: list[str] = []

        async def in_sync() -> bool:
            await self._restart_stuck_leaders()
            lagging[:] = [
                f"{topic.name}-{p.partition} {p.state}, replicas {p.assignment.replicas}"
                for topic in await self.topics()
                for p in topic.partitions
                if p.state is None or p.state.leader < 0 or set(p.state.isr) != set(p.assignment.replicas)
            ]
            return not lagging

        try:
            await self.until("all replicas in sync", in_sync)
        except HarnessError as e:
            e.add_note(f"controller {await self.cluster.controller()}; {'; '.join(lagging)}")
            raise
        target = len(self.ledger.acknowledged) + RECORDS
        with trio.fail_after(_PATIENCE_S):
            while len(self.ledger.acknowledged) < target:  # noqa: ASYNC110 - a thread receives them
                await trio.sleep(0.05)

    async def _restart_stuck_leaders(self) -> None:
        """A leader of 2.8 whose change of an ISR is refused for the moment (rule 11.74) submits it again while it still
        counts as pending, fails, and never changes that ISR again (KAFKA-13254)."""
        for broker in self.brokers.values():
            if _STUCK in self._new_log_of(broker):
                self.step += f" (then {_named(broker.id)} is stuck, and restarted)"
                await self.shut_down(broker.id)
                await self.start(broker.id)

    def _new_log_of(self, broker: RealBroker) -> str:
        """What a real broker has logged since it was last asked."""
        with (broker.folder / "server.log").open(errors="replace") as log:
            log.seek(self.read_logs.get(broker.id, 0))
            text = log.read()
            self.read_logs[broker.id] = log.tell()
        return text

    # what is done to a broker

    async def kill(self, broker: int) -> None:
        if broker in OURS:
            await self.cluster.kill(broker)
        else:
            self.brokers[broker].kill()
        await self.until_registered(broker, False)

    async def start(self, broker: int) -> None:
        if broker in OURS:
            await self.cluster.start(broker)
        else:
            await self.brokers[broker].start()
        await self.until_registered(broker, True)

    async def shut_down(self, broker: int) -> None:
        if broker in OURS:
            await self.cluster.stop(broker)
        else:
            await self.brokers[broker].shut_down()

    async def pause(self, broker: int) -> None:
        if broker in OURS:
            await self.cluster.pause(broker)
        else:
            os.kill(self.brokers[broker].pid, signal.SIGSTOP)

    async def resume(self, broker: int) -> None:
        if broker in OURS:
            await self.cluster.resume(broker)
        else:
            os.kill(self.brokers[broker].pid, signal.SIGCONT)


def _named(broker: int) -> str:
    return f"{'our' if broker in OURS else 'the real'} broker {broker}"


async def _kill(m: Mixed) -> None:
    broker = m.random.choice(OURS + THEIRS)
    m.step = f"kill -9 {_named(broker)}"
    await m.kill(broker)
    await m.start(broker)


async def _pause(m: Mixed) -> None:
    broker = m.random.choice(OURS + THEIRS)
    m.step = f"SIGSTOP {_named(broker)} until its session has expired"
    await m.pause(broker)
    try:
        await m.until_registered(broker, False)
    finally:
        await m.resume(broker)
    await m.until_registered(broker, True)


async def _shut_down(m: Mixed) -> None:
    broker = m.random.choice(OURS + THEIRS)
    m.step = f"controlled shutdown of {_named(broker)}"
    await m.shut_down(broker)
    await m.until_registered(broker, False)
    await m.start(broker)


async def _reassign(m: Mixed) -> None:
    partition = TopicPartition(TOPIC, m.random.choice(list(_ASSIGNMENTS[TOPIC])))
    target = tuple(map(BrokerId, m.random.sample(OURS + THEIRS, 3)))
    m.step = f"reassign {partition} to {target}"
    data = cluster_nodes.encode_partition_reassignment({partition: target})
    await create_znode(m.cluster, znodes.REASSIGN_PARTITIONS, data)

    async def moved() -> bool:
        (topic,) = await m.cluster.describe_topics([TOPIC])
        replicas = {p.partition: tuple(p.assignment.replicas) for p in topic.partitions}
        return replicas[partition.partition] == target and not await m.cluster.exists(znodes.REASSIGN_PARTITIONS)

    await m.until("the reassignment", moved)


async def _elect_preferred(m: Mixed) -> None:
    m.step = "preferred election"
    partitions = {
        TopicPartition(topic.name, p.partition): p.assignment.replicas[0]
        for topic in await m.topics()
        for p in topic.partitions
    }
    wanted = cluster_nodes.encode_partition_list(partitions)
    await create_znode(m.cluster, znodes.PREFERRED_REPLICA_ELECTION, wanted)

    async def elected() -> bool:
        if await m.cluster.exists(znodes.PREFERRED_REPLICA_ELECTION):
            return False
        if all([await m.leader(partition) == replica for partition, replica in partitions.items()]):
            return True
        # a new controller may have held it before it knew that a broker is back
        await create_znode(m.cluster, znodes.PREFERRED_REPLICA_ELECTION, wanted)
        return False

    await m.until("preferred leaders", elected)


async def _elect_unclean(m: Mixed) -> None:
    """The follower misses records, the leader dies, and the follower leads."""
    partition = TopicPartition(UNCLEAN, 0)
    leader = await m.leader(partition)
    (follower,) = set(_ASSIGNMENTS[UNCLEAN][0]) - {leader}
    m.step = f"unclean election of {_named(follower)} instead of {_named(leader)}"
    await m.kill(follower)

    async def alone() -> bool:
        return await m.isr(partition) == {leader}

    await m.until("the leader to be alone in the ISR", alone)
    await trio.to_thread.run_sync(_produce, m.ledger.bootstrap, UNCLEAN)
    await m.kill(leader)
    await m.start(follower)

    async def elected() -> bool:
        await _ask_for_unclean_election(m, partition)
        return await m.leader(partition) == follower

    await m.until("the election", elected)
    await trio.to_thread.run_sync(_produce, m.ledger.bootstrap, UNCLEAN)
    await m.start(leader)


async def _ask_for_unclean_election(m: Mixed, partition: TopicPartition) -> None:
    controller = await m.cluster.wait_for_controller()
    address = m.brokers[controller.id].address if controller.id in THEIRS else _address(m.cluster, controller.id)
    topics = (wire.ElectLeadersRequestTopicPartitions(topic=partition.topic, partitions=(partition.partition,)),)
    message = wire.ElectLeadersRequest(election_type=_UNCLEAN_ELECTION, topic_partitions=topics, timeout_ms=30_000)
    try:
        answer = await request(address, message, 2)
    except (OSError, EOFError):  # it is controller no more
        return
    assert isinstance(answer, wire.ElectLeadersResponse)
    codes = {p.error_code for topic in answer.replica_election_results for p in topic.partition_result}
    allowed = {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    assert answer.error_code in (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER), answer
    assert codes <= allowed, answer


def _address(cluster: Cluster, node: int) -> str:
    return cluster.member(node).addresses["DATA"]


def _produce(bootstrap: str, topic: str) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(topic, str(number), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(_PATIENCE_S) == 0
    assert errors == [None] * RECORDS


async def _move_controller(m: Mixed) -> None:
    """To a broker of the other kind: all others stand still for a moment."""
    current = await m.cluster.wait_for_controller()
    new = m.random.choice(THEIRS if current.id in OURS else OURS)
    m.step = f"{_named(new)} becomes controller instead of {_named(current.id)}"
    others = [broker for broker in OURS + THEIRS if broker != new]

    async def elected() -> bool:
        controller = await m.cluster.controller()
        return controller is not None and controller.id == new

    try:
        for broker in others:
            await m.pause(broker)
        await m.cluster.delete_controller()
        await m.until("the election", elected)
    finally:
        for broker in others:
            await m.resume(broker)


STEPS: Sequence[Callable[[Mixed], Awaitable[None]]] = (
    _kill, _kill, _pause, _shut_down, _reassign, _reassign, _elect_preferred, _elect_unclean, _move_controller,
)  # fmt: skip


async def run(
    zookeeper: str,
    folder: Path,
    release: Release,
    *,
    seed: int,
    steps: int,
    on_outcome: Callable[[Outcome], object] = lambda outcome: None,
) -> tuple[list[Outcome], int]:
    """What was done, and how many records were acknowledged. Raises AssertionError, TooSlowError, HarnessError."""
    random = Random(seed)
    chosen = random.sample(STEPS, len(STEPS))
    chosen = [*chosen, *random.choices(STEPS, k=steps)][:steps]
    outcomes = []
    async with _mixed(zookeeper, folder, release, random) as m:
        with Traffic(m.ledger):
            await m.recover()
            for step in chosen:
                begin = time.monotonic()
                await step(m)
                await m.recover()
                outcomes.append(Outcome(m.step, "all replicas in sync", time.monotonic() - begin))
                on_outcome(outcomes[-1])
        await trio.to_thread.run_sync(m.ledger.flush)
        read = await trio.to_thread.run_sync(m.ledger.check)
        assert read == m.ledger.sent
        await _logs_are_the_same(m)
        return outcomes, read


@asynccontextmanager
async def _mixed(zookeeper: str, folder: Path, release: Release, random: Random) -> AsyncIterator[Mixed]:
    logs = folder / "ours"
    properties = {
        "log.dirs": f"{logs}-{{id}}",
        "replica.lag.time.max.ms": "3000",
        "zookeeper.session.timeout.ms": "4000",
        **OFFSETS_TOPIC,
        **release.protocol,
        "auto.leader.rebalance.enable": "false",
    }
    if release.has_control_plane:
        properties["control.plane.listener.name"] = "CONTROL"
    async with (
        Cluster(
            len(OURS),
            first_id=OURS[0],
            processes=True,
            zookeeper=zookeeper,
            data=folder / "cluster",
            properties=properties,
        ) as cluster,
        real_brokers(list(THEIRS), zookeeper, folder, release) as brokers,
    ):
        for topic, assignment in _ASSIGNMENTS.items():
            config = {"min.insync.replicas": "2"} if topic == TOPIC else {}
            await cluster.create_topic(topic, assignment=assignment, config=config)
        bootstrap = ",".join([cluster.bootstrap_servers(), *(broker.address for broker in brokers.values())])
        yield Mixed(cluster, brokers, folder, Ledger(bootstrap, TOPIC), random)


async def _logs_are_the_same(m: Mixed) -> None:
    """Followers still fetch what came last. DumpLogSegments reads ours without complaint."""

    differences: Mapping[str, object] = {"not": "compared"}
    with trio.move_on_after(_PATIENCE_S):
        while differences := await trio.to_thread.run_sync(_differences, m, await m.topics()):  # noqa: ASYNC110
            await trio.sleep(0.2)
    assert not differences, differences
    files = [str(path) for broker in OURS for path in _folder_of(m, broker).glob("[tu]-*/*.log")]
    assert files
    with Tools() as tools:
        for file in files:
            output = await trio.to_thread.run_sync(tools.run, _DUMP, "--files", file)
            assert "isvalid: false" not in output


def _differences(m: Mixed, topics: Sequence[TopicDescription]) -> dict[str, dict[int, str]]:
    """Size and hash of each replica's log, of partitions where they are not all the same."""
    found: dict[str, dict[int, str]] = {}
    for topic in topics:
        for p in topic.partitions:
            name = f"{topic.name}-{p.partition}"
            logs = {int(broker): _digest(_folder_of(m, broker) / name) for broker in p.assignment.replicas}
            if len(set(logs.values())) > 1:
                found[name] = logs
    return found


def _folder_of(m: Mixed, broker: int) -> Path:
    return m.brokers[broker].folder / "data" if broker in m.brokers else Path(f"{m.folder}/ours-{broker}")


def _digest(folder: Path) -> str:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"
