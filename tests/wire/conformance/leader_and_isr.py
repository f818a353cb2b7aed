"""LeaderAndIsr requests of two topics."""

from __future__ import annotations

import uuid

from kce import wire
from tests.wire.conformance.support import T_ID, U_ID

NO_ID = uuid.UUID(int=0)


def state(partition: int, topic: str = "", *, recovery: int = 0) -> wire.LeaderAndIsrPartitionState:
    return wire.LeaderAndIsrPartitionState(
        topic_name=topic,
        partition_index=partition,
        controller_epoch=2,
        leader=1,
        leader_epoch=10,
        isr=(0, 1),
        partition_epoch=7,
        replicas=(0, 1, 2),
        adding_replicas=(2,),
        removing_replicas=(0,),
        is_new=True,
        leader_recovery_state=recovery,
    )


def request(version: int) -> wire.LeaderAndIsrRequest:
    """Partitions 0 and 1 of topic t, partition 0 of topic u; everything said that the version can say."""
    recovery = 1 if version >= 6 else 0
    leaders = (wire.LeaderAndIsrLiveLeader(broker_id=1, host_name="host1", port=9090),)
    if version < 2:
        return wire.LeaderAndIsrRequest(
            controller_id=3,
            controller_epoch=4,
            broker_epoch=5,
            ungrouped_partition_states=(state(0, "t"), state(1, "t"), state(0, "u")),
            live_leaders=leaders,
        )
    return wire.LeaderAndIsrRequest(
        controller_id=3,
        controller_epoch=4,
        broker_epoch=5,
        topic_states=(
            wire.LeaderAndIsrTopicState(
                topic_name="t",
                topic_id=T_ID,
                partition_states=(state(0, recovery=recovery), state(1, recovery=recovery)),
            ),
            wire.LeaderAndIsrTopicState(topic_name="u", topic_id=U_ID, partition_states=(state(0, recovery=recovery),)),
        ),
        live_leaders=leaders,
    )
