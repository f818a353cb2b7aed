"""Elections that somebody asked for: an administrator, /admin/preferred_replica_election, or the balance of leaders
(rules 11.29-11.40).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable

from controller import zk_data
from controller.admin_nodes import delete_preferred_replica_election, get_preferred_replica_election
from controller.context import PartitionState
from controller.core import Core
from controller.errors import ApiError, StateChangeFailed, api_error
from controller.events import ElectLeadersReceived, ElectLeadersResult, PreferredReplicaElectionCreated
from controller.leader_selection import Strategy
from controller.model import NO_LEADER, BrokerId, ElectionType, LeaderAndIsr, TopicPartition
from controller.partition_state_machine import Results
from controller.zk_client import ChangeHandler
from wire import ErrorCode

log = logging.getLogger(__name__)


class Trigger(enum.Enum):
    AUTO = "AutoTriggered"
    ZOOKEEPER = "ZkTriggered"
    ADMIN_CLIENT = "AdminClientTriggered"


_UNAVAILABLE = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


class Elections:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._context = core.context

    async def requested(self, event: ElectLeadersReceived) -> None:
        """Rules 11.30-11.33. A partition without leadership makes it fail without an answer (11.31)."""
        event.reply(await self._elect_known(event.partitions, event.election_type, Trigger.ADMIN_CLIENT))

    async def requested_by_znode(self) -> None:
        """/admin/preferred_replica_election may be there (rules 11.29, 11.34). Only its creation is watched."""
        if await self.watch():
            wanted = await get_preferred_replica_election(self._core.zk)
            await self._elect_known(wanted, ElectionType.PREFERRED, Trigger.ZOOKEEPER)

    async def watch(self) -> bool:
        """Whether the node of preferred elections exists, which arms the watch."""
        created = ChangeHandler(created=lambda: self._core.put(PreferredReplicaElectionCreated()))
        return await self._core.zk.register_and_check(zk_data.PREFERRED_REPLICA_ELECTION, created)

    def unwatch(self) -> None:
        self._core.zk.unregister_change_handler(zk_data.PREFERRED_REPLICA_ELECTION)

    async def resume_at_failover(self) -> None:
        """Rules 4.17-4.19: the node is deleted, and looked at again, whether it was there or not.

        Raises KeyError for a partition that is assigned and has no leadership.
        """
        wanted = await get_preferred_replica_election(self._core.zk)
        pending = [
            tp
            for tp in sorted(wanted)
            if (replicas := self._context.replicas(tp))
            and self._leader(tp) != replicas[0]
            and not self._context.is_queued_for_deletion(tp.topic)
        ]
        await self._elect(pending, ElectionType.PREFERRED, Trigger.ZOOKEEPER)

    async def rebalance(self) -> None:
        """Give leadership back to preferred replicas, of brokers that miss too much of theirs (rules 11.38-11.40)."""
        context = self._context
        by_preferred: dict[BrokerId, list[TopicPartition]] = {}
        for tp in context.all_partitions():
            replicas = context.replicas(tp)
            if replicas and not context.is_queued_for_deletion(tp.topic):
                by_preferred.setdefault(replicas[0], []).append(tp)
        for broker, partitions in by_preferred.items():
            misplaced = [tp for tp in partitions if tp in context.leadership and self._leader(tp) != broker]
            ratio = len(misplaced) / len(partitions)
            if ratio > self._core.config.leader_imbalance_per_broker_percentage / 100:
                candidates = [tp for tp in misplaced if self._may_lead(broker, tp)]
                log.info("broker %d misses %.0f%% of its leaderships: electing %s", broker, 100 * ratio, candidates)
                await self._elect(candidates, ElectionType.PREFERRED, Trigger.AUTO)

    def _may_lead(self, broker: BrokerId, tp: TopicPartition) -> bool:
        return self._context.is_replica_online(broker, tp) and broker in self._context.leadership[tp].leader_and_isr.isr

    def _leader(self, tp: TopicPartition) -> BrokerId:
        return self._context.leadership[tp].leader_and_isr.leader

    async def _elect_known(
        self, partitions: Iterable[TopicPartition], election_type: ElectionType, trigger: Trigger
    ) -> ElectLeadersResult:
        """Rules 11.30, 11.33."""
        results: ElectLeadersResult = {}
        electable = []
        for tp in sorted(partitions):
            if not self._context.is_assigned(tp):
                results[tp] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
            elif self._context.is_queued_for_deletion(tp.topic):
                results[tp] = ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
            elif self._has_valid_leader(tp, election_type):
                results[tp] = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "The leader is the right one already.")
            else:
                electable.append(tp)
        for tp, result in (await self._elect(electable, election_type, trigger)).items():
            if isinstance(result, LeaderAndIsr):
                results[tp] = result.leader
            elif isinstance(result, StateChangeFailed):
                results[tp] = ApiError(_UNAVAILABLE[election_type], str(result))
            else:
                results[tp] = api_error(result)
        return results

    def _has_valid_leader(self, tp: TopicPartition, election_type: ElectionType) -> bool:
        leader = self._leader(tp)
        if election_type is ElectionType.PREFERRED:
            return leader == self._context.replicas(tp)[0]
        return leader != NO_LEADER and leader in self._context.live_broker_ids

    async def _elect(
        self, partitions: Iterable[TopicPartition], election_type: ElectionType, trigger: Trigger
    ) -> Results:
        """Rules 11.32, 11.34: unclean election is forced for an administrator only."""
        if election_type is ElectionType.PREFERRED:
            strategy = Strategy.PREFERRED
        else:
            strategy = Strategy.UNCLEAN if trigger is Trigger.ADMIN_CLIENT else Strategy.OFFLINE
        try:
            results = await self._core.partitions.handle_state_changes(partitions, PartitionState.ONLINE, strategy)
        finally:
            if trigger is Trigger.ZOOKEEPER:
                await delete_preferred_replica_election(self._core.zk, self._context.epoch_zk_version)
                self._core.put(PreferredReplicaElectionCreated())  # it may have been made again between
        if trigger is not Trigger.ADMIN_CLIENT:
            for tp, result in results.items():
                if isinstance(result, Exception):
                    log.error("the election of a leader of %s, %s, failed: %s", tp, trigger.value, result)
        return results
