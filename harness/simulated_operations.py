"""The operations of a simulation: what administrators do to a cluster, and what happens to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kce.harness.cluster import Cluster
from kce.harness.faults import Rule
from kce.harness.links import Selection
from kce.harness.members import Member
from kce.harness.node import Lag
from kce.harness.simulated_client import SimulatedClient
from kce.harness.simulated_clients import ASSIGNMENT, TOPIC
from kce.wire.vocabulary import TopicPartition

NODES: Final = 3
_STEP_TIMEOUT_S: Final = 60.0
_TOPICS: Final = ("a", "b", "c")
_SLOWEST_ZOOKEEPER_S: Final = 0.3
_SLOWEST_DISK_S: Final = 0.05
_ELECT_LEADERS: Final = 2
_DISTURBED: Final = (
    "AlterPartition", "EndTxn", "LeaderAndIsr", "OffsetCommit", "TxnOffsetCommit", "UpdateMetadata", "WriteTxnMarkers",
)  # fmt: skip
_MOST_WAIT_S: Final = 2.0
#: two hours are more than message.timestamp.after.max.ms
_CLOCK_JUMPS_S: Final = (-7200.0, -60.0, -1.0, 1.0, 60.0, 7200.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, on a node or a topic, and the pause after it. Where it makes no sense it does nothing."""

    operation: str
    node: int
    topic: str
    pause_s: float

    def __str__(self) -> str:
        subject = self.topic if self.operation in ("create", "delete") else f"node {self.node}"
        return f"{self.operation} {subject}, then {self.pause_s:.2f} s"


def draw(random: Random) -> Step:
    return Step(
        random.choices(_NAMES, _WEIGHTS)[0],
        random.randint(1, NODES),
        random.choice(_TOPICS),
        random.choice((0.0, 0.001, 0.01, 0.1, 1.0, 3.0)) * random.random(),
    )


