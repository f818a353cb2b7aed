"""A whole cluster in memory: ready at once, without sockets, threads or processes, and the same from the same seed.

Covers: harness/world/network.py.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import trio
from trio.testing import MockClock

from kce.harness import Cluster, HarnessError
from kce.harness.world import MemoryWorld, memory
from kce.harness.world.network import BUFFER_BYTES, MemoryNetwork
from kce.harness.world.virtual_time import deterministic
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.store import SessionExpired, SessionState, StoreUnavailable
from tests.clusters import is_registered

#: a day with a failover, a partition, a return and a deletion; prints a digest of its recording
A_DAY = """
import hashlib, sys, trio
from pathlib import Path
from kce.harness import Cluster
from kce.harness.world import memory

async def main():
    record = Path(sys.argv[1])
    async with Cluster(3, world=memory(seed=int(sys.argv[2])), record=record) as cluster:
        old = await cluster.wait_for_controller()
        await cluster.create_topic("orders", partitions=4, replication_factor=3)
        await cluster.kill(old.id)
        new = await cluster.wait_for_controller(other_than=old)
        await cluster.start(old.id)
        await cluster.cut_from_zookeeper(new.id)
        await cluster.wait_for_controller(other_than=new)
        await cluster.heal(new.id)
        await cluster.delete_topic("orders")
    print(hashlib.sha256(record.read_bytes()).hexdigest())

