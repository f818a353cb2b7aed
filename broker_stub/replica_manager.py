"""The partitions that this broker hosts, and the fencing of control requests (rules 9.8-9.34).

All three control requests of both planes go through here. No method awaits, so they run one after the other: this
replaces the lock of rule 9.11. Only the files of new logs are made before, in steps.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from kce.broker_stub.control_requests import StopReplica, leader_and_isr_states, leader_and_isr_topic_ids
from kce.broker_stub.errors import KafkaStorageError, error_code
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import Partition
from kce.wire import ErrorCode, LeaderAndIsrPartitionState, LeaderAndIsrRequest, UpdateMetadataRequest
from kce.wire.steps import Steps
from kce.wire.vocabulary import EPOCH_DURING_DELETE, NO_EPOCH, NO_LEADER, TopicPartition

state_change_logger = logging.getLogger("state.change.logger")


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResult:
    """A top-level error without partitions, or the partitions' error codes (rule 9.27)."""

    error: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode]
    topic_ids: Mapping[str, uuid.UUID]


class IsrPolicy(Protocol):
    """The replica manager calls it after each change that it applied. No method awaits."""

    def partition_changed(self, partition: Partition) -> None:
        """A LeaderAndIsr changed the partition, or the partition is no longer hosted (and not led)."""

    def topic_id_changed(self, partition: Partition) -> None:
        """A LeaderAndIsr added or removed only the topic id of a partition that is followed (rule 9.19)."""

    def partition_stopped(self, partition: Partition) -> None:
        """A StopReplica without deletion: the partition is hosted, but no longer fetched (rules 9.31, 9.34)."""

    def metadata_changed(self, controller_epoch: int) -> None:
        """The metadata cache applied an UpdateMetadata of that controller epoch."""


class LeadershipListener(Protocol):
    """A coordinator, which keeps what it knows in partitions. No method awaits."""

    def became_leader(self, partition: TopicPartition, leader_epoch: int) -> None:
        """This broker leads the partition, and did not before (rule G13.1)."""

    def resigned(self, partition: TopicPartition, leader_epoch: int | None) -> None:
        """It follows in that epoch, or the partition is deleted here; None: in any (rules G13.2, G13.4)."""

    def partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        """The controller is deleting them, wherever they are (rule G13.5)."""


