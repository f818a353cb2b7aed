"""Invariants of every cluster, checked on every frame and once the cluster has settled.

    with watch(cluster) as violations:
        ...
    assert violations == []

one controller    a controller epoch belongs to one controller
one leader        a partition has at most one leader in each leader epoch
ISR               the ISR is a part of the assignment
persisted         LeaderAndIsr has no state that ZooKeeper does not have (only in memory, where it can be read at once)
fenced            no state in ZooKeeper was written by an older controller than the state before it (as above)
high watermark    a leader's high watermark never goes back while it leads (only nodes of this process; likewise below)
committed         a leader has everything before the high watermark of the leaders before it, and so has all of its ISR
epochs            the epochs that a broker has accepted never go back while it runs
offsets           a group's coordinator has every commit that the coordinators before it had, or a later one
bounced           a broker accepts no request for an earlier life of it (KIP-380)
no crash          no node ends by an error that it does not handle
answered          settled: every request was answered within ANSWER_S, or its connection is closed
converged         settled: every broker knows what ZooKeeper has, and no control request is pending

`kce.harness.simulated_clients` adds these:

acknowledged      settled: every record that was acknowledged by all of the ISR is where it was acknowledged
once              settled: each record of an idempotent producer is there once, and they are in order
consumed          what a consumer has read at an offset is what every consumer reads there
logs              settled: the logs of all replicas are equal up to their high watermarks
offsets           what OffsetFetch answers is what was committed last; once a generation is written, no commit of an
                  older one is accepted; whatever is below a committed offset was read by a member
assigned          no two members of a generation own a partition
copies            settled: what transactions have copied is there once and in order for a read_committed consumer, and
                  no more than the offsets say that were committed with it

Kafka itself does not hold "converged" when a broker gets an UpdateMetadata after a newer one of the same controller,
because that request has no order within a controller epoch (rule 9.36): the older one was delayed, the controller
gave it up after its timeout and sent it again on another connection. ``overtaken`` says so; only another controller
mends it. Nor does an ISR converge after a former controller has refused it because it does not know the topic: the
leader waits for the next LeaderAndIsr with a new leader epoch (rule 9.58). Such ISRs are left out. Nor does it hold
"answered" for requests to a controller whose session expires before it gets to them (rule 3.38), nor for a JoinGroup or
SyncGroup that the same member repeats (rule G4.4): those are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from kce import wire
from kce.broker_stub.log import Log
from kce.broker_stub.partition import WAIT_FOR_CONTROLLER
from kce.harness.cluster import Cluster
from kce.harness.committed_offsets import CommittedOffsets
from kce.harness.history import line
from kce.harness.links import FrameEvent
from kce.harness.members import InProcessMember
from kce.harness.node import Node
from kce.harness.world import MemoryClusterWorld
from kce.wire import control
from kce.wire.registry import CONTROL_REQUESTS, LEADER_AND_ISR
from kce.zookeeper import znodes
from kce.zookeeper.model import TopicPartition

#: no request waits longer, with the timeouts of clients and nodes in simulations
ANSWER_S: Final = 6.0
#: a controller whose session expires forgets those that it has not begun with (rule 3.38); a coordinator answers only
#: the last that a member has sent (rule G4.4)
_MAY_BE_FORGOTTEN: Final = {"AlterPartition", "AllocateProducerIds", "UpdateFeatures", "JoinGroup", "SyncGroup"}


@dataclass(frozen=True, slots=True)
class Violation:
    """``invariant`` is its name in the module's table."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class Invariants:
    """Collects violations in ``found``, each kind once for the same subject. The cluster is running."""

    def __init__(self, cluster: Cluster, found: list[Violation] | None = None) -> None:
        self._cluster = cluster
        self.found: list[Violation] = [] if found is None else found
        self._seen: set[tuple[str, object]] = set()
        self._controller_of: dict[int, int] = {}
        self._leader_of: dict[tuple[object, int, int], int] = {}
        self._controller_epoch_of: dict[Node, int] = {}
        #: the greatest controller epoch in ZooKeeper's state of a partition
        self._written_by: dict[tuple[UUID | None, int], int] = {}
        self._leader_epoch_of: dict[tuple[Node, TopicPartition, object], int] = {}
        #: (source, destination, listener, correlation id) -> whether unanswered requests were for an earlier life
        self._for_earlier_life: dict[tuple[object, ...], list[bool]] = {}
        #: of the last UpdateMetadata by controller, its epoch, broker, and broker's epoch: the correlation id
        self._latest_metadata: dict[tuple[object, ...], int] = {}
        #: leaders whose ISR was refused by a node that is not the controller any more
        self._refused_by_former: set[int | None] = set()
        #: whether a broker has got a control request after a newer one
        self.overtaken = False
        self._high_watermark_of: dict[tuple[Node, TopicPartition, UUID | None, int], int] = {}
        #: the greatest high watermark of a leader, and the greatest leader epoch
        self._committed: dict[tuple[UUID | None, TopicPartition], tuple[int, int]] = {}
        self._offsets = CommittedOffsets(self.violated)
        world = cluster.world
        self._server = world.server if isinstance(world, MemoryClusterWorld) else None
        if self._server is not None:
            self._server.tree.on_set = self._written

    def observe(self, event: FrameEvent) -> None:
        """Check a frame; a listener for `Links.listen`."""
        if event.header.api_key not in CONTROL_REQUESTS:
            if event.header.api_key == wire.AlterPartitionResponse.__api_key__ and not event.is_request:
                self._isr_answer(event)
            nodes = {node.id: node for node in self._nodes()}
            ends = [nodes[number] for number in (event.source, event.destination) if number in nodes]
            self._check_leaders(ends, nodes)
            self._offsets.check(ends)
            return
        try:
            message = event.message()
        except wire.DecodeError:
            return  # a fault may have damaged it
        exchange = event.listener, event.header.correlation_id
        if event.is_request:
            is_earlier = self._is_for_earlier_life(event, message)
            self._for_earlier_life.setdefault((event.source, event.destination, *exchange), []).append(is_earlier)
            self._request(event, message)
        else:
            # two connections may use one correlation id: a response is to the request that should have it
            key = event.destination, event.source, *exchange
            asked = self._for_earlier_life.pop(key, [])
            is_obeyed = getattr(message, "error_code", None) == 0
            if (not is_obeyed) in asked:
                asked.remove(not is_obeyed)
            elif asked and asked.pop():
                self.violated("bounced", event.source, f"accepted by broker {event.source}: {line(event)}")
            if asked:
                self._for_earlier_life[key] = asked
        self._check_nodes()

    def violated(self, invariant: str, subject: object, text: str) -> None:
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
            self.violated("one controller", epoch, f"epoch {epoch} is that of nodes {known} and {controller}")
        if not isinstance(message, (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest)):
            return
        if isinstance(message, wire.UpdateMetadataRequest):
            key = event.source, epoch, event.destination, message.broker_epoch
            latest = self._latest_metadata.get(key, -1)
            self.overtaken |= event.header.correlation_id < latest
            self._latest_metadata[key] = max(latest, event.header.correlation_id)
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
            self.violated("one leader", key, text)

    def _leader_and_isr(self, event: FrameEvent, state: control.PartitionState) -> None:
        isr, replicas = state.isr or (), state.replicas or ()
        if not set(isr) <= set(replicas):
            self.violated("ISR", state.topic, f"{state.topic}-{state.partition}: ISR {isr} of replicas {replicas}")
        server = self._server
        if server is None or state.partition_epoch is None:
            return
        topic = server.peek(znodes.topic_path(state.topic))
        if topic is None or self._topic_id(topic[0]) != state.topic_id:
            return  # it was deleted since
        tp = TopicPartition(state.topic, state.partition)
        stored = server.peek(znodes.partition_state_path(tp))
        found = None if stored is None else znodes.decode_partition_state(*stored)
        if found is None or found.leader_and_isr.partition_epoch < state.partition_epoch:
            self.violated("persisted", tp, f"{line(event)}, but ZooKeeper has {found}")
        elif found.leader_and_isr.partition_epoch == state.partition_epoch:
            kept = found.leader_and_isr
            if (kept.leader, kept.isr, kept.leader_epoch) != (state.leader, isr, state.leader_epoch):
                self.violated("persisted", tp, f"{line(event)}, but ZooKeeper has {found}")

    def _written(self, path: str) -> None:
        """ZooKeeper has new data at a path."""
        if not path.endswith("/state") or not path.startswith(f"{znodes.TOPICS}/"):
            return
        assert self._server is not None
        stored = self._server.peek(path)
        found = None if stored is None else znodes.decode_partition_state(*stored)
        _, _, _, topic, _, partition, _ = path.split("/")
        described = self._server.peek(znodes.topic_path(topic))
        if found is None or described is None:
            return
        key = self._topic_id(described[0]), int(partition)
        before = self._written_by.get(key, 0)
        if found.controller_epoch < before:
            text = f"{topic}-{partition} was written by controller epoch {found.controller_epoch} after {before}"
            self.violated("fenced", key, text)
        self._written_by[key] = max(before, found.controller_epoch)

    def _isr_answer(self, event: FrameEvent) -> None:
        if self._server is None:
            return
        controller = self._server.peek(znodes.CONTROLLER)
        if controller is not None and znodes.decode_controller(controller[0]) == event.source:
            return
        message = event.message()
        assert isinstance(message, wire.AlterPartitionResponse)
        if any(p.error_code in WAIT_FOR_CONTROLLER for topic in message.topics for p in topic.partitions):
            self._refused_by_former.add(event.destination)

    def _waits_for_controller(self, tp: TopicPartition, leader: int) -> bool:
        """Whether the leader has proposed an ISR that a former controller has refused."""
        if leader not in self._refused_by_former:
            return False
        partitions = (node.broker.replica_manager.partitions.get(tp) for node in self._nodes() if node.id == leader)
        return any(partition is not None and partition.pending is not None for partition in partitions)

    def _check_leaders(self, checked: Iterable[Node], nodes: Mapping[int, Node]) -> None:
        """``checked`` are the nodes at the ends of a frame, the only ones that have changed."""
        for node in checked:
            for tp, partition in node.broker.replica_manager.partitions.items():
                log = partition.log
                if log is None or not partition.is_leader:
                    continue
                high_watermark, epoch = log.high_watermark, partition.leader_epoch
                life = node, tp, log.topic_id, epoch
                before = self._high_watermark_of.get(life, 0)
                if high_watermark < before:
                    text = f"broker {node.id} went back from high watermark {before} to {high_watermark} of {tp}"
                    self.violated("high watermark", (node.id, tp), text)
                self._high_watermark_of[life] = high_watermark
                committed, latest = self._committed.get((log.topic_id, tp), (0, 0))
                if epoch >= latest:
                    if log.log_end_offset < committed:
                        text = f"broker {node.id} leads {tp} with {log.log_end_offset} of {committed} committed records"
                        self.violated("committed", tp, text)
                    self._committed[log.topic_id, tp] = max(committed, high_watermark), epoch
                    self._check_isr(tp, log, high_watermark, [nodes[n] for n in partition.isr if n in nodes])

    def _check_isr(self, tp: TopicPartition, leader: Log, high_watermark: int, isr: Iterable[Node]) -> None:
        for node in isr:
            log = None if node.logs is None else node.logs.logs.get(tp)
            if log is not None and log.log_end_offset < high_watermark and log.topic_id == leader.topic_id:
                ends = f"{log.log_end_offset} of {high_watermark}"
                text = f"broker {node.id} is in the ISR of {tp} with {ends} committed records"
                self.violated("committed", (node.id, tp), text)

    @staticmethod
    def _topic_id(data: bytes) -> UUID | None:
        return znodes.decode_topic("", data).topic_id

    def _check_nodes(self) -> None:
        for node in self._nodes():
            manager = node.broker.replica_manager
            known = self._controller_epoch_of.get(node, 0)
            if manager.controller_epoch < known:
                text = f"broker {node.id} went back from controller epoch {known} to {manager.controller_epoch}"
                self.violated("epochs", node.id, text)
            self._controller_epoch_of[node] = manager.controller_epoch
            for tp, partition in manager.partitions.items():
                key = node, tp, partition
                before = self._leader_epoch_of.get(key, -1)
                if partition.leader_epoch < before:
                    text = f"broker {node.id} went back from leader epoch {before} to {partition.leader_epoch} of {tp}"
                    self.violated("epochs", (node.id, tp), text)
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
                tp = TopicPartition(topic.name, p.partition)
                waits = self._waits_for_controller(tp, p.state.leader)
                if set(p.state.isr) != set(p.assignment.replicas) & alive and not waits:
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

    def check_answered(self) -> None:
        """Once the cluster has settled."""
        now = trio.current_time()
        for node in self._nodes():
            for link in sorted(node.links.accepted, key=lambda link: link.remote):
                names = {wire.api(header.api_key).name for header in link.unanswered} - _MAY_BE_FORGOTTEN
                waited = now - link.last_received
                if names and waited > ANSWER_S:
                    text = f"broker {node.id} has not answered {', '.join(sorted(names))} for {waited:.0f} s"
                    self.violated("answered", node.id, text)

    def not_converged(self, reason: str) -> None:
        self.violated("converged", None, reason)


def crash(error: Exception) -> Violation:
    """A node has ended by an error that it does not handle."""
    return Violation("no crash", f"{type(error).__name__}: {error}")


@contextmanager
def watch(cluster: Cluster) -> Iterator[list[Violation]]:
    """The violations that frames show during the block."""
    invariants = Invariants(cluster)
    with cluster.links.listen(invariants.observe):
        yield invariants.found
