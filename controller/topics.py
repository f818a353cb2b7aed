"""Topics and partitions that are created and deleted in ZooKeeper (rules 10.26-10.34)."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterable, Sequence, Set
from uuid import UUID

from kce.controller.events import PartitionsModified, TopicsChanged
from kce.controller.leader_selection import Strategy
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState, ReplicaState
from kce.controller.topics_ahead import MOST, TopicsAhead, TopicsRead
from kce.wire.vocabulary import is_valid_topic_name
from kce.zookeeper import znodes
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.kafka_zk_client import Creation, CreationHandler
from kce.zookeeper.model import BrokerId, ReplicaAssignment, TopicAssignment, TopicPartition
from kce.zookeeper.store import StoreError

log = logging.getLogger(__name__)

#: names in a line of the log
MOST_LOGGED = 20


class Topics(CreationHandler):
    def __init__(self, runtime: ControllerRuntime) -> None:
        self._runtime = runtime
        self._context = runtime.context
        #: includes topics whose znodes somebody deleted
        self._watched: set[str] = set()
        self._ahead = TopicsAhead(runtime.zk.get_topics_and)

    def watch(self) -> None:
        """Have changes of /brokers/topics reported from the next read on (rule 1.56)."""
        zk = self._runtime.zk

        def notified() -> None:
            if self._ahead.notified():
                self._runtime.put(TopicsChanged())

        zk.register_child_handler(znodes.TOPICS, notified)
        zk.creation_handler = self

    def prepare(self, creation: Creation) -> None:
        """This node is about to write topics."""
        if self._is_known_ahead(creation) and not self._context.controller_only_ids:
            partitions = self._runtime.partitions
            partitions.prepared.prepare(creation, partitions.initial_state, self._context.epoch_zk_version)

    async def sent(self, creation: Creation) -> None:
        """This node is writing topics."""
        if self._is_known_ahead(creation):
            self._watch(creation.topics)
            is_early = self._runtime.is_idle() and not self._ahead.is_due and bool(creation.states)
            if is_early:
                self._runtime.put(TopicsChanged())
            await self._ahead.read(creation, is_early=is_early)

    def _is_known_ahead(self, creation: Creation) -> bool:
        """Whether its topics can be created before they are read. Without a write there would be no event before the
        answer."""
        topics = creation.topics
        have_ids = all(topic.topic_id is not None for topic in topics.values())
        return bool(topics) and have_ids and len(topics) <= MOST and self._context.topics.isdisjoint(topics)

    async def load(self) -> list[TopicAssignment]:
        """Read and watch all topics at failover, with ids and assignments (rules 4.6-4.8), for ``store``."""
        names = _valid(await self._runtime.zk.get_topics())
        self._watch(names)
        found = await self._without_controllers(await self._runtime.zk.get_topic_assignments(names))
        return await self._with_ids(found)

    async def changed(self) -> None:
        """Handle a change of /brokers/topics (rule 10.26)."""
        prepared = self._runtime.partitions.prepared
        ahead, ended = self._ahead.take(), prepared.ended()
        if ahead is None:
            await self._compare()
        else:
            if ahead.is_early and self._are_as_prepared(ahead.creation):
                await self._add_while_written(ahead.creation)
                ended = prepared.ended()
            else:
                written = await ahead.written()
                if new := _valid(written.keys() - self._context.topics):
                    await self._add({topic: written[topic] for topic in sorted(new)})
            await self._compare(await ahead.read())
        prepared.forget(one for one in ended if not self._waits(*one))

    def _are_as_prepared(self, creation: Creation) -> bool:
        """Whether the topics are still to be created with these states."""
        initial_state = self._runtime.partitions.initial_state
        return self._is_known_ahead(creation) and all(
            initial_state(tp, creation.topics[topic].partitions[tp.partition].replicas) == state
            for topic, states in creation.states.items()
            for tp, state in states.items()
        )

    async def _add_while_written(self, creation: Creation) -> None:
        """Add topics before their write is answered. Brokers are told when it was done; if it was not, the topics are
        forgotten."""
        channels, prepared = self._runtime.channels, self._runtime.partitions.prepared
        prepared.under_way = creation
        channels.hold()
        try:
            await self._add({topic: creation.topics[topic] for topic in sorted(creation.topics)})
            await creation.ended.wait()
        finally:
            prepared.under_way = None
            channels.release(is_sent=creation.is_written)
            if not creation.is_written:
                log.info("topics %s were not written with their states", sorted(creation.topics))
                for topic in creation.topics:
                    self._context.forget_topic(topic)

    def _waits(self, topic_id: UUID | None, tp: TopicPartition) -> bool:
        """Whether the partition waits for a live replica."""
        is_new = self._context.partition_state(tp) is PartitionState.NEW
        return is_new and self._context.topic_ids.get(tp.topic) == topic_id

    async def _compare(self, read: TopicsRead | None = None) -> None:
        zk = self._runtime.zk
        if read is None:
            read = await zk.get_topics(), {}
            self._ahead.clear()
        names, found = read
        new, deleted = _valid(names - self._context.topics), self._context.topics - names
        if unread := new - found.keys():
            self._watch(unread)
            found |= await zk.get_topic_assignments(unread)
        if new or deleted:
            await self._add({topic: found[topic] for topic in sorted(new & found.keys())}, deleted)

    async def _add(self, found: dict[str, TopicAssignment], deleted: Set[str] = frozenset()) -> None:
        assignments = await self._without_controllers(found)
        for topic in deleted:
            self._context.remove_topic(topic)
        created = self.store(await self._with_ids(assignments))
        log.info("topics new: %s, deleted: %s", sorted(found.keys() & self._context.topics), sorted(deleted))
        if created:
            await self._create(created)

    async def partitions_modified(self, topic: str) -> None:
        """Handle a change of a topic's znode, which may add partitions (rules 10.32-10.34)."""
        if topic not in self._context.topics:  # it was malformed
            await self._compare()
            return
        found = (await self._runtime.zk.get_topic_assignments([topic])).get(topic)
        if found is None:
            return
        known = self._context.topic_assignments(topic)
        added = {p: a for p, a in found.partitions.items() if not known.get(p, a).replicas or p not in known}
        if not added:
            return
        if self._context.is_queued_for_deletion(topic):
            log.warning("partitions %s of %s are not added: the topic is being deleted", sorted(added), topic)
            existing = await self._runtime.zk.existing_partitions(topic)
            kept = {p: a for p, a in known.items() if p in existing}
            rewrite = {topic: (self._context.topic_ids.get(topic), kept)}
            await self._runtime.zk.set_topic_assignments(rewrite, self._context.epoch_zk_version)
            return
        log.info("partitions %s of %s are new", sorted(added), topic)
        await self._create(self.store([TopicAssignment(topic, found.topic_id, added)]))

    def _watch(self, topics: Iterable[str]) -> None:
        """Register the handlers; the next read sets the watches (rule 1.56)."""
        for topic in topics:

            def changed(topic: str = topic) -> None:
                self._runtime.put(PartitionsModified(topic))

            self._watched.add(topic)
            self._runtime.zk.register_change_handler(znodes.topic_path(topic), ChangeHandler(changed=changed))

    def unwatch_all(self) -> None:
        self._runtime.zk.unregister_child_handler(znodes.TOPICS)
        self._runtime.zk.creation_handler = CreationHandler()
        self._runtime.partitions.prepared.clear()
        self._ahead.clear()
        for topic in self._watched:
            self._runtime.zk.unregister_change_handler(znodes.topic_path(topic))
        self._watched.clear()

    async def _without_controllers(self, found: dict[str, TopicAssignment]) -> dict[str, TopicAssignment]:
        """Move replicas of new partitions from nodes that are controllers only to brokers.

        Real brokers place topics themselves, __consumer_offsets for example, and know nothing of such nodes.
        """
        controllers = self._context.controller_only_ids
        if not controllers:
            return found
        brokers = sorted(self._context.live_broker_ids - controllers)
        moved = {}
        for topic, assignment in found.items():
            partitions = {p: _moved(a, p, controllers, brokers) for p, a in assignment.partitions.items()}
            if partitions != assignment.partitions:
                partitions |= {p: assignment.partitions[p] for p in await self._runtime.zk.existing_partitions(topic)}
                moved[topic] = TopicAssignment(topic, assignment.topic_id, partitions)
        if moved:
            log.info("replicas of %s are moved from nodes %s to brokers", sorted(moved), sorted(controllers))
            rewrite = {topic: (assignment.topic_id, assignment.partitions) for topic, assignment in moved.items()}
            await self._runtime.zk.set_topic_assignments(rewrite, self._context.epoch_zk_version)
        return found | moved

    async def _with_ids(self, assignments: dict[str, TopicAssignment]) -> list[TopicAssignment]:
        """Assign ids to topics without one, and write them to their znodes (rules 4.7, 10.27)."""
        runtime = self._runtime
        if not runtime.config.inter_broker_protocol_version.supports_topic_ids:
            return list(assignments.values())
        missing = {t: runtime.zk.new_uuid() for t, found in assignments.items() if found.topic_id is None}
        failed: dict[str, StoreError] = {}
        if missing:
            rewrite = {t: (topic_id, assignments[t].partitions) for t, topic_id in missing.items()}
            failed = await runtime.zk.try_set_topic_assignments(rewrite, self._context.epoch_zk_version)
        for topic, error in failed.items():
            log.error("ignoring topic %s, whose id could not be written: %s", topic, error)
        return [
            TopicAssignment(t, missing.get(t, found.topic_id), found.partitions)
            for t, found in assignments.items()
            if t not in failed
        ]

    def store(self, assignments: Iterable[TopicAssignment], *, at_failover: bool = False) -> list[TopicPartition]:
        """Put topics into the context. Reassignments that their nodes name are in progress ``at_failover`` only (rule
        4.8): those of topics that somebody has written so wait for it. A topic that is not valid stays out of the
        context, so every change finds it new; Kafka fails on it, and so on every change of the topics."""
        partitions: list[TopicPartition] = []
        for found in assignments:
            self._context.topics.add(found.topic)
            try:
                if found.topic_id is not None:
                    self._context.add_topic_id(found.topic, found.topic_id)
            except IllegalState as e:
                log.error("ignoring a topic: %s", e)
                self._context.topics.discard(found.topic)
                continue
            added = self._context.add_topic(found.topic, found.partitions)
            for tp, assignment in zip(added, found.partitions.values(), strict=True) if at_failover else ():
                if assignment.adding or assignment.removing:
                    self._context.being_reassigned.add(tp)
            partitions += added
        return partitions

    async def _create(self, partitions: list[TopicPartition]) -> None:
        """Rules 10.28, 10.29."""
        runtime = self._runtime
        await runtime.partitions.handle_state_changes(partitions, PartitionState.NEW)
        replicas = self._context.replicas_of_partitions(partitions)
        await runtime.replicas.handle_state_changes(replicas, ReplicaState.NEW)
        await runtime.partitions.handle_state_changes(partitions, PartitionState.ONLINE, Strategy.OFFLINE)
        await runtime.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)


def _valid(names: Set[str]) -> set[str]:
    """Names of topics, without those that Kafka does not allow."""
    if invalid := {name for name in names if not is_valid_topic_name(name)}:
        log.error("ignoring %d invalid names of topics: %s", len(invalid), heapq.nsmallest(MOST_LOGGED, invalid))
    return set(names - invalid)


def _moved(
    assignment: ReplicaAssignment, partition: int, controllers: Collection[BrokerId], brokers: Sequence[BrokerId]
) -> ReplicaAssignment:
    """Each of ``controllers`` replaced by a broker without a replica, or left out if there is none."""
    replicas: list[BrokerId] = []
    for position, replica in enumerate(assignment.replicas):
        if replica in controllers:
            free = [broker for broker in brokers if broker not in (*assignment.replicas, *replicas)]
            replicas += free[(partition + position) % len(free) :][:1] if free else []
        else:
            replicas.append(replica)
    return assignment if replicas == list(assignment.replicas) else ReplicaAssignment(tuple(replicas))
