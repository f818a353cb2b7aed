"""UMREQ: UpdateMetadata requests (section 14 of docs/controller-semantics.md; rules of section 13d)."""

from __future__ import annotations

import uuid

import pytest

from kce import wire
from kce.broker_stub.control_requests import endpoints_of
from kce.wire import ErrorCode
from kce.wire.vocabulary import Endpoint
from tests.wire.conformance.support import T_ID, U_ID, assert_unsupported, error_response, size, through_bytes

NO_ID = uuid.UUID(int=0)


SSL = 1


def state(partition: int, topic: str = "") -> wire.UpdateMetadataPartitionState:
    return wire.UpdateMetadataPartitionState(
        topic_name=topic,
        partition_index=partition,
        controller_epoch=2,
        leader=1,
        leader_epoch=10,
        isr=(0, 1),
        zk_version=7,
        replicas=(0, 1, 2),
        offline_replicas=(2,),
    )


def request(version: int) -> wire.UpdateMetadataRequest:
    """Partitions 0 and 1 of topic t, partition 0 of topic u; everything said that the version can say."""
    if version == 0:
        brokers = (wire.UpdateMetadataBroker(id=0, v0_host="host0", v0_port=9090, rack="r0"),)
    else:
        endpoints = (
            wire.UpdateMetadataEndpoint(host="host0", port=9090, listener="PLAINTEXT"),
            wire.UpdateMetadataEndpoint(host="host1", port=9091, listener="CLIENT", security_protocol=SSL),
        )
        brokers = (wire.UpdateMetadataBroker(id=0, endpoints=endpoints, rack="r0"),)
    if version < 5:
        states = (state(0, "t"), state(1, "t"), state(0, "u"))
        return wire.UpdateMetadataRequest(
            controller_id=3,
            controller_epoch=4,
            broker_epoch=5,
            ungrouped_partition_states=states,
            live_brokers=brokers,
        )
    topics = (
        wire.UpdateMetadataTopicState(topic_name="t", topic_id=T_ID, partition_states=(state(0), state(1))),
        wire.UpdateMetadataTopicState(topic_name="u", topic_id=U_ID, partition_states=(state(0),)),
    )
    return wire.UpdateMetadataRequest(
        controller_id=3, controller_epoch=4, broker_epoch=5, topic_states=topics, live_brokers=brokers
    )


@pytest.mark.kafka("UMREQ-1")
def test_unsupported_version() -> None:
    assert_unsupported(wire.UpdateMetadataRequest())


@pytest.mark.kafka("UMREQ-2")
@pytest.mark.parametrize("version", range(9))
def test_error_response(version: int) -> None:  # rules 9.4, 13.22
    answer = error_response(request(version), version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert answer == wire.UpdateMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert wire.error_counts(answer) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 1}


@pytest.mark.kafka("UMREQ-3")
@pytest.mark.parametrize("version", range(9))
def test_version_logic(version: int) -> None:  # rules 13.16-13.21
    read = through_bytes(request(version), version)
    assert (read.controller_id, read.controller_epoch) == (3, 4)
    assert read.broker_epoch == (5 if version >= 5 else -1)
    (broker,) = read.live_brokers
    plaintext = Endpoint("PLAINTEXT", "PLAINTEXT", "host0", 9090)
    client = "CLIENT" if version >= 3 else "SSL"  # a listener without a name goes by its protocol
    secure = Endpoint(client, "SSL", "host1", 9091)
    assert list(endpoints_of(broker).values()) == ([plaintext] if version == 0 else [plaintext, secure])
    assert broker.rack == ("r0" if version >= 2 else "")
    if version < 5:
        assert read.topic_states == ()
        found = {(p.topic_name, p.partition_index): p for p in read.ungrouped_partition_states}
    else:
        assert read.ungrouped_partition_states == ()
        found = {(t.topic_name, p.partition_index): p for t in read.topic_states for p in t.partition_states}
        ids = (T_ID, U_ID) if version >= 7 else (NO_ID, NO_ID)
        assert tuple(t.topic_id for t in read.topic_states) == ids
    assert set(found) == {("t", 0), ("t", 1), ("u", 0)}
    for said in found.values():
        assert (said.controller_epoch, said.leader, said.leader_epoch, said.isr) == (2, 1, 10, (0, 1))
        assert (said.zk_version, said.replicas) == (7, (0, 1, 2))
        assert said.offline_replicas == ((2,) if version >= 4 else ())


@pytest.mark.kafka("UMREQ-4")
def test_grouping_by_topic_makes_it_smaller() -> None:  # rule 13.17
    topic = "a.topic.with.some.name"
    flat = wire.UpdateMetadataRequest(ungrouped_partition_states=tuple(state(p, topic) for p in range(10)))
    grouped = wire.UpdateMetadataRequest(
        topic_states=(
            wire.UpdateMetadataTopicState(topic_name=topic, partition_states=tuple(state(p) for p in range(10))),
        )
    )
    assert size(grouped, 5) < size(flat, 4)
