"""The faults of a `Cluster` that are more than a rule: its methods for each of `kce.harness.actions`."""

from __future__ import annotations

from typing import Protocol

from kce.harness.errors import HarnessError, InvalidArgument
from kce.harness.faults import Rule, hold_control_requests
from kce.harness.members import Member
from kce.harness.node import Lag
from kce.harness.settling import ActiveController, RunningCluster
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import Delete, NoNode, SetData, value

#: why frames are held: a node whose control requests are, or two nodes without a way from one to the other
Held = int | tuple[int, int]


class Faulty(RunningCluster, Protocol):
    """The part of `Cluster` that its faults use. ``held``: the rules of its `hold_control_requests` and `cut_link`;
    ``to_restart`` and ``epoch_before`` are for `Cluster.reset`."""

    zk: KafkaZkClient
    held: dict[Held, Rule]
    to_restart: set[int]
    epoch_before: int | None

    async def add_rule(self, rule: Rule) -> None: ...
    async def remove_rule(self, rule: Rule) -> None: ...
    async def kill(self, node_id: int) -> None: ...
    async def start(self, node_id: int) -> None: ...
    async def cut_from_zookeeper(self, node_id: int) -> None: ...
    async def hold_control_requests(self, node_id: int) -> None: ...
    async def expire_session(self, node_id: int) -> None: ...
    async def second_controller(self) -> ActiveController: ...
    async def wait_for_controller(self, *, other_than: ActiveController | None = None) -> ActiveController: ...


