"""Nodes in this process and in their own processes."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster, HarnessError
from kce.harness.background import BackgroundTasks
from kce.harness.guard import Guard
from kce.harness.links import Links
from kce.harness.members import InProcessMember
from kce.harness.process_member import ProcessMember
from kce.harness.world import RealWorld, memory
from tests.clusters import is_registered

FAST = {"zookeeper.session.timeout.ms": "4000"}


async def test_a_member_in_this_process_starts_stops_and_keeps_its_ports() -> None:
    async with Cluster(1, world=memory()) as cluster:
        (member,) = cluster.members
        assert (member.state, member.pid) == ("running", None)
        with pytest.raises(HarnessError, match="node 1 is running already"):
            await member.start()
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


async def test_a_process_that_ends_at_once_is_an_error_with_its_log(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with closing(Guard.__new__(NoGuard)) as guard:
        member = ProcessMember(1, {}, lambda: None, nursery, guard, Links({1}), tmp_path, "INFO")
        with pytest.raises(
            HarnessError, match=rf"^node 1: it ended with exit code 1 \(log: {tmp_path}/node-1/server\.log\)$"
        ):
            await member.start()
    assert (member.state, member.pid) == ("stopped", None)


async def test_the_memory_of_requests_stays_with_the_process(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "5")
    with closing(Guard.__new__(NoGuard)) as guard:
        member = ProcessMember(1, {}, lambda: None, nursery, guard, Links({1}), tmp_path, "INFO")
        with pytest.raises(HarnessError, match="exit code 1"):
            await member.start()
    variables = (tmp_path / "env").read_text().splitlines()
    assert "MALLOC_MMAP_THRESHOLD_=33554432" in variables
    assert "MALLOC_TRIM_THRESHOLD_=5" in variables, "what is set stays"


class NoGuard(Guard):
    """Watches nothing."""

    def watch(self, pid: int) -> None:
        pass

    def forget(self, pid: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.slow
async def test_processes_can_be_paused_and_killed(tmp_path: Path) -> None:
    async with Cluster(2, processes=True, properties=FAST, data=tmp_path / "data") as cluster:
        old = await cluster.wait_for_controller()
        await cluster.pause(old.id)
        with trio.move_on_after(0.01):
            await cluster.member(old.id).knows([1, 2])
        new = await cluster.wait_for_controller(other_than=old)
        await cluster.resume(old.id)
        await cluster.wait_until(lambda: is_registered(cluster, old.id), "the paused node to return")
        status = await cluster.member(old.id).status()
        assert set(status.unanswered) <= {1, 2}, "not the answer that nobody waited for"
        pid = cluster.member(new.id).pid
        assert pid is not None
        await cluster.kill(new.id)
        assert cluster.member(new.id).state == "stopped"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(HarnessError, match=f"node {new.id} is not running"):
            await cluster.pause(new.id)
        await cluster.wait_until_settled()  # so that node 1 has taken part in state changes
        pids = [m.pid for m in cluster.members if m.pid is not None]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    logs = tmp_path / "data" / "logs" / "node-1"
    assert all((logs / name).stat().st_size for name in ("server.log", "controller.log", "state-change.log"))
