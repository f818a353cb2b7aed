"""OIB: topics without ids, through the bytes of requests (section 14 of docs/controller-semantics.md; rules of
section 10e)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from tests.broker_stub.support import Node
from tests.controller.conformance.served import served_cluster
from tests.controller.support import world


async def delete(node: Node, *topics: wire.DeleteTopicState) -> Any:
    with trio.fail_after(60):
        return (await node.ask(wire.DeleteTopicsRequest(topics=topics, timeout_ms=10_000))).responses


@pytest.mark.kafka("OIB-1")
async def test_metadata_of_an_old_version_has_no_ids(autojump_clock: MockClock) -> None:  # rules 8.18, 9.37
    async with world([1, 2], ibp=MetadataVersion.parse("2.7-IV0")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [1, 2, 0], 1: [2, 0, 1]})  # with an id in ZooKeeper, as a newer version left it
        for node in nodes.values():
            named = (wire.MetadataRequestTopic(name="t"),) * 2
            (topic,) = (await node.ask(wire.MetadataRequest(topics=named), 10)).topics
            assert (topic.name, topic.error_code, topic.topic_id) == ("t", ErrorCode.NONE, uuid.UUID(int=0))
            assert len(topic.partitions) == 2


@pytest.mark.kafka("OIB-4")
async def test_deletion_by_name_under_an_old_version(autojump_clock: MockClock) -> None:  # rule 10.35
    async with world([1], ibp=MetadataVersion.parse("2.7-IV0")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {p: [0, 1] for p in range(5)})
        await w.create_topic("u", {0: [0, 1]})
        results = await delete(nodes[0], wire.DeleteTopicState(name="t"), wire.DeleteTopicState(name="u"))
        assert {r.name: (r.error_code, r.topic_id) for r in results} == {
            "t": (ErrorCode.NONE, uuid.UUID(int=0)),
            "u": (ErrorCode.NONE, uuid.UUID(int=0)),
        }
        await w.settle()
        assert await w.zk.get_topics() == set()
        for node in nodes.values():
            assert (await node.ask(wire.MetadataRequest(topics=None))).topics == ()


@pytest.mark.kafka("OIB-5")
async def test_deletion_by_id_under_an_old_version(autojump_clock: MockClock) -> None:  # rule 10.35
    async with world([1], ibp=MetadataVersion.parse("2.7-IV0")) as w:
        _, nodes = await served_cluster(w)
        known = await w.create_topic("t", {0: [0, 1]})
        unknown = uuid.uuid4()
        results = await delete(nodes[0], *(wire.DeleteTopicState(topic_id=i) for i in (known, unknown)))
        assert [(r.error_code, r.topic_id) for r in results] == [
            (ErrorCode.UNKNOWN_TOPIC_ID, known),
            (ErrorCode.UNKNOWN_TOPIC_ID, unknown),
        ]
        await w.settle()
        assert await w.zk.get_topics() == {"t"}