class Interventions:
    """Faults on command. Every method raises HarnessError for a node that does not exist."""

    # a node

    async def bounce(self: Faulty, node_id: int) -> None:
        """Kill a node and start it again at once, before its session would have expired: a new broker epoch.

        Raises HarnessError for a node that is cut off, which is left as it is.
        """
        check_can_register(self, node_id)
        await self.kill(node_id)
        if node_id in await self.registered():
            await self.expire_session(node_id)
        await self.start(node_id)

    async def jump_clock(self: Faulty, node_id: int, seconds: float) -> None:
        """Let the wall clock of a node's machine jump ahead, or back; what measures durations goes on as before.

        Raises HarnessError for a clock that would be wrong by more than ten years.
        """
        member = self.member(node_id)
        member.machine.jump_clock(seconds)
        await member.machine_changed()

    async def fill_disk(self: Faulty, node_id: int) -> None:
        """The disk of a node is full until `free_disk`: what it writes next fails, and with it the log directory."""
        await _disk_is_full(self.member(node_id), True)
        self.to_restart.add(node_id)

    async def free_disk(self: Faulty, node_id: int) -> None:
        """The disk of a node has space again; log directories that have failed return when the node restarts."""
        await _disk_is_full(self.member(node_id), False)

    async def slow_disk(self: Faulty, node_id: int, seconds: float) -> None:
        """Each read, write and flush of a node's disk takes so much longer; 0 ends it. The node stands still meanwhile,
        but for its ZooKeeper session. Raises HarnessError for a delay below 0 or above a minute."""
        member = self.member(node_id)
        member.machine.slow_disk(seconds)
        await member.machine_changed()

    async def fail_log_dir(self: Faulty, node_id: int, log_dir: str) -> None:
        """Fail a log directory of a running node: its partitions are offline there until the node restarts.

        Without its last log directory the node halts, as Kafka does: as by `kill`. Raises HarnessError for a directory
        that is not one of its `log.dirs`, or is offline.
        """
        await self.member(node_id).fail_log_dir(log_dir)
        self.to_restart.add(node_id)

    # between nodes

    async def cut_link(self: Faulty, source: int, to: int) -> None:
        """What one node sends to another waits until `heal_link`, requests and responses; the other direction is open.

        As in a network that loses packets, which TCP sends again: who waits too long closes its connection.
        """
        self.member(source)
        self.member(to)
        if source == to:
            raise HarnessError(f"node {source} has no link to itself")
        await _hold(self, (source, to), Rule(source=source, to=to, is_request=None, hold=True))

    async def heal_link(self: Faulty, source: int, to: int) -> None:
        self.member(source)
        self.member(to)
        await _release(self, (source, to))

    async def hold_control_requests(self: Faulty, node_id: int) -> None:
        """Hold the control requests of this node until ``release_control_requests``."""
        self.member(node_id)
        await _hold(self, node_id, hold_control_requests(node_id))

    async def release_control_requests(self: Faulty, node_id: int) -> None:
        self.member(node_id)
        await _release(self, node_id)

    async def shrink_isr(self: Faulty, topic: str, partition: int, broker: int) -> None:
        """Make a follower lag until ``heal_isr``: it does not fetch the partition, and leaves its ISR.

        Returns when the ISR is written without it. Raises HarnessError for a leader or a broker without that replica.
        """
        lag = Lag(TopicPartition(topic, partition), broker)
        self.member(lag.broker)
        leader, replicas, _ = await _state(self, lag.partition)
        if lag.broker not in replicas:
            raise _no_replica(lag, replicas)
        if lag.broker == leader:
            raise HarnessError(f"broker {lag.broker} leads {lag.partition}: a leader is always in its ISR")
        for member in self.members:
            await member.lag(lag, True)

        async def has_left() -> bool:
            return lag.broker not in (await _state(self, lag.partition))[2]

        await self.wait_until(has_left, f"broker {lag.broker} to leave the ISR of {lag.partition}")

    async def heal_isr(self: Faulty, topic: str, partition: int, broker: int) -> None:
        """Let a follower fetch the partition again; it rejoins the ISR when it has caught up.

        Raises HarnessError for a partition that does not exist (unless it lagged), and for a broker without it."""
        lag = Lag(TopicPartition(topic, partition), broker)
        self.member(broker)
        if all(lag not in member.lags for member in self.members):
            _, replicas, _ = await _state(self, lag.partition)
            if broker not in replicas:
                raise _no_replica(lag, replicas)
        for member in self.members:
            await member.lag(lag, False)

    # ZooKeeper

    async def cut_from_zookeeper(self: Faulty, node_id: int) -> None:
        """Partition the node from ZooKeeper; its session expires if it is not healed in time."""
        self.member(node_id)
        self.world.cut(node_id)

    async def delay_zookeeper(self: Faulty, node_id: int, seconds: float) -> None:
        """Delay what the node sends to ZooKeeper until `heal`. Raises HarnessError below 0 s."""
        self.member(node_id)
        if not 0 <= seconds < float("inf"):
            raise InvalidArgument(f"nothing takes {seconds:g} s longer")
        self.world.delay_zookeeper(node_id, seconds)

    async def mute_zookeeper(self: Faulty, node_id: int) -> None:
        """What ZooKeeper says to the node does not arrive until `heal`; what the node asks for is done, and it does not
        know. Its client gives the connection up, and in the end its session expires."""
        self.member(node_id)
        self.world.mute_zookeeper(node_id)

    async def heal(self: Faulty, node_id: int) -> None:
        self.member(node_id)
        self.world.heal(node_id)

    async def expire_session(self: Faulty, node_id: int) -> None:
        """End the node's ZooKeeper session. A node that lives and is not cut off registers again at once.

        Returns when the registration is gone. Raises HarnessError for a node that is not registered.
        """
        self.member(node_id)
        session = await _session(self, node_id)
        if session is None:
            raise HarnessError(f"node {node_id} is not registered in ZooKeeper: it has no session to expire")
        await self.world.expire(node_id, session, self.zookeeper_config.tls)

        async def is_gone() -> bool:
            return await _session(self, node_id) != session

        await self.wait_until(is_gone, f"session {session:#x} of node {node_id} to expire")

    async def kill_zookeeper_leader(self: Faulty) -> None:
        """Kill the server that leads the ensemble of ``zookeepers``, kill -9: the others elect a leader, and nodes
        connect to them with the sessions that they have.

        Raises HarnessError where there is no ensemble, or too few of its servers run for a leader.
        """
        await self.world.kill_zookeeper_leader()

    async def restart_zookeeper(self: Faulty) -> None:
        """Start the servers of the ensemble that were killed, and return when they serve. Raises HarnessError."""
        await self.world.restart_zookeeper()

    # the controller

    async def delete_controller(self: Faulty) -> None:
        """Delete /controller by hand (rule 2.22)."""
        await self.store.write([Delete(znodes.CONTROLLER)])

    async def rewrite_controller(self: Faulty, node_id: int) -> None:
        """Let /controller name another node, without an election (E12.9): the controller resigns, and that node
        believes that it is controller, but has not taken over. The same session owns it.

        Raises HarnessError where there is no /controller.
        """
        self.member(node_id)
        await _rewrite(self, znodes.CONTROLLER, znodes.encode_controller(node_id, 0))

    async def delete_controller_epoch(self: Faulty) -> None:
        """Delete /controller_epoch: what the controller writes is refused, until `delete_controller`; the next one
        begins with epoch 1, which brokers take for an old one."""
        await _remember_epoch(self)
        await self.store.write([Delete(znodes.CONTROLLER_EPOCH)])

    async def rewrite_controller_epoch(self: Faulty, epoch: int) -> None:
        """Rewrite /controller_epoch: what the controller writes is refused (rule 2.9), until `delete_controller`; the
        next one has the epoch after this. Raises HarnessError where there is no /controller_epoch, and for an epoch
        that nobody could read."""
        if not -(2**31) <= epoch < 2**31:
            raise InvalidArgument(f"a controller epoch has 32 bits: {epoch} does not fit")
        await _remember_epoch(self)
        await _rewrite(self, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch))

    async def second_controller(self: Faulty) -> ActiveController:
        """Two controllers: cut the controller off from ZooKeeper, so that it does not learn that another is elected.

        Returns the first; `heal` lets it learn. Raises HarnessError where there is no controller, or no other node that
        can become it.
        """
        first = await _replaceable_controller(self)
        await self.cut_from_zookeeper(first.id)
        await self.expire_session(first.id)
        await self.wait_for_controller(other_than=first)
        return first

    async def zombie_controller(self: Faulty) -> ActiveController:
        """As `second_controller`, and the control requests of the first wait until `release_control_requests`: then
        brokers get them from a zombie, with an old controller epoch."""
        controller = await _replaceable_controller(self)
        await self.hold_control_requests(controller.id)
        return await self.second_controller()


