"""The three control requests read alike in every version, as objects and as columns."""

from __future__ import annotations

import dataclasses
import itertools
import uuid

import pytest

from kce import wire
from kce.wire.control import (
    NO_TOPIC_ID,
    STATE_FIELDS,
    ControlRequest,
    PartitionState,
    endpoints,
    map_states,
    partition_count,
    partition_errors,
    partition_states,
    topic_names,
    topics,
)
from kce.wire.vocabulary import Endpoint

ID_A, ID_B = uuid.UUID(int=10), uuid.UUID(int=11)

#: (topic, partition) of every request below
PARTITIONS = [("a", 0), ("a", 1), ("b", 0)]


def leader_and_isr(version: int) -> wire.LeaderAndIsrRequest:
    states = [
        wire.LeaderAndIsrPartitionState(
            topic_name=topic if version < 2 else "", partition_index=partition, controller_epoch=3, leader=1,
            leader_epoch=4 + partition, isr=(1, 2), partition_epoch=7, replicas=(1, 2, 3),
            adding_replicas=(3,) if version >= 3 else (), is_new=version >= 1,
        )
        for topic, partition in PARTITIONS
    ]  # fmt: skip
    if version < 2:
        return wire.LeaderAndIsrRequest(controller_epoch=9, ungrouped_partition_states=tuple(states))
    grouped = [("a", ID_A, states[:2]), ("b", ID_B, states[2:])]
    by_topic = tuple(
        wire.LeaderAndIsrTopicState(
            topic_name=topic, topic_id=topic_id if version >= 5 else NO_TOPIC_ID, partition_states=tuple(of_topic)
        )
        for topic, topic_id, of_topic in grouped
    )
    return wire.LeaderAndIsrRequest(controller_epoch=9, topic_states=by_topic)


def update_metadata(version: int) -> wire.UpdateMetadataRequest:
    states = [
        wire.UpdateMetadataPartitionState(
            topic_name=topic if version < 5 else "", partition_index=partition, controller_epoch=3, leader=1,
            leader_epoch=4 + partition, isr=(1, 2), zk_version=7, replicas=(1, 2, 3),
            offline_replicas=(3,) if version >= 4 else (),
        )
        for topic, partition in PARTITIONS
    ]  # fmt: skip
    if version < 5:
        return wire.UpdateMetadataRequest(controller_epoch=9, ungrouped_partition_states=tuple(states))
    grouped = [("a", ID_A, states[:2]), ("b", ID_B, states[2:])]
    by_topic = tuple(
        wire.UpdateMetadataTopicState(
            topic_name=topic, topic_id=topic_id if version >= 7 else NO_TOPIC_ID, partition_states=tuple(of_topic)
        )
        for topic, topic_id, of_topic in grouped
    )
    return wire.UpdateMetadataRequest(controller_epoch=9, topic_states=by_topic)


def stop_replica(version: int) -> wire.StopReplicaRequest:
    if version == 0:
        flat = tuple(wire.StopReplicaPartitionV0(topic_name=t, partition_index=p) for t, p in PARTITIONS)
        return wire.StopReplicaRequest(controller_epoch=9, delete_partitions=True, ungrouped_partitions=flat)
    if version < 3:
        by_name = (
            wire.StopReplicaTopicV1(name="a", partition_indexes=(0, 1)),
            wire.StopReplicaTopicV1(name="b", partition_indexes=(0,)),
        )
        return wire.StopReplicaRequest(controller_epoch=9, delete_partitions=True, topics=by_name)
    states = [
        wire.StopReplicaPartitionState(partition_index=p, leader_epoch=4 + p, delete_partition=True)
        for _, p in PARTITIONS
    ]
    by_topic = (
        wire.StopReplicaTopicState(topic_name="a", partition_states=tuple(states[:2])),
        wire.StopReplicaTopicState(topic_name="b", partition_states=tuple(states[2:])),
    )
    return wire.StopReplicaRequest(controller_epoch=9, topic_states=by_topic)


BUILDERS = {leader_and_isr: 8, update_metadata: 9, stop_replica: 5}
EVERY_VERSION = [(build, version) for build, count in BUILDERS.items() for version in range(count)]


def through_bytes(request: ControlRequest, version: int) -> tuple[bytes, ControlRequest]:
    frame = wire.encode_request(request, api_version=version, correlation_id=1, client_id="1")
    return frame, wire.decode_request(frame)[1]


