"""Hand-overs on one latch of a real ZooKeeper: how long they take and how many contenders they wake, by their number.

    python benchmarks/election.py [--contenders 10 100 1000] [--hand-overs 30] [--sessions 10] [--json FILE]

Beside it kazoo's Lock, a thread for each contender, on as many sessions, in the same run. A hand-over is from the
moment in which the leader begins to leave to that in which the next knows that it leads. A ratio above 1 means that
we are faster than the peer; that of the last row to the first says whether time grows with the number.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import time
from pathlib import Path

import trio
from kazoo.client import KazooClient
from kazoo.exceptions import CancelledError

from benchmarks.rows import Row, report
from kce.election.latch import LeaderLatch
from kce.election.session import ElectionSession
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.zookeeper.store.kazoo import KazooStore


async def ours(address: str, contenders: int, sessions: int, hand_overs: int) -> tuple[list[float], list[int]]:
    """Seconds of each hand-over, and how many contenders looked at the queue in it."""
    async with trio.open_nursery() as nursery:
        stores = [
            await KazooStore.connect(address, session_timeout_ms=60_000, connection_timeout_ms=10_000)
            for _ in range(sessions)
        ]
        clients = [ElectionSession(store, nursery) for store in stores]
        elected = trio.Event()
        latches: list[LeaderLatch] = []

        def changed(leads: bool) -> None:
            if leads:
                elected.set()

        def failed(error: Exception) -> None:
            raise error

        for i in range(contenders):
            latch = LeaderLatch(clients[i % sessions], "/latch", on_change=changed, on_error=failed)
            latch.start()
            latches.append(latch)
            while not latch.checks:  # so that they queue in this order
                await trio.lowlevel.checkpoint()
        await elected.wait()
        times, woken = [], []
        for leader in latches[: min(hand_overs, contenders - 1)]:
            for client in clients:  # operations in flight complete first
                await client.store.exists(["/latch"])
            before = [latch.checks for latch in latches]
            elected = trio.Event()
            begin = time.perf_counter()
            nursery.start_soon(leader.aclose)
            await elected.wait()
            times.append(time.perf_counter() - begin)
            for client in clients:
                await client.store.exists(["/latch"])
            woken.append(sum(latch.checks != count for latch, count in zip(latches, before, strict=True)))
        for client in clients:
            await client.aclose()
        nursery.cancel_scope.cancel()
    return times, woken


def peer(address: str, contenders: int, sessions: int, hand_overs: int) -> list[float]:
    """Seconds of each hand-over of kazoo's Lock."""
    clients = [KazooClient(hosts=address, timeout=60) for _ in range(sessions)]
    for client in clients:
        client.start()
        client.ensure_path("/lock")
    entered, leave = threading.Semaphore(0), threading.Semaphore(0)
    moments: list[float] = []
    locks = [clients[i % sessions].Lock("/lock", str(i)) for i in range(contenders)]

    def contend(i: int) -> None:
        try:
            with locks[i]:
                moments.append(time.perf_counter())
                entered.release()
                leave.acquire()
                moments.append(time.perf_counter())
        except CancelledError:
            return

    threads = []
    for i in range(contenders):
        threads.append(threading.Thread(target=contend, args=(i,), daemon=True))
        threads[-1].start()
        while len(clients[0].get_children("/lock")) <= i:
            time.sleep(0.001)
    for _ in range(min(hand_overs, contenders - 1)):
        entered.acquire()
        leave.release()
    entered.acquire()
    for lock in locks:
        lock.cancel()
    leave.release(contenders)
    for thread in threads:
        thread.join()
    for client in clients:
        client.stop()
        client.close()
    return [after - before for before, after in zip(moments[1::2], moments[2::2], strict=False)][:hand_overs]


async def run(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_zookeeper(Path(folder)) as address:
            await ours(f"{address}/warm-up", 50, 10, 49)  # the server's code is compiled as it runs
            for number in args.contenders:
                sessions = min(args.sessions, number)
                where = f"{address}/{number}"
                times, woken = await ours(where, number, sessions, args.hand_overs)
                peers = await trio.to_thread.run_sync(peer, where, number, sessions, args.hand_overs)
                rows += [
                    Row(
                        f"hand-over/{number}-contenders", "ms", "kazoo Lock", less=True,
                        values=[1000 * t for t in times], peer_values=[1000 * t for t in peers],
                    ),
                    Row(
                        f"woken/{number}-contenders", "contenders", "one", less=True,
                        values=[float(max(woken))], peer_values=[1.0],
                    ),
                ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--hand-overs", type=int, default=30)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    for peer in ("kazoo", "kce"):  # contenders that end say so, hundreds of them
        logging.getLogger(peer).setLevel(logging.CRITICAL)
    report(trio.run(run, args), args.json)


if __name__ == "__main__":
    main()
