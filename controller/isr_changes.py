"""ISR changes: AlterPartition requests, and notifications of older brokers (rules 11.68-11.81)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from uuid import UUID

from kce import wire
from kce.controller.encoded_states import ZERO
from kce.controller.iteration_order import small_order, table_order
from kce.controller.partition_states import update_leader_and_isr
from kce.controller.reassignment import Reassignment
from kce.controller.runtime import ControllerRuntime
from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.model import RECOVERED, RECOVERING, BrokerId, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

#: of one partition: its new state, or an error code
IsrResult = LeaderAndIsr | ErrorCode


class IsrChanges:
    def __init__(self, runtime: ControllerRuntime, reassignment: Reassignment) -> None:
        self._runtime = runtime
        self._context = runtime.context
        self._reassignment = reassignment

    async def notified(self) -> None:
        """Handle notifications of brokers below 2.7, which write the ISR themselves (rule 11.68)."""
        runtime = self._runtime
        found = await runtime.zk.get_notifications(znodes.ISR_CHANGE_NOTIFICATION)
        try:
            partitions: dict[TopicPartition, None] = {}
            for path, data in found.items():
                try:
                    partitions.update(dict.fromkeys(small_order(cluster_nodes.decode_partition_list(path, data))))
                except znodes.BadZNode as e:
                    log.error("ignoring a notification: %s", e)
            if partitions:
                await runtime.refresh_leadership(partitions)
                runtime.send_update_metadata_to_all(partitions)
                await self._reassignment.complete(partitions)
        finally:
            await runtime.zk.delete_notifications(found, self._context.epoch_zk_version)

    async def alter_partition(
        self, request: wire.AlterPartitionRequest, version: int, reply: Callable[[wire.AlterPartitionResponse], None]
    ) -> None:
        """Answer the request (rules 11.70-11.81), then complete the reassignments that waited for the ISR.

        An unexpected failure is answered with UNKNOWN_SERVER_ERROR and raised; but a controller that finds out here
        that it has moved goes on, as Kafka's does, until it is told by ZooKeeper.
        """
        try:
            response, states = await self._alter_partition(request, version)
        except Exception as e:
            reply(wire.AlterPartitionResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            if isinstance(e, ControllerMoved):
                log.error("AlterPartition of broker %d failed: %s", request.broker_id, e)
                return
            raise
        reply(response)
        if states:
            log.debug("ISRs that broker %d asked for: %s", request.broker_id, states)
            await self._reassignment.complete(states)

    async def _alter_partition(
        self, request: wire.AlterPartitionRequest, version: int
    ) -> tuple[wire.AlterPartitionResponse, list[TopicPartition]]:
        """The response, and the partitions that have the state that was asked for, in Kafka's order."""
        top_level = self._top_level_error(request)
        if top_level is not ErrorCode.NONE:
            return wire.AlterPartitionResponse(error_code=top_level), []
        results: dict[TopicPartition, IsrResult] = {}
        accepted: dict[TopicPartition, LeaderAndIsr] = {}
        unknown_ids: dict[UUID, list[int]] = {}
        for topic in request.topics:
            name = topic.topic_name if version < 2 else self._context.topic_names.get(topic.topic_id)
            if name is None:  # rule 11.71
                unknown_ids[topic.topic_id] = [p.partition_index for p in topic.partitions]
                continue
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition_index)
                requested = _requested(request.broker_id, partition, version)
                result = self._validate(tp, requested, version)
                if result is None:
                    accepted[tp] = requested
                else:
                    results[tp] = result
        await self._write(accepted, results)
        done = {tp: state for tp, state in results.items() if tp in accepted and isinstance(state, LeaderAndIsr)}
        await self._runtime.refresh_leadership(done)
        self._runtime.send_update_metadata_to_all([*results])  # rule 11.79: failed partitions included
        settled = [tp for tp in table_order(results) if isinstance(results[tp], LeaderAndIsr)]
        return self._response(version, results, unknown_ids), settled

    def _top_level_error(self, request: wire.AlterPartitionRequest) -> ErrorCode:
        """Rule 11.70."""
        cached = self._context.broker_epochs.get(BrokerId(request.broker_id))
        if cached is None or request.broker_epoch != cached:
            log.warning(
                "AlterPartition refused: broker %d sent epoch %d, its epoch is %s",
                request.broker_id,
                request.broker_epoch,
                cached,
            )
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    def _validate(self, tp: TopicPartition, new: LeaderAndIsr, version: int) -> IsrResult | None:
        """The first error of rule 11.74 that applies, the current state if nothing changes, None if it must be
        written."""
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
        self, accepted: dict[TopicPartition, LeaderAndIsr], results: dict[TopicPartition, IsrResult]
    ) -> None:
        """Rule 11.78."""
        written = await update_leader_and_isr(
            self._runtime.zk, accepted, self._context.epoch, self._context.epoch_zk_version
        )
        results.update(written.updated)
        results.update(dict.fromkeys(written.retry, ErrorCode.INVALID_UPDATE_VERSION))
        for tp, error in written.failed.items():
            log.warning("writing the ISR of %s failed: %s", tp, error)
            results[tp] = ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka answers any other ZooKeeper error

    def _response(
        self, version: int, results: dict[TopicPartition, IsrResult], unknown_ids: dict[UUID, list[int]]
    ) -> wire.AlterPartitionResponse:
        """Rules 11.79, 11.81: a failed partition has only its index and error code."""
        by_topic: dict[str, list[wire.AlterPartitionResponsePartitionData]] = {}
        for tp, result in results.items():
            by_topic.setdefault(tp.topic, []).append(_partition_data(tp.partition, result))
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


def _requested(broker: int, partition: wire.AlterPartitionRequestPartitionData, version: int) -> LeaderAndIsr:
    """The requested state, led by the broker that sent the request (rules 11.72, 11.73, 11.76).

    Raises ValueError for an unknown recovery state.
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


def _partition_data(index: int, result: IsrResult) -> wire.AlterPartitionResponsePartitionData:
    if isinstance(result, ErrorCode):
        return wire.AlterPartitionResponsePartitionData(partition_index=index, error_code=result)
    return wire.AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=result.isr,
        leader_recovery_state=result.recovery_state,
        partition_epoch=result.partition_epoch,
    )
