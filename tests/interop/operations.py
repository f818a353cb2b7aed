"""Every operation on a cluster of real Kafka brokers, under a controller of ours or one of Kafka's, and what was seen.

Brokers 1, 2 and 3 are real and hold all data. Node 100 is the active controller: ours, or in the peer's run a real one.
Records are sent all the time; after each operation whatever has been acknowledged is read again.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import trio
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kce import wire
from kce.harness import Cluster
from kce.harness.embedded_zookeeper import four_letter_word
from kce.harness.guard import Guard
from kce.harness.members import InProcessMember
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper.znodes import CONTROLLER, topic_path
from tests.clusters import is_registered, know_each_other, request
from tests.interop.kafka_jars import RELEASES, VERSION, Release, kafka_jars
from tests.interop.real_kafka import OFFSETS_TOPIC, RealBroker
from tests.interop.records import Ledger, Traffic, consume_in_group
from tests.interop.tools import ELECTION, REASSIGN, TOPICS, Tools

NODE = 100
#: of a broker of ours that is held back
IDLE = 50
TOPIC = "orders"
RECORDS = 10_000
SESSION_TIMEOUT_MS = 4000
_AS_CREATED = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
_ADDED = {3: (1, 3, 2), 4: (2, 1, 3)}
_HANDOVERS = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """One operation: what was seen, and how long it took with the tools it needed, in seconds."""

    operation: str
    seen: str
    seconds: float


@dataclass(slots=True)
class Peers:
    """The cluster: three real brokers, node 100, and what happens to be needed of all of them."""

    cluster: Cluster
    brokers: dict[int, RealBroker]
    kafka_controller: RealBroker | None  # node 100 in the peer's run; None where it is ours
    folder: Path
    tools: Tools | None  # None: not Kafka's of today, which do not know such old brokers
    release: Release
    ledger: Ledger | None = None
    acknowledged: int = 0  # by the end of the traffic
    watched: set[str] = field(default_factory=set)  # by node 100 then
    outcomes: list[Outcome] = field(default_factory=list)
    on_outcome: Callable[[Outcome], object] = lambda outcome: None

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    async def kill_controller(self) -> None:
        if self.kafka_controller is None:
            await self.cluster.kill(NODE)
        else:
            self.kafka_controller.kill()

    async def start_controller(self) -> None:
        async def gone() -> bool:
            return not await is_registered(self.cluster, NODE)

        await self.cluster.wait_until(gone, "node 100 to be gone from ZooKeeper")
        if self.kafka_controller is None:
            await self.cluster.start(NODE)
        else:
            await self.kafka_controller.start()

    async def states(self, topic: str = TOPIC) -> dict[int, tuple[tuple[int, ...], int, frozenset[int]]]:
        """Replicas, leader and ISR of each partition, as ZooKeeper has them."""
        (described,) = await self.cluster.describe_topics([topic])
        return {
            p.partition: (tuple(p.assignment.replicas), p.state.leader, frozenset(p.state.isr))
            for p in described.partitions
            if p.state is not None
        }

    async def until(
        self, what: str, holds: Callable[[tuple[int, ...], int, frozenset[int]], bool], topic: str = TOPIC
    ) -> None:
        """Wait until it holds of replicas, leader and ISR of every partition."""

        async def check() -> bool:
            return all(holds(*state) for state in (await self.states(topic)).values())

        await self.cluster.wait_until(check, what)

    async def until_known(self, topic: str) -> None:
        """Whichever node a client asks, it knows the topic's replicas as ZooKeeper has them, or knows of no topic.

        The next tool may ask a node that would otherwise learn of them a moment later.
        """
        addresses = [broker.address for broker in self.brokers.values() if broker.is_running]
        if self.kafka_controller is not None:
            addresses += [self.kafka_controller.address] * self.kafka_controller.is_running
        elif self.cluster.member(NODE).state == "running":
            addresses.append(self.cluster.member(NODE).addresses["DATA"])
        message = wire.MetadataRequest(topics=None)
        version = 1  # which the oldest brokers know, too; they keep replicas in a set
        shape = sorted if self.tools is None else list

        async def is_known() -> bool:
            there = await self.cluster.exists(topic_path(topic))
            states = await self.states(topic) if there else {}
            wanted = {n: shape(replicas) for n, (replicas, _, _) in states.items()}
            for address in addresses:
                answer = await request(address, message, version)
                assert isinstance(answer, wire.MetadataResponse)
                known = {
                    p.partition_index: shape(p.replica_nodes)
                    for t in answer.topics
                    if t.name == topic
                    for p in t.partitions
                }
                if known != wanted:
                    return False
            return True

        await self.cluster.wait_until(is_known, f"all nodes to know of {topic}")

    async def create(self, topic: str, assignment: dict[int, tuple[int, ...]]) -> None:
        if self.tools is None:
            await self.cluster.create_topic(topic, assignment=assignment)
        else:
            await self.tool(TOPICS, "--create", "--topic", topic, "--replica-assignment", as_tool_wants(assignment))
        await self.until(
            f"leaders of {topic}", lambda replicas, leader, isr: leader == replicas[0] and isr == set(replicas), topic
        )
        await self.until_known(topic)

    async def delete(self, topic: str) -> None:
        if self.tools is None:
            await self.cluster.delete_topic(topic)
        else:
            await self.tool(TOPICS, "--delete", "--topic", topic)

    async def tool(self, main_class: str, *arguments: str) -> str:
        command = (main_class, "--bootstrap-server", self.bootstrap, *arguments)
        assert self.tools is not None
        return await trio.to_thread.run_sync(self.tools.run, *command)

    async def run(self, name: str, operation: Callable[[Peers], Awaitable[str]]) -> Outcome:
        """Do it, then read everything. Raises whatever goes wrong, ``records.Lost`` included."""
        start = time.monotonic()
        seen = await operation(self)
        seconds = time.monotonic() - start
        if self.ledger is not None:
            await trio.to_thread.run_sync(self.ledger.check)
        outcome = Outcome(name, seen, seconds)
        self.outcomes.append(outcome)
        self.on_outcome(outcome)
        return outcome


def of_release(release: Release) -> dict[str, str | None]:
    """Properties of our nodes beside it."""
    properties: dict[str, str | None] = {**release.protocol}
    if not release.has_control_plane:
        properties |= {
            "listeners": "DATA://127.0.0.1:0",
            "listener.security.protocol.map": "DATA:PLAINTEXT",
            "control.plane.listener.name": None,
        }
    return properties


@asynccontextmanager
async def peers(
    zookeeper: str,
    folder: Path,
    *,
    ours: bool,
    ids: Sequence[int] = (1, 2, 3),
    more: Callable[[int], Mapping[str, str]] = lambda broker_id: {},
    properties: Mapping[str, str | None] | None = None,
    release: Release = RELEASES[VERSION],
) -> AsyncIterator[Peers]:
    """``zookeeper`` with a chroot that is not used yet. Node 100 is controller before the brokers start.

    ``more``: properties of a real broker; ``properties``: of our node 100.
    """
    with ExitStack() as stack:
        guard = stack.enter_context(closing(Guard()))

        def broker(broker_id: int) -> RealBroker:
            made = RealBroker(broker_id, zookeeper, folder, guard, more(broker_id), release)
            stack.callback(made.kill)
            return made

        await trio.to_thread.run_sync(kafka_jars, release.version)
        settings: dict[str, str | None] = {
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "auto.leader.rebalance.enable": "false",  # as on the real ones: leaders move when the operations say so
            **OFFSETS_TOPIC,
            **of_release(release),
            **(properties or {}),
        }
        async with Cluster(
            0, controllers=int(ours), first_id=NODE, zookeeper=zookeeper, properties=settings
        ) as cluster:
            tools = stack.enter_context(Tools()) if release.version == VERSION else None
            kafka_controller = None if ours else broker(NODE)
            if kafka_controller is not None:
                await kafka_controller.start()
            assert (await cluster.wait_for_controller()).id == NODE
            brokers = {i: broker(i) for i in ids}
            async with trio.open_nursery() as nursery:
                for one in brokers.values():
                    nursery.start_soon(one.start)
            node = cluster.member(NODE).addresses["DATA"] if kafka_controller is None else kafka_controller.address
            await know_each_other(node, *(one.address for one in brokers.values()))
            yield Peers(cluster, brokers, kafka_controller, folder, tools, release)


@asynccontextmanager
async def traffic(p: Peers) -> AsyncIterator[None]:
    """Records all the time; at the end each one has been acknowledged, and is there."""
    ledger = p.ledger
    assert ledger is not None
    sender = Traffic(ledger)
    sender.__enter__()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(sender.__exit__, None, None, None)
    await trio.to_thread.run_sync(ledger.flush)
    p.acknowledged = await trio.to_thread.run_sync(ledger.check)


def as_tool_wants(assignment: dict[int, tuple[int, ...]]) -> str:
    return ",".join(":".join(map(str, assignment[p])) for p in sorted(assignment))


# the operations; each returns what was seen, and raises when that is not what should be


async def create_topic(p: Peers) -> str:
    await p.create(TOPIC, _AS_CREATED)
    assert {n: replicas for n, (replicas, _, _) in (await p.states()).items()} == _AS_CREATED
    seen = "3 partitions on 3 brokers, each led by its first replica"
    if p.tools is None:
        return seen
    described = await p.tool(TOPICS, "--describe", "--topic", TOPIC)
    assert described.count("Leader: ") == len(_AS_CREATED), described
    return f"{seen}; TopicCommand describes them"


async def produce_and_consume(p: Peers) -> str:
    ledger = p.ledger = Ledger(p.bootstrap, TOPIC, is_idempotent=p.release.is_idempotent)
    group = await _group_of_a_real_broker(p)

    def work() -> int:
        for _ in range(RECORDS):
            ledger.send()
        ledger.flush()
        return consume_in_group(p.bootstrap, TOPIC, RECORDS, group)

    committed = await trio.to_thread.run_sync(work)
    assert committed == RECORDS, committed
    producer = "an idempotent producer" if p.release.is_idempotent else "a producer"
    return f"{RECORDS:,} records of {producer}, acks=all, read by a group; a broker made its topic"


async def _group_of_a_real_broker(p: Peers) -> str:
    """Ask broker 1 for coordinators, which makes it create the offsets topic.

    The group is one that node 100 does not coordinate: that is killed later.
    """
    groups = [f"readers-{i}" for i in range(20)]
    found: list[str] = []

    async def coordinated() -> bool:
        found.clear()
        for group in groups:
            answer = await request(p.brokers[1].address, wire.FindCoordinatorRequest(key=group), 0)
            assert isinstance(answer, wire.FindCoordinatorResponse)
            if answer.error_code != wire.ErrorCode.NONE:
                return False
            if answer.node_id in p.brokers:
                found.append(group)
        return True

    await p.cluster.wait_until(coordinated, "the offsets topic to be created")
    return found[0]


async def kill_broker(p: Peers) -> str:
    before = await p.states()
    p.brokers[1].kill()
    await p.until("leaders and ISRs without broker 1", lambda _, leader, isr: leader in (2, 3) and 1 not in isr)
    moved = sum(leader == 1 for _, leader, _ in before.values())
    return f"kill -9 of broker 1: {moved} leaders moved, it left {len(before)} ISRs"


async def restart_broker(p: Peers) -> str:
    await p.brokers[1].start()
    await p.until("broker 1 to be in its ISRs again", lambda replicas, _, isr: isr == set(replicas))
    return "broker 1 is in all its ISRs again"


async def elect_preferred(p: Peers) -> str:
    before = await p.states()
    await p.tool(ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    after = await p.states()
    assert all(leader == replicas[0] for replicas, leader, _ in after.values()), after
    moved = sum(before[n][1] != after[n][1] for n in before)
    return f"LeaderElectionCommand: {moved} leaders moved, all are preferred ones"


async def add_partitions(p: Peers) -> str:
    wanted = _AS_CREATED | _ADDED
    await p.tool(
        TOPICS, "--alter", "--topic", TOPIC, "--partitions", str(len(wanted)),
        "--replica-assignment", as_tool_wants(wanted),
    )  # fmt: skip
    states = await p.states()
    assert {n: replicas for n, (replicas, _, _) in states.items()} == wanted, states
    assert all(leader == replicas[0] for replicas, leader, _ in states.values()), states
    await p.until_known(TOPIC)  # librdkafka believes for minutes what a node that learns of them a moment later says
    return f"{len(_ADDED)} partitions more, led by their first replicas"


async def reassign(p: Peers) -> str:
    original = {n: replicas for n, (replicas, _, _) in (await p.states()).items()}
    fewer = {n: replicas[1:] for n, replicas in original.items()}
    other = {n: (replicas[-1], replicas[0]) for n, replicas in fewer.items()}
    for step, target in enumerate((fewer, {n: (*r, original[n][0]) for n, r in other.items()}, original)):
        await _reassign(p, target, step)
    return f"{len(original)} partitions to 2 replicas, to 3 in another order, and back"


async def _reassign(p: Peers, target: dict[int, tuple[int, ...]], step: int) -> None:
    plan = _plan(p, target, step)
    await p.tool(REASSIGN, "--execute", "--reassignment-json-file", plan)
    await p.until(
        f"step {step} of the reassignment",
        lambda replicas, leader, isr: replicas in target.values() and isr == set(replicas) and leader in replicas,
    )
    verified = await p.tool(REASSIGN, "--verify", "--reassignment-json-file", plan)
    assert verified.count("is completed") == len(target), verified


def _plan(p: Peers, target: dict[int, tuple[int, ...]], step: int) -> str:
    partitions = [{"topic": TOPIC, "partition": n, "replicas": list(replicas)} for n, replicas in target.items()]
    path = p.folder / f"plan-{step}.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


async def cancel_reassignment(p: Peers) -> str:
    """Cancel a reassignment to a live broker that never catches up: a node of ours that lags on command."""
    before = await p.states()
    properties = {"auto.leader.rebalance.enable": "false"}
    async with Cluster(1, first_id=IDLE, zookeeper=p.cluster.zookeeper, properties=properties) as cluster:
        (idle,) = cluster.members
        assert isinstance(idle, InProcessMember)
        assert idle.node is not None
        idle.node.broker.replication.lag(TopicPartition(TOPIC, 0), IDLE, True)
        plan = _plan(p, {0: (IDLE, *before[0][0][1:])}, 9)
        await p.tool(REASSIGN, "--execute", "--reassignment-json-file", plan)
        listed = await p.tool(REASSIGN, "--list")
        assert f"{TOPIC}-0" in listed, listed
        await p.tool(REASSIGN, "--cancel", "--reassignment-json-file", plan)
        after = await p.states()
        assert {n: set(r) for n, (r, _, _) in after.items()} == {n: set(r) for n, (r, _, _) in before.items()}, after
        assert "No partition reassignments found" in await p.tool(REASSIGN, "--list")
    await _reassign(p, {n: replicas for n, (replicas, _, _) in before.items()}, 10)  # the order is not restored: 11.19
    return "a move to a broker that never catches up is listed, cancelled, and gone"


async def change_config(p: Peers) -> str:
    def change() -> None:
        entry = ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": p.bootstrap})
        for future in admin.incremental_alter_configs([resource], request_timeout=60).values():
            future.result()

    await trio.to_thread.run_sync(change)

    async def known() -> bool:
        return all("max.message.bytes -> 2000000" in broker.log for broker in p.brokers.values())

    await p.cluster.wait_until(known, "all brokers to apply max.message.bytes")
    return "max.message.bytes by IncrementalAlterConfigs; each broker applied it"


async def shut_down_broker(p: Peers) -> str:
    before = await p.states()
    log = len(p.brokers[2].log)
    await p.brokers[2].shut_down()
    await p.until("leaders and ISRs without broker 2", lambda _, leader, isr: leader in (1, 3) and 2 not in isr)
    done = ("Controlled shutdown request returned successfully", "Controlled shutdown succeeded")
    assert any(line in p.brokers[2].log[log:] for line in done)
    led = sum(leader == 2 for _, leader, _ in before.values())
    await p.brokers[2].start()
    await p.until("broker 2 to be in its ISRs again", lambda replicas, _, isr: isr == set(replicas))
    return f"{led} leaders moved away before it ended; restarted, it is in all its ISRs again"


async def lose_the_controller(p: Peers) -> str:
    old = await p.cluster.wait_for_controller()
    assert old.id == NODE
    await p.kill_controller()
    new = await p.cluster.wait_for_controller(other_than=old)
    assert (new.id != NODE, new.epoch) == (True, old.epoch + 1)
    await p.create("meanwhile", _AS_CREATED)
    await p.delete("meanwhile")
    return f"kill -9 of node 100: epoch {old.epoch} -> {new.epoch} under a real broker, which creates and deletes"


async def regain_the_controller(p: Peers) -> str:
    old = await p.cluster.wait_for_controller()
    await p.start_controller()
    now = old
    for _ in range(_HANDOVERS):  # whoever sees first that /controller is gone wins
        await p.cluster.delete_controller()
        last, now = now, await p.cluster.wait_for_controller(other_than=now)
        assert now.epoch == last.epoch + 1
        if now.id == NODE:
            break
    assert now.id == NODE, f"node 100 has not won in {_HANDOVERS} elections"
    await p.create("again", _AS_CREATED)
    return f"epoch {now.epoch}, after {now.epoch - old.epoch} elections; it creates topics again"


async def delete_topics(p: Peers) -> str:
    """Whatever is left: the topics, and what they have on disk."""
    p.ledger = None
    await p.delete(TOPIC)

    async def gone() -> bool:
        return not await p.cluster.exists(topic_path(TOPIC)) and not any(
            folder.name.startswith(f"{TOPIC}-") and not folder.name.endswith("-delete")
            for broker in p.brokers.values()
            for folder in (broker.folder / "data").iterdir()
        )

    await p.cluster.wait_until(gone, f"topic {TOPIC} to be deleted")
    await p.until_known(TOPIC)
    if p.tools is not None:
        listed = (await p.tool(TOPICS, "--list")).split()
        assert TOPIC not in listed, listed
    where = "" if p.tools is None else " from TopicCommand's list,"
    return f"gone from ZooKeeper,{where} and marked for deletion on the brokers' disks"


Operation = tuple[str, Callable[[Peers], Awaitable[str]]]

#: in this order; those of the short form stand in the suite
OPERATIONS: list[tuple[Operation, bool]] = [
    (("create a topic (TopicCommand)", create_topic), True),
    (("produce and consume", produce_and_consume), True),
    (("kill a broker", kill_broker), True),
    (("restart it", restart_broker), True),
    (("preferred election (LeaderElectionCommand)", elect_preferred), True),
    (("add partitions (TopicCommand)", add_partitions), True),
    (("reassign (ReassignPartitionsCommand)", reassign), False),
    (("cancel a reassignment", cancel_reassignment), False),
    (("change a topic's configuration", change_config), True),
    (("controlled shutdown of a broker", shut_down_broker), False),
    (("lose the controller", lose_the_controller), False),
    (("regain the controller", regain_the_controller), False),
    (("delete the topic (TopicCommand)", delete_topics), True),
]
ALL = [operation for operation, _ in OPERATIONS]
SHORT = [operation for operation, is_short in OPERATIONS if is_short]


async def watched_by_controller(p: Peers) -> set[str]:
    """The paths that node 100 watches (ZooKeeper's ``wchc``), below the chroot."""
    hosts, _, chroot = p.cluster.zookeeper.partition("/")
    stat = (await p.cluster.store.exists([CONTROLLER]))[0]
    assert stat is not None
    host, _, port = hosts.rpartition(":")
    sessions = (await four_letter_word(host, int(port), "wchc")).split("0x")
    (own,) = [s for s in sessions if s and int(s.split()[0], 16) == stat.ephemeral_owner & (2**64 - 1)]
    return {path.removeprefix(f"/{chroot}") for path in own.split()[1:]}


async def run_all(p: Peers, operations: Sequence[Operation]) -> None:
    """Each once, between the second and the last while records are sent. What was seen is in ``p.outcomes``."""
    for operation in operations[:2]:
        await p.run(*operation)
    async with traffic(p):
        for operation in operations[2:-1]:
            await p.run(*operation)
    p.watched = await watched_by_controller(p)
    await p.run(*operations[-1])
