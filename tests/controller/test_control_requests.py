"""Requests whose partition states are encoded once for equal content are those that the codec writes of every state.

Covers: controller/control_requests.py, controller/encoded_states.py.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.control_requests import BatchConfig, build_leader_and_isr, build_update_metadata
from kce.controller.encoded_states import ZERO, leader_and_isr_state, update_metadata_state
from kce.controller.iteration_order import HashTable, by_topic
from kce.controller.known_replicas import LeaderAndIsrState
from kce.wire.metadata_version import LATEST
from kce.zookeeper.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from tests.controller.support import DATA, broker

CONFIG = BatchConfig(broker_id=BrokerId(1), ibp=LATEST, inter_broker_listener=DATA)
IDS = st.lists(st.integers(1, 4).map(BrokerId), max_size=3).map(tuple)
ASSIGNMENTS = st.builds(ReplicaAssignment, IDS, IDS, IDS)
LEADERSHIPS = st.builds(
    Leadership,
    st.builds(
        LeaderAndIsr,
        st.integers(-1, 3).map(BrokerId), IDS, st.integers(0, 2), st.sampled_from([0, 1]), st.integers(0, 2),
    ),
    st.integers(0, 2).map(ControllerEpoch),
)  # fmt: skip
#: few are drawn, and shared by many partitions
CLUSTERS = st.tuples(
    st.lists(ASSIGNMENTS, min_size=1, max_size=3), st.lists(LEADERSHIPS, min_size=1, max_size=3)
).flatmap(
    lambda drawn: st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 300)),
        st.tuples(st.sampled_from(drawn[0]), st.sampled_from(drawn[1]), st.booleans()),
        max_size=12,
    )
)


def context(cluster: dict[TopicPartition, tuple[ReplicaAssignment, Leadership, bool]]) -> ControllerContext:
    made = ControllerContext()
    made.epoch = ControllerEpoch(4)
    made.add_live_brokers((broker(i), BrokerEpoch(100 + i)) for i in (1, 2))
    made.set_topics(["a", "b"])
    made.add_topic_id("a", uuid.UUID(int=8))
    for tp, (assignment, leadership, _) in cluster.items():
        made.set_assignment(tp, assignment)
        made.put_leadership(tp, leadership)
    return made


def of_objects(request: Any, made: ControllerContext, topic_class: Any, states: dict[str, list[Any]]) -> Any:
    topics = tuple(
        topic_class(topic_name=t, topic_id=made.topic_ids.get(t, ZERO), partition_states=tuple(of_topic))
        for t, of_topic in states.items()
    )
    return dataclasses.replace(request, topic_states=topics)


def frame(request: wire.Message, version: int) -> bytes:
    return wire.encode_request(request, api_version=version, correlation_id=0, client_id=None)


@pytest.mark.parametrize("version", range(2, 8))
@settings(deadline=None)
@given(CLUSTERS)
def test_leader_and_isr(
    version: int, cluster: dict[TopicPartition, tuple[ReplicaAssignment, Leadership, bool]]
) -> None:
    made = context(cluster)
    table = HashTable.of({tp: LeaderAndIsrState(of, assigned, new) for tp, (assigned, of, new) in cluster.items()})
    request = build_leader_and_isr(version, CONFIG, made, BrokerId(1), table)
    states = {
        topic: [leader_and_isr_state(tp, version, s.leadership, s.assignment, s.is_new) for tp, s in of_topic]
        for topic, of_topic in by_topic(table, table.values(), java=True).items()
    }
    assert frame(request, version) == frame(of_objects(request, made, wire.LeaderAndIsrTopicState, states), version)


@pytest.mark.parametrize("version", range(5, 9))
@settings(deadline=None)
@given(CLUSTERS, st.booleans(), st.booleans())
def test_update_metadata(
    version: int,
    cluster: dict[TopicPartition, tuple[ReplicaAssignment, Leadership, bool]],
    is_deleting: bool,
    has_offline_dir: bool,
) -> None:
    """Replicas are offline with their broker, or with the log directory of one partition."""
    made = context(cluster)
    if is_deleting:
        made.queue_for_deletion(["b"])
    if has_offline_dir:
        made.replicas_on_offline_dirs[BrokerId(1)] = set(list(cluster)[::2])
    table = HashTable.of({tp: of for tp, (_, of, _) in cluster.items()})
    request = build_update_metadata(version, CONFIG, made, table)
    states = {
        topic: [
            update_metadata_state(
                tp, version, of, made.replicas(tp),
                tuple(r for r in made.replicas(tp) if not made.is_replica_online(r, tp)),
                is_deleting and topic == "b",
            )
            for tp, of in of_topic
        ]
        for topic, of_topic in by_topic(table, table.values(), java=True).items()
    }  # fmt: skip
    assert frame(request, version) == frame(of_objects(request, made, wire.UpdateMetadataTopicState, states), version)