class ReplicaManager:
    """Owns the hosted partitions and the highest controller epoch seen (rule 9.8; not persisted)."""

    def __init__(
        self,
        broker_id: int,
        metadata_cache: MetadataCache,
        log_manager: LogManager,
        isr_policy: IsrPolicy,
        on_log_dir_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_log_dir_failure`` notifies the controller that replicas went offline with their log directory."""
        self.broker_id = broker_id
        self.controller_epoch = 0
        self.partitions: dict[TopicPartition, Partition] = {}
        self.offline_partitions: set[TopicPartition] = set()
        self._metadata_cache = metadata_cache
        self._log_manager = log_manager
        self._isr_policy = isr_policy
        self._on_log_dir_failure = on_log_dir_failure
        self.coordinators: tuple[LeadershipListener, ...] = ()

    def logs_made(self, request: LeaderAndIsrRequest) -> Steps[None]:
        """Make the logs that the request is going to need, one a step, with what their files are to have.

        Until the request is applied they are as those that a broker finds when it starts.
        """
        topic_ids = leader_and_isr_topic_ids(request)
        for topic_partition, state in leader_and_isr_states(request):
            if request.controller_epoch < self.controller_epoch:
                return  # the next controller may have deleted the topic
            if not self._needs_log(topic_partition, state):
                continue
            topic_id = topic_ids.get(topic_partition.topic)
            with suppress(KafkaStorageError):  # the request meets it again
                made = self._log_manager.get_or_create_log(topic_partition, is_new=state.is_new, topic_id=topic_id)
                if state.leader == self.broker_id:
                    made.assign_epoch(state.leader_epoch)
            yield

    def _needs_log(self, topic_partition: TopicPartition, state: LeaderAndIsrPartitionState) -> bool:
        partition = self.partitions.get(topic_partition)
        return (
            self.broker_id in state.replicas
            and state.leader_epoch > (NO_EPOCH if partition is None else partition.leader_epoch)
            and topic_partition not in self.offline_partitions
            and not self._log_manager.has_log(topic_partition)
        )

    def become_leader_or_follower(self, request: LeaderAndIsrRequest, correlation_id: int) -> LeaderAndIsrResult:
        """Raises ValueError for a request that contradicts itself (rule 13.11)."""
        topic_ids = leader_and_isr_topic_ids(request)
        sender = f"controller {request.controller_id} epoch {request.controller_epoch} correlation id {correlation_id}"
        if self._is_stale(request.controller_epoch):
            self._warn("Ignoring LeaderAndIsr of %s: the known controller epoch is %d", sender, self.controller_epoch)
            return LeaderAndIsrResult(ErrorCode.STALE_CONTROLLER_EPOCH, {}, topic_ids)
        codes: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, tuple[Partition, LeaderAndIsrPartitionState]] = {}  # the last of each
        for topic_partition, state in leader_and_isr_states(request):
            if topic_partition in self.offline_partitions:  # rule 9.13
                codes[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR
                self._warn("Ignoring LeaderAndIsr of %s for %s: its log directory is offline", sender, topic_partition)
                continue
            partition = self._get_or_create(topic_partition)
            code = self._validate(partition, state, topic_ids.get(topic_partition.topic), request.is_kraft_controller)
            codes[topic_partition] = ErrorCode.NONE if code is None else code
            if code is None:
                accepted[topic_partition] = partition, state
            self._log_result(sender, partition, state, code)
        self._apply(list(accepted.values()), topic_ids, codes)
        return LeaderAndIsrResult(ErrorCode.NONE, codes, topic_ids)

    def _validate(
        self,
        partition: Partition,
        state: LeaderAndIsrPartitionState,
        topic_id: uuid.UUID | None,
        is_kraft_controller: bool,
    ) -> ErrorCode | None:
        """Rules 9.14-9.19: the partition's error code, or None if its state must be applied."""
        log_topic_id = partition.topic_id
        if topic_id is not None and log_topic_id is not None and topic_id != log_topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch < partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if state.leader_epoch > partition.leader_epoch or is_kraft_controller:
            return None if self.broker_id in state.replicas else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # an epoch that is known already: only the topic id can be new, or gone (rule 9.19)
        is_follower = state.leader != self.broker_id
        is_new = topic_id is not None and log_topic_id is None
        is_gone = topic_id is None and log_topic_id is not None and is_follower
        if not is_new and not is_gone:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if topic_id is not None and self._log_manager.has_log(partition.topic_partition):
            self._log_manager.assign_topic_id(partition.topic_partition, topic_id)
        if is_follower:
            partition.requested_topic_id = topic_id
            self._isr_policy.topic_id_changed(partition)
        return ErrorCode.NONE

    def _apply(
        self,
        accepted: list[tuple[Partition, LeaderAndIsrPartitionState]],
        topic_ids: Mapping[str, uuid.UUID],
        codes: dict[TopicPartition, ErrorCode],
    ) -> None:
        """Leaders before followers (rule 9.20), whose waiting requests are looked at when all follow (rule B2.23)."""
        leading = [(partition, state) for partition, state in accepted if state.leader == self.broker_id]
        following = [(partition, state) for partition, state in accepted if state.leader != self.broker_id]
        failed, now_ms = False, trio.current_time() * 1000
        followers: list[Partition] = []
        for partition, state in leading + following:
            topic_partition = partition.topic_partition
            was_leader = partition.is_leader
            try:
                changed = self._change_role(partition, state, topic_ids.get(topic_partition.topic), now_ms)
            except KafkaStorageError as e:  # rule 9.24
                codes[topic_partition] = error_code(e)
                self.mark_offline(topic_partition)
                failed = True
                continue
            if not changed:
                continue
            if not partition.is_leader:
                followers.append(partition)
                continue
            self._isr_policy.partition_changed(partition)
            if not was_leader:
                for coordinator in self.coordinators:
                    coordinator.became_leader(topic_partition, partition.leader_epoch)
        for partition in followers:
            self._isr_policy.partition_changed(partition)
            for coordinator in self.coordinators:
                coordinator.resigned(partition.topic_partition, partition.leader_epoch)
        if failed:
            self._on_log_dir_failure()  # rule 9.68

    def _change_role(
        self, partition: Partition, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None, now_ms: float
    ) -> bool:
        if state.leader == self.broker_id:
            changed = partition.make_leader(state, topic_id, now_ms)
        elif state.leader in self._metadata_cache.snapshot.alive_brokers:
            changed = partition.make_follower(state, topic_id)
        else:  # rule 9.23: the error code stays NONE
            partition.create_log_if_not_exists(state, topic_id)
            if state.leader == NO_LEADER:
                self._warn("%s has no leader to follow", partition.topic_partition)
            else:
                self._warn("Not following leader %d of %s: it is not alive", state.leader, partition.topic_partition)
            return False
        if not changed:
            self._warn(
                "Skipping LeaderAndIsr for %s: its partition epoch %d is older than the known %d",
                partition.topic_partition, state.partition_epoch, partition.partition_epoch,
            )  # fmt: skip
        return changed

    def stop_replicas(
        self, controller_id: int, controller_epoch: int, states: Mapping[TopicPartition, StopReplica]
    ) -> tuple[ErrorCode, Mapping[TopicPartition, ErrorCode]]:
        """The top-level error code, and the partitions' codes unless that is an error (rules 9.9, 9.30-9.34)."""
        if self._is_stale(controller_epoch):
            self._warn(
                "Ignoring StopReplica of controller %d epoch %d: the known controller epoch is %d",
                controller_id, controller_epoch, self.controller_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_CONTROLLER_EPOCH, {}
        codes: dict[TopicPartition, ErrorCode] = {}
        for topic_partition, state in states.items():
            codes[topic_partition] = code = self._stop(topic_partition, state)
            self._debug(
                "StopReplica of controller %d epoch %d for %s: leader epoch %d, delete %s: %s",
                controller_id, controller_epoch, topic_partition, state.leader_epoch, state.delete_partition, code.name,
            )  # fmt: skip
        self._log_manager.checkpoint_deletions()
        return ErrorCode.NONE, codes

    def _stop(self, topic_partition: TopicPartition, state: StopReplica) -> ErrorCode:
        if topic_partition in self.offline_partitions:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self.partitions.get(topic_partition)
        any_epoch = state.leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH)
        if partition is not None and not any_epoch and state.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not state.delete_partition:
            if partition is not None:
                self._isr_policy.partition_stopped(partition)
            return ErrorCode.NONE
        if partition is not None:
            del self.partitions[topic_partition]
            partition.delete()
            self._isr_policy.partition_changed(partition)
        try:
            self._log_manager.delete_log(topic_partition)  # also if not hosted: the log may be left over
        except Exception as e:  # noqa: BLE001 - rule 9.32: any error becomes this partition's code
            self._warn("The log of %s cannot be deleted: %s", topic_partition, e)
            return error_code(e)
        for coordinator in self.coordinators:
            coordinator.resigned(topic_partition, state.leader_epoch if state.leader_epoch >= 0 else None)
        return ErrorCode.NONE

    def maybe_update_metadata_cache(self, request: UpdateMetadataRequest, correlation_id: int) -> ErrorCode:
        """Rules 9.9, 9.35-9.40. Raises ValueError for a broker with two endpoints of one name; nothing changes then."""
        if request.controller_epoch < self.controller_epoch:
            self._warn(
                "Ignoring UpdateMetadata of controller %d epoch %d correlation id %d: the known epoch is %d",
                request.controller_id, request.controller_epoch, correlation_id, self.controller_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_CONTROLLER_EPOCH
        deleted = self._metadata_cache.update(request)
        self.controller_epoch = request.controller_epoch
        self._debug(
            "Cached UpdateMetadata of controller %d epoch %d correlation id %d: %d brokers, %d partitions deleted",
            request.controller_id, request.controller_epoch, correlation_id, len(request.live_brokers), len(deleted),
        )  # fmt: skip
        self._isr_policy.metadata_changed(self.controller_epoch)
        if deleted:
            for coordinator in self.coordinators:
                coordinator.partitions_deleted(deleted)
        return ErrorCode.NONE

    def mark_offline(self, topic_partition: TopicPartition) -> None:
        """Its log directory failed: from now on requests for it get KAFKA_STORAGE_ERROR."""
        self.offline_partitions.add(topic_partition)
        partition = self.partitions.pop(topic_partition, None)
        if partition is not None:
            partition.delete()
            self._isr_policy.partition_changed(partition)
        self._warn("%s is offline", topic_partition)

    def _is_stale(self, controller_epoch: int) -> bool:
        """Whether the epoch is below the highest one seen; if not, it becomes the highest (rule 9.8)."""
        if controller_epoch < self.controller_epoch:
            return True
        self.controller_epoch = controller_epoch
        return False

    def _get_or_create(self, topic_partition: TopicPartition) -> Partition:
        partition = self.partitions.get(topic_partition)
        if partition is None:
            topic_partition = self._log_manager.known(topic_partition)
            partition = Partition(topic_partition, self.broker_id, self._log_manager)
            self.partitions[topic_partition] = partition
        return partition

    def _log_result(
        self, sender: str, partition: Partition, state: LeaderAndIsrPartitionState, code: ErrorCode | None
    ) -> None:
        self._debug(
            "LeaderAndIsr of %s for %s: leader %d leader epoch %d (known %d) partition epoch %d isr %s: %s",
            sender, partition.topic_partition, state.leader, state.leader_epoch, partition.leader_epoch,
            state.partition_epoch, state.isr, "accepted" if code is None else code.name,
        )  # fmt: skip

    def _debug(self, text: str, *values: object) -> None:
        if state_change_logger.isEnabledFor(logging.DEBUG):
            state_change_logger.debug("[Broker id=%d] " + text, self.broker_id, *values)

    def _warn(self, text: str, *values: object) -> None:
        state_change_logger.warning("[Broker id=%d] " + text, self.broker_id, *values)