def expected(build: object, version: int, topic: str, partition: int) -> PartitionState:
    topic_id = {"a": ID_A, "b": ID_B}[topic]
    decided = {"decision_epoch": 3, "leader": 1, "leader_epoch": 4 + partition, "isr": (1, 2), "partition_epoch": 7,
               "replicas": (1, 2, 3)}  # fmt: skip
    if build is leader_and_isr:
        adding = (3,) if version >= 3 else ()
        known_id = topic_id if version >= 5 else None
        return PartitionState(
            topic, known_id, partition, **decided, adding_replicas=adding, removing_replicas=(), is_new=version >= 1
        )
    if build is update_metadata:
        known_id = topic_id if version >= 7 else None
        return PartitionState(topic, known_id, partition, **decided, offline_replicas=(3,) if version >= 4 else ())
    return PartitionState(topic, None, partition, leader_epoch=4 + partition if version >= 3 else None, delete=True)


@pytest.mark.parametrize(("build", "version"), EVERY_VERSION)
def test_every_version_gives_the_same_flat_states(build, version):  # rules 13.11, 13.16, 13.24
    _, request = through_bytes(build(version), version)
    assert list(partition_states(request)) == [expected(build, version, *where) for where in PARTITIONS]
    assert partition_count(request) == len(PARTITIONS)


@pytest.mark.parametrize(("build", "version"), EVERY_VERSION)
def test_state_fields_name_the_columns_of_the_columnar_codec(build, version):
    frame, request = through_bytes(build(version), version)
    columns = wire.columns(request.__api_key__, version, [frame])
    states = list(partition_states(request))
    for name, field in STATE_FIELDS[request.__api_key__].items():
        values = [getattr(state, name) for state in states]
        if field not in columns:  # a field that this version lacks
            assert {value or None for value in values} <= {None, True}
        elif f"{field}_offsets" in columns:
            ends = columns[f"{field}_offsets"]
            assert [tuple(columns[field][a:b]) for a, b in itertools.pairwise(ends)] == values
        else:
            assert columns[field].tolist() == values


@pytest.mark.parametrize(("build", "version"), [case for case in EVERY_VERSION if case[0] is not stop_replica])
def test_states_are_changed_wherever_a_version_keeps_them(build, version):
    _, request = through_bytes(build(version), version)
    changed = map_states(request, lambda state: dataclasses.replace(state, controller_epoch=8))
    assert {state.decision_epoch for state in partition_states(changed)} == {8}
    assert map_states(changed, lambda state: dataclasses.replace(state, controller_epoch=3)) == request


@pytest.mark.parametrize("version", [1, 4, 5])
def test_topics_give_the_states_as_the_message_holds_them(version):
    request = leader_and_isr(version)
    found = [(name, topic_id, len(states)) for name, topic_id, states in topics(request)]
    ids = (ID_A, ID_B) if version >= 5 else (NO_TOPIC_ID, NO_TOPIC_ID)
    flat = [(topic, NO_TOPIC_ID, 1) for topic, _ in PARTITIONS]
    assert found == (flat if version < 2 else [("a", ids[0], 2), ("b", ids[1], 1)])


def test_errors_of_partitions_have_the_topic_names_of_the_request():  # rule 13.15
    names = topic_names(leader_and_isr(7))
    error = wire.LeaderAndIsrPartitionError(partition_index=1, error_code=11)
    unknown = uuid.UUID(int=99)
    by_id = tuple(wire.LeaderAndIsrTopicError(topic_id=i, partition_errors=(error,)) for i in (ID_A, unknown))
    assert partition_errors(wire.LeaderAndIsrResponse(topics=by_id), names) == [("a", 1, 11), (str(unknown), 1, 11)]
    flat = (dataclasses.replace(error, topic_name="b"),)
    assert partition_errors(wire.LeaderAndIsrResponse(partition_errors=flat), {}) == [("b", 1, 11)]
    stopped = (wire.StopReplicaPartitionError(topic_name="b", partition_index=2, error_code=3),)
    assert partition_errors(wire.StopReplicaResponse(partition_errors=stopped), {}) == [("b", 2, 3)]
    assert partition_errors(wire.UpdateMetadataResponse(), names) == partition_errors(None, names) == []
    assert topic_names(stop_replica(4)) == topic_names(None) == {}


@pytest.mark.parametrize(
    ("named", "protocol", "listener", "security_protocol"),
    [("DATA", 0, "DATA", "PLAINTEXT"), ("", 3, "SASL_SSL", "SASL_SSL"), ("", 9, "", "9")],
)
def test_a_listener_without_a_name_has_that_of_its_protocol(named, protocol, listener, security_protocol):  # rule 13.21
    endpoint = wire.UpdateMetadataEndpoint(port=9092, host="h", listener=named, security_protocol=protocol)
    broker = wire.UpdateMetadataBroker(id=1, endpoints=(endpoint,))
    assert list(endpoints(broker)) == [Endpoint(listener, security_protocol, "h", 9092)]
    oldest = wire.UpdateMetadataBroker(id=1, v0_host="h", v0_port=9092)
    assert list(endpoints(oldest)) == [Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)]
