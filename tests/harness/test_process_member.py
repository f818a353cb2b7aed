"""Nodes in their own processes."""

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
from kce.harness.process_member import ProcessMember
from tests.clusters import is_registered

FAST = {"zookeeper.session.timeout.ms": "4000"}


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
