"""The current leader, in responses with NOT_LEADER_OR_FOLLOWER (rules B3.41, B4.19)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kce.broker_stub.handlers.base import Services
from kce.broker_stub.metadata_cache import AliveBroker
from kce.wire.vocabulary import NO_LEADER, Endpoint, TopicPartition

NO_EPOCH = -1


def current_leader(services: Services, partition: TopicPartition) -> tuple[int, int]:
    """Id and epoch, as far as they are known: of the hosted partition, else of the metadata cache."""
    hosted = services.replica_manager.partitions.get(partition)
    if hosted is not None:
        return hosted.leader, hosted.leader_epoch
    state = services.metadata_cache.snapshot.partition(partition)
    return (NO_LEADER, NO_EPOCH) if state is None else (state.leader, state.leader_epoch)


def endpoints(services: Services, listener: str, leaders: Collection[int]) -> Iterable[tuple[AliveBroker, Endpoint]]:
    """Addresses of alive brokers on a listener, each once, in order of their ids."""
    if not leaders:
        return ()
    snapshot = services.metadata_cache.snapshot
    found = ((broker_id, snapshot.endpoint(broker_id, listener)) for broker_id in sorted(set(leaders)))
    return [(snapshot.alive_brokers[broker_id], endpoint) for broker_id, endpoint in found if endpoint is not None]