trio.run(main)
"""


def test_the_same_seed_gives_the_same_recording_in_any_process(tmp_path: Path) -> None:
    digests = {}
    for hash_seed, seed in (("0", 7), ("1", 7), ("random", 7), ("0", 8)):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", A_DAY, str(tmp_path / "day.pcapng"), str(seed)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        digests[hash_seed, seed] = ran.stdout
    assert len({digest for (_, seed), digest in digests.items() if seed == 7}) == 1
    assert digests["0", 7] != digests["0", 8]


async def test_a_cluster_in_memory_opens_no_socket_and_starts_no_thread_or_process() -> None:
    process = psutil.Process()
    before = len(process.net_connections()), threading.active_count(), len(process.children())
    async with Cluster(3, world=memory()) as cluster:
        await cluster.create_topic("t", partitions=3, replication_factor=3)
        during = len(process.net_connections()), threading.active_count(), len(process.children())
    assert during == before


async def test_failover_of_half_a_minute_takes_no_time() -> None:
    properties = {"zookeeper.session.timeout.ms": "30000"}
    began = time.monotonic()
    async with Cluster(3, world=memory(), properties=properties) as cluster:
        old = await cluster.wait_for_controller()
        virtually = trio.current_time()
        await cluster.kill(old.id)
        new = await cluster.wait_for_controller(other_than=old)
        assert new.epoch == old.epoch + 1
        assert 30 <= trio.current_time() - virtually < 31
    assert time.monotonic() - began < 30


async def test_a_healed_node_returns_with_a_new_session() -> None:
    async with Cluster(3, world=memory()) as cluster:
        old = await cluster.wait_for_controller()
        await cluster.cut_from_zookeeper(old.id)
        new = await cluster.wait_for_controller(other_than=old)
        assert (await cluster.node_status(old.id)).believes_active
        await cluster.heal(old.id)
        await cluster.wait_until(lambda: is_registered(cluster, old.id), "the former controller to register")
        assert await cluster.controller() == new
        assert not (await cluster.node_status(old.id)).believes_active


async def test_what_never_happens_is_given_up_at_once() -> None:
    began = time.monotonic()
    async with Cluster(1, world=memory()) as cluster:

        async def never() -> bool:
            return False

        with pytest.raises(HarnessError, match=r"timed out after 3600 s waiting for a miracle$"):
            await cluster.wait_until(never, "a miracle", timeout_s=3600)
    assert time.monotonic() - began < 60


def test_nodes_in_memory_are_no_processes() -> None:
    with pytest.raises(HarnessError, match="leave out processes=True"):
        Cluster(3, world=memory(), processes=True)


def test_a_world_and_a_zookeeper_exclude_each_other() -> None:
    with pytest.raises(HarnessError, match="either a world or a ZooKeeper"):
        Cluster(3, world=memory(), zookeeper="127.0.0.1:2181")


# virtual time


def test_the_clock_of_a_run_is_replaced_and_comes_back() -> None:
    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        with trio.move_on_after(1000) as outer:
            left = outer.deadline - trio.current_time()
            began = time.monotonic()
            with deterministic(1):
                assert trio.current_time() == 0
                assert outer.deadline - trio.current_time() == pytest.approx(left, abs=1)
                await trio.sleep(900)
                assert trio.current_time() == 900
            assert trio.lowlevel.current_clock() is clock
            assert outer.deadline - trio.current_time() == pytest.approx(left - 900, abs=1)
        assert time.monotonic() - began < 60

    trio.run(main)


def test_an_outer_timeout_strikes_in_virtual_time() -> None:
    async def main() -> None:
        began = time.monotonic()
        with trio.move_on_after(500) as outer, deterministic(1):
            await trio.sleep_forever()
        assert outer.cancelled_caught
        assert time.monotonic() - began < 60

    trio.run(main)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_tasks_comes_from_the_seed(seed: int) -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def note(i: int) -> None:
            order.append(i)

        with deterministic(seed):
            async with trio.open_nursery() as nursery:
                for i in range(20):
                    nursery.start_soon(note, i)
        return order

    first = trio.run(main)
    assert first == trio.run(main)
    assert first != sorted(first)


def test_a_mock_clock_is_kept(autojump_clock: MockClock) -> None:
    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        with deterministic(1):
            assert trio.lowlevel.current_clock() is clock

    trio.run(main, clock=MockClock(autojump_threshold=0))


# network


async def test_bytes_arrive_in_order_through_a_full_buffer(nursery: trio.Nursery) -> None:
    network = MemoryNetwork()
    listener = network.bind("127.0.0.1", 0)
    listener.listen(5)
    ours = await network.connect(*listener.address)
    theirs = await listener.accept()
    assert (ours.local, ours.remote) == (theirs.remote, theirs.local)
    sent = os.urandom(3 * BUFFER_BYTES + 1)

    async def send() -> None:
        await ours.stream.send_all(sent)
        await ours.stream.aclose()

    nursery.start_soon(send)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(trio.BusyResourceError):
        await ours.stream.send_all(b"x")
    received = b"".join([data async for data in theirs.stream])
    assert hashlib.sha256(received).digest() == hashlib.sha256(sent).digest()
    with pytest.raises(trio.BrokenResourceError):
        await theirs.stream.send_all(b"x")


async def test_who_closes_wakes_whoever_waits(nursery: trio.Nursery) -> None:
    network = MemoryNetwork()
    listener = network.bind("localhost", 0)
    listener.listen(5)
    ours = await network.connect(*listener.address)
    theirs = await listener.accept()

    async def send_too_much() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await ours.stream.send_all(bytes(2 * BUFFER_BYTES))

    nursery.start_soon(send_too_much)
    await trio.testing.wait_all_tasks_blocked()
    await theirs.stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await theirs.stream.receive_some()


async def test_ports_are_taken_refused_and_given_back() -> None:
    network = MemoryNetwork()
    with pytest.raises(ConnectionRefusedError, match=r"nobody listens on 127\.0\.0\.1:9092"):
        await network.connect("127.0.0.1", 9092)
    listener = network.bind("127.0.0.1", 9092)
    with pytest.raises(OSError, match="in use"):
        network.bind("127.0.0.1", 9092)
    with pytest.raises(ConnectionRefusedError):  # bound, but it does not listen yet
        await network.connect("127.0.0.1", 9092)
    listener.listen(5)
    waiting = await network.connect("127.0.0.1", 9092)
    listener.close()
    listener.close()
    assert await waiting.stream.receive_some() == b""
    network.bind("127.0.0.1", 9092)
    with pytest.raises(OSError, match="assign"):
        network.bind("192.0.2.1", 0)


# ZooKeeper


def _config(timeout_ms: int = 6000, *, set_acl: bool = False) -> ZooKeeperClientConfig:
    return ZooKeeperClientConfig("memory:2181", timeout_ms, timeout_ms, set_acl)


async def test_a_session_expires_when_its_time_is_up() -> None:
    world = memory()
    async with world.running(None, None), trio.open_nursery() as nursery:
        node, _ = await world.node(1, nursery)
        store = await node.zookeeper(_config())
        states: list[SessionState] = []
        store.on_session = states.append
        session = store.session_id
        world.cut(1)
        await trio.sleep(5.9)
        world.heal(1)
        assert store.session_id == session
        world.cut(1)
        await trio.sleep(6.1)
        assert states[-1] is SessionState.DISCONNECTED  # who is cut off does not learn of it
        with pytest.raises(StoreUnavailable, match="node-1 is cut off"):
            await node.zookeeper(_config())
        world.heal(1)
        assert states[-3:] == [SessionState.EXPIRED, SessionState.ESTABLISHED, SessionState.CONNECTED]
        assert store.session_id != session
        store.abandon()
        with pytest.raises(SessionExpired):
            await store.exists(["/"])
        await store.aclose()


async def test_client_certificates_are_refused() -> None:
    world = memory()
    async with world.running(None, None):
        with pytest.raises(StoreUnavailable, match=r"zookeeper\.set\.acl"):
            await MemoryWorld(world, "node-1").zookeeper(_config(set_acl=True))
