"""Nodes give back the memory of requests that they refuse, without waiting for a garbage collection (rule B1.25).

Collections are rare in a node, so what only they find stays: a few clients with large requests would fill the memory.

Covers: broker_stub/reactor/connection.py, broker_stub/handlers/kafka_apis.py, harness/connections.py
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio

from kce import wire
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import RealWorld, memory
from kce.wire.transport import ConnectionLost
from tests.broker_stub.replication.support import batch, produce_request
from tests.clusters import node

#: of what is behind a request
REST = bytes(400_000)
#: what is larger must not stay
MOST = 100_000


@contextmanager
def nothing_large_stays() -> Iterator[None]:
    """Without collections."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        stayed = [(type(each).__name__, len(held)) for each in gc.garbage for held in gc.get_referents(each)
                  if isinstance(held, bytes | bytearray | memoryview) and len(held) > MOST]  # fmt: skip
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was:
            gc.enable()
    assert stayed == []


def encoded(message: wire.Message, version: int) -> bytes:
    return bytes(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))


def header(api_key: int, version: int, client_id: bytes = b"") -> bytes:
    ids = (api_key, version, 0, 1, len(client_id))
    return b"".join(each.to_bytes(2, "big") for each in ids) + client_id


TOPICS = wire.MetadataRequest(
    topics=tuple(wire.MetadataRequestTopic(name=f"absent-{i:0100}") for i in range(2000)),
    allow_auto_topic_creation=False,
)
RECORDS = batch(REST, timestamp=1)
REFUSED = {
    "bytes behind": encoded(wire.MetadataRequest(topics=()), 9) + REST,
    "bytes behind many elements": encoded(TOPICS, 9) + REST,
    "another encoding": header(3, 1, b"\xff\xfe") + REST,
    "damaged": header(3, 1) + (5).to_bytes(4, "big") + b"\xff" * len(REST),
    "many elements and damaged": encoded(TOPICS, 9)[:-300],
    "no such API": header(99, 0) + REST,
    "no such version": header(0, 99) + REST,
    "a wrong checksum": encoded(produce_request(RECORDS[:-3] + b"abc", 1, topic="t"), 9),
    "too large": encoded(produce_request(RECORDS, 1, topic="small"), 9),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_of_a_request_that_is_refused(name: str) -> None:
    async with Cluster(1, world=memory(seed=3), history=False) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("t", partitions=1)
        await cluster.create_topic("small", partitions=1, config={"max.message.bytes": "1000"})
        running = node(cluster, 1)
        host, _, port = running.addresses()["DATA"].rpartition(":")
        with nothing_large_stays():
            client = NodeLinks(running.world, Links(), -1)
            link = await client.dial(host, int(port), to=1, listener="DATA")
            await link.send_frame(REFUSED[name])
            with trio.move_on_after(5), suppress(ConnectionLost):
                await link.receive_frame()
            await link.aclose()
            await trio.sleep(1)
            del link, client


async def test_of_half_a_frame() -> None:
    links = NodeLinks(RealWorld(), Links(), 1)
    listening = await links.bind("127.0.0.1", 0, listener="DATA", max_frame_bytes=1 << 20)
    listening.listen(1)
    with trio.fail_after(60):
        client = await trio.open_tcp_stream(*listening.address)
        link = await listening.accept()
        await client.send_all((1000).to_bytes(4, "big") + bytes(999))
        await client.aclose()
        assert await link.receive() is None
    assert link.buffered_bytes == 4 + 999
    await link.aclose()
    assert link.buffered_bytes == 0
    listening.close()
