"""The states of partitions, and what each transition does (rules of sections 6a and 6b).

    NonExistent -> New -> Online <-> Offline -> NonExistent

- A transition that is not in `TRANSITIONS` is logged and skipped (5.22).
- INITIALIZE needs a live replica (6.7). ELECT needs a state in ZooKeeper that no later controller has written (6.14),
  and a replica that the strategy may choose (section 7). A partition that lacks it is logged and stays as it is.
- ZooKeeper, not the cache, is what elections start from (6.17). A state that changed meanwhile is read again (6.13).
- Only ControllerMoved and SessionExpired end the transitions of the other partitions (6.4).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from kce.controller.context import ControllerContext
from kce.controller.errors import StateChangeFailed
from kce.controller.leader_selection import (
    Elected,
    Strategy,
    elect_for_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)
from kce.controller.partition_states import update_leader_and_isr, with_epoch
from kce.controller.prepared_states import PreparedStates
from kce.controller.request_batch import ControllerRequestBatch
from kce.controller.states import PartitionState
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, LeaderAndIsr, Leadership, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import NoNode, SessionExpired, StoreError

UNCLEAN = "unclean.leader.election.enable"

log = logging.getLogger(__name__)
state_change_log = logging.getLogger("state.change.logger")


class PartitionAction(enum.Enum):
    """The action of a transition, in addition to the state change."""

    NOTHING = enum.auto()
    #: create the partition's state in ZooKeeper, led by its first live replica (6.7, 6.8)
    INITIALIZE = enum.auto()
    #: elect a leader and write it to ZooKeeper (6.9-6.17)
    ELECT = enum.auto()


#: new state -> states that lead to it -> what the transition does
TRANSITIONS: Mapping[PartitionState, Mapping[PartitionState, PartitionAction]] = {
    PartitionState.NEW: {PartitionState.NON_EXISTENT: PartitionAction.NOTHING},
    PartitionState.ONLINE: {
        PartitionState.NEW: PartitionAction.INITIALIZE,
        PartitionState.ONLINE: PartitionAction.ELECT,
        PartitionState.OFFLINE: PartitionAction.ELECT,
    },
    PartitionState.OFFLINE: {
        PartitionState.NEW: PartitionAction.NOTHING,
        PartitionState.ONLINE: PartitionAction.NOTHING,
        PartitionState.OFFLINE: PartitionAction.NOTHING,
    },
    PartitionState.NON_EXISTENT: {PartitionState.OFFLINE: PartitionAction.NOTHING},
}

#: result of each election: the new state, or the error
Results = dict[TopicPartition, LeaderAndIsr | Exception]


class PartitionStateMachine:
    """``unclean_by_default`` is the broker's `unclean.leader.election.enable`; a topic's own setting overrides it
    (7.4)."""

    def __init__(
        self,
        context: ControllerContext,
        zk: KafkaZkClient,
        batch: ControllerRequestBatch,
        *,
        ibp: MetadataVersion,
        unclean_by_default: Callable[[], bool],
    ) -> None:
        self._context = context
        self._zk = zk
        self._batch = batch
        self._ibp = ibp
        self._unclean_by_default = unclean_by_default
        self.prepared = PreparedStates(zk)
        self.unclean_elections = 0

    async def startup(self) -> None:
        """Rule 6.11."""
        context = self._context
        states = dict.fromkeys(context.assignments, PartitionState.ONLINE)
        states |= dict.fromkeys(context.partitions_without_leadership(), PartitionState.NEW)
        states |= dict.fromkeys(context.partitions_without_online_leader(), PartitionState.OFFLINE)
        context.put_partition_states(states)
        await self.trigger_online()

    async def trigger_online(self, topic: str | None = None) -> Results:
        """Move New and Offline partitions to Online: of all topics, or of one (rules 6.11, 6.12)."""
        waiting = self._context.partitions_in_state(PartitionState.NEW, PartitionState.OFFLINE)
        wanted = [
            tp
            for tp in waiting
            if (topic is None or tp.topic == topic) and not self._context.is_queued_for_deletion(tp.topic)
        ]
        return await self.handle_state_changes(wanted, PartitionState.ONLINE, Strategy.OFFLINE)

    async def handle_state_changes(
        self, partitions: Iterable[TopicPartition], target: PartitionState, strategy: Strategy | None = None
    ) -> Results:
        """Move partitions to ``target`` in one batch. Returns the results of elections only (6.9).

        Raises ControllerMoved and SessionExpired. Any other failure becomes the result of every partition (6.4).
        """
        moving = list(partitions)
        if not moving:
            return {}
        try:
            self._batch.new_batch()
            results = await self._change(moving, target, strategy)
            self._batch.send()
        except (ControllerMoved, SessionExpired):
            log.error("the controller moved while it moved %d partitions to %s", len(moving), target.name)
            self._batch.clear()
            raise
        except Exception as e:
            self._batch.clear()  # Kafka leaves it unusable (6.4)
            log.exception("moving partitions to %s failed", target.name)
            return dict.fromkeys(moving, e)
        return results

    async def _change(
        self, partitions: Sequence[TopicPartition], target: PartitionState, strategy: Strategy | None
    ) -> Results:
        todo: dict[PartitionAction, list[TopicPartition]] = {action: [] for action in PartitionAction}
        actions, state_of = TRANSITIONS[target], self._context.partition_state
        for tp in partitions:
            current = state_of(tp)
            action = actions.get(current)
            if action is None:
                log.error("invalid transition of partition %s from %s to %s", tp, current.name, target.name)
            else:
                todo[action].append(tp)
        self._put([*todo[PartitionAction.NOTHING], *await self._initialize(todo[PartitionAction.INITIALIZE])], target)
        if not todo[PartitionAction.ELECT]:
            return {}
        if strategy is None:
            raise ValueError("an election needs a strategy")  # rule 6.5
        results = await self._elect(todo[PartitionAction.ELECT], strategy)
        for tp, result in results.items():
            if not isinstance(result, LeaderAndIsr):
                log.warning("partition %s stays %s: %s", tp, state_of(tp).name, result)
        self._put([tp for tp, result in results.items() if isinstance(result, LeaderAndIsr)], target)
        return results

    def _put(self, partitions: Sequence[TopicPartition], target: PartitionState) -> None:
        if state_change_log.isEnabledFor(logging.INFO):
            for tp in partitions:
                before, leadership = self._context.partition_state(tp), self._context.leadership.get(tp)
                state = "" if leadership is None else f" with {leadership.leader_and_isr}"
                state_change_log.info(
                    "[Controller epoch=%d] Changed partition %s from %s to %s%s",
                    self._context.epoch, tp, before.name, target.name, state,
                )  # fmt: skip
        self._context.put_partition_states(dict.fromkeys(partitions, target))

    # INITIALIZE

    async def _initialize(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Create partition states in ZooKeeper (rules 6.7, 6.8). Returns the partitions that got one."""
        context, states = self._context, dict[TopicPartition, Leadership]()
        for tp in partitions:
            state = self.initial_state(tp, context.replicas(tp))
            if state is None:
                log.error("partition %s stays New: no replica of %s is alive", tp, context.replicas(tp))
            else:
                states[tp] = state
        if not states:
            return []
        try:
            errors = await self.prepared.create(states, context.topic_ids, context.epoch_zk_version)
        except StoreError as e:
            log.error("partitions stay New: creating their states failed: %s", e)
            return []
        created = []
        for tp, error in errors.items():
            if error is not None:
                log.error("partition %s stays New: %s", tp, error)
                continue
            leadership = states[tp]
            context.put_leadership(tp, leadership)
            self._batch.add_leader_and_isr(
                leadership.leader_and_isr.isr, tp, leadership, context.assignment(tp), is_new=True
            )
            created.append(tp)
        return created

    def initial_state(self, tp: TopicPartition, replicas: Iterable[BrokerId]) -> Leadership | None:
        """The live replicas, led by the first; None without any (rule 6.7)."""
        live = tuple(replica for replica in replicas if self._context.is_replica_online(replica, tp))
        return Leadership(LeaderAndIsr(live[0], live), self._context.epoch) if live else None

    # ELECT

    async def _elect(self, partitions: Sequence[TopicPartition], strategy: Strategy) -> Results:
        results: Results = {}
        remaining = list(partitions)
        while remaining:  # rule 6.13: retry those whose version has changed
            remaining = await self._elect_once(remaining, strategy, results)
        return results

    async def _elect_once(
        self, partitions: Sequence[TopicPartition], strategy: Strategy, results: Results
    ) -> list[TopicPartition]:
        current: dict[TopicPartition, LeaderAndIsr] = {}
        try:
            found = await self._zk.get_partition_states(partitions)
        except StoreError as e:
            results.update(dict.fromkeys(partitions, e))
            return []
        for tp, known in found.items():  # rule 6.14
            if isinstance(known, StoreError) and not isinstance(known, NoNode):
                results[tp] = known
            elif not isinstance(known, Leadership):
                results[tp] = StateChangeFailed(f"{tp} has no leader and ISR in ZooKeeper")
            elif known.controller_epoch > self._context.epoch:
                results[tp] = StateChangeFailed(
                    f"{tp} was last written by controller epoch {known.controller_epoch}, ours is {self._context.epoch}"
                )
            else:
                current[tp] = known.leader_and_isr
        elected: dict[TopicPartition, Elected] = {}
        for tp, chosen in (await self._choose(current, strategy)).items():
            if isinstance(chosen, Elected):
                elected[tp] = chosen
            else:
                results[tp] = chosen
        if not elected:
            return []
        written = await update_leader_and_isr(
            self._zk, {tp: e.state for tp, e in elected.items()}, self._context.epoch, self._context.epoch_zk_version
        )
        context, updated = self._context, written.updated
        context.put_all_leadership(with_epoch(updated, context.epoch))
        self._add_elected({tp: elected[tp] for tp in updated})  # rule 6.16
        self.unclean_elections += sum(elected[tp].unclean for tp in updated)
        results.update(updated)
        results.update(written.failed)
        return written.retry

    def _add_elected(self, elected: Mapping[TopicPartition, Elected]) -> None:
        context = self._context
        if not context.replicas_on_offline_dirs:
            self._batch.add_all_leader_and_isr(elected, lambda tp, replicas: elected[tp].recipients)
            return
        for tp, one in elected.items():  # partitions with equal replicas may have different recipients
            known = context.leadership[tp]
            self._batch.add_leader_and_isr(one.recipients, tp, known, context.assignment(tp), is_new=False)

    async def _choose(
        self, current: dict[TopicPartition, LeaderAndIsr], strategy: Strategy
    ) -> dict[TopicPartition, Elected | Exception]:
        context = self._context
        unclean = await self._unclean_allowed(current) if strategy is Strategy.OFFLINE else {}
        chosen: dict[TopicPartition, Elected | Exception] = {}
        # partitions with one state and one assignment have one result, unless log directories are offline
        results: dict[tuple[int, int, bool], Elected | None] = {}
        for tp, state in current.items():
            assignment = context.assignment(tp)
            allowed = unclean.get(tp.topic, strategy is Strategy.UNCLEAN)
            if isinstance(allowed, Exception):
                chosen[tp] = allowed
                continue
            alike = id(state), id(assignment), allowed
            if alike not in results or context.replicas_on_offline_dirs:
                results[alike] = self._choose_one(tp, state, assignment, strategy, unclean_allowed=allowed)
            chosen[tp] = results[alike] or StateChangeFailed(
                f"no leader for {tp} under {strategy.value}: replicas {list(assignment.replicas)}, "
                f"ISR {list(state.isr)}, online {[r for r in assignment.replicas if context.is_replica_online(r, tp)]}"
            )
        return chosen

    def _choose_one(
        self,
        tp: TopicPartition,
        state: LeaderAndIsr,
        assignment: ReplicaAssignment,
        strategy: Strategy,
        *,
        unclean_allowed: bool,
    ) -> Elected | None:
        context, replicas = self._context, assignment.replicas

        def online(broker: BrokerId) -> bool:
            return context.is_replica_online(broker, tp)

        def present(broker: BrokerId) -> bool:
            return context.is_replica_online(broker, tp, include_shutting_down=True)

        match strategy:
            case Strategy.OFFLINE | Strategy.UNCLEAN:
                return elect_offline(
                    state,
                    replicas,
                    online,
                    unclean_allowed=unclean_allowed,
                    recovery_supported=self._ibp.supports_leader_recovery_state,
                )
            case Strategy.REASSIGN:
                return elect_reassigned(state, assignment.target, online)
            case Strategy.PREFERRED:
                return elect_preferred(state, replicas, online)
            case Strategy.CONTROLLED_SHUTDOWN:
                return elect_for_controlled_shutdown(state, replicas, present, context.shutting_down)

    async def _unclean_allowed(self, current: dict[TopicPartition, LeaderAndIsr]) -> dict[str, bool | Exception]:
        """The setting of each topic that has a partition without online ISR member (7.3, 7.4)."""
        is_online = self._context.is_replica_online

        def is_lost(tp: TopicPartition, state: LeaderAndIsr) -> bool:
            return not any(is_online(replica, tp) for replica in state.isr)

        if self._context.replicas_on_offline_dirs:
            topics = {tp.topic for tp, state in current.items() if is_lost(tp, state)}
        else:  # partitions with one state are lost or not together
            kinds = {id(state): (tp, state) for tp, state in current.items()}
            lost = {number for number, (tp, state) in kinds.items() if is_lost(tp, state)}
            topics = {tp.topic for tp, state in current.items() if id(state) in lost} if lost else set()
        if not topics:
            return {}
        default = self._unclean_by_default()
        allowed: dict[str, bool | Exception] = {}
        for topic, config in (await self._zk.get_topic_configs(sorted(topics))).items():
            if isinstance(config, Exception):
                allowed[topic] = config
            else:
                own = config.get(UNCLEAN, str(default)).lower()
                allowed[topic] = own == "true" if own in ("true", "false") else ValueError(f"{UNCLEAN}={own}")
        return allowed