class Player:
    """Plays steps; ``random`` chooses what a step leaves open."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.frames = 0

    def count(self, _: object) -> None:
        self.frames += 1

    async def play(self, step: Step) -> None:
        with trio.move_on_after(_STEP_TIMEOUT_S):
            _, do = OPERATIONS[step.operation]
            await do(self, step)
        await trio.sleep(step.pause_s)

    def member(self, step: Step) -> Member:
        return self.cluster.member(step.node)

    def other(self, step: Step) -> int:
        """Another node."""
        return self.random.choice([number for number in range(1, NODES + 1) if number != step.node])

    async def coordinator(self) -> Member | None:
        """Of groups or of transactions: whoever leads their partition."""
        internal = {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC} & await self.topics()
        if not internal:
            return None
        (topic,) = await self.cluster.describe_topics([self.random.choice(sorted(internal))])
        state = topic.partitions[0].state
        return self.cluster.member(state.leader) if state is not None and state.leader >= 0 else None

    async def topics(self) -> set[str]:
        return {topic.name for topic in await self.cluster.describe_topics()}


# topics


async def _create(player: Player, step: Step) -> None:
    if step.topic not in await player.topics():
        replicas = player.random.sample(range(1, NODES + 1), player.random.randint(1, NODES))
        await player.cluster.create_topic(step.topic, assignment={0: replicas, 1: replicas[::-1]}, wait=False)


async def _delete(player: Player, step: Step) -> None:
    if step.topic in await player.topics():
        await player.cluster.delete_topic(step.topic, wait=False)


# nodes


async def _kill(player: Player, step: Step) -> None:
    if player.member(step).state != "stopped":
        await player.cluster.kill(step.node)


async def _kill_coordinator(player: Player, _: Step) -> None:
    coordinator = await player.coordinator()
    if coordinator is not None and coordinator.state != "stopped":
        await player.cluster.kill(coordinator.id)


async def _amid(player: Player, _: Step) -> None:
    """When a request of some kind arrives, it happens to the node that has sent it, to the one that would answer, or to
    the controller."""
    wanted = Selection(api=player.random.choice(_DISTURBED))
    with trio.move_on_after(_MOST_WAIT_S), player.cluster.links.subscribe(wanted) as frames:
        async for event in frames:
            ends = [member for member in player.cluster.members if member.id in (event.source, event.destination)]
            victim = player.random.choice(ends)
            happens = player.random.choice((_kill, _expire, _delete_controller))
            await happens(player, Step("amid", victim.id, "", 0))
            return


async def _start(player: Player, step: Step) -> None:
    """An administrator makes it work before."""
    if player.member(step).state == "stopped":
        await player.cluster.heal(step.node)
        await player.cluster.free_disk(step.node)
        await player.cluster.start(step.node)


async def _restart(player: Player, step: Step) -> None:
    member, is_cut = player.member(step), player.cluster.world.is_cut(step.node)
    if member.state == "running" and not is_cut and not member.machine.disk_is_full:
        await player.cluster.restart(step.node)


async def _bounce(player: Player, step: Step) -> None:
    if player.member(step).state == "running" and not player.cluster.world.is_cut(step.node):
        await player.cluster.free_disk(step.node)
        await player.cluster.bounce(step.node)


async def _pause(player: Player, step: Step) -> None:
    if player.member(step).state == "running":
        await player.cluster.pause(step.node)


async def _resume(player: Player, step: Step) -> None:
    if player.member(step).state == "paused":
        await player.cluster.resume(step.node)


# machines


async def _fill_disk(player: Player, step: Step) -> None:
    await player.cluster.fill_disk(step.node)


async def _free_disk(player: Player, step: Step) -> None:
    await player.cluster.free_disk(step.node)


async def _slow_disk(player: Player, step: Step) -> None:
    await player.cluster.slow_disk(step.node, _SLOWEST_DISK_S * player.random.random())


async def _jump_clock(player: Player, step: Step) -> None:
    await player.cluster.jump_clock(step.node, player.random.choice(_CLOCK_JUMPS_S))


# ZooKeeper


async def _cut(player: Player, step: Step) -> None:
    await player.cluster.cut_from_zookeeper(step.node)


async def _mute(player: Player, step: Step) -> None:
    await player.cluster.mute_zookeeper(step.node)


async def _slow(player: Player, step: Step) -> None:
    await player.cluster.delay_zookeeper(step.node, _SLOWEST_ZOOKEEPER_S * player.random.random())


async def _heal(player: Player, step: Step) -> None:
    await player.cluster.heal(step.node)


async def _expire(player: Player, step: Step) -> None:
    if step.node in await player.cluster.registered():
        await player.cluster.expire_session(step.node)


async def _expire_coordinator(player: Player, _: Step) -> None:
    """It lives, and others coordinate until it leads again."""
    coordinator = await player.coordinator()
    if coordinator is not None and coordinator.id in await player.cluster.registered():
        await player.cluster.expire_session(coordinator.id)


async def _delete_controller(player: Player, _: Step) -> None:
    if await player.cluster.controller() is not None:
        await player.cluster.delete_controller()


async def _overtake(player: Player, step: Step) -> None:
    """The controller is slow, and has something to write, when another is elected."""
    controller = await player.cluster.controller()
    if controller is not None:
        await player.cluster.delay_zookeeper(controller.id, _SLOWEST_ZOOKEEPER_S * player.random.random())
        await _expire(player, step)
        await trio.sleep(_SLOWEST_ZOOKEEPER_S * player.random.random())
        await _delete_controller(player, step)


async def _zombie(player: Player, _: Step) -> None:
    controller = await player.cluster.controller()
    states = {member.id: member.state for member in player.cluster.members}
    running = [node for node, state in states.items() if state == "running" and not player.cluster.world.is_cut(node)]
    if controller is not None and controller.id in running and len(running) > 1:
        await player.cluster.zombie_controller()


async def _elect(player: Player, _: Step) -> None:
    """The preferred leaders of all partitions, so that leaders come back to where they were."""
    controller = await player.cluster.controller()
    if controller is not None:
        client = SimulatedClient(player.cluster, player.random)
        await client.ask(
            controller.id, wire.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000), _ELECT_LEADERS
        )
        await client.aclose()


# between nodes


async def _hold(player: Player, step: Step) -> None:
    await player.cluster.hold_control_requests(step.node)


async def _release(player: Player, step: Step) -> None:
    await player.cluster.release_control_requests(step.node)


async def _cut_link(player: Player, step: Step) -> None:
    await player.cluster.cut_link(step.node, player.other(step))


async def _heal_link(player: Player, step: Step) -> None:
    for other in range(1, NODES + 1):
        if other != step.node:
            await player.cluster.heal_link(step.node, other)


async def _lag(player: Player, step: Step) -> None:
    lag = Lag(TopicPartition(TOPIC, player.random.choice(list(ASSIGNMENT))), step.node)
    for member in player.cluster.members:
        await member.lag(lag, True)


async def _break(player: Player, step: Step) -> None:
    await player.cluster.add_rule(Rule(to=step.node, reset=True, every=7, seed=player.random.randrange(1000)))


async def _delay(player: Player, step: Step) -> None:
    await player.cluster.add_rule(Rule(to=step.node, jitter=0.5, seed=player.random.randrange(1000)))


async def _duplicate(player: Player, step: Step) -> None:
    await player.cluster.add_rule(Rule(to=step.node, api="LeaderAndIsr", duplicate=True, every=3))


async def _half_open(player: Player, step: Step) -> None:
    """Of connections, one in so many requests."""
    await player.cluster.add_rule(Rule(to=step.node, half_open=True, every=player.random.randint(5, 40)))


async def _lose(player: Player, step: Step) -> None:
    """Responses, which makes their connections useless."""
    rule = Rule(source=step.node, is_request=False, drop=True, every=player.random.randint(5, 40))
    await player.cluster.add_rule(rule)


#: name -> how often it is chosen, and what it does
OPERATIONS: Final[dict[str, tuple[int, Callable[[Player, Step], Awaitable[None]]]]] = {
    "create": (5, _create), "delete": (2, _delete), "kill": (4, _kill), "kill coordinator": (2, _kill_coordinator),
    "amid": (5, _amid), "start": (6, _start), "restart": (2, _restart), "bounce": (1, _bounce), "pause": (3, _pause),
    "resume": (3, _resume), "fill disk": (1, _fill_disk), "free disk": (1, _free_disk), "slow disk": (1, _slow_disk),
    "jump clock": (1, _jump_clock), "cut": (3, _cut), "mute": (2, _mute), "slow": (2, _slow), "heal": (4, _heal),
    "expire": (2, _expire), "expire coordinator": (3, _expire_coordinator), "elect": (3, _elect),
    "delete controller": (2, _delete_controller), "overtake": (3, _overtake), "zombie": (1, _zombie),
    "hold": (3, _hold), "release": (3, _release), "cut link": (3, _cut_link), "heal link": (2, _heal_link),
    "lag": (1, _lag), "break": (2, _break), "delay": (2, _delay), "duplicate": (1, _duplicate),
    "half open": (1, _half_open), "lose": (1, _lose),
}  # fmt: skip
_NAMES: Final = list(OPERATIONS)
_WEIGHTS: Final = [weight for weight, _ in OPERATIONS.values()]
