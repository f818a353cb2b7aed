"""What a node does while it is the controller: becoming it, the table from events to capabilities, ceasing to be it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import wire
from controller import events as ev
from controller import zk_data
from controller.admin_nodes import allocate_producer_ids
from controller.brokers import Brokers
from controller.controlled_shutdown import shut_down_broker
from controller.core import Core
from controller.elections import Elections
from controller.errors import BrokenBatch, ControllerMoved
from controller.features import Features
from controller.isr import IsrChanges
from controller.reassignment import Reassignment
from controller.scheduler import Scheduler
from controller.store import SessionExpired
from controller.topic_deletion import TopicDeletion
from controller.topics import Topics

log = logging.getLogger(__name__)

#: from failover to the first look at the balance of leaders (rule 11.37)
FIRST_REBALANCE_SECONDS = 5.0


class ActiveController:
    """The capabilities on their shared ``core``."""

    def __init__(self, core: Core, scheduler: Scheduler) -> None:
        self._core = core
        self._context = core.context
        self._scheduler = scheduler
        self.features = Features(core)
        self._deletion = TopicDeletion(core)
        self._reassignment = Reassignment(core, self._deletion)
        self._brokers = Brokers(core, self._deletion, self._reassignment, self.features)
        self._topics = Topics(core)
        self._isr = IsrChanges(core, self._reassignment)
        self._elections = Elections(core)

    async def failover(self) -> None:
        """Rules 4.1-4.20, in that order. Whatever it raises, ``resign`` undoes what was begun."""
        core, zk, context = self._core, self._core.zk, self._context
        await self.features.set_up()
        children: dict[str, ev.ControllerEvent] = {
            zk_data.BROKER_IDS: ev.BrokersChanged(),
            zk_data.TOPICS: ev.TopicsChanged(),
            zk_data.DELETE_TOPICS: ev.TopicDeletionRequested(),
            zk_data.LOG_DIR_EVENT_NOTIFICATION: ev.LogDirEventNotified(),
            zk_data.ISR_CHANGE_NOTIFICATION: ev.IsrChangeNotified(),
        }
        for path, event in children.items():
            zk.register_child_handler(path, self._enqueuer(event))
        await self._elections.watch()
        await self._reassignment.watch()
        await zk.delete_all_notifications(zk_data.LOG_DIR_EVENT_NOTIFICATION, context.epoch_zk_version)
        await zk.delete_all_notifications(zk_data.ISR_CHANGE_NOTIFICATION, context.epoch_zk_version)
        registered = (await zk.get_brokers()).values()
        context.set_live_brokers((b, epoch) for b, epoch in registered if self.features.are_compatible(b))
        await self._topics.load()
        context.clear_leadership()
        context.shutting_down.clear()
        await self._brokers.watch(context.live_or_shutting_down_broker_ids)
        await core.refresh_leadership(context.all_partitions())
        core.channels.add_brokers(context.live_or_shutting_down_brokers)
        to_delete = await zk.get_topic_deletions()
        ineligible = context.topics_with_offline_replicas() | {tp.topic for tp in context.being_reassigned}
        await self._deletion.initialize(to_delete, ineligible)
        core.send_update_metadata_to_all()  # 4.13: leaders' addresses before leaderships
        await core.replicas.startup()
        await core.partitions.startup()
        await self._reassignment.resume_at_failover()
        await self._deletion.resume_all()
        await self._elections.resume_at_failover()
        if core.config.auto_leader_rebalance_enable:
            self._scheduler.schedule(ev.LeaderRebalanceDue(), FIRST_REBALANCE_SECONDS)

    def _enqueuer(self, event: ev.ControllerEvent) -> Callable[[], None]:
        return lambda: self._core.put(event)

    async def resign(self) -> None:
        """Rules 4.26-4.32. It may be called on a node that is not active, and touches nothing in ZooKeeper."""
        zk = self._core.zk
        zk.unregister_child_handler(zk_data.ISR_CHANGE_NOTIFICATION)
        zk.unregister_child_handler(zk_data.LOG_DIR_EVENT_NOTIFICATION)
        self._reassignment.unwatch()
        self._elections.unwatch()
        self._brokers.unwatch_all()
        self._scheduler.clear()
        zk.unregister_child_handler(zk_data.TOPICS)
        self._topics.unwatch_all()
        zk.unregister_child_handler(zk_data.DELETE_TOPICS)
        zk.unregister_child_handler(zk_data.BROKER_IDS)
        await self._core.channels.shutdown()
        self._context.clear()

    async def process(self, event: ev.ControllerEvent) -> None:
        match event:
            case ev.BrokersChanged():
                await self._brokers.changed()
            case ev.BrokerModified(broker):
                await self._brokers.modified(broker)
            case ev.TopicsChanged():
                await self._topics.changed()
            case ev.PartitionsModified(topic):
                await self._topics.partitions_modified(topic)
            case ev.TopicDeletionRequested():
                await self._deletion.requested()
            case ev.ReplicaDeletionAnswered():
                await self._deletion.answered(event)
            case ev.IsrChangeNotified():
                await self._isr.notified()
            case ev.AlterPartitionReceived():
                await self._isr.alter_partition(event)
            case ev.LogDirEventNotified():
                await self._brokers.log_dirs_failed()
            case ev.LeaderAndIsrAnswered():
                await self._brokers.leader_and_isr_answered(event)
            case ev.UpdateMetadataAnswered(response, broker):
                if response.error_code != wire.ErrorCode.NONE:
                    log.error("broker %d refused UpdateMetadata: %s", broker, wire.error_name(response.error_code))
            case ev.ControlledShutdownRequested():
                await self._controlled_shutdown(event)
            case ev.ReassignPartitionsCreated():
                await self._reassignment.requested_by_znode()
            case ev.AlterPartitionReassignmentsReceived():
                await self._reassignment.requested(event)
            case ev.ListPartitionReassignmentsReceived():
                self._reassignment.list(event)
            case ev.ReassignedPartitionStateChanged(partition):
                await self._reassignment.complete([partition])
            case ev.PreferredReplicaElectionCreated():
                await self._elections.requested_by_znode()
            case ev.ElectLeadersReceived():
                await self._elections.requested(event)
            case ev.LeaderRebalanceDue():
                await self._rebalance()
            case ev.UncleanLeaderElectionEnabled():
                await self._core.partitions.trigger_online()
            case ev.TopicUncleanLeaderElectionEnabled(topic):
                await self._core.partitions.trigger_online(topic)
            case ev.AllocateProducerIdsReceived():
                await self._allocate_producer_ids(event)
            case ev.UpdateFeaturesReceived():
                await self.features.update(event)
            case _:
                raise AssertionError(f"no capability takes {event}")

    async def _controlled_shutdown(self, event: ev.ControlledShutdownRequested) -> None:
        """Rules 3.27, 11.41: whatever happens, the requester hears of it."""
        try:
            remaining = await shut_down_broker(self._core, event.broker, event.broker_epoch)
        except Exception as e:
            event.reply(e)
            if isinstance(e, (ControllerMoved, BrokenBatch, SessionExpired)):
                raise
            log.warning("controlled shutdown of broker %d: %r", event.broker, e)
        else:
            event.reply(remaining)

    async def _rebalance(self) -> None:
        """Rules 3.25, 11.37."""
        try:
            await self._elections.rebalance()
        finally:
            interval = self._core.config.leader_imbalance_check_interval_seconds
            self._scheduler.schedule(ev.LeaderRebalanceDue(), interval)

    async def _allocate_producer_ids(self, event: ev.AllocateProducerIdsReceived) -> None:
        """Rule 11.82. Raises SessionExpired, without an answer."""
        cached = self._context.broker_epochs.get(event.broker)
        if cached is None:
            event.reply(wire.ErrorCode.BROKER_ID_NOT_REGISTERED)
        elif cached != event.broker_epoch:
            event.reply(wire.ErrorCode.STALE_BROKER_EPOCH)
        else:
            try:
                block = await allocate_producer_ids(self._core.zk, event.broker)
            except SessionExpired:  # the next controller is asked again
                raise
            except Exception:
                event.reply(wire.ErrorCode.UNKNOWN_SERVER_ERROR)
                raise
            else:
                event.reply(block)
