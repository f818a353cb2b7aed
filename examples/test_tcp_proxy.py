"""A test of a TCP proxy: a producer writes through it while the leader moves, and nothing is lost.

    pytest examples/test_tcp_proxy.py

The proxy here is fifteen lines; replace `forward` with yours. Each node advertises its proxy's port, so that clients,
and the nodes among themselves, go through it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

RECORDS = 300
TOPIC = "orders"


async def pump(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        async for data in source:
            await sink.send_all(data)
    except trio.BrokenResourceError:
        pass
    both.cancel()


async def forward(client: trio.SocketStream, target: str) -> None:
    async with client:
        host, _, port = target.rpartition(":")
        try:
            server = await trio.open_tcp_stream(host, int(port))
        except OSError:  # the node is down, and so are its connections
            return
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(pump, client, server, nursery.cancel_scope)
            nursery.start_soon(pump, server, client, nursery.cancel_scope)


@asynccontextmanager
async def proxied(cluster) -> AsyncIterator[None]:
    """A proxy in front of every node."""
    async with trio.open_nursery() as nursery:
        for member in cluster.members:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            target = await cluster.proxy(member.id, port)

            async def serve(client: trio.SocketStream, target: str = target) -> None:
                await forward(client, target)

            nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield
        nursery.cancel_scope.cancel()


def produce(bootstrap_servers: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})
    failed = []
    for number in range(first, first + RECORDS):
        producer.produce(TOPIC, str(number), partition=0, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(60) == 0
    assert failed == []


def consume(bootstrap_servers: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found = []
    while len(found) < count and (message := consumer.poll(30)) is not None:
        found.append(int(message.value()))
    consumer.close()
    return found


@pytest.mark.kafka_cluster(properties={"min.insync.replicas": "2"})
async def test_nothing_is_lost_while_the_leader_moves(kafka_cluster):
    async with proxied(kafka_cluster):
        await kafka_cluster.wait_for_controller()
        await kafka_cluster.create_topic(TOPIC, assignment={0: [1, 2, 3]})
        bootstrap_servers = kafka_cluster.bootstrap_servers()
        await trio.to_thread.run_sync(produce, bootstrap_servers, 0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, produce, bootstrap_servers, RECORDS)
            await kafka_cluster.kill(1)

        found = await trio.to_thread.run_sync(consume, bootstrap_servers, 2 * RECORDS)
        assert found == list(range(2 * RECORDS))
