"""Consumers read from the replica in their rack (KIP-392, rules B4.37 to B4.39)."""

from __future__ import annotations

from typing import NamedTuple

from kce.broker_stub.followers import Follower
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.partition import Partition


class Consumer(NamedTuple):
    """``rack``: its client.rack, not empty. ``listener``: by which it came."""

    rack: str
    listener: str


def preferred_follower(partition: Partition, offset: int, consumer: Consumer, snapshot: MetadataSnapshot) -> int | None:
    """The follower in the consumer's rack that has most; None if the consumer is to stay with the leader.

    Followers count that are in the ISR, have the ``offset``, and are alive on the consumer's listener.
    """
    if not partition.is_leader:
        return None

    def is_near(broker_id: int) -> bool:
        is_reachable = snapshot.endpoint(broker_id, consumer.listener) is not None
        return is_reachable and snapshot.alive_brokers[broker_id].rack == consumer.rack

    if is_near(partition.leader):
        return None

    def rank(candidate: tuple[int, Follower]) -> tuple[float, float, int]:
        broker_id, follower = candidate
        return follower.end.offset, follower.caught_up_ms, broker_id

    candidates = [
        (broker_id, follower)
        for broker_id in partition.isr
        if (follower := partition.followers.get(broker_id)) is not None
        and follower.log_start_offset <= offset <= follower.end.offset
        and is_near(broker_id)
    ]
    return max(candidates, key=rank)[0] if candidates else None
