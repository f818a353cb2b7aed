"""What brokers of five releases answered to real controllers and clients, and what we answer.

The vectors are bytes from recordings of three-broker clusters that created, moved and deleted topics, lost brokers and
controllers, and were shut down (see vectors/make.py). Every answer to a control request must be the same, but for
those that show a rule which Kafka 3.9 has no more, or a mishap of that broker's. Metadata is compared with 3.9 alone:
earlier ones differ in what stands where nothing was asked, and in the order of replicas.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import wire
from broker_stub.isr import NoIsrChanges
from tests.broker_stub.support import Node, codes
from wire import ErrorCode

VECTORS = sorted(Path(__file__).with_name("vectors").glob("*.jsonl.gz"))

DIFFERENT = {
    # before 3.0 the current leader epoch was too old for StopReplica
    ("kafka-2.8.2-tour", 1352): ErrorCode.FENCED_LEADER_EPOCH,
    ("kafka-2.8.2-tour", 1360): ErrorCode.FENCED_LEADER_EPOCH,
    # the broker was stopped until its ZooKeeper session was gone, and could not read the topic's settings
    ("kafka-3.9.1-zombie", 226): ErrorCode.UNKNOWN_SERVER_ERROR,
}


def _records(vectors: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(vectors.read_bytes()).splitlines()]


def _unordered(answer: wire.MetadataResponse) -> tuple[Any, ...]:
    """All but the cluster id; brokers, topics and partitions come in any order (rule B7.10)."""
    topics = {
        (topic.name, topic.topic_id, topic.error_code, topic.is_internal, topic.topic_authorized_operations): frozenset(
            topic.partitions
        )
        for topic in answer.topics
    }
    return answer.controller_id, frozenset(answer.brokers), topics, answer.cluster_authorized_operations


@pytest.mark.parametrize("vectors", VECTORS, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
async def test_we_answer_as_they_did(vectors: Path) -> None:
    capture = vectors.name.removesuffix(".jsonl.gz")
    nodes: dict[int, Node] = {}
    fenced = compared = clients = 0
    for record in _records(vectors):
        node = nodes.get(record["broker"])
        if node is None or record["restarted"]:
            logs = None if node is None else node.logs
            node = Node(broker_id=record["broker"], log_manager=logs, isr_policy=lambda *_: NoIsrChanges())
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
        if theirs.error_code != ErrorCode.STALE_BROKER_EPOCH:  # then this is what it was registered with
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


def test_all_vectors_are_there() -> None:
    assert len(VECTORS) == 7
