"""Controlled shutdown of a broker (rules 11.41-11.47)."""

from __future__ import annotations

import logging

from kce.controller.errors import BrokerNotAvailable, StaleBrokerEpoch
from kce.controller.leader_selection import Strategy
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState, ReplicaState
from kce.zookeeper.model import BrokerId, TopicPartition

log = logging.getLogger(__name__)


async def shut_down_broker(runtime: ControllerRuntime, broker: BrokerId, broker_epoch: int) -> set[TopicPartition]:
    """Move leadership away from ``broker`` and remove it from ISRs; returns what it still leads (11.43-11.45).

    Raises StaleBrokerEpoch, BrokerNotAvailable; KeyError for an unregistered broker with an epoch, which the broker
    receives as UNKNOWN_SERVER_ERROR (11.42).
    """
    context = runtime.context
    if broker_epoch != -1:
        cached = context.broker_epochs[broker]
        if broker_epoch < cached:
            raise StaleBrokerEpoch(f"broker {broker} has epoch {cached}, the request has {broker_epoch}")
    if broker not in context.live_or_shutting_down_broker_ids:
        raise BrokerNotAvailable(f"broker {broker} is not registered")
    context.shutting_down.add(broker)
    log.info("broker %d shuts down; shutting down: %s", broker, sorted(context.shutting_down))
    affected = [
        tp
        for tp in context.partitions_on_broker(broker)
        if len(context.replicas(tp)) > 1 and tp in context.leadership and not context.is_queued_for_deletion(tp.topic)
    ]
    led = [tp for tp in affected if context.leadership[tp].leader_and_isr.leader == broker]
    followed = [tp for tp in affected if context.leadership[tp].leader_and_isr.leader != broker]
    await runtime.partitions.handle_state_changes(led, PartitionState.ONLINE, Strategy.CONTROLLED_SHUTDOWN)
    with runtime.new_batch() as batch:
        for tp in followed:
            batch.add_stop_replica([broker], tp, delete=False)
    await runtime.replicas.move({broker: followed} if followed else {}, ReplicaState.OFFLINE)
    return {
        tp
        for tp, known in context.leadership.items()
        if known[0][0] == broker  # its leader: faster than by name
        and len(context.replicas(tp)) > 1
        and not context.is_queued_for_deletion(tp.topic)
    }
