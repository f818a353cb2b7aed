"""OIB, what of it needs records: a real broker whose inter.broker.protocol.version knows no topic ids, under our
controller of that version (section 14 of docs/controller-semantics.md; rules 8.18, 13.16)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from kce import wire
from kce.wire import ErrorCode
from tests.background import InBackground
from tests.clusters import request
from tests.interop.operations import Peers, peers
from tests.interop.tools import TOPICS

pytestmark = pytest.mark.slow
OLD = {"inter.broker.protocol.version": "2.7"}
TOPIC = "old"


@pytest.fixture(scope="module")
def old(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InBackground[Peers]]:
    """Peers with a topic that has one record."""
    folder = tmp_path_factory.mktemp("old")
    with InBackground(
        lambda: peers(f"{zookeeper}/old", folder, ours=True, ids=[1], more=lambda i: OLD, properties=OLD)
    ) as running:
        p = running.value
        running.call(p.tool, TOPICS, "--create", "--topic", TOPIC, "--replica-assignment", "1")
        running.call(p.until, "a leader", lambda replicas, leader, isr: leader == 1, TOPIC)
        failed = []
        producer = Producer({"bootstrap.servers": p.bootstrap, "log_level": 0})
        producer.produce(TOPIC, b"value", on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(30) == 0
        assert failed == [None]
        yield running


def fetch(old: InBackground[Peers], version: int, **topic: Any) -> wire.FetchResponse:
    partition = wire.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = (wire.FetchTopic(**topic, partitions=(partition,)),)
    message = wire.FetchRequest(max_wait_ms=100, min_bytes=1, topics=topics)
    answer = old.call(request, old.value.brokers[1].address, message, version)
    assert isinstance(answer, wire.FetchResponse)
    return answer


@pytest.mark.kafka("OIB-2")
def test_fetch_by_id(old: InBackground[Peers]) -> None:
    answer = fetch(old, 13, topic_id=uuid.uuid4())
    assert answer.error_code == ErrorCode.NONE
    ((partition,),) = (topic.partitions for topic in answer.responses)
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.kafka("OIB-3")
def test_fetch_by_name(old: InBackground[Peers]) -> None:
    answer = fetch(old, 12, topic=TOPIC)
    assert answer.error_code == ErrorCode.NONE
    ((partition,),) = (topic.partitions for topic in answer.responses)
    assert (partition.error_code, partition.high_watermark) == (ErrorCode.NONE, 1)
    assert b"value" in bytes(partition.records or b"")
