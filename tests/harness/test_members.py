"""Nodes in this process and in their own processes."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster, HarnessError
from kce.harness.guard import Guard
from kce.harness.links import Links
from kce.harness.members import ProcessMember
from kce.harness.world import memory
from tests.clusters import is_registered

FAST = {"zookeeper.session.timeout.ms": "1500"}


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


async def test_a_member_in_this_process_cannot_be_paused() -> None:
    async with Cluster(1, world=memory()) as cluster:
        for call in (cluster.pause, cluster.resume):
            with pytest.raises(HarnessError, match="use processes=True"):
                await call(1)


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
        new = await cluster.wait_for_controller(other_than=old)
        await cluster.resume(old.id)
        await cluster.wait_until(lambda: is_registered(cluster, old.id), "the paused node to return")
        pid = cluster.member(new.id).pid
        assert pid is not None
        await cluster.kill(new.id)
        assert cluster.member(new.id).state == "stopped"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(HarnessError, match=f"node {new.id} is not running"):
            await cluster.pause(new.id)
        pids = [m.pid for m in cluster.members if m.pid is not None]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    logs = tmp_path / "data" / "logs" / "node-1"
    assert all((logs / name).stat().st_size for name in ("server.log", "controller.log", "state-change.log"))
