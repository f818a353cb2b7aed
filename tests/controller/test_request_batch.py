"""Batches of control requests (section 8 of docs/controller-semantics.md)."""

from __future__ import annotations

import uuid

import pytest

from kce import wire
from kce.controller import request_batch
from kce.controller.context import ControllerContext
from kce.controller.control_requests import BatchConfig
from kce.controller.iteration_order import HashTable, by_topic
from kce.controller.request_batch import ControllerRequestBatch
from kce.wire.control import partition_states
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import (
    RECOVERED,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)
from tests.controller.conformance.bench import ids
from tests.controller.support import CONTROL, DATA, as_received, broker


class Outbox(request_batch.Outbox):
    def __init__(self) -> None:
        self.sent: list[tuple[int, wire.Message, int, bool]] = []

    def send(self, broker: BrokerId, request: wire.Message, api_version: int, on_response: object) -> None:
        self.sent.append((broker, as_received(request, api_version), api_version, on_response is not None))


def context(*live: int) -> ControllerContext:
    made = ControllerContext()
    made.epoch = ControllerEpoch(4)
    made.add_live_brokers((broker(i), BrokerEpoch(100 + i)) for i in live)
    made.set_topics(["t", "u"])
    made.add_topic_id("t", uuid.UUID(int=8))
    return made


def batch(made: ControllerContext, ibp: str = "3.9") -> tuple[ControllerRequestBatch, Outbox]:
    outbox = Outbox()
    config = BatchConfig(broker_id=BrokerId(1), ibp=MetadataVersion.parse(ibp), inter_broker_listener=DATA)
    return ControllerRequestBatch(config, made, outbox, None), outbox  # type: ignore[arg-type]


TP = TopicPartition("t", 0)


LEADER_1 = Leadership(LeaderAndIsr(BrokerId(1), ids(1, 2), 6, RECOVERED, 2), ControllerEpoch(3))


ALL_IBPS = ["0.8.2", "0.9.0", "0.10.0", "0.10.2", "1.0", "2.2", "2.4-IV0", "2.4-IV1", "2.6", "2.8", "3.2", "3.9"]


@pytest.mark.parametrize("ibp", ALL_IBPS)
def test_every_request_of_every_version_can_be_written(ibp: str) -> None:
    made = context(1, 2)
    made.remove_live_brokers(ids(1, 2))
    plain = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9)
    made.add_live_brokers((RegisteredBroker(BrokerId(i), (plain,), "r"), BrokerEpoch(i)) for i in (1, 2))
    outbox = Outbox()
    config = BatchConfig(broker_id=BrokerId(1), ibp=MetadataVersion.parse(ibp), inter_broker_listener="PLAINTEXT")
    requests = ControllerRequestBatch(config, made, outbox, None)  # type: ignore[arg-type]
    made.set_assignment(TP, ReplicaAssignment(ids(1, 2)))
    made.leadership[TP] = LEADER_1
    requests.new_batch()
    requests.add_leader_and_isr(ids(1, 2), TP, LEADER_1, made.assignment(TP), is_new=True)
    requests.add_stop_replica(ids(2), TP, delete=True)
    requests.add_stop_replica(ids(2), TopicPartition("u", 1), delete=False)
    requests.send()
    for _, request, version, _ in outbox.sent:
        frame = wire.encode_request(request, api_version=version, correlation_id=1, client_id="1")
        header, back = wire.decode_request(frame)
        assert header.api_version == version
        assert [
            (p.leader, p.leader_epoch)
            for s in (getattr(back, "topic_states", ()), [back])
            for t in s
            for p in getattr(t, "partition_states", getattr(t, "ungrouped_partition_states", ()))
            if hasattr(p, "leader")
        ] in ([(1, 6)], [])
    kinds = [type(request).__name__ for _, request, _, _ in outbox.sent]
    stops = 1 if MetadataVersion.parse(ibp) >= MetadataVersion.parse("2.6") else 2
    assert kinds == ["LeaderAndIsrRequest"] * 2 + ["UpdateMetadataRequest"] * 2 + ["StopReplicaRequest"] * stops  # 8.12


