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


async def topic_ids(node: Node) -> dict[str, uuid.UUID]:
    answer = await node.ask(wire.MetadataRequest(topics=None))
    return {topic.name: topic.topic_id for topic in answer.topics}


async def delete(node: Node, state: wire.DeleteTopicState) -> Any:
    with trio.fail_after(60):
        answer = await node.ask(wire.DeleteTopicsRequest(topics=(state,), timeout_ms=1000))
    (result,) = answer.responses
    return result


@pytest.mark.kafka("OIB-1")
async def test_metadata_of_an_old_version_has_no_ids(autojump_clock: MockClock) -> None:  # rules 8.18, 9.37
    async with world([1], ibp=MetadataVersion.parse("2.7")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})  # with an id in ZooKeeper, as a newer version left it
        for node in nodes.values():
            assert await topic_ids(node) == {"t": uuid.UUID(int=0)}


@pytest.mark.kafka("OIB-4")
async def test_deletion_by_name_under_an_old_version(autojump_clock: MockClock) -> None:  # rule 10.35
    async with world([1], ibp=MetadataVersion.parse("2.7")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert (await delete(nodes[0], wire.DeleteTopicState(name="t"))).error_code == ErrorCode.NONE
        await w.settle()
        assert await w.zk.get_topics() == set()


@pytest.mark.kafka("OIB-5")
async def test_deletion_by_id_under_an_old_version(autojump_clock: MockClock) -> None:  # rule 10.35
    async with world([1], ibp=MetadataVersion.parse("2.7")) as w:
        _, nodes = await served_cluster(w)
        topic_id = await w.create_topic("t", {0: [0, 1]})
        result = await delete(nodes[0], wire.DeleteTopicState(topic_id=topic_id))
        assert (result.error_code, result.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
        await w.settle()
        assert await w.zk.get_topics() == {"t"}
