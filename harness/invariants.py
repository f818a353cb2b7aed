"""Invariants of every cluster, checked on every frame and once the cluster has settled.

    with watch(cluster) as violations:
        ...
    assert violations == []

one controller    a controller epoch belongs to one controller
one leader        a partition has at most one leader in each leader epoch
ISR               the ISR is a part of the assignment
persisted         LeaderAndIsr has no state that ZooKeeper does not have (only in memory, where it can be read at once)
fenced            no state in ZooKeeper was written by an older controller than the state before it (as above)
epochs            the epochs that a broker has accepted never go back while it runs
bounced           a broker accepts no request for an earlier life of it (KIP-380)
no crash          no node ends by an error that it does not handle
converged         settled: every broker knows what ZooKeeper has, and no control request is pending
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from kce import wire
from kce.harness.cluster import Cluster
from kce.harness.history import line
from kce.harness.links import FrameEvent
from kce.harness.members import InProcessMember
from kce.harness.node import Node
from kce.harness.world import MemoryClusterWorld
from kce.wire import control
from kce.wire.registry import CONTROL_REQUESTS, LEADER_AND_ISR
from kce.zookeeper import znodes
from kce.zookeeper.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Violation:
    """``invariant`` is its name in the module's table."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class Invariants:
    """Collects violations in ``found``, each kind once for the same subject."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.found: list[Violation] = []
        self._seen: set[tuple[str, object]] = set()
        self._controller_of: dict[int, int] = {}
        self._leader_of: dict[tuple[object, int, int], int] = {}
        self._controller_epoch_of: dict[Node, int] = {}
        #: the greatest controller epoch in ZooKeeper's state of a partition
        self._written_by: dict[tuple[UUID | None, int], int] = {}
        self._leader_epoch_of: dict[tuple[Node, TopicPartition, object], int] = {}
        #: (source, destination, listener, correlation id) -> whether the request was for an earlier life
        self._for_earlier_life: dict[tuple[object, ...], bool] = {}

    def observe(self, event: FrameEvent) -> None:
        """Check a frame; a listener for `Links.listen`."""
        if event.header.api_key not in CONTROL_REQUESTS:
            return
        try:
            message = event.message()
        except wire.DecodeError:
            return  # a fault may have damaged it
        exchange = event.listener, event.header.correlation_id
        if event.is_request:
            self._for_earlier_life[event.source, event.destination, *exchange] = self._is_for_earlier_life(
                event, message
            )
            self._request(event, message)
        else:
            earlier = self._for_earlier_life.pop((event.destination, event.source, *exchange), False)
            if earlier and getattr(message, "error_code", None) == 0:
                self._violated("bounced", event.source, f"accepted by broker {event.source}: {line(event)}")
        self._check_nodes()

    def _violated(self, invariant: str, subject: object, text: str) -> None:
        if (invariant, subject) not in self._seen:
            self._seen.add((invariant, subject))
            self.found.append(Violation(invariant, text))

    def _nodes(self) -> Iterator[Node]:
        """Nodes of this process that are up."""
        for member in self._cluster.members:
            if isinstance(member, InProcessMember) and member.state == "running" and member.node is not None:
                yield member.node

    def _is_for_earlier_life(self, event: FrameEvent, message: wire.Message) -> bool:
        epoch = getattr(message, "broker_epoch", -1)
        node = next((node for node in self._nodes() if node.id == event.destination), None)
        return node is not None and -1 < epoch < node.broker.broker_epoch

    def _request(self, event: FrameEvent, message: wire.Message) -> None:
        epoch, controller = getattr(message, "controller_epoch", -1), getattr(message, "controller_id", -1)
        known = self._controller_of.setdefault(epoch, controller)
        if known != controller:
            self._violated("one controller", epoch, f"epoch {epoch} is that of nodes {known} and {controller}")
        if not isinstance(message, (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest)):
            return
        for state in control.partition_states(message):
            self._leader(state)
            if event.header.api_key == LEADER_AND_ISR:
                self._leader_and_isr(event, state)

    def _leader(self, state: control.PartitionState) -> None:
        if state.leader is None or state.leader < 0 or state.leader_epoch is None:
            return
        key = state.topic_id or state.topic, state.partition, state.leader_epoch
        known = self._leader_of.setdefault(key, state.leader)
        if known != state.leader:
            text = f"{state.topic}-{state.partition} epoch {state.leader_epoch}: {known} and {state.leader}"
            self._violated("one leader", key, text)

    def _leader_and_isr(self, event: FrameEvent, state: control.PartitionState) -> None:
        isr, replicas = state.isr or (), state.replicas or ()
        if not set(isr) <= set(replicas):
            self._violated("ISR", state.topic, f"{state.topic}-{state.partition}: ISR {isr} of replicas {replicas}")
        world = self._cluster.world
        if not isinstance(world, MemoryClusterWorld) or state.partition_epoch is None:
            return
        topic = world.server.peek(znodes.topic_path(state.topic))
        if topic is None or self._topic_id(topic[0]) != state.topic_id:
            return  # it was deleted since
        tp = TopicPartition(state.topic, state.partition)
        stored = world.server.peek(znodes.partition_state_path(tp))
        found = None if stored is None else znodes.decode_partition_state(*stored)
        if found is not None:
            key = state.topic_id, state.partition
            before = self._written_by.get(key, 0)
            if found.controller_epoch < before:
                text = f"{tp} was written by controller epoch {found.controller_epoch} after {before}"
                self._violated("fenced", key, text)
            self._written_by[key] = max(before, found.controller_epoch)
        if found is None or found.leader_and_isr.partition_epoch < state.partition_epoch:
            self._violated("persisted", tp, f"{line(event)}, but ZooKeeper has {found}")
        elif found.leader_and_isr.partition_epoch == state.partition_epoch:
            kept = found.leader_and_isr
            if (kept.leader, kept.isr, kept.leader_epoch) != (state.leader, isr, state.leader_epoch):
                self._violated("persisted", tp, f"{line(event)}, but ZooKeeper has {found}")

    @staticmethod
    def _topic_id(data: bytes) -> UUID | None:
        return znodes.decode_topic("", data).topic_id

    def _check_nodes(self) -> None:
        for node in self._nodes():
            manager = node.broker.replica_manager
            known = self._controller_epoch_of.get(node, 0)
            if manager.controller_epoch < known:
                text = f"broker {node.id} went back from controller epoch {known} to {manager.controller_epoch}"
                self._violated("epochs", node.id, text)
            self._controller_epoch_of[node] = manager.controller_epoch
            for tp, partition in manager.partitions.items():
                key = node, tp, partition
                before = self._leader_epoch_of.get(key, -1)
                if partition.leader_epoch < before:
                    text = f"broker {node.id} went back from leader epoch {before} to {partition.leader_epoch} of {tp}"
                    self._violated("epochs", (node.id, tp), text)
                self._leader_epoch_of[key] = partition.leader_epoch

    # settled

    async def unsettled(self) -> str | None:
        """Why the cluster has not settled, None if it has: to be waited for, then `check_settled`."""
        cluster = self._cluster
        active = await cluster.controller()
        if active is None:
            return "there is no controller"
        status = await cluster.node_status(active.id)
        if status.controller_epoch != active.epoch:
            return f"node {active.id} has not finished its failover"
        if any(status.unanswered.values()):
            return f"control requests of node {active.id} are pending: {status.unanswered}"
        alive = await cluster.registered()
        wanted: dict[tuple[str, int], tuple[int, tuple[int, ...], int]] = {}
        for topic in await cluster.describe_topics():
            if topic.marked_for_deletion:
                return f"topic {topic.name} is not deleted"
            for p in topic.partitions:
                if p.state is None or p.state.leader not in alive:
                    return f"{topic.name}-{p.partition} has no leader: {p.state}"
                if set(p.state.isr) != set(p.assignment.replicas) & alive:
                    return f"{topic.name}-{p.partition}: the ISR is {p.state.isr}"
                wanted[topic.name, p.partition] = p.state.leader, tuple(p.state.isr), p.state.leader_epoch
        for node in self._nodes():
            snapshot = node.broker.metadata_cache.snapshot
            if set(snapshot.alive_brokers) != alive:
                return f"broker {node.id} knows the brokers {sorted(snapshot.alive_brokers)}, not {sorted(alive)}"
            known = {
                (name, number): (state.leader, tuple(state.isr), state.leader_epoch)
                for name, partitions in snapshot.topics.items()
                for number, state in partitions.items()
            }
            # a failover's UpdateMetadata does not name topics that are gone: a broker that missed their deletion keeps
            # them (rule 9.42: only a request of type FULL, which ZooKeeper's controllers do not send, removes them)
            existing = {topic for topic, _ in wanted}
            known = {key: state for key, state in known.items() if key[0] in existing}
            if known != wanted:
                different = sorted(k for k in known.keys() | wanted.keys() if known.get(k) != wanted.get(k))
                first = different[0]
                return f"broker {node.id} has {known.get(first)} of {first[0]}-{first[1]}, not {wanted.get(first)}"
        return None

    def crashed(self, error: Exception) -> None:
        """A node has ended by an error that it does not handle."""
        self._violated("no crash", type(error), f"{type(error).__name__}: {error}")

    def not_converged(self, reason: str) -> None:
        self._violated("converged", None, reason)


@contextmanager
def watch(cluster: Cluster) -> Iterator[list[Violation]]:
    """The violations that frames show during the block."""
    invariants = Invariants(cluster)
    with cluster.links.listen(invariants.observe):
        yield invariants.found
