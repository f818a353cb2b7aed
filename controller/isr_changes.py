"""ISR changes that leaders ask for: AlterPartition, and the notifications of older brokers (rules 11.68-11.81)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from uuid import UUID

import wire
from controller import zk_data
from controller.core import Core
from controller.events import AlterPartitionReceived
from controller.model import (
    RECOVERED,
    RECOVERING,
    BrokerId,
    LeaderAndIsr,
    TopicPartition,
)
from controller.reassignment import Reassignment
from controller.request_batch import ZERO
from wire import ErrorCode

log = logging.getLogger(__name__)

#: of one partition: its new state, or the error code
Outcome = LeaderAndIsr | ErrorCode


class IsrChanges:
    def __init__(self, core: Core, reassignment: Reassignment) -> None:
        self._core = core
        self._context = core.context
        self._reassignment = reassignment

    async def notified(self) -> None:
        """Brokers below 2.7 wrote the ISR themselves and say so here (rule 11.68)."""
        core = self._core
        found = await core.zk.get_notifications(zk_data.ISR_CHANGE_NOTIFICATION)
        try:
            partitions = {tp for data in found.values() for tp in zk_data.decode_partition_list(data)}
            if partitions:
                await core.refresh_leadership(sorted(partitions))
                core.send_update_metadata_to_all(sorted(partitions))
                await self._reassignment.complete(sorted(partitions))
        finally:
            await core.zk.delete_notifications(found, self._context.epoch_zk_version)

    async def alter_partition(self, event: AlterPartitionReceived) -> None:
        """Answer ``event`` (rules 11.70-11.81), then finish reassignments that waited for it.

        An unexpected failure is answered UNKNOWN_SERVER_ERROR and raised.
        """
        try:
            response, done = await self._alter_partition(event)
        except Exception:
            event.reply(wire.AlterPartitionResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            raise
        event.reply(response)
        if done:
            log.debug("ISR changed by broker %d: %s", event.request.broker_id, done)
            await self._reassignment.complete(done)

    async def _alter_partition(
        self, event: AlterPartitionReceived
    ) -> tuple[wire.AlterPartitionResponse, dict[TopicPartition, LeaderAndIsr]]:
        request, version = event.request, event.api_version
        top_level = self._top_level_error(request)
        if top_level is not ErrorCode.NONE:
            return wire.AlterPartitionResponse(error_code=top_level), {}
        outcomes: dict[TopicPartition, Outcome] = {}
        accepted: dict[TopicPartition, LeaderAndIsr] = {}
        unknown_ids: dict[UUID, list[int]] = {}
        for topic in request.topics:
            name = topic.topic_name if version < 2 else self._context.topic_names.get(topic.topic_id)
            if name is None:  # rule 11.71
                unknown_ids[topic.topic_id] = [p.partition_index for p in topic.partitions]
                continue
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition_index)
                wanted = _wanted(request.broker_id, partition, version)
                outcome = self._judge(tp, wanted, version)
                if outcome is None:
                    accepted[tp] = wanted
                else:
                    outcomes[tp] = outcome
        await self._write(accepted, outcomes)
        done = {tp: state for tp, state in outcomes.items() if tp in accepted and isinstance(state, LeaderAndIsr)}
        await self._core.refresh_leadership(done)
        self._core.send_update_metadata_to_all([*outcomes])  # rule 11.79: failed ones too
        return self._response(version, outcomes, unknown_ids), done

    def _top_level_error(self, request: wire.AlterPartitionRequest) -> ErrorCode:
        """Rule 11.70."""
        cached = self._context.broker_epochs.get(BrokerId(request.broker_id))
        if cached is None or request.broker_epoch != cached:
            log.warning(
                "AlterPartition of broker %d with epoch %d is refused, its epoch is %s",
                request.broker_id,
                request.broker_epoch,
                cached,
            )
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    def _judge(self, tp: TopicPartition, new: LeaderAndIsr, version: int) -> Outcome | None:
        """Rule 11.74: the first that applies; None for what is to be written."""
        known = self._context.leadership.get(tp)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now = known.leader_and_isr
        if new.partition_epoch > now.partition_epoch or new.leader_epoch > now.leader_epoch:
            return ErrorCode.NOT_CONTROLLER
        if new.leader_epoch < now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if new == now.with_partition_epoch(new.partition_epoch):
            return now
        if new.partition_epoch < now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if new.recovery_state == RECOVERING and (len(new.isr) > 1 or now.recovery_state == RECOVERED):
            return ErrorCode.INVALID_REQUEST
        live = self._context.live_broker_ids
        if any(replica not in live for replica in new.isr):
            return ErrorCode.INELIGIBLE_REPLICA if version >= 2 else ErrorCode.OPERATION_NOT_ATTEMPTED
        return None

    async def _write(
        self, accepted: dict[TopicPartition, LeaderAndIsr], outcomes: dict[TopicPartition, Outcome]
    ) -> None:
        """Rule 11.78."""
        written = await self._core.zk.update_leader_and_isr(
            accepted, self._context.epoch, self._context.epoch_zk_version
        )
        outcomes.update(written.updated)
        outcomes.update(dict.fromkeys(written.retry, ErrorCode.INVALID_UPDATE_VERSION))
        for tp, error in written.failed.items():
            log.warning("the ISR of %s could not be written: %s", tp, error)
            outcomes[tp] = ErrorCode.UNKNOWN_SERVER_ERROR  # what Kafka makes of any other ZooKeeper error

    def _response(
        self, version: int, outcomes: dict[TopicPartition, Outcome], unknown_ids: dict[UUID, list[int]]
    ) -> wire.AlterPartitionResponse:
        """Rules 11.79, 11.81: a failure is its index and code, nothing else."""
        by_topic: dict[str, list[wire.AlterPartitionResponsePartitionData]] = {}
        for tp, outcome in outcomes.items():
            by_topic.setdefault(tp.topic, []).append(_partition_data(tp.partition, outcome))
        topics = [
            wire.AlterPartitionResponseTopicData(
                topic_name=name if version < 2 else "",
                topic_id=self._context.topic_ids.get(name, ZERO) if version >= 2 else ZERO,
                partitions=tuple(partitions),
            )
            for name, partitions in by_topic.items()
        ]
        topics += [
            wire.AlterPartitionResponseTopicData(
                topic_id=topic_id,
                partitions=tuple(_partition_data(p, ErrorCode.UNKNOWN_TOPIC_ID) for p in partitions),
            )
            for topic_id, partitions in unknown_ids.items()
        ]
        return wire.AlterPartitionResponse(topics=tuple(topics))


def _wanted(broker: int, partition: wire.AlterPartitionRequestPartitionData, version: int) -> LeaderAndIsr:
    """The state that is asked for; its leader is the requester, whoever that is (rules 11.72, 11.73, 11.76).

    Raises ValueError for a recovery state that is none.
    """
    if partition.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise ValueError(f"leader_recovery_state {partition.leader_recovery_state} is neither 0 nor 1")
    isr: Iterable[int] = partition.new_isr
    if version >= 3:
        isr = (state.broker_id for state in partition.new_isr_with_epochs)
    return LeaderAndIsr(
        leader=BrokerId(broker),
        isr=tuple(BrokerId(r) for r in isr),
        leader_epoch=partition.leader_epoch,
        recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _partition_data(index: int, outcome: Outcome) -> wire.AlterPartitionResponsePartitionData:
    if isinstance(outcome, ErrorCode):
        return wire.AlterPartitionResponsePartitionData(partition_index=index, error_code=outcome)
    return wire.AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=outcome.isr,
        leader_recovery_state=outcome.recovery_state,
        partition_epoch=outcome.partition_epoch,
    )
