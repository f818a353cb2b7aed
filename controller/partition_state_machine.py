"""Partition states: NonExistent -> New -> Online <-> Offline -> NonExistent (rules of sections 6a and 6b).

The transitions are `context.VALID_PREVIOUS_PARTITION_STATES`; invalid ones are logged and skipped (5.22). Entering
Online creates the partition's state in ZooKeeper or elects a leader there; the other transitions touch nothing else.
ZooKeeper, not the cache, is what elections start from (6.17).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from controller.context import VALID_PREVIOUS_PARTITION_STATES, ControllerContext, PartitionState
from controller.errors import ControllerMoved, StateChangeFailed
from controller.kafka_zk_client import KafkaZkClient
from controller.leader_selection import (
    Elected,
    Strategy,
    elect_for_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)
from controller.model import LeaderAndIsr, Leadership, TopicPartition
from controller.request_batch import ControllerRequestBatch
from controller.store import NoNode, SessionExpired, StoreError
from wire.metadata_version import MetadataVersion

UNCLEAN = "unclean.leader.election.enable"

log = logging.getLogger(__name__)
state_change_log = logging.getLogger("state.change.logger")

#: of each partition that was to be elected: its new state, or why there is none
Results = dict[TopicPartition, LeaderAndIsr | Exception]


class PartitionStateMachine:
    """``unclean_by_default`` is the broker's `unclean.leader.election.enable`; a topic's own setting wins (7.4)."""

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
        self.unclean_elections = 0

    async def startup(self) -> None:
        """Rule 6.11."""
        context = self._context
        for tp in context.all_partitions():
            known = context.leadership.get(tp)
            if known is None:
                state = PartitionState.NEW
            elif context.is_replica_online(known.leader_and_isr.leader, tp):
                state = PartitionState.ONLINE
            else:
                state = PartitionState.OFFLINE
            context.put_partition_state(tp, state)
        await self.trigger_online()

    async def trigger_online(self, topic: str | None = None) -> Results:
        """Try to bring New and Offline partitions online: of all topics or one (rules 6.11, 6.12)."""
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
        """Move partitions to ``target`` in one batch; the result tells of elections only (6.9).

        Raises ControllerMoved and SessionExpired; any other failure is every partition's result (6.4).
        """
        wanted = list(partitions)
        if not wanted:
            return {}
        try:
            self._batch.new_batch()
            results = await self._change(wanted, target, strategy)
            self._batch.send()
        except (ControllerMoved, SessionExpired):
            log.error("controller moved while moving %d partitions to %s", len(wanted), target.name)
            raise
        except Exception as e:
            log.exception("moving partitions to %s failed", target.name)
            return dict.fromkeys(wanted, e)
        return results

    async def _change(
        self, partitions: Sequence[TopicPartition], target: PartitionState, strategy: Strategy | None
    ) -> Results:
        allowed = VALID_PREVIOUS_PARTITION_STATES[target]
        valid = []
        for tp in partitions:
            current = self._context.partition_state(tp)
            if current in allowed:
                valid.append(tp)
            else:
                log.error("partition %s cannot go from %s to %s", tp, current.name, target.name)
        if target is not PartitionState.ONLINE:
            for tp in valid:
                self._log_change(tp, target)
                self._context.put_partition_state(tp, target)
            return {}
        new = [tp for tp in valid if self._context.partition_state(tp) is PartitionState.NEW]
        existing = [tp for tp in valid if self._context.partition_state(tp) is not PartitionState.NEW]
        for tp in await self._initialize(new):
            self._log_change(tp, target)
            self._context.put_partition_state(tp, target)
        if not existing:
            return {}
        if strategy is None:
            raise ValueError("an election needs a strategy")  # rule 6.5
        results = await self._elect(existing, strategy)
        for tp, result in results.items():
            if isinstance(result, LeaderAndIsr):
                self._log_change(tp, target)
                self._context.put_partition_state(tp, target)
            else:
                log.warning("partition %s stays %s: %s", tp, self._context.partition_state(tp).name, result)
        return results

    def _log_change(self, tp: TopicPartition, target: PartitionState) -> None:
        if state_change_log.isEnabledFor(logging.DEBUG):
            before, epoch = self._context.partition_state(tp), self._context.epoch
            state_change_log.debug(
                "controller epoch %d: partition %s from %s to %s", epoch, tp, before.name, target.name
            )

    # New -> Online

    async def _initialize(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Create partition states in ZooKeeper (rules 6.7, 6.8); gives those that were created."""
        states: dict[TopicPartition, Leadership] = {}
        for tp in partitions:
            live = tuple(r for r in self._context.replicas(tp) if self._context.is_replica_online(r, tp))
            if live:
                states[tp] = Leadership(LeaderAndIsr(live[0], live), self._context.epoch)
            else:
                log.error("partition %s stays New: none of its replicas %s is alive", tp, self._context.replicas(tp))
        if not states:
            return []
        try:
            answers = await self._zk.create_partition_states(states, self._context.epoch_zk_version)
        except StoreError as e:
            log.error("partitions stay New, their states could not be created: %s", e)
            return []
        created = []
        for tp, answer in answers.items():
            if answer is not None:
                log.error("partition %s stays New: %s", tp, answer)
                continue
            leadership = states[tp]
            self._context.put_leadership(tp, leadership)
            self._batch.add_leader_and_isr(
                leadership.leader_and_isr.isr, tp, leadership, self._context.assignment(tp), is_new=True
            )
            created.append(tp)
        return created

    # Offline, Online -> Online

    async def _elect(self, partitions: Sequence[TopicPartition], strategy: Strategy) -> Results:
        results: Results = {}
        remaining = list(partitions)
        while remaining:  # rule 6.13: those whose version had moved go round again
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
                results[tp] = StateChangeFailed(f"there is no leader and ISR information of {tp} in ZooKeeper")
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
        written = await self._zk.update_leader_and_isr(
            {tp: e.state for tp, e in elected.items()}, self._context.epoch, self._context.epoch_zk_version
        )
        for tp, state in written.updated.items():  # rule 6.16
            leadership = Leadership(state, self._context.epoch)
            self._context.put_leadership(tp, leadership)
            self._batch.add_leader_and_isr(
                elected[tp].recipients, tp, leadership, self._context.assignment(tp), is_new=False
            )
            self.unclean_elections += elected[tp].unclean
            results[tp] = state
        results.update(written.failed)
        return written.retry

    async def _choose(
        self, current: dict[TopicPartition, LeaderAndIsr], strategy: Strategy
    ) -> dict[TopicPartition, Elected | Exception]:
        context = self._context
        unclean = await self._unclean_allowed(current) if strategy is Strategy.OFFLINE else {}
        chosen: dict[TopicPartition, Elected | Exception] = {}
        for tp, state in current.items():
            replicas = context.replicas(tp)
            allowed = unclean.get(tp.topic, strategy is Strategy.UNCLEAN)
            if isinstance(allowed, Exception):
                chosen[tp] = allowed
                continue

            def online(broker: int, tp: TopicPartition = tp) -> bool:
                return context.is_replica_online(broker, tp)  # type: ignore[arg-type]

            def present(broker: int, tp: TopicPartition = tp) -> bool:
                return context.is_replica_online(broker, tp, include_shutting_down=True)  # type: ignore[arg-type]

            match strategy:
                case Strategy.OFFLINE | Strategy.UNCLEAN:
                    elected = elect_offline(
                        state,
                        replicas,
                        online,
                        unclean_allowed=allowed,
                        recovery_supported=self._ibp.supports_leader_recovery_state,
                    )
                case Strategy.REASSIGN:
                    elected = elect_reassigned(state, context.assignment(tp).target, online)
                case Strategy.PREFERRED:
                    elected = elect_preferred(state, replicas, online)
                case Strategy.CONTROLLED_SHUTDOWN:
                    elected = elect_for_controlled_shutdown(state, replicas, present, context.shutting_down)
            chosen[tp] = elected or StateChangeFailed(
                f"no leader for {tp} under {strategy.value}: replicas {list(replicas)}, ISR {list(state.isr)}, "
                f"online {[r for r in replicas if online(r)]}"
            )
        return chosen

    async def _unclean_allowed(self, current: dict[TopicPartition, LeaderAndIsr]) -> dict[str, bool | Exception]:
        """Per topic whose configuration matters: those with a partition without online ISR member (7.3, 7.4)."""
        topics = {
            tp.topic
            for tp, state in current.items()
            if not any(self._context.is_replica_online(r, tp) for r in state.isr)
        }
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
