"""The history of a cluster: selections, waiting, assertions that show what came instead, a trace to diff."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import kce
from kce import wire
from kce.harness import Cluster, HarnessError
from kce.harness.history import History
from kce.harness.links import FrameEvent, Links
from kce.harness.world import memory


async def test_selections_waiting_and_assertions() -> None:
    async with Cluster(3, world=memory(seed=2)) as cluster:
        history = cluster.history
        await cluster.create_topic("t", assignment={0: [2, 3]})
        active = await cluster.wait_for_controller()
        found = await history.wait_for(api="LeaderAndIsr", to=2)
        assert [(e.source, e.destination, e.is_request) for e in found] == [(active.id, 2, True)]
        (message,) = history.messages(api="LeaderAndIsr", to=3)
        assert isinstance(message, wire.LeaderAndIsrRequest)
        assert history.assert_count(1, api="LeaderAndIsr", source=3, is_request=False)
        assert history.events(lambda m: getattr(m, "controller_epoch", None) == active.epoch, to=2)
        history.assert_none(api="StopReplica")
        with pytest.raises(
            AssertionError, match=r"(?s)expected 9 of requests api='LeaderAndIsr' to=2, found 1; the last"
        ):
            history.assert_count(9, api="LeaderAndIsr", to=2)
        with pytest.raises(
            AssertionError, match=rf"(?s)expected no .*found 1:\n  node {active.id} -> node 2 LeaderAndIsr v7"
        ):
            history.assert_none(api="LeaderAndIsr", to=2)
        with pytest.raises(
            HarnessError, match=r"(?s)timed out after 5 s waiting for 1 of requests api='StopReplica'.*UpdateM"
        ):
            await history.wait_for(api="StopReplica", timeout_s=5)
        history.clear()
        assert (len(history), history.events()) == (0, [])


async def test_a_cluster_without_history() -> None:
    async with Cluster(1, world=memory(), history=False) as cluster:
        await cluster.create_topic("t")
        assert len(cluster.history) == 0
        assert not cluster.links.observed
        with pytest.raises(HarnessError, match="no history is kept"):
            await cluster.history.wait_for(api="LeaderAndIsr", timeout_s=1)
        with pytest.raises(HarnessError, match="no history is kept"):
            cluster.history.assert_none(api="LeaderAndIsr")
        with pytest.raises(AssertionError, match="did not fire, of 0 frames that matched; no history is kept"):
            async with cluster.faults(kce.Rule(api="LeaderAndIsr", drop=True)):
                pass


#: followers forget several partitions at a time
BAD_DAY = """
import kce
with kce.SyncCluster(3, world=kce.memory(seed=11)) as cluster:
    cluster.create_topic("orders", partitions=6, replication_factor=3)
    with cluster.faults(kce.Rule(probability=0.3, delay=0.2, jitter=0.5), must_fire=False):
        old = cluster.zombie_controller()
        cluster.create_topic("x", partitions=3, replication_factor=2)
    cluster.release_control_requests(old.id)
    cluster.heal(old.id)
    cluster.wait_until_settled()
    cluster.kill(2)
    cluster.expire_session(2)
    cluster.wait_until_settled()
    cluster.start(2)
    cluster.wait_until_settled()
    print(*cluster.history.trace(), sep="\\n")
"""


def test_the_trace_of_a_seed_is_the_same_in_each_process() -> None:
    """Hashes of texts differ from process to process, and with them the order of sets."""
    traces = [
        subprocess.run(
            [sys.executable, "-c", BAD_DAY], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("4", "5", "6")
    ]
    assert traces[0].count(b"\n") > 100
    assert traces[0] == traces[1] == traces[2]


async def write_trace(path: Path, seed: int) -> None:
    async with Cluster(3, world=memory(seed)) as cluster:
        await cluster.create_topic("t", partitions=3, replication_factor=2)
        cluster.history.write(path, times=False)


def test_the_trace_of_a_seed_is_the_same_in_each_run(tmp_path: Path) -> None:
    traces = []
    for seed in (4, 4, 5):
        trio.run(write_trace, tmp_path / "trace", seed)
        traces.append((tmp_path / "trace").read_text())
    first = traces[0]
    assert [trace == first for trace in traces] == [True, True, False]
    lines = [json.loads(text) for text in first.splitlines()]
    (first_lai, *_) = [one for one in lines if one["api"] == "LeaderAndIsr" and one["kind"] == "request"]
    assert first_lai["body"]["controller_epoch"] == 1
    assert "time" not in first_lai


def test_large_frames_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kce.harness.history.MAX_BYTES", 1000)
    history = History(Links())
    sizes = [10, 400, 300, 200, 250, 2000, 5, 900, 95]
    kept = []
    for size in sizes:
        history.record(FrameEvent(0, None, 1, "DATA", True, wire.Header(3, 1, 1, "c"), bytes(size)))
        kept.append([len(event.frame) for event in history])
    assert kept[3:] == [
        [10, 400, 300, 200], [300, 200, 250], [2000], [5], [5, 900], [5, 900, 95],
    ]  # fmt: skip
    assert (history.count, history.dropped) == (9, 6)
    history.clear()
    history.record(FrameEvent(0, None, 1, "DATA", True, wire.Header(3, 1, 1, "c"), bytes(999)))
    history.record(FrameEvent(0, None, 1, "DATA", True, wire.Header(3, 1, 1, "c"), bytes(1)))
    assert (len(history), history.dropped) == (2, 0)


async def test_old_events_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kce.harness.history.MAX_EVENTS", 5)
    async with Cluster(2, world=memory()) as cluster:
        await cluster.create_topic("t", partitions=2, replication_factor=2)
        assert len(cluster.history) == 5
        assert cluster.history.dropped == cluster.history.count - 5 > 0
