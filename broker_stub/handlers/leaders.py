"""The current leader, in responses with NOT_LEADER_OR_FOLLOWER (rules B3.41, B4.19)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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


def endpoints(services: Services, listener: str, leaders: Iterable[int]) -> Iterator[tuple[AliveBroker, Endpoint]]:
    """Addresses of alive brokers on a listener, each once, in order of their ids."""
    snapshot = services.metadata_cache.snapshot
    for broker_id in sorted(set(leaders)):
        endpoint = snapshot.endpoint(broker_id, listener)
        if endpoint is not None:
            yield snapshot.alive_brokers[broker_id], endpoint
