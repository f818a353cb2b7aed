"""Deletion of topics (rules 10.37-10.52).

Deletion moves the topic's replicas Offline -> DeletionStarted (StopReplica with delete) -> DeletionSuccessful, and then
deletes its znodes. A dead replica, or a failed deletion, makes the topic ineligible until a broker event resumes it;
there are no timed retries (10.47).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from kce.controller.events import ReplicaDeletionAnswered
from kce.controller.iteration_order import small_order, table_order
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState, ReplicaState
from kce.wire import ErrorCode, error_name
from kce.zookeeper import znodes
from kce.zookeeper.model import PartitionReplica

log = logging.getLogger(__name__)


class TopicDeletion:
    def __init__(self, runtime: ControllerRuntime) -> None:
        self._runtime = runtime
        self._context = runtime.context
        #: topics, and their order
        self._ordered: tuple[set[str], list[str]] = set(), []

    @property
    def enabled(self) -> bool:
        return self._runtime.config.delete_topic_enable

    async def initialize(self, to_delete: set[str], ineligible: set[str]) -> None:
        """At failover (rule 10.38)."""
        if not self.enabled:
            await self._remove_markers(to_delete)
            return
        self._context.queue_for_deletion(to_delete)
        self._context.topics_ineligible_for_deletion |= ineligible & to_delete

    async def requested(self, refresh_topics: Callable[[], Awaitable[None]]) -> None:
        """Handle a change of /admin/delete_topics (rule 10.37).

        ``refresh_topics`` reads /brokers/topics: after a reconnection, this event may come before that of the topic's
        creation. Kafka removes the marker then, and the topic stays.
        """
        marked = await self._runtime.zk.get_topic_deletions()
        if marked - self._context.topics:
            await refresh_topics()
        unknown = marked - self._context.topics
        if unknown:
            log.warning("removing the deletion markers of unknown topics %s", sorted(unknown))
            await self._remove_markers(unknown)
        marked -= unknown
        if not marked:
            return
        if not self.enabled:
            log.info("delete.topic.enable is false: removing the deletion markers of %s", sorted(marked))
            await self._remove_markers(marked)
            return
        moving = {tp.topic for tp in self._context.being_reassigned}
        self.mark_ineligible(marked & moving, "topic reassignment in progress")
        await self.enqueue(marked)

    async def _remove_markers(self, topics: Iterable[str]) -> None:
        await self._runtime.zk.delete_topic_deletions(topics, self._context.epoch_zk_version)

    async def enqueue(self, topics: Iterable[str]) -> None:
        self._context.queue_for_deletion(topics)
        await self.resume_all()

    def mark_ineligible(self, topics: Iterable[str], reason: str) -> None:
        """Mark those of ``topics`` that are queued for deletion (rule 10.39)."""
        marked = set(topics) & self._context.topics_to_delete
        if marked:
            log.info("deletion of %s halted: %s", sorted(marked), reason)
            self._context.topics_ineligible_for_deletion |= marked

    async def resume(self, topics: Iterable[str]) -> None:
        """Resume the deletion of topics that a broker or a reassignment had halted (rule 10.47)."""
        if wanted := set(topics) & self._context.topics_to_delete:
            self._context.topics_ineligible_for_deletion -= wanted
            await self.resume_all()

    # responses of brokers

    async def answered(self, event: ReplicaDeletionAnswered) -> None:
        """Rule 10.46."""
        replicas = {PartitionReplica(tp, event.broker): code for tp, code in event.partition_errors}
        if event.error_code != ErrorCode.NONE:
            failed = set(replicas)
        else:
            failed = {replica for replica, code in replicas.items() if code != ErrorCode.NONE}
        for replica in failed:
            code = event.error_code or replicas[replica]
            log.warning("broker %d did not delete %s: %s", event.broker, replica.topic_partition, error_name(code))
        await self.fail_replicas(failed)
        succeeded = [r for r in replicas if r not in failed]
        if succeeded:
            await self._runtime.replicas.handle_state_changes(succeeded, ReplicaState.DELETION_SUCCESSFUL)
            await self.resume_all()

    async def fail_replicas(self, replicas: Iterable[PartitionReplica]) -> None:
        failed = [r for r in replicas if self._context.is_queued_for_deletion(r.topic_partition.topic)]
        if failed:
            await self._runtime.replicas.handle_state_changes(failed, ReplicaState.DELETION_INELIGIBLE)
            self.mark_ineligible({r.topic_partition.topic for r in failed}, "replica deletion failure")
            await self.resume_all()

    # the steps

    async def resume_all(self) -> None:
        """Finish successful deletions, then retry failed ones, then start others (rule 10.40)."""
        context = self._context
        finished: list[str] = []
        retry: list[str] = []
        start: list[str] = []
        for topic in self._in_order():
            states = context.replica_states_of_topic(topic)
            if ReplicaState.DELETION_STARTED in states and None not in states:
                continue  # none of the below; most are under way when many topics are deleted
            if context.all_replicas_in_state(topic, ReplicaState.DELETION_SUCCESSFUL):
                finished.append(topic)
                continue
            if not context.any_replica_in_state(topic, ReplicaState.DELETION_STARTED) and context.any_replica_in_state(
                topic, ReplicaState.DELETION_INELIGIBLE
            ):
                retry.append(topic)
            if (
                context.is_queued_for_deletion(topic)
                and not context.any_replica_in_state(topic, ReplicaState.DELETION_STARTED)
                and topic not in context.topics_ineligible_for_deletion
            ):
                start.append(topic)
        if finished:
            await self._finish(finished)
        if retry:  # rule 10.41
            ineligible = [r for t in retry for r in context.replicas_in_state(t, ReplicaState.DELETION_INELIGIBLE)]
            await self._runtime.replicas.handle_state_changes(ineligible, ReplicaState.OFFLINE)
        if start:
            await self._start(start)

    def _in_order(self) -> list[str]:
        """The topics to delete, as Kafka's sets have them."""
        topics = self._context.topics_to_delete
        if topics != self._ordered[0]:
            self._ordered = set(topics), small_order(table_order(topics))
        return self._ordered[1]

    async def _start(self, topics: list[str]) -> None:
        """Rule 10.42."""
        context = self._context
        partitions = [tp for topic in topics for tp in context.partitions_of(topic)]
        fresh = [topic for topic in topics if topic not in context.topics_with_deletion_started]
        if fresh:
            of_fresh = [tp for topic in fresh for tp in context.partitions_of(topic)]
            await self._runtime.partitions.handle_state_changes(of_fresh, PartitionState.OFFLINE)
            await self._runtime.partitions.handle_state_changes(of_fresh, PartitionState.NON_EXISTENT)
            context.topics_with_deletion_started |= set(fresh)
        self._runtime.send_update_metadata_to_all(partitions)
        await self._delete_partitions(topics)

    async def _delete_partitions(self, topics: list[str]) -> None:
        """Rule 10.43."""
        context = self._context
        dead: list[PartitionReplica] = []
        to_stop: list[PartitionReplica] = []
        for topic in topics:
            for replica in context.replicas_of_topic(topic):
                if not context.is_replica_online(replica.replica, replica.topic_partition):
                    dead.append(replica)
                elif context.replica_states.of(replica) is not ReplicaState.DELETION_SUCCESSFUL:
                    to_stop.append(replica)
        await self._runtime.replicas.handle_state_changes(dead, ReplicaState.DELETION_INELIGIBLE)
        await self._runtime.replicas.handle_state_changes(to_stop, ReplicaState.OFFLINE)
        await self._runtime.replicas.handle_state_changes(to_stop, ReplicaState.DELETION_STARTED)
        self.mark_ineligible({r.topic_partition.topic for r in dead}, "offline replicas")

    async def _finish(self, topics: list[str]) -> None:
        """Rule 10.48."""
        zk, context = self._runtime.zk, self._context
        for topic in topics:
            zk.unregister_change_handler(znodes.topic_path(topic))
            done = context.replicas_in_state(topic, ReplicaState.DELETION_SUCCESSFUL)
            await self._runtime.replicas.handle_state_changes(done, ReplicaState.NON_EXISTENT)
        await zk.delete_topic_nodes(topics, context.epoch_zk_version)
        for topic in topics:
            context.remove_topic(topic)
            log.info("deleted topic %s", topic)
