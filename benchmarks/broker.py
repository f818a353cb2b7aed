"""Pipelined ApiVersions requests a second: our reactor beside librdkafka's mock cluster (C), in one run.

    python benchmarks/broker.py [--connections 8] [--in-flight 64] [--seconds 3] [--json FILE]

The client is a process of its own and only counts bytes, so that the server is what is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import struct
import time

import confluent_kafka
import trio

from kce import wire
from kce.broker_stub import Broker, BrokerConfig
from kce.harness.connections import NodeLinks
from kce.harness.links import Links
from kce.harness.world import RealWorld

REQUEST = wire.frame(
    wire.encode_request(
        wire.ApiVersionsRequest(client_software_name="benchmark", client_software_version="1"),
        api_version=3,
        correlation_id=1,
        client_id="benchmark",
    )
)


def hammer(address: tuple[str, int], connections: int, in_flight: int, seconds: float) -> float:
    """Requests a second over that many connections, each with that many requests under way."""
    sockets = [socket.create_connection(address) for _ in range(connections)]
    size = _answer_size(sockets[0])
    with selectors.DefaultSelector() as selector:
        for s in sockets:
            selector.register(s, selectors.EVENT_READ, [0])
            s.sendall(REQUEST * in_flight)
        answered, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for key, _ in selector.select():
                received = len(key.fileobj.recv(1 << 18))
                if not received:
                    raise ConnectionError(f"{address} closed a connection")
                key.data[0] += received
                whole, key.data[0] = divmod(key.data[0], size)
                answered += whole
                key.fileobj.sendall(REQUEST * whole)
        rate = answered / (time.perf_counter() - begin)
    for s in sockets:
        s.close()
    return rate


def _answer_size(connection: socket.socket) -> int:
    connection.sendall(REQUEST)
    with connection.makefile("rb") as answers:
        (length,) = struct.unpack(">i", answers.read(4))
        answers.read(length)
    return 4 + length


def measure(address: tuple[str, int], args: argparse.Namespace) -> float:
    """In another process; the median of three."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        load = (address, args.connections, args.in_flight, args.seconds)
        return statistics.median(pool.apply(hammer, load) for _ in range(3))


async def ours(args: argparse.Namespace) -> float:
    config = BrokerConfig.from_properties({"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0"})
    links = NodeLinks(RealWorld(), Links(), 0)
    broker = Broker(config, bind=links.bind, dial=links.dial, cluster_id="benchmark")
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        broker.enable_request_processing()
        endpoint = broker.endpoints[0]
        rate = await trio.to_thread.run_sync(measure, (endpoint.host, endpoint.port), args)
        nursery.cancel_scope.cancel()
    return rate


def peer(args: argparse.Namespace) -> float:
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 1})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    return measure((broker.host, broker.port), args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    value, peer_value = trio.run(ours, args), peer(args)
    name = f"api-versions/{args.connections}-connections"
    print(f"{'':30}{'broker_stub':>14}{'librdkafka mock':>18}{'ratio':>8}")
    print(f"{name:30}{value:>12,.0f}/s{peer_value:>16,.0f}/s{value / peer_value:>8.2f}")
    if args.json:
        result = {
            "value": value,
            "unit": "requests/s",
            "peer": "librdkafka mock cluster",
            "peer_value": peer_value,
            "ratio": value / peer_value,
        }
        with open(args.json, "w") as file:
            json.dump({name: result}, file, indent=2)


if __name__ == "__main__":
    main()
