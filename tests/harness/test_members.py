"""Nodes in this process."""

from __future__ import annotations

import pytest
import trio

from kce.harness import Cluster, HarnessError
from kce.harness.background import BackgroundTasks
from kce.harness.links import Links
from kce.harness.members import InProcessMember
from kce.harness.world import RealWorld, memory
from tests.clusters import is_registered

FAST = {"zookeeper.session.timeout.ms": "4000"}


async def test_a_member_in_this_process_starts_stops_and_keeps_its_ports() -> None:
    async with Cluster(1, world=memory()) as cluster:
        (member,) = cluster.members
        assert (member.state, member.pid) == ("running", None)
        with pytest.raises(HarnessError, match="node 1 is running already"):
            await member.start()
        with pytest.raises(HarnessError, match="node 1 is running already"):
            await cluster.start(1)
        await cluster.pause(1)
        with pytest.raises(HarnessError, match="node 1 is paused"):
            await cluster.start(1)
        await cluster.resume(1)
        addresses = member.addresses
        await member.stop()
        assert member.state == "stopped"
        for call in (member.stop, member.kill, member.quit, member.status):
            with pytest.raises(HarnessError, match="node 1 is not running"):
                await call()
        await member.start()
        assert (member.state, member.addresses) == ("running", addresses)


async def test_a_node_in_memory_can_be_paused() -> None:
    """It is deaf and dumb, and its session expires; then it registers again."""
    async with Cluster(3, world=memory(), properties=FAST) as cluster:
        old = await cluster.wait_for_controller()
        await cluster.pause(old.id)
        assert cluster.member(old.id).state == "paused"
        assert await cluster.registered() == {1, 2, 3}
        new = await cluster.wait_for_controller(other_than=old)
        assert await cluster.registered() == {1, 2, 3} - {old.id}
        cluster.history.clear()
        await trio.sleep(60)
        assert not cluster.history.events(source=old.id, is_request=None)
        await cluster.resume(old.id)
        await cluster.wait_until(lambda: is_registered(cluster, old.id), "the paused node to return")
        assert cluster.member(old.id).state == "running"
        await cluster.pause(new.id)
        await cluster.heal(new.id)  # from a fault that it does not have
        await cluster.wait_for_controller(other_than=new)
        await cluster.restart(new.id)
        await cluster.pause(new.id)
        await cluster.repair()
        assert [member.state for member in cluster.members] == ["running"] * 3
        await cluster.pause(new.id)  # until the end


async def test_a_member_in_this_process_cannot_be_paused(nursery: trio.Nursery) -> None:
    member = InProcessMember(1, {}, lambda: None, BackgroundTasks(nursery), RealWorld(), Links({1}))
    for call in (member.pause, member.resume):
        with pytest.raises(HarnessError, match="use processes=True"):
            await call()
