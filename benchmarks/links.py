"""The cost of links without subscribers: pipelined ApiVersions requests through them, beside a connection without them.

    python benchmarks/links.py [--bursts 60] [--json FILE]

Both brokers run in this process and are loaded in turn, burst by burst, by a client in another process. Compared are
requests per second of this process's CPU time; a ratio of 1 means that links cost nothing. Ratios are medians over
pairs of bursts. The peer's connections cut frames and nothing else. The last row shows what a subscriber costs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.pool
import time
from collections.abc import Callable
from random import Random

import trio

from benchmarks.broker_load import hammer
from benchmarks.rows import Row, report
from kce import wire
from kce.broker_stub import Broker, BrokerConfig, LogManager, LogManagerConfig
from kce.broker_stub.log import LogConfig
from kce.broker_stub.ports import Address, FrameMemory, InTurns, Link
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import Connected, Listener, RealWorld
from kce.harness.world.memory_disk import MemoryDisk
from kce.harness.world.port import PartsStream

CONNECTIONS, IN_FLIGHT, BURST_S = 8, 64, 0.25


class BareConnection(Link):
    """Frames over a stream, and nothing else."""

    def __init__(self, connected: Connected, max_frame_bytes: int) -> None:
        assert isinstance(connected.stream, PartsStream)
        self._stream = connected.stream
        self._local, self._remote = connected.local, connected.remote
        self._last_received = trio.current_time()
        self._buffer = wire.FrameBuffer(max_frame_bytes)
        self._has_input = self._ends = False
        self._unsent: bytes | memoryview = b""

    @property
    def local(self) -> Address:
        return self._local

    @property
    def remote(self) -> Address:
        return self._remote

    @property
    def last_received(self) -> float:
        return self._last_received

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    async def secure(self) -> bytes | None:
        return None

    def limit_frames(self, max_frame_bytes: int) -> int:
        before, self._buffer.max_frame_bytes = self._buffer.max_frame_bytes, max_frame_bytes
        return before

    async def receive(self) -> bytes | None:
        frame = self._buffer.next_frame()
        while frame is None:
            data = await self._stream.receive_some(65536)
            self._last_received = trio.current_time()
            if not data:
                return None
            frame = self._buffer.receive_frame(data)
        return frame

    def receive_nowait(self) -> bytes | None:
        frame = self._buffer.next_frame()
        if frame is not None or not self._has_input:
            return frame
        self._has_input = False
        data = self._stream.receive_nowait(65536)
        if not data:
            self._ends = data is not None
            return None
        self._last_received = trio.current_time()
        return self._buffer.receive_frame(data)

    async def wait_for_input(self, on_input: Callable[[], bool], turns: InTurns) -> None:
        def on_bytes() -> bool:
            self._has_input = True
            return on_input() and not self._ends

        if not self._ends:
            await self._stream.wait_for_input(on_bytes, turns)

    def stop_waiting(self) -> None:
        self._stream.stop_waiting()

    async def send(self, *payloads: wire.Payload) -> None:
        await self._stream.send_all(self._framed(payloads))

    def send_nowait(self, *payloads: wire.Payload) -> bool:
        data = self._framed(payloads)
        sent = self._stream.send_nowait(data)
        self._unsent = memoryview(data)[sent:] if 0 < sent < len(data) else b""
        return sent > 0

    @staticmethod
    def _framed(payloads: tuple[wire.Payload, ...]) -> bytes:
        return wire.frames([payload for payload in payloads if isinstance(payload, bytes)])

    @property
    def is_unsent(self) -> bool:
        return bool(self._unsent)

    async def flush(self) -> None:
        if self.is_unsent:
            unsent, self._unsent = self._unsent, b""
            await self._stream.send_all(unsent)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


class BareListener:
    def __init__(self, listener: Listener, max_frame_bytes: int) -> None:
        self._listener = listener
        self._max_frame_bytes = max_frame_bytes

    @property
    def address(self) -> Address:
        return self._listener.address

    def listen(self, backlog: int) -> None:
        self._listener.listen(backlog)

    async def accept(self) -> BareConnection:
        return BareConnection(await self._listener.accept(), self._max_frame_bytes)

    def close(self) -> None:
        self._listener.close()


async def bare_bind(
    host: str, port: int, *, listener: str, max_frame_bytes: int, memory: FrameMemory | None = None
) -> BareListener:
    return BareListener(await RealWorld().bind(host, port), max_frame_bytes)


async def burst(pool: multiprocessing.pool.Pool, address: Address) -> float:
    """Requests per second of our CPU time."""
    cpu, wall = time.process_time(), time.perf_counter()
    rate = await trio.to_thread.run_sync(pool.apply, hammer, (address, CONNECTIONS, IN_FLIGHT, BURST_S))
    elapsed = time.perf_counter() - wall
    return rate * elapsed / (time.process_time() - cpu)


async def measure(bursts: int) -> dict[str, list[float]]:
    links = Links()
    config = BrokerConfig.from_properties({"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0"})
    node = NodeLinks(RealWorld(), links, 0)
    logs = LogManager(
        MemoryDisk(), ["/logs"], LogManagerConfig.of({}), now_ms=lambda: 0, random=Random(0),
        config_of=lambda topic: LogConfig.of(),
    )  # fmt: skip
    brokers = {
        "links": Broker(
            config, bind=node.bind, dial=node.dial, cluster_id="benchmark", log_manager=logs, random=Random(0)
        ),
        "bare": Broker(
            config, bind=bare_bind, dial=node.dial, cluster_id="benchmark", log_manager=logs, random=Random(0)
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in (*brokers, "subscribed")}
    async with trio.open_nursery() as nursery:
        for broker in brokers.values():
            await nursery.start(broker.run)
            broker.enable_request_processing()
        address = {name: (b.endpoints[0].host, b.endpoints[0].port) for name, b in brokers.items()}
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for name in brokers:  # warm
                await burst(pool, address[name])
            for i in range(bursts):
                for name in ("links", "bare") if i % 2 else ("bare", "links"):
                    found[name].append(await burst(pool, address[name]))
            with links.listen(lambda event: None):
                for _ in range(3):
                    found["subscribed"].append(await burst(pool, address["links"]))
        nursery.cancel_scope.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=int, default=60)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    found = trio.run(measure, args.bursts)
    rows = []
    for name, values in (("links/unobserved", found["links"]), ("links/subscribed", found["subscribed"])):
        rows.append(Row(name, "1/CPU s", "bare connection", values=values, peer_values=found["bare"][: len(values)]))
    report(rows, args.json)


if __name__ == "__main__":
    main()
