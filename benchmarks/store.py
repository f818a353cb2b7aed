"""The metadata store against stock kazoo, on one ZooKeeper, in one run: writes and bulk reads.

    python benchmarks/store.py [--nodes 20000] [--repeats 5] [--json FILE]

Data are partition states. ZooKeeper runs with its shipped settings: it syncs its log to disk before it answers, and the
JVM may compile fully (tests and demos turn both off). Rows:

write/fenced          many writes in each multi, behind a check of the controller's epoch: what the controller does.
                      Its peer does the same in kazoo's best way: multis of 100 writes by ``commit_async``, pipelined.
write/fenced-vs-set   the same against one synchronous ``set`` after another, as a program written the simple way does
write/one-by-one      a multi of one write each, behind the same check, pipelined, against kazoo's ``commit_async``
read/...              bulk reads with and without ZooKeeper's multiRead, against kazoo's ``get_async``, pipelined

Each repeat measures ours right after its peer. Values are medians; a ratio is the median of the repeats' ratios, and
the spread is their lowest and highest.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from kazoo.client import KazooClient

from benchmarks.rows import Row, report
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.zookeeper.model import BrokerId, ControllerEpoch, LeaderAndIsr, Leadership
from kce.zookeeper.store import Check, Create, NodeData, SetData, Stat
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.znodes import encode_partition_state

ISR = tuple(BrokerId(i) for i in (1, 2, 3))
STATE = encode_partition_state(Leadership(LeaderAndIsr(BrokerId(1), ISR, 17), ControllerEpoch(4)))
#: synchronous writes are slow: this many are enough for a rate
SYNCHRONOUS = 1000
#: writes in a multi of the peer; larger ones are not faster
MULTI = 100


def rate(count: int, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


@contextmanager
def kazoo(address: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def kazoo_reads(client: KazooClient, paths: list[str]) -> None:
    """Pipelined reads."""
    pending = [client.get_async(path) for path in paths]
    assert all(result.get()[0] == STATE for result in pending)


def kazoo_writes(client: KazooClient, paths: list[str]) -> None:
    """Synchronous writes, without a check."""
    for path in paths:
        client.set(path, STATE)


def kazoo_multis(client: KazooClient, paths: list[str], size: int) -> None:
    """Pipelined multis of ``size`` writes, each behind the check."""
    pending = []
    for start in range(0, len(paths), size):
        transaction = client.transaction()
        transaction.check("/bench", 0)
        for path in paths[start : start + size]:
            transaction.set_data(path, STATE)
        pending.append(transaction.commit_async())
    assert not any(isinstance(result, Exception) for commit in pending for result in commit.get())


class Bench:
    def __init__(self, store: KazooStore, address: str, nodes: int) -> None:
        self.store = store
        self.address = address
        self.paths = [f"/bench/{i:06d}" for i in range(nodes)]
        self.rates: dict[str, list[float]] = {}

    async def timed(self, name: str, count: int, work: Callable[[], Awaitable[object]]) -> None:
        begin = time.perf_counter()
        await work()
        self.rates.setdefault(name, []).append(count / (time.perf_counter() - begin))

    async def ours_writes(self, fence: Check | None) -> None:
        answers = await self.store.write([SetData(path, STATE) for path in self.paths], fence=fence)
        assert all(isinstance(answer, Stat) for answer in answers)

    async def ours_multis(self) -> None:
        answers = await self.store.multi([[Check("/bench", 0), SetData(path, STATE)] for path in self.paths])
        assert all(isinstance(answer, list) for answer in answers)

    async def ours_reads(self) -> None:
        answers = await self.store.get_data(self.paths)
        assert all(isinstance(answer, NodeData) and answer.data == STATE for answer in answers)

    async def repeat(self) -> None:
        count = len(self.paths)
        with kazoo(self.address) as client:

            async def peer(name: str, work: Callable[..., object], paths: list[str]) -> None:
                measured = await trio.to_thread.run_sync(rate, len(paths), lambda: work(client, paths))
                self.rates.setdefault(name, []).append(measured)

            await peer("peer/multis", lambda c, paths: kazoo_multis(c, paths, MULTI), self.paths)
            await self.timed("write/fenced", count, lambda: self.ours_writes(Check("/bench", 0)))
            await peer("peer/set", kazoo_writes, self.paths[:SYNCHRONOUS])
            await peer("peer/multi", lambda c, paths: kazoo_multis(c, paths, 1), self.paths)
            await self.timed("write/one-by-one", count, self.ours_multis)
            await peer("peer/read", kazoo_reads, self.paths)
            await self.timed("read/multiRead", count, self.ours_reads)
            self.store._has_multi_read = False  # as with a server before 3.6
            await self.timed("read/without-multiRead", count, self.ours_reads)
            self.store._has_multi_read = True


#: row: (rate of ours, rate of the peer, the peer's name)
ROWS = {
    "write/fenced": ("write/fenced", "peer/multis", f"kazoo, pipelined multis of {MULTI} by commit_async"),
    "write/fenced-vs-set": ("write/fenced", "peer/set", "kazoo, synchronous set"),
    "write/one-by-one": ("write/one-by-one", "peer/multi", "kazoo, pipelined multis of 1 by commit_async"),
    "read/multiRead": ("read/multiRead", "peer/read", "kazoo, pipelined get_async"),
    "read/without-multiRead": ("read/without-multiRead", "peer/read", "kazoo, pipelined get_async"),
}


async def measure(args: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_zookeeper(Path(folder), jvm=()) as address:
            store = await KazooStore.connect(address, session_timeout_ms=30_000, connection_timeout_ms=10_000)
            bench = Bench(store, address, args.nodes)
            await store.write([Create("/bench"), *(Create(path, STATE) for path in bench.paths)])
            for _ in range(args.repeats):
                await bench.repeat()
            await store.aclose()
    return [
        Row(name, "nodes/s", peer_name, values=bench.rates[ours], peer_values=bench.rates[peer])
        for name, (ours, peer, peer_name) in ROWS.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report(trio.run(measure, args), args.json)


if __name__ == "__main__":
    main()
