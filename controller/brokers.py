"""Brokers that come, go, bounce and change, and replicas that go with them (rules 11.50-11.67, 8.40)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from controller import zk_data
from controller.context import PartitionState, ReplicaState
from controller.core import Core
from controller.events import BrokerModified, LeaderAndIsrAnswered
from controller.features import Features
from controller.model import Broker, BrokerEpoch, BrokerId, LeaderAndIsr, PartitionReplica, TopicPartition
from controller.reassignment import Reassignment
from controller.topic_deletion import TopicDeletion
from controller.zk_client import ChangeHandler
from wire import ErrorCode, error_name

log = logging.getLogger(__name__)


class Brokers:
    def __init__(self, core: Core, deletion: TopicDeletion, reassignment: Reassignment, features: Features) -> None:
        self._core = core
        self._context = core.context
        self._deletion = deletion
        self._reassignment = reassignment
        self._features = features
        #: more than those alive: the incompatible ones too (rule 11.53)
        self._watched: set[BrokerId] = set()

    # membership

    async def changed(self) -> None:
        """/brokers/ids changed (rules 11.50-11.52). A smaller epoch than the known one is ignored."""
        current = await self._core.zk.get_brokers()
        known = self._context.broker_epochs
        new = {b: current[b] for b in sorted(current.keys() - known.keys())}
        dead = sorted(known.keys() - current.keys())
        bounced = {b: current[b] for b in sorted(current.keys() & known.keys()) if current[b][1] > known[b]}
        if not (new or dead or bounced):
            return
        log.info("brokers new: %s, dead: %s, bounced: %s", sorted(new), dead, sorted(bounced))
        channels = self._core.channels
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

    async def _join(self, brokers: dict[BrokerId, tuple[Broker, BrokerEpoch]]) -> None:
        """One that lacks a finalized feature is started and not live: new again at every change (11.52, 11.53)."""
        self._context.add_live_brokers((b, epoch) for b, epoch in brokers.values() if self._features.are_compatible(b))
        await self.started(list(brokers))

    async def started(self, brokers: list[BrokerId]) -> None:
        """Rules 11.54, 11.55."""
        core, context = self._core, self._context
        for broker in brokers:
            context.replicas_on_offline_dirs.pop(broker, None)
        others = context.live_or_shutting_down_broker_ids - set(brokers)
        core.send_update_metadata(others)
        core.send_update_metadata(brokers, context.partitions_with_leaders)
        replicas = context.replicas_on_brokers(brokers)
        await core.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)
        await core.partitions.trigger_online()
        await self._reassignment.resume_on(brokers)
        await self._deletion.resume({r.topic_partition.topic for r in replicas})
        await self.watch(brokers)

    async def watch(self, brokers: Iterable[BrokerId]) -> None:
        """Be told of changes to registrations (rule 4.9)."""
        paths = []
        for broker in brokers:

            def changed(broker: BrokerId = broker) -> None:
                self._core.put(BrokerModified(broker))

            paths.append(zk_data.broker_path(broker))
            self._watched.add(broker)
            self._core.zk.register_change_handler(paths[-1], ChangeHandler(changed=changed))
        await self._core.zk.exists(paths)  # which arms the watches (rule 1.58)

    def unwatch(self, brokers: Iterable[BrokerId]) -> None:
        for broker in brokers:
            self._watched.discard(broker)
            self._core.zk.unregister_change_handler(zk_data.broker_path(broker))

    def unwatch_all(self) -> None:
        self.unwatch(list(self._watched))

    async def failed(self, brokers: list[BrokerId]) -> None:
        """Rule 11.56."""
        for broker in brokers:
            self._context.replicas_on_offline_dirs.pop(broker, None)
        self._context.shutting_down -= set(brokers)
        await self.replicas_offline(self._context.replicas_on_brokers(brokers))
        self.unwatch(brokers)

    async def modified(self, broker_id: BrokerId) -> None:
        """A registration was rewritten in place (rule 11.63)."""
        new, old = await self._core.zk.get_broker(broker_id), self._context.broker(broker_id)
        if new is None or old is None or (new.endpoints == old.endpoints and new.features == old.features):
            return
        log.info("broker %d changed from %s to %s", broker_id, old, new)
        self._context.update_broker(new)
        self._core.send_update_metadata_to_all()

    # replicas

    async def replicas_offline(self, replicas: Iterable[PartitionReplica]) -> None:
        """Rule 11.57."""
        core, context = self._core, self._context
        gone = list(replicas)
        deleting = [r for r in gone if context.is_queued_for_deletion(r.topic_partition.topic)]
        staying = [r for r in gone if not context.is_queued_for_deletion(r.topic_partition.topic)]
        await core.partitions.handle_state_changes(context.partitions_with_offline_leader, PartitionState.OFFLINE)
        elections = await core.partitions.trigger_online()
        await core.replicas.handle_state_changes(staying, ReplicaState.OFFLINE)
        await self._deletion.fail_replicas(deleting)
        if not staying and not any(isinstance(result, LeaderAndIsr) for result in elections.values()):
            core.send_update_metadata_to_all()

    async def log_dirs_failed(self) -> None:
        """Rule 11.65: ask the brokers how their replicas are, by telling them what they have."""
        core = self._core
        found = await core.zk.get_notifications(zk_data.LOG_DIR_EVENT_NOTIFICATION)
        try:
            brokers = {b for data in found.values() if (b := zk_data.decode_log_dir_event(data)) is not None}
            await core.replicas.handle_state_changes(
                self._context.replicas_on_brokers(sorted(brokers)), ReplicaState.ONLINE
            )
        finally:
            await core.zk.delete_notifications(found, self._context.epoch_zk_version)

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
        newly = offline - before
        if newly:
            log.info("broker %d has offline log directories under %s", broker, sorted(newly))
            await self.replicas_offline([PartitionReplica(tp, broker) for tp in sorted(newly)])