def check_can_register(cluster: Faulty, node_id: int) -> None:
    """Raises HarnessError for a node that is cut off from ZooKeeper."""
    if cluster.world.is_cut(cluster.member(node_id).id):
        raise HarnessError(f"node {node_id} is cut off from ZooKeeper and could not register: heal it first")


async def _replaceable_controller(cluster: Faulty) -> ActiveController:
    """The controller, if another node can be elected. Raises HarnessError."""
    controller = await cluster.controller()
    running = {member.id for member in cluster.members if member.state == "running"}
    if controller is None or controller.id not in running:
        raise HarnessError("no node that runs is controller")
    others = running - {controller.id}
    if not others:
        raise HarnessError(f"node {controller.id} is the only one that runs: no other can become controller")
    if all(cluster.world.is_cut(node_id) for node_id in others):
        cut = _listed(tuple(sorted(others)))
        raise HarnessError(
            f"node {controller.id} is the only one that ZooKeeper hears of: heal a node that is cut off ({cut}) first"
        )
    return controller


async def _hold(cluster: Faulty, why: Held, rule: Rule) -> None:
    if why not in cluster.held:
        cluster.held[why] = rule
        await cluster.add_rule(rule)


async def _release(cluster: Faulty, why: Held) -> None:
    rule = cluster.held.pop(why, None)
    if rule is not None:
        await cluster.remove_rule(rule)


async def _disk_is_full(member: Member, full: bool) -> None:
    member.machine.disk_is_full = full
    await member.machine_changed()


async def _remember_epoch(cluster: Faulty) -> None:
    found = await cluster.zk.get_controller_epoch()
    if cluster.epoch_before is None and found is not None:
        cluster.epoch_before = found[0]


async def _rewrite(cluster: Faulty, path: str, data: bytes) -> None:
    (answer,) = await cluster.store.write([SetData(path, data)])
    if isinstance(answer, NoNode):
        raise HarnessError(f"there is no {path} to be rewritten")
    value(answer)


async def _session(cluster: Faulty, node_id: int) -> int | None:
    """The session that owns the node's registration."""
    (stat,) = await cluster.store.exists([znodes.broker_path(node_id)])
    return None if stat is None else stat.ephemeral_owner


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))


def _no_replica(lag: Lag, replicas: tuple[int, ...]) -> HarnessError:
    return HarnessError(f"broker {lag.broker} has no replica of {lag.partition}; {_listed(replicas)} have")


async def _state(cluster: Faulty, partition: TopicPartition) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, replicas and ISR, as ZooKeeper has them. Raises HarnessError."""
    (topic,) = await cluster.describe_topics([partition.topic])
    found = {p.partition: p for p in topic.partitions}.get(partition.partition)
    if found is None:
        raise HarnessError(f"there is no partition {partition.partition} in topic {partition.topic}")
    if found.state is None:
        raise HarnessError(f"{partition} has never had a leader")
    return found.state.leader, tuple(found.assignment.replicas), tuple(found.state.isr)
