"""Our responses to recorded requests, compared with those of real brokers of five releases.

The vectors are bytes from recordings of three-broker clusters that created, moved and deleted topics, lost brokers and
controllers, and were shut down (see vectors/make.py). Every response to a control request must be equal, except where
an old release had another rule than Kafka 3.9, or the recorded broker had a failure. Metadata is compared with 3.9
only: earlier releases differ in fields that were not requested, and in the order of replicas.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kce import wire
from kce.wire import ErrorCode
from tests.broker_stub.support import Node, codes

VECTORS = sorted(Path(__file__).with_name("vectors").glob("*.jsonl.gz"))

DIFFERENT = {
    # before 3.0 StopReplica refused the current leader epoch
    ("kafka-2.8.2-tour", 1352): ErrorCode.FENCED_LEADER_EPOCH,
    ("kafka-2.8.2-tour", 1360): ErrorCode.FENCED_LEADER_EPOCH,
    # the broker was paused until its ZooKeeper session expired, and could not read the topic's settings
    ("kafka-3.9.1-zombie", 226): ErrorCode.UNKNOWN_SERVER_ERROR,
}


def _records(vectors: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(vectors.read_bytes()).splitlines()]


def _unordered(answer: wire.MetadataResponse) -> tuple[Any, ...]:
    """Drop the cluster id; sort brokers, topics and partitions, whose order is undefined (rule B7.10)."""
    topics = {
        (topic.name, topic.topic_id, topic.error_code, topic.is_internal, topic.topic_authorized_operations): frozenset(
            topic.partitions
        )
        for topic in answer.topics
    }
    return answer.controller_id, frozenset(answer.brokers), topics, answer.cluster_authorized_operations


@pytest.mark.parametrize("vectors", VECTORS, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
async def test_responses_equal_those_of_real_brokers(vectors: Path) -> None:
    capture = vectors.name.removesuffix(".jsonl.gz")
    nodes: dict[int, Node] = {}
    fenced = compared = clients = 0
    for record in _records(vectors):
        node = nodes.get(record["broker"])
        if node is None or record["restarted"]:
            logs = None if node is None else node.logs
            node = Node(broker_id=record["broker"], log_manager=logs, auto_create_topics_enable="false")
            nodes[record["broker"]] = node
        header, request = wire.decode_request(base64.b64decode(record["request"]))
        theirs: Any = wire.decode_response(
            base64.b64decode(record["response"]), api_key=header.api_key, api_version=header.api_version
        )[1]
        if isinstance(request, wire.MetadataRequest):
            if "-3.9" in capture:
                ours = await node.ask(request, header.api_version, listener=record["listener"])
                assert _unordered(ours) == _unordered(theirs), record["packet"]
                clients += 1
            continue
        if theirs.error_code != ErrorCode.STALE_BROKER_EPOCH:  # then this is the epoch of its registration
            node.broker_epoch = max(node.broker_epoch, getattr(request, "broker_epoch", -1))
        ours = await node.ask(request, header.api_version, listener=record["listener"])
        different = DIFFERENT.get((capture, record["packet"]))
        if different is None:
            assert (ours.error_code, codes(ours)) == (theirs.error_code, codes(theirs)), record["packet"]
        else:
            assert set(codes(theirs).values()) == {different}
            assert set(codes(ours).values()) == {ErrorCode.NONE}
        compared += 1
        fenced += any(codes(theirs).values()) or theirs.error_code != ErrorCode.NONE
    assert compared > 80
    assert fenced > 0
    assert clients > 0 or "-3.9" not in capture


def test_all_vectors_are_present() -> None:
    assert len(VECTORS) == 7