@pytest.mark.parametrize("ibp", ["0.10.2", "3.9"])
def test_partitions_are_in_the_order_of_the_tables_that_kafka_collects_them_in(ibp: str) -> None:
    """Rules 8.4, 8.8, 8.22. The table of UpdateMetadata keeps its size from one batch to the next."""
    partitions = [TopicPartition(f"topic-{p % 13}", p) for p in range(40)]  # Java's table of 13 keys is smaller
    made = context(1)
    made.leadership = dict.fromkeys(partitions, LEADER_1)
    requests, outbox = batch(made, ibp)
    metadata: HashTable[TopicPartition, None] = HashTable()
    for some in (partitions, partitions[:3], partitions[5:11]):
        requests.new_batch()
        requests.add_known_leader_and_isr(BrokerId(1), some)
        for tp in some:
            requests.add_stop_replica(ids(1), tp, delete=False)
        requests.send()
        metadata.clear()
        metadata.put_all(dict.fromkeys(some))
        of_batch = HashTable.of(dict.fromkeys(some))
        flat = MetadataVersion.parse(ibp) < MetadataVersion.parse("2.2")
        assert [[(s.topic, s.partition) for s in partition_states(message)] for _, message, _, _ in outbox.sent] == [  # type: ignore[arg-type]
            of_batch.order() if flat else _grouped(of_batch, java=True),
            metadata.order() if flat else _grouped(metadata, java=True),
            _grouped(of_batch, java=False),
        ]
        outbox.sent.clear()
    assert metadata.order() != of_batch.order()  # six keys in a table for forty


def _grouped(table: HashTable[TopicPartition, None], *, java: bool) -> list[TopicPartition]:
    return [tp for of_topic in by_topic(table, table.values(), java=java).values() for tp, _ in of_topic]


def test_a_leader_that_is_none_is_sent_nothing() -> None:  # rules 8.3, 8.6
    requests, outbox = batch(context(1))
    requests.add_leader_and_isr(ids(1, -1), TP, LEADER_1, ReplicaAssignment(ids(1)), is_new=True)
    requests.add_stop_replica(ids(1, -1), TP, delete=True)
    requests.add_update_metadata(ids(1, -1), [])
    requests.send()
    assert [to for to, *_ in outbox.sent] == [1, 1, 1]


def test_a_batch_that_was_not_sent_blocks_the_next() -> None:  # rule 8.2
    made = context(1)
    requests, _ = batch(made)
    requests.new_batch()
    requests.add_update_metadata(ids(1), [])
    with pytest.raises(IllegalState, match="UpdateMetadata"):
        requests.new_batch()


def test_listener_names_in_versions_that_have_none() -> None:  # rule 8.21
    made = context(1)
    requests, _ = batch(made, "0.10.0")
    requests.add_update_metadata(ids(1), [])
    with pytest.raises(IllegalState, match=CONTROL):
        requests.send()
    requests, outbox = batch(made, "0.10.2")
    requests.add_update_metadata(ids(1), [])
    requests.send()
    assert [version for _, _, version, _ in outbox.sent] == [3]


def leaderships_sent(outbox: Outbox) -> list[tuple[int, str, int, int, int]]:
    """(broker, topic, partition, leader, leader epoch) of each LeaderAndIsr."""
    return [
        (broker_id, state.topic, state.partition, state.leader, state.leader_epoch)
        for broker_id, message, _, _ in outbox.sent
        if isinstance(message, wire.LeaderAndIsrRequest)
        for state in partition_states(message)
    ]


def test_known_states_and_others_share_a_request() -> None:  # rule 8.3
    """What is added later replaces what was added before."""
    made = context(1, 2)
    others = [TopicPartition("t", number) for number in (1, 2, 3)]
    for tp in (TP, *others):
        made.set_assignment(tp, ReplicaAssignment(ids(1, 2)))
        made.put_leadership(tp, LEADER_1)
    later = Leadership(LEADER_1.leader_and_isr.new_leader(BrokerId(2)), ControllerEpoch(4))
    requests, outbox = batch(made)
    requests.new_batch()
    requests.add_known_leader_and_isr(BrokerId(1), [TP])
    requests.add_leader_and_isr([BrokerId(1)], TP, later, made.assignment(TP), is_new=False)
    for tp in others:
        requests.add_known_leader_and_isr(BrokerId(1), [tp])
    requests.send()
    sent = leaderships_sent(outbox)
    assert sorted(sent) == [(1, "t", 0, 2, 7), *((1, "t", number, 1, 6) for number in (1, 2, 3))]
    requests.new_batch()
    for tp in others[:2]:
        requests.add_known_leader_and_isr(BrokerId(2), [tp])
    outbox.sent.clear()
    requests.send()
    assert sorted(leaderships_sent(outbox)) == [(2, "t", number, 1, 6) for number in (1, 2)]
