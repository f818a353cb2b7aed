"""The controller role of a node: failover, the capabilities that process events, resignation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kce.controller import events as ev
from kce.controller.brokers import Brokers
from kce.controller.features import Features
from kce.controller.isr_changes import IsrChanges
from kce.controller.reassignment import Reassignment
from kce.controller.replica_leader_election import ReplicaLeaderElection
from kce.controller.runtime import ControllerRuntime
from kce.controller.scheduler import Scheduler
from kce.controller.topic_deletion import TopicDeletion
from kce.controller.topics import Topics
from kce.garbage import no_collection, thaw
from kce.zookeeper import znodes
from kce.zookeeper.model import TopicAssignment, TopicPartition

#: delay of the first leader rebalance after failover (rule 11.37)
FIRST_REBALANCE_SECONDS = 5.0

#: topics that are put into the context between two looks for ZooKeeper's answers
_TOPICS_AT_ONCE = 500

#: what is told of changes of whose children
_CHILDREN: Final[dict[str, ev.ControllerEvent]] = {
    znodes.BROKER_IDS: ev.BrokersChanged(),
    znodes.DELETE_TOPICS: ev.TopicDeletionRequested(),
    znodes.LOG_DIR_EVENT_NOTIFICATION: ev.LogDirEventNotified(),
    znodes.ISR_CHANGE_NOTIFICATION: ev.IsrChangeNotified(),
}


class ControllerRole:
    """The capabilities, which share ``runtime``."""

    def __init__(self, runtime: ControllerRuntime, scheduler: Scheduler) -> None:
        self.runtime = runtime
        self._context = runtime.context
        self._scheduler = scheduler
        self.features = Features(runtime)
        self.deletion = TopicDeletion(runtime)
        self.reassignment = Reassignment(runtime, self.deletion)
        self.brokers = Brokers(runtime, self.deletion, self.reassignment, self.features)
        self.topics = Topics(runtime)
        self.isr = IsrChanges(runtime, self.reassignment)
        self.elections = ReplicaLeaderElection(runtime)

    async def failover(self) -> None:
        """Rules 4.1-4.20, in that order. ``resign`` undoes a failover that failed half-way."""
        with no_collection(freeze=True):
            await self._failover()

    async def _failover(self) -> None:
        runtime, zk, context = self.runtime, self.runtime.zk, self._context
        await self.features.set_up()
        for path, event in _CHILDREN.items():
            zk.register_child_handler(path, self._enqueuer(event))
        self.topics.watch()
        await self.elections.watch()
        await self.reassignment.watch()
        await zk.delete_all_notifications(znodes.LOG_DIR_EVENT_NOTIFICATION, context.epoch_zk_version)
        await zk.delete_all_notifications(znodes.ISR_CHANGE_NOTIFICATION, context.epoch_zk_version)
        registered = (await runtime.get_brokers()).values()
        context.set_live_brokers((b, epoch) for b, epoch in registered if self.features.are_compatible(b))
        topics = await self.topics.load()
        context.clear_leadership()
        context.shutting_down.clear()
        await self.brokers.watch(context.live_or_shutting_down_broker_ids)
        await runtime.refresh_leadership(itertools.chain.from_iterable(self._stored(topics)))
        runtime.channels.add_brokers(context.live_or_shutting_down_brokers)
        to_delete = await zk.get_topic_deletions()
        ineligible = context.topics_with_offline_replicas() | {tp.topic for tp in context.being_reassigned}
        await self.deletion.initialize(to_delete, ineligible)
        runtime.send_update_metadata_to_all()  # 4.13: the brokers learn the leaders' addresses before their leaderships
        await runtime.replicas.startup()
        await runtime.partitions.startup()
        await self.reassignment.resume_at_failover()
        await self.deletion.resume_all()
        await self.elections.resume_at_failover()
        if runtime.config.auto_leader_rebalance_enable:
            self._scheduler.schedule(ev.LeaderRebalanceDue(), FIRST_REBALANCE_SECONDS)

    def _stored(self, topics: Sequence[TopicAssignment]) -> Iterator[list[TopicPartition]]:
        """Put topics and the states of their replicas into the context, some at a time: ZooKeeper answers meanwhile."""
        for begin in range(0, len(topics), _TOPICS_AT_ONCE):
            partitions = self.topics.store(topics[begin : begin + _TOPICS_AT_ONCE], at_failover=True)
            self._context.set_replica_states(partitions)
            yield partitions

    def _enqueuer(self, event: ev.ControllerEvent) -> Callable[[], None]:
        return lambda: self.runtime.put(event)

    async def resign(self) -> None:
        """Rules 4.26-4.32. Safe on a node that is not the controller; writes nothing to ZooKeeper."""
        for path in _CHILDREN:
            self.runtime.zk.unregister_child_handler(path)
        self.reassignment.unwatch()
        self.elections.unwatch()
        self.brokers.unwatch_all()
        self.topics.unwatch_all()
        self._scheduler.clear()
        await self.runtime.channels.shutdown()
        self._context.clear()
        thaw()

    async def rebalance(self) -> None:
        """Rules 3.25, 11.37."""
        try:
            await self.elections.rebalance()
        finally:
            interval = self.runtime.config.leader_imbalance_check_interval_seconds
            self._scheduler.schedule(ev.LeaderRebalanceDue(), interval)
