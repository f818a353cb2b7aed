"""UMREQ: UpdateMetadata requests (section 14 of docs/controller-semantics.md; rules of section 13d)."""

from __future__ import annotations

import uuid

import pytest

from kce import wire
from kce.broker_stub.control_requests import endpoints_of, update_metadata_states
from kce.wire import ErrorCode
from kce.wire.vocabulary import Endpoint, TopicPartition
from tests.wire.conformance.built import (
    ASSIGNMENTS,
    BROKER_EPOCH,
    EPOCH,
    LEADERSHIP,
    MANY,
    NAMED,
    PLAINTEXT,
    SENDER,
    T0,
    U0,
    update_metadata,
)
from tests.wire.conformance.support import T_ID, U_ID, assert_unsupported, error_response, size

NO_ID = uuid.UUID(int=0)
VERSIONS = range(9)
SSL = Endpoint("SSL", "SSL", "host0", 9091)


def listeners(version: int) -> tuple[Endpoint, ...]:
    """Broker 0's: as many as the version can say, with names of their own if it has names."""
    if version == 0:
        return (PLAINTEXT,)
    return NAMED if version >= 3 else (PLAINTEXT, SSL)


@pytest.mark.kafka("UMREQ-1")
def test_unsupported_version() -> None:
    assert_unsupported(wire.UpdateMetadataRequest())


@pytest.mark.kafka("UMREQ-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_error_response(version: int) -> None:  # rules 9.4, 13.22
    answer = error_response(update_metadata(version), version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert answer == wire.UpdateMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert wire.error_counts(answer) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 1}


@pytest.mark.kafka("UMREQ-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_version_logic(version: int) -> None:  # rules 13.16-13.21
    request = update_metadata(version, listeners(version))
    shared = wire.SharedRequest(request, api_version=version, client_id="c")
    frame = shared.start(correlation_id=1, broker_epoch=BROKER_EPOCH) + shared.rest
    read = wire.decode_request(frame)[1]
    assert isinstance(read, wire.UpdateMetadataRequest)
    assert (read.controller_id, read.controller_epoch) == (SENDER, EPOCH)
    assert read.broker_epoch == (BROKER_EPOCH if version >= 5 else -1)
    brokers = {b.id: (tuple(endpoints_of(b).values()), b.rack or "") for b in read.live_brokers}
    assert brokers == {
        0: (listeners(version), "rack0" if version >= 2 else ""),
        1: ((PLAINTEXT._replace(host="host1"),), ""),
    }
    assert bool(read.ungrouped_partition_states) is (version < 5)
    expected = {
        tp: wire.UpdateMetadataPartitionState(
            topic_name=tp.topic if version < 5 else "",
            partition_index=tp.partition,
            controller_epoch=decided_in,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            zk_version=state.partition_epoch,
            replicas=ASSIGNMENTS[tp].replicas,
            offline_replicas=(2,) if version >= 4 and tp in (T0, U0) else (),
        )
        for tp, (state, decided_in) in LEADERSHIP.items()
    }
    found = {TopicPartition(t, s.partition_index): s for t, states in update_metadata_states(read) for s in states}
    assert found == expected
    no_ids = {"t": NO_ID, "u": NO_ID} if version >= 5 else {}
    ids = {"t": T_ID, "u": U_ID}
    assert {t.topic_name: t.topic_id for t in read.topic_states} == (ids if version >= 7 else no_ids)


@pytest.mark.kafka("UMREQ-4")
def test_grouping_by_topic_makes_it_smaller() -> None:  # rule 13.17
    assert size(update_metadata(5, leadership=MANY), 5) < size(update_metadata(4, leadership=MANY), 4)
