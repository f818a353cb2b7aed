"""Leader elections by request, by /admin/preferred_replica_election, and for balance (rules 11.29-11.40)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable
from typing import Final

from kce.controller.errors import OperationResult, StateChangeFailed, failure_result
from kce.controller.events import PreferredReplicaElectionCreated
from kce.controller.iteration_order import trie_order
from kce.controller.leader_selection import Strategy
from kce.controller.partition_state_machine import Results
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState
from kce.pauses import Paced
from kce.wire import ErrorCode
from kce.zookeeper import znodes
from kce.zookeeper.admin_nodes import delete_preferred_replica_election, get_preferred_replica_election
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.model import NO_LEADER, BrokerId, ElectionType, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)


#: result of each election: the new leader, or the error
ElectionResults = dict[TopicPartition, BrokerId | OperationResult]


#: partitions of a request that are taken in order
_SORTED: Final = 10_000


class Trigger(enum.Enum):
    AUTO = "AutoTriggered"
    ZOOKEEPER = "ZkTriggered"
    ADMIN_CLIENT = "AdminClientTriggered"


_UNAVAILABLE = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


async def _sorted(partitions: Iterable[TopicPartition]) -> Iterable[TopicPartition]:
    """In order; very many as they come, because to sort them takes seconds."""
    given = [tp async for tp in Paced(partitions)]
    return sorted(given) if len(given) <= _SORTED else given


class ReplicaLeaderElection:
    def __init__(self, runtime: ControllerRuntime) -> None:
        self._runtime = runtime
        self._context = runtime.context

    async def requested(self, partitions: Iterable[TopicPartition], election_type: ElectionType) -> ElectionResults:
        """Rules 11.30-11.33. Raises KeyError for a partition without leadership (11.31)."""
        return await self._elect_known(partitions, election_type, Trigger.ADMIN_CLIENT)

    async def requested_by_znode(self) -> None:
        """Run the elections of /admin/preferred_replica_election, if it exists (rules 11.29, 11.34)."""
        if await self.watch():
            wanted = await get_preferred_replica_election(self._runtime.zk)
            if wanted is not None:  # Kafka keeps a malformed node, too
                await self._elect_known(wanted, ElectionType.PREFERRED, Trigger.ZOOKEEPER)

    async def watch(self) -> bool:
        """Watch the creation of /admin/preferred_replica_election. Returns whether it exists."""
        created = ChangeHandler(created=lambda: self._runtime.put(PreferredReplicaElectionCreated()))
        return await self._runtime.zk.register_and_check(znodes.PREFERRED_REPLICA_ELECTION, created)

    def unwatch(self) -> None:
        self._runtime.zk.unregister_change_handler(znodes.PREFERRED_REPLICA_ELECTION)

    async def resume_at_failover(self) -> None:
        """Run pending elections, delete the node and check it again, even if it did not exist (rules 4.17, 4.18).

        Kafka fails on an assigned partition without leadership, and with it every failover (4.19).
        """
        wanted = await get_preferred_replica_election(self._runtime.zk) or ()
        pending = [
            tp
            for tp in sorted(wanted)
            if (replicas := self._context.replicas(tp))
            and tp in self._context.leadership
            and self._leader(tp) != replicas[0]
            and not self._context.is_queued_for_deletion(tp.topic)
        ]
        await self._elect(pending, ElectionType.PREFERRED, Trigger.ZOOKEEPER)

    async def rebalance(self) -> None:
        """Elect preferred leaders of brokers whose imbalance is above the limit (rules 11.38-11.40)."""
        context = self._context
        by_preferred: dict[BrokerId, list[TopicPartition]] = {}
        for tp in context.all_partitions():
            replicas = context.replicas(tp)
            if replicas and not context.is_queued_for_deletion(tp.topic):
                by_preferred.setdefault(replicas[0], []).append(tp)
        for broker in trie_order(by_preferred):
            partitions = by_preferred[broker]
            misplaced = [tp for tp in partitions if tp in context.leadership and self._leader(tp) != broker]
            ratio = len(misplaced) / len(partitions)
            if ratio > self._runtime.config.leader_imbalance_per_broker_percentage / 100:
                candidates = [tp for tp in misplaced if self._may_lead(broker, tp)]
                log.info(
                    "broker %d lacks %.0f%% of its preferred leaderships: electing %s", broker, 100 * ratio, candidates
                )
                await self._elect(candidates, ElectionType.PREFERRED, Trigger.AUTO)

    def _may_lead(self, broker: BrokerId, tp: TopicPartition) -> bool:
        return self._context.is_replica_online(broker, tp) and broker in self._context.leadership[tp].leader_and_isr.isr

    def _leader(self, tp: TopicPartition) -> BrokerId:
        return self._context.leadership[tp].leader_and_isr.leader

    async def _elect_known(
        self, partitions: Iterable[TopicPartition], election_type: ElectionType, trigger: Trigger
    ) -> ElectionResults:
        """Rules 11.30, 11.33."""
        results: ElectionResults = {}
        electable = []
        async for tp in Paced(await _sorted(partitions)):
            if not self._context.is_assigned(tp):
                results[tp] = OperationResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
            elif self._context.is_queued_for_deletion(tp.topic):
                results[tp] = OperationResult(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
            elif self._has_valid_leader(tp, election_type):
                results[tp] = OperationResult(
                    ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
                )
            else:
                electable.append(tp)
        for tp, result in (await self._elect(electable, election_type, trigger)).items():
            if isinstance(result, LeaderAndIsr):
                results[tp] = result.leader
            elif isinstance(result, StateChangeFailed):
                results[tp] = OperationResult(_UNAVAILABLE[election_type], str(result))
            else:
                results[tp] = failure_result(result)
        return results

    def _has_valid_leader(self, tp: TopicPartition, election_type: ElectionType) -> bool:
        leader = self._leader(tp)
        if election_type is ElectionType.PREFERRED:
            return leader == self._context.replicas(tp)[0]
        return leader != NO_LEADER and leader in self._context.live_broker_ids

    async def _elect(
        self, partitions: Iterable[TopicPartition], election_type: ElectionType, trigger: Trigger
    ) -> Results:
        """Only an administrator's request forces an unclean election (rules 11.32, 11.34)."""
        if election_type is ElectionType.PREFERRED:
            strategy = Strategy.PREFERRED
        else:
            strategy = Strategy.UNCLEAN if trigger is Trigger.ADMIN_CLIENT else Strategy.OFFLINE
        try:
            results = await self._runtime.partitions.handle_state_changes(partitions, PartitionState.ONLINE, strategy)
        finally:
            if trigger is Trigger.ZOOKEEPER:
                await delete_preferred_replica_election(self._runtime.zk, self._context.epoch_zk_version)
                self._runtime.put(PreferredReplicaElectionCreated())  # somebody may have created it again
        if trigger is not Trigger.ADMIN_CLIENT:
            for tp, result in results.items():
                if isinstance(result, Exception):
                    log.error("electing a leader of %s (%s) failed: %s", tp, trigger.value, result)
        return results
