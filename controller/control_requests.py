"""The control requests, built from the context; pure.

Versions that group partitions by topic carry them encoded (`encoded_states`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.encoded_states import (
    encoded_index,
    leader_and_isr_state,
    leader_and_isr_topic,
    update_metadata_state,
    update_metadata_tail,
    update_metadata_topic,
)
from kce.controller.iteration_order import HashTable, by_topic
from kce.controller.known_replicas import KnownTopics, LeaderAndIsrState, Rows, is_worth_numpy
from kce.wire.metadata_version import MetadataVersion
from kce.wire.registry import UPDATE_METADATA
from kce.wire.vocabulary import SECURITY_PROTOCOLS
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import BrokerId, Leadership, RegisteredBroker, TopicPartition

#: where a partition does not matter
_ANY = TopicPartition("", 0)
#: encoded brokers, of each version
_BROKERS_REMEMBERED = 1 << 10
_PROTOCOL_IDS = {name: number for number, name in SECURITY_PROTOCOLS.items()}


@dataclass(frozen=True, slots=True)
class StopReplicaState:
    """One partition in a StopReplica request."""

    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """``inter_broker_listener``: of live leaders in LeaderAndIsr, even if the controller uses another listener
    (8.15)."""

    broker_id: BrokerId
    ibp: MetadataVersion
    inter_broker_listener: str


def build_leader_and_isr(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    states: HashTable[TopicPartition, LeaderAndIsrState],
) -> wire.LeaderAndIsrRequest:
    """Rules 8.4, 8.14-8.16. Raises EncodeError."""
    leaders = {state.leadership.leader_and_isr.leader for state in states.values()}
    if version < 2:
        flat = [
            leader_and_isr_state(tp, version, state.leadership, state.assignment, state.is_new)
            for tp in states.order()
            for state in (states[tp],)
        ]
        return _leader_and_isr(config, context, broker, leaders, ungrouped=flat)
    pieces: list[bytes] = []
    topics = by_topic(states, states.values(), java=True)
    for topic, of_topic in topics.items():
        before, behind = leader_and_isr_topic(version, topic, context.topic_ids.get(topic)).around(len(of_topic))
        pieces += (before, *[state.encode(tp, version) for tp, state in of_topic], behind)
    return _leader_and_isr(config, context, broker, leaders, wire.Encoded(len(topics), pieces))


def build_known_leader_and_isr(
    config: BatchConfig, context: ControllerContext, broker: BrokerId, known: KnownTopics
) -> wire.LeaderAndIsrRequest:
    """The same of a version that groups partitions by topic."""
    return _leader_and_isr(config, context, broker, known.leaders, known.topics)


def _leader_and_isr(
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    leaders: Collection[int],
    topics: wire.Encoded | tuple[()] = (),
    ungrouped: Sequence[wire.LeaderAndIsrPartitionState] = (),
) -> wire.LeaderAndIsrRequest:
    live_leaders = []
    for live in context.live_or_shutting_down_brokers:
        endpoint = live.endpoint(config.inter_broker_listener)
        if live.id in leaders and endpoint is not None:
            live_leaders.append(
                wire.LeaderAndIsrLiveLeader(broker_id=live.id, host_name=endpoint.host, port=endpoint.port)
            )
    return wire.LeaderAndIsrRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        broker_epoch=context.broker_epochs[broker],
        ungrouped_partition_states=tuple(ungrouped),
        topic_states=topics,  # type: ignore[arg-type]
        live_leaders=tuple(live_leaders),
    )


def build_update_metadata(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    leadership: HashTable[TopicPartition, Leadership],
    rows: Rows | None = None,
) -> wire.UpdateMetadataRequest:
    """The request for all brokers, without broker epoch. ``rows``: the partitions, if somebody has them already.

    Raises EncodeError."""
    flat: list[wire.UpdateMetadataPartitionState] = []
    topics: wire.Encoded | tuple[()] = ()
    if version >= 5:
        topics = _update_metadata_topics(version, context, leadership, rows)
    else:
        offline = context.offline_replicas()
        for tp in leadership.order():
            replicas, is_deleting = context.replicas(tp), context.is_queued_for_deletion(tp.topic)
            known = leadership[tp]
            flat.append(update_metadata_state(tp, version, known, replicas, offline(tp, replicas), is_deleting))
    return wire.UpdateMetadataRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        ungrouped_partition_states=tuple(flat),
        topic_states=topics,  # type: ignore[arg-type]
        live_brokers=_live_brokers(version, context),  # type: ignore[arg-type]
    )


def _live_brokers(version: int, context: ControllerContext) -> wire.Encoded:
    live = context.live_or_shutting_down_brokers
    return wire.Encoded(len(live), [_encoded_broker(version, broker) for broker in live])


@functools.lru_cache(maxsize=_BROKERS_REMEMBERED)
def _encoded_broker(version: int, broker: RegisteredBroker) -> bytes:
    """Raises IllegalState, EncodeError."""
    return wire.encode_part(update_metadata_broker(version, broker), api_key=UPDATE_METADATA, api_version=version)


def _update_metadata_topics(
    version: int,
    context: ControllerContext,
    leadership: HashTable[TopicPartition, Leadership],
    rows: Rows | None,
) -> wire.Encoded:
    ids = context.topic_ids

    def around(topic: str, partitions: int) -> tuple[bytes, bytes]:
        return update_metadata_topic(version, topic, ids.get(topic)).around(partitions)

    if rows is not None and not context.replicas_on_offline_dirs and not context.topics_to_delete:
        offline = context.offline_replicas()
        of_kinds = [
            update_metadata_tail(version, known, assignment.replicas, offline(_ANY, assignment.replicas), False)
            for known, assignment in rows.kinds
        ]
        return rows.partitions.sorted(leadership.buckets).encoded(of_kinds, around)
    tails = _tails(version, context, leadership)
    if is_worth_numpy(leadership):
        from kce.controller import vectorised

        kinds = {tail: kind for kind, tail in enumerate(dict.fromkeys(tails))}
        partitions = vectorised.Partitions(leadership, map(kinds.__getitem__, tails))
        return partitions.sorted(leadership.buckets).encoded(list(kinds), around)
    pieces = []
    for topic, of_topic in by_topic(leadership, tails, java=True).items():
        before, behind = around(topic, len(of_topic))
        pieces.append(b"".join([before, *[encoded_index(tp[1]) + tail for tp, tail in of_topic], behind]))
    return wire.Encoded(len(pieces), pieces)


def _tails(version: int, context: ControllerContext, leadership: Mapping[TopicPartition, Leadership]) -> list[bytes]:
    """Of UpdateMetadata."""
    offline, deleting = context.offline_replicas(), context.topics_to_delete

    def tail(tp: TopicPartition) -> bytes:
        replicas = context.replicas(tp)
        return update_metadata_tail(version, leadership[tp], replicas, offline(tp, replicas), tp[0] in deleting)

    if context.replicas_on_offline_dirs:
        return list(map(tail, leadership))
    is_deleting = map(deleting.__contains__, map(itemgetter(0), leadership)) if deleting else itertools.repeat(False)
    assignments = context.assignments_of(leadership)
    keys = list(zip(map(id, leadership.values()), map(id, assignments), is_deleting))  # noqa: B905 - the last may be endless
    tails = {key: tail(tp) for key, tp in dict(zip(keys, leadership, strict=True)).items()}
    return list(map(tails.__getitem__, keys))


def update_metadata_broker(version: int, broker: RegisteredBroker) -> wire.UpdateMetadataBroker:
    """Rule 8.21. Raises IllegalState if the version cannot express the broker's listeners."""
    endpoints = broker.endpoints
    if version == 0:
        plaintext = next((e for e in endpoints if e.security_protocol == "PLAINTEXT"), None)
        if plaintext is None:
            raise IllegalState(f"broker {broker.id} has no PLAINTEXT endpoint, which UpdateMetadata 0 needs")
        return wire.UpdateMetadataBroker(id=broker.id, v0_host=plaintext.host, v0_port=plaintext.port)
    for endpoint in endpoints:
        if version < 3 and endpoint.listener != endpoint.security_protocol:
            raise IllegalState(
                f"UpdateMetadata {version} has no listener names; broker {broker.id} has {endpoint.listener}"
            )
    return wire.UpdateMetadataBroker(
        id=broker.id,
        endpoints=tuple(
            wire.UpdateMetadataEndpoint(
                port=e.port,
                host=e.host,
                listener=e.listener,
                security_protocol=_PROTOCOL_IDS[e.security_protocol],
            )
            for e in endpoints
        ),
        rack=broker.rack,
    )


