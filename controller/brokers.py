"""Brokers that join, fail, bounce and change, and their replicas (rules 11.50-11.67, 8.40)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from kce.controller.events import BrokerModified, LeaderAndIsrAnswered, UpdateMetadataAnswered
from kce.controller.features import Features
from kce.controller.reassignment import Reassignment
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState, ReplicaState
from kce.controller.topic_deletion import TopicDeletion
from kce.wire import ErrorCode, LeaderAndIsrResponse, error_name
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.model import BrokerEpoch, BrokerId, LeaderAndIsr, PartitionReplica, RegisteredBroker, TopicPartition

log = logging.getLogger(__name__)


class Brokers:
    def __init__(
        self, runtime: ControllerRuntime, deletion: TopicDeletion, reassignment: Reassignment, features: Features
    ) -> None:
        self._runtime = runtime
        self._context = runtime.context
        self._deletion = deletion
        self._reassignment = reassignment
        self._features = features
        #: registered brokers, the incompatible ones included (rule 11.53)
        self._watched: set[BrokerId] = set()

    # membership

    async def changed(self) -> None:
        """Handle a change of /brokers/ids (rules 11.50-11.52). A broker epoch below the cached one is ignored."""
        current = await self._runtime.get_brokers()
        known = self._context.broker_epochs
        new = {b: current[b] for b in sorted(current.keys() - known.keys())}
        dead = sorted(known.keys() - current.keys())
        bounced = {b: current[b] for b in sorted(current.keys() & known.keys()) if current[b][1] > known[b]}
        if not (new or dead or bounced):
            return
        log.info("brokers new: %s, dead: %s, bounced: %s", sorted(new), dead, sorted(bounced))
        channels = self._runtime.channels
        channels.add_brokers(broker for broker, _ in new.values())
        await channels.remove_brokers(bounced)
        channels.add_brokers(broker for broker, _ in bounced.values())
        await channels.remove_brokers(dead)
        if new:
            await self._join(new)
        if bounced:
            self._context.remove_live_brokers(bounced)
            await self.failed(list(bounced))
            await self._join(bounced)
        if dead:
            self._context.remove_live_brokers(dead)
            await self.failed(dead)

    async def _join(self, brokers: dict[BrokerId, tuple[RegisteredBroker, BrokerEpoch]]) -> None:
        """A broker that lacks a finalized feature is started but not live: every change finds it new (11.52, 11.53)."""
        self._context.add_live_brokers((b, epoch) for b, epoch in brokers.values() if self._features.are_compatible(b))
        await self.started(list(brokers))

    async def started(self, brokers: list[BrokerId]) -> None:
        """Rules 11.54, 11.55."""
        runtime, context = self._runtime, self._context
        for broker in brokers:
            context.replicas_on_offline_dirs.pop(broker, None)
        others = context.live_or_shutting_down_broker_ids - set(brokers)
        runtime.send_update_metadata(others)
        runtime.send_update_metadata(brokers, context.partitions_with_leaders)
        partitions = context.partitions_by_broker(brokers)
        await runtime.replicas.move(partitions, ReplicaState.ONLINE)
        await runtime.partitions.trigger_online()
        await self._reassignment.resume_on(brokers)
        await self._deletion.resume({tp.topic for of_broker in partitions.values() for tp in of_broker})
        await self.watch(brokers)

    async def watch(self, brokers: Iterable[BrokerId]) -> None:
        """Watch registrations (rule 4.9)."""
        paths = []
        for broker in brokers:

            def changed(broker: BrokerId = broker) -> None:
                self._runtime.put(BrokerModified(broker))

            paths.append(znodes.broker_path(broker))
            self._watched.add(broker)
            self._runtime.zk.register_change_handler(paths[-1], ChangeHandler(changed=changed))
        await self._runtime.zk.exists(paths)  # sets the watches (rule 1.58)

    def unwatch(self, brokers: Iterable[BrokerId]) -> None:
        for broker in brokers:
            self._watched.discard(broker)
            self._runtime.zk.unregister_change_handler(znodes.broker_path(broker))

    def unwatch_all(self) -> None:
        self.unwatch(list(self._watched))

    async def failed(self, brokers: list[BrokerId]) -> None:
        """Rule 11.56."""
        for broker in brokers:
            self._context.replicas_on_offline_dirs.pop(broker, None)
        self._context.shutting_down -= set(brokers)
        await self.replicas_offline(self._context.partitions_by_broker(brokers))
        self.unwatch(brokers)

    async def modified(self, broker_id: BrokerId) -> None:
        """Handle a registration that was rewritten in place (rule 11.63)."""
        try:
            new, old = await self._runtime.zk.get_broker(broker_id), self._context.broker(broker_id)
        except znodes.BadZNode as e:
            log.error("ignoring a change of broker %d: %s", broker_id, e)
            return
        if new is None or old is None or (new.endpoints == old.endpoints and new.features == old.features):
            return
        if (problem := self._runtime.problem(new)) is not None:
            log.error("ignoring a change of broker %d: %s", broker_id, problem)
            return
        log.info("broker %d changed from %s to %s", broker_id, old, new)
        self._context.update_broker(new)
        self._runtime.send_update_metadata_to_all()

    # replicas

    async def replicas_offline(self, offline: Mapping[BrokerId, Sequence[TopicPartition]]) -> None:
        """Rule 11.57. ``offline``: the partitions of each broker, at least one."""
        runtime, context = self._runtime, self._context
        kept, deleting, deleted = offline, list[PartitionReplica](), context.topics_to_delete
        if deleted:
            deleting = [PartitionReplica(tp, b) for b, some in offline.items() for tp in some if tp.topic in deleted]
            without = {b: [tp for tp in some if tp.topic not in deleted] for b, some in offline.items()}
            kept = {broker: partitions for broker, partitions in without.items() if partitions}
        await runtime.partitions.handle_state_changes(context.partitions_with_offline_leader, PartitionState.OFFLINE)
        elections = await runtime.partitions.trigger_online()
        await runtime.replicas.move(kept, ReplicaState.OFFLINE)
        await self._deletion.fail_replicas(deleting)
        if not kept and not any(isinstance(result, LeaderAndIsr) for result in elections.values()):
            runtime.send_update_metadata_to_all()

    async def log_dirs_failed(self) -> None:
        """Resend their LeaderAndIsr to the brokers: the responses tell which replicas are offline (rule 11.65)."""
        runtime = self._runtime
        found = await runtime.zk.get_notifications(znodes.LOG_DIR_EVENT_NOTIFICATION)
        try:
            brokers = {b for data in found.values() if (b := cluster_nodes.decode_log_dir_event(data)) is not None}
            await runtime.replicas.move(self._context.partitions_by_broker(sorted(brokers)), ReplicaState.ONLINE)
        finally:
            await runtime.zk.delete_notifications(found, self._context.epoch_zk_version)

    def are_all_online(self, response: LeaderAndIsrResponse, broker: BrokerId) -> bool:
        """Whether the broker took all replicas of the request, and none of its replicas was offline before: then
        ``leader_and_isr_answered`` changes nothing."""
        if response.error_code or self._context.replicas_on_offline_dirs.get(broker):
            return False
        errors = chain(response.partition_errors, *(topic.partition_errors for topic in response.topics))
        return not any(error.error_code for error in errors)

    async def leader_and_isr_answered(self, event: LeaderAndIsrAnswered) -> None:
        """Rules 8.40-8.42."""
        response, broker = event.response, event.broker
        if response.error_code != ErrorCode.NONE:
            log.error("broker %d refused LeaderAndIsr: %s", broker, error_name(response.error_code))
            return
        codes: dict[TopicPartition, int] = {
            TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors
        }
        for topic in response.topics:
            name = self._context.topic_names.get(topic.topic_id)
            if name is not None:
                codes.update((TopicPartition(name, e.partition_index), e.error_code) for e in topic.partition_errors)
        online = {tp for tp, code in codes.items() if code == ErrorCode.NONE}
        offline = {tp for tp, code in codes.items() if code == ErrorCode.KAFKA_STORAGE_ERROR}
        before = self._context.replicas_on_offline_dirs.get(broker, set())
        now = (before - online) | offline
        if now:
            self._context.replicas_on_offline_dirs[broker] = now
        else:
            self._context.replicas_on_offline_dirs.pop(broker, None)
        newly_offline = offline - before
        if newly_offline:
            log.info("broker %d has offline log directories under %s", broker, sorted(newly_offline))
            await self.replicas_offline({broker: sorted(newly_offline)})

    async def update_metadata_answered(self, event: UpdateMetadataAnswered) -> None:
        if event.response.error_code != ErrorCode.NONE:
            log.error("broker %d refused UpdateMetadata: %s", event.broker, error_name(event.response.error_code))
