"""Clocks that jump, disks that are full or slow: of a node in memory, in this process, and in one of its own."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kce.broker_stub.disk import Disk
from kce.harness import Cluster, HarnessError
from kce.harness.world import memory
from kce.harness.world.machine import MOST_CLOCK_S, Machine
from kce.harness.world.memory_disk import MemoryDisk
from kce.harness.world.real_disk import RealDisk
from kce.wire.transport import ConnectionLost
from tests.clusters import leaders_and_isrs, node
from tests.harness.conformance.records import clients

FAST = {"zookeeper.session.timeout.ms": "2000"}
HOUR_S = 3600


@pytest.mark.parametrize("make", [RealDisk, lambda machine: MemoryDisk(machine=machine)])
async def test_a_disk_that_is_full_or_slow(make: Callable[[Machine], Disk], tmp_path: Path) -> None:
    stood_still: list[float] = []
    machine = Machine(stood_still.append)
    disk, path = make(machine), f"{tmp_path}/f"
    disk.make_folder(str(tmp_path))
    file = disk.open(path)
    file.append(b"ab")
    machine.disk_is_full = True
    for write in (lambda: file.append(b"c"), lambda: disk.write(f"{tmp_path}/g", b"c")):
        with pytest.raises(OSError, match="No space left") as caught:
            write()
        assert caught.value.errno == errno.ENOSPC
    assert bytes(file.read(0, 9)) == b"ab"
    assert not disk.exists(f"{tmp_path}/g")
    file.truncate(1)  # space is given back
    machine.disk_is_full = False
    assert stood_still == []
    machine.slow_disk(0.25)
    file.append(b"c")
    assert bytes(file.read(0, 9)) == b"ac"
    file.flush()
    disk.write(path, b"d")
    disk.flush(path)
    disk.read(path)
    assert stood_still == [0.25] * 6
    began = trio.current_time()
    await disk.flush_all([path])
    assert trio.current_time() - began >= 0.25
    assert len(stood_still) == 6


def test_what_a_machine_cannot_be() -> None:
    machine = Machine(lambda _: None)
    for seconds in (math.nan, math.inf, -0.1, 61):
        with pytest.raises(HarnessError, match="a disk cannot be slower by"):
            machine.slow_disk(seconds)
    for seconds in (math.nan, math.inf, -MOST_CLOCK_S - 1):
        with pytest.raises(HarnessError, match="a clock cannot be wrong by"):
            machine.jump_clock(seconds)
    machine.jump_clock(MOST_CLOCK_S)
    with pytest.raises(HarnessError, match="a clock cannot be wrong by"):
        machine.jump_clock(1)
    machine.disk_is_full, machine.disk_delay_s = True, 1
    machine.mend()
    assert machine.to_json() == Machine(lambda _: None).to_json()


async def test_the_clock_of_one_node_jumps() -> None:
    async with Cluster(2, world=memory(3), properties=FAST) as cluster:
        ours, other = node(cluster, 1), node(cluster, 2)
        now = other.now_ms()
        await cluster.jump_clock(1, -HOUR_S)
        await cluster.restart(1)
        assert other.now_ms() - node(cluster, 1).now_ms() == HOUR_S * 1000
        assert ours.now_ms() < now
        await cluster.create_topic("t", assignment={0: [1, 2]})  # timeouts are measured by another clock
        await cluster.repair()
        assert other.now_ms() == node(cluster, 1).now_ms()
        with pytest.raises(HarnessError, match="there is no node 3"):
            await cluster.jump_clock(3, 1)


async def test_a_full_disk_halts_a_leader_and_the_cluster_goes_on() -> None:
    async with clients(2, controllers=1, properties=FAST) as c:
        await c.create({0: [1, 2]})
        await c.cluster.fill_disk(1)
        with pytest.raises(ConnectionLost):
            await c.produce(1, b"lost")
        await c.cluster.wait_until(lambda: is_stopped(c.cluster, 1), "node 1 to halt")
        assert c.cluster.member(1).end_reason().endswith("has failed, and none is left")
        assert 1 in await c.cluster.registered()  # its session lasts
        await c.cluster.wait_until_settled()
        assert (await leaders_and_isrs(c.cluster, "t"))[0] == (2, {2})
        await c.cluster.free_disk(1)
        await c.cluster.restart(1)
        await c.cluster.wait_until_settled()


async def is_stopped(cluster: Cluster, node_id: int) -> bool:
    await trio.lowlevel.checkpoint()
    return cluster.member(node_id).state == "stopped"


async def test_a_node_with_a_slow_disk_answers_late() -> None:
    async with clients(2, controllers=1, properties=FAST) as c:
        await c.create({0: [1]})
        took = []
        for seconds in (0.0, 0.5, 0.0):
            await c.cluster.slow_disk(1, seconds)
            await trio.sleep(10)
            began = trio.current_time()
            await c.produce(1, b"x")
            took.append(trio.current_time() - began)
        assert took[0] < 0.1 < 0.5 <= took[1] < 10
        assert took[2] < 0.1
