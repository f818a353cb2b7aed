"""Produce requests that arrive together are appended together, and each of them is answered for itself.

Covers: broker_stub/replication/appends.py, broker_stub/handlers/produce.py.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.handlers import produce
from kce.wire import ErrorCode
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import RecordNode, a_node, produce_request
from tests.broker_stub.support import Client, connect, listener, running_server

ALL = produce_request(batch(b"x"), -1)
OTHER = wire.TopicProduceData(name="a", partition_data=(wire.PartitionProduceData(index=1, records=batch(b"x")),))


@asynccontextmanager
async def a_leader(isr: tuple[int, ...] = (1, 2)) -> AsyncIterator[tuple[RecordNode, Client]]:
    async with a_node({"max.message.bytes": "1000"}, min_insync_replicas="1") as node:
        await node.lead(isr=isr)
        async with running_server(node.apis) as server, connect(listener(server)) as client:
            yield node, client


async def answers(client: Client, count: int) -> list[tuple[int, int]]:
    """Code and base offset of each; the client checks their order."""
    found = [(await client.receive()).responses[0].partition_responses[0] for _ in range(count)]
    return [(one.error_code, one.base_offset) for one in found]


async def appended(node: RecordNode, count: int) -> None:
    while node.log.log_end_offset < count:
        await trio.lowlevel.checkpoint()


async def test_they_are_replicated_together() -> None:
    """A follower that waits gets all of them with one answer, and with its next request all are acknowledged."""
    async with a_leader() as (node, client), trio.open_nursery() as nursery:
        fetched: list[int] = []

        async def follow() -> None:
            found = await node.fetch(0, replica=2, epoch=0, max_wait_ms=10_000)
            fetched.append(len(wire.read_records(found.records or b"").batches))
            await node.fetch(len(fetched) * 3, replica=2, epoch=0)

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        await client.send(ALL, ALL, ALL)
        assert await answers(client, 3) == [(0, 0), (0, 1), (0, 2)]
        assert fetched == [3]


async def test_one_that_is_refused_keeps_its_place() -> None:
    async with a_leader() as (node, client):
        large = produce_request(batch(bytes(2000)), -1)
        damaged = produce_request(batch(b"x")[:-1] + b"y", -1)
        await client.send(ALL, damaged, ALL, produce_request(batch(b"x"), -1, topic="unknown"), ALL, large, ALL)
        await appended(node, 4)
        await node.fetch(4, replica=2, epoch=0)
        codes = [code for code, _ in await answers(client, 7)]
    assert codes == [
        0, ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, ErrorCode.MESSAGE_TOO_LARGE, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        replace(ALL, transactional_id="id"),
        replace(ALL, topic_data=(*ALL.topic_data, OTHER)),
        replace(ALL, topic_data=(replace(OTHER, partition_data=OTHER.partition_data * 2),)),
    ],
    ids=["transactional", "two topics", "two partitions"],
)
async def test_what_waits_for_its_turn(other: wire.ProduceRequest) -> None:  # rule B1.19
    async with a_leader() as (node, client):
        await client.send(ALL, other, ALL)
        await appended(node, 1)
        await wait_all_tasks_blocked()
        assert node.log.log_end_offset == 1
        await node.fetch(1, replica=2, epoch=0)
        assert await answers(client, 1) == [(0, 0)]


async def test_without_replicas_to_wait_for_they_are_answered_one_by_one() -> None:
    async with a_leader((1,)) as (_, client):
        await client.send(*[produce_request(batch(b"x"))] * 2, ALL, ALL)
        assert await answers(client, 4) == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_clients_with_a_quota_wait_before_the_next() -> None:  # rule B8.7
    async with a_leader() as (node, client):
        node.quotas.changed("clients", "<default>", {"producer_byte_rate": "1000000"})
        await client.send(ALL, ALL)
        await appended(node, 1)
        await wait_all_tasks_blocked()
        assert node.log.log_end_offset == 1


async def test_so_many_are_appended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "SHARED_BYTES", 1000)
    async with a_leader() as (node, client):
        size = len(wire.encode_request(ALL, api_version=11, correlation_id=1, client_id="test"))
        count = math.ceil(1000 / size)
        await client.send(*[ALL] * (2 * count + 1))
        for so_many in (count, 2 * count, 2 * count + 1):
            await appended(node, so_many)
            await wait_all_tasks_blocked()
            assert node.log.log_end_offset == so_many
            await node.fetch(so_many, replica=2, epoch=0)
        assert await answers(client, 2 * count + 1) == [(0, i) for i in range(2 * count + 1)]


async def test_what_follows_them_waits() -> None:  # rule B1.19
    async with a_leader() as (node, client):
        metadata = wire.MetadataRequest(topics=())
        await client.send(ALL, ALL, metadata)
        await appended(node, 2)
        with trio.move_on_after(0):
            await client.receive()
            pytest.fail("an answer before those to the requests in progress")
        await node.fetch(2, replica=2, epoch=0)
        assert await answers(client, 2) == [(0, 0), (0, 1)]
        assert isinstance(await client.receive(), wire.MetadataResponse)


async def test_fetches_are_told_once_of_all_that_is_appended_together() -> None:
    async with a_node() as node:
        await node.lead()
        told: list[int] = []
        appends, plane = node.services.appends, node.services.data_plane
        with appends.together():
            for _ in range(3):
                appends.append({node.log.partition: batch(b"x")}, -1, 1000, lambda results: told.append(len(results)))
            assert (told, plane.changes, node.log.log_end_offset) == ([], 1, 3)
        assert (told, plane.changes, node.log.high_watermark) == ([1, 1, 1], 2, 3)