def build_stop_replica(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    states: HashTable[TopicPartition, StopReplicaState],
) -> wire.StopReplicaRequest:
    """Rules 8.22, 13.23. Below version 3 all states have the same ``delete``."""
    topics = by_topic(states, states.values(), java=False)
    ungrouped: tuple[wire.StopReplicaPartitionV0, ...] = ()
    topics_v1: tuple[wire.StopReplicaTopicV1, ...] = ()
    topic_states: tuple[wire.StopReplicaTopicState, ...] = ()
    if version == 0:
        ungrouped = tuple(
            wire.StopReplicaPartitionV0(topic_name=topic, partition_index=tp.partition)
            for topic, of_topic in topics.items()
            for tp, _ in of_topic
        )
    elif version < 3:
        topics_v1 = tuple(
            wire.StopReplicaTopicV1(name=topic, partition_indexes=tuple(tp.partition for tp, _ in of_topic))
            for topic, of_topic in topics.items()
        )
    else:
        topic_states = tuple(
            wire.StopReplicaTopicState(
                topic_name=topic,
                partition_states=tuple(
                    wire.StopReplicaPartitionState(
                        partition_index=tp.partition, leader_epoch=state.leader_epoch, delete_partition=state.delete
                    )
                    for tp, state in of_topic
                ),
            )
            for topic, of_topic in topics.items()
        )
    return wire.StopReplicaRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        broker_epoch=context.broker_epochs[broker],
        delete_partitions=version < 3 and any(state.delete for state in states.values()),
        ungrouped_partitions=ungrouped,
        topics=topics_v1,
        topic_states=topic_states,
    )
