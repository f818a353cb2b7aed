"""Control requests behind data requests, and beside them: why a broker has a listener for its controller.

    python examples/head_of_line.py [--seconds 3]

One broker, in a process of its own, answers Metadata requests of 48 connections without end. Meanwhile an empty
LeaderAndIsr is sent again and again: to the control listener, and to the data listener, where it waits for its turn
behind the others, as it does in a cluster without `control.plane.listener.name`.
"""

from __future__ import annotations

import argparse
import statistics
import time

import trio

from kce import Cluster, wire

TOPIC, PARTITIONS = "wide", 500
CONNECTIONS, IN_FLIGHT = 48, 4


def framed(message: wire.Message, version: int) -> bytes:
    return wire.frame(wire.encode_request(message, api_version=version, correlation_id=1, client_id="example"))


async def exchange(stream: trio.SocketStream, frames: wire.FrameBuffer, request: bytes) -> None:
    await stream.send_all(request)
    while frames.next_frame() is None:
        frames.receive_data(await stream.receive_some())


async def load(address: tuple[str, int]) -> None:
    """Metadata requests without end, some of them under way at any time."""
    topics = (wire.MetadataRequestTopic(name=TOPIC),)
    request = framed(wire.MetadataRequest(topics=topics), 12)
    frames = wire.FrameBuffer()
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(request * (IN_FLIGHT - 1))
        while True:
            await exchange(stream, frames, request)


async def probe(address: tuple[str, int], controller: wire.Message, seconds: float) -> list[float]:
    """Milliseconds of each exchange of ``controller``'s request."""
    request = framed(controller, 7)
    frames, found = wire.FrameBuffer(), []
    async with await trio.open_tcp_stream(*address) as stream:
        begin = time.perf_counter()
        while (sent := time.perf_counter()) < begin + seconds:
            await exchange(stream, frames, request)
            found.append(1000 * (time.perf_counter() - sent))
    return found


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def main(seconds: float) -> None:
    async with Cluster(brokers=1, processes=True, log_level="ERROR") as cluster, trio.open_nursery() as nursery:
        await cluster.wait_for_controller()
        await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        status = await cluster.node_status(1)
        request = wire.LeaderAndIsrRequest(controller_id=1, controller_epoch=status.controller_epoch)
        listeners = {name: address_of(text) for name, text in cluster.member(1).addresses.items()}
        for _ in range(CONNECTIONS):
            nursery.start_soon(load, listeners["DATA"])
        print(f"{'LeaderAndIsr beside load':28}{'requests':>10}{'p50 ms':>10}{'p99 ms':>10}")
        for name, text in (("CONTROL", "listener of its own"), ("DATA", "listener of the clients")):
            times = await probe(listeners[name], request, seconds)
            p99 = statistics.quantiles(times, n=100)[98]
            print(f"{text:28}{len(times):>10}{statistics.median(times):>10.2f}{p99:>10.2f}")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="for each listener")
    trio.run(main, parser.parse_args().seconds)
