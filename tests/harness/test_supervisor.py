"""Finding a running cluster, and sending it commands.

Covers: harness/running.py, harness/commands.py, harness/actions.py.
"""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import trio

from kce.harness import ActiveController, Cluster, SyncCluster
from kce.harness.actions import ACTIONS
from kce.harness.cli import nodes
from kce.harness.commands import ClusterTarget
from kce.harness.errors import HarnessError
from kce.harness.guard import birth
from kce.harness.running import command, find_cluster, registry, running_clusters
from kce.harness.supervisor import Supervisor


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry of this test's clusters."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return registry()


class FakeCluster:
    """Node 1 can be killed; every other id is unknown."""

    def __init__(self) -> None:
        self.count_rule = self.add_rule = self.remove_rule = None
        self.guard = SimpleNamespace(remove=lambda path: None)
        self.cluster_id, self.zookeeper, self.data = "id", "127.0.0.1:2181", Path("/data")
        self.members = [SimpleNamespace(id=1, pid=7, state="running", addresses={"DATA": "127.0.0.1:9092"})]
        self.killed: list[int] = []
        self.shrunk: tuple[str, int, int] | None = None
        self.waited = 0

    def bootstrap_servers(self) -> str:
        return "127.0.0.1:9092"

    async def kill(self, node: int) -> None:
        if node != 1:
            raise HarnessError(f"there is no node {node}")
        self.killed.append(node)

    async def shrink_isr(self, topic: str, partition: int, broker: int) -> None:
        self.shrunk = topic, partition, broker

    async def wait_until_settled(self) -> None:
        self.waited += 1

    pause = resume = restart = cut_from_zookeeper = heal = hold_control_requests = release_control_requests = kill


async def served(nursery: trio.Nursery, changes: list[str]) -> tuple[Supervisor, FakeCluster]:
    cluster = FakeCluster()
    target = ClusterTarget(cluster)  # type: ignore[arg-type]
    supervisor = Supervisor(target, cluster.guard, changes.append)  # type: ignore[arg-type]
    await nursery.start(supervisor.run)
    supervisor.publish(None)
    return supervisor, cluster


async def send(name: str, node: int | None = None) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(command, find_cluster(None), name, node=node))


async def test_commands_are_executed_and_reported(nursery: trio.Nursery) -> None:
    changes: list[str] = []
    _, cluster = await served(nursery, changes)
    assert (await send("kill", 1))["text"] == "node 1 is killed"
    assert cluster.killed == [1]
    assert changes == ["node 1 is killed"]
    shown = await send("describe")
    assert shown["nodes"] == [{"id": 1, "pid": 7, "state": "running", "listeners": {"DATA": "127.0.0.1:9092"}}]
    assert shown["pid"] == os.getpid()


async def test_a_command_can_wait_until_the_cluster_has_settled(nursery: trio.Nursery) -> None:
    _, cluster = await served(nursery, [])
    ask = partial(command, find_cluster(None), "isr shrink", topic="t", partition=3, broker=2)
    await trio.to_thread.run_sync(ask)
    assert (cluster.shrunk, cluster.waited) == (("t", 3, 2), 0)
    done = await trio.to_thread.run_sync(partial(ask, wait=True))
    assert (done["text"], cluster.waited) == ("broker 2 lags: it has left the ISR of t-3", 1)


def test_every_action_is_a_method_of_the_cluster_and_a_command() -> None:
    taken = inspect.signature
    for action in ACTIONS:
        assert len(taken(getattr(Cluster, action.call)).parameters) == 1 + len(action.arguments), action.words
        assert hasattr(SyncCluster, action.call)
        found: click.Command = nodes.COMMANDS[action.words.split()[0]]
        if isinstance(found, click.Group):
            found = found.commands[action.words.split()[1]]
        assert [p.name for p in found.params if isinstance(p, click.Argument)] == list(action.arguments)
        assert set(action.pattern.groupindex) <= set(action.arguments)
        assert action.done.format_map({**dict.fromkeys(action.arguments, 1), "result": ActiveController(1, 1)})


async def test_a_socket_whose_path_is_too_long(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below the long TMPDIR of a build: the system takes some 100 bytes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(HarnessError, match=r"\.sock cannot be made: .*too long; set XDG_RUNTIME_DIR"):
        await served(nursery, [])


async def test_errors_come_back_as_text(nursery: trio.Nursery) -> None:
    await served(nursery, [])
    for name, node, text in (
        ("kill", 9, "there is no node 9"),
        ("frobnicate", 1, "not a command: frobnicate"),
        ("kill", None, "not a command: kill"),
    ):
        with pytest.raises(HarnessError, match=text):
            await send(name, node)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"{}\n", b'{"command": []}\n', b"x" * 70_000])
async def test_a_line_that_is_no_command_is_answered_with_an_error(nursery: trio.Nursery, line: bytes) -> None:
    supervisor, _ = await served(nursery, [])
    async with await trio.open_unix_socket(str(supervisor.socket_path)) as stream:
        await stream.send_all(line)
        answer = json.loads(await stream.receive_some())
    assert "not a command" in answer["error"]
    assert len(answer["error"]) < 400


async def test_files_are_written_and_removed(nursery: trio.Nursery, tmp_path: Path, folder: Path) -> None:
    supervisor, _ = await served(nursery, [])
    assert len(os.listdir(folder)) == 2
    ready = tmp_path / "new" / "ready.json"
    supervisor.publish(ready)
    assert json.loads(ready.read_text()) == running_clusters()[0] == find_cluster(ready)
    supervisor.retract(ready)
    assert not ready.exists()
    assert os.listdir(folder) == []


def entry(folder: Path, pid: int, born: str | None, name: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"pid": pid, "birth": born, "zookeeper": name, "socket": str(folder / "none")}))
    return path


def test_clusters_that_died_are_removed_from_the_registry(folder: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = entry(folder, dead.pid, "1", "dead")
    reused = entry(folder, os.getpid(), "another process", "reused")
    alive = entry(folder, os.getpid(), birth(os.getpid()), "alive")
    assert [found["zookeeper"] for found in running_clusters()] == ["alive"]
    assert (gone.exists(), reused.exists(), alive.exists()) == (False, False, True)


def test_a_runtime_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`su` and `sudo` leave it in the environment. A file in its place refuses as it does, root too."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert registry() == tmp_path / f"kce-{os.getuid()}"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(HarnessError, match=r"no folder of running clusters can be made in .*/file: Not a directory"):
        registry()


def test_one_of_several_clusters_must_be_chosen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [entry(folder, os.getpid(), birth(os.getpid()), name) for name in ("a", "b")]
    paths[1].write_text(json.dumps({**json.loads(paths[1].read_text()), "name": "b"}))
    os.utime(paths[0], (1, 1))  # the latest comes first
    with pytest.raises(HarnessError, match=r"2 clusters .*: b \(ZooKeeper b\), pid \d+ \(ZooKeeper a\).* --name NAME"):
        find_cluster(None)
    assert find_cluster(Path("b"))["zookeeper"] == "b"  # by its name
    assert find_cluster(Path(str(os.getpid())))["pid"] == os.getpid()  # by what messages call one without a name
    with pytest.raises(HarnessError, match="no cluster of yours is called c, and there is no such file"):
        find_cluster(Path("c"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    assert find_cluster(Path("b"))["zookeeper"] == "b"  # not the folder
    assert find_cluster(paths[0])["zookeeper"] == "a"


def test_a_file_that_is_no_description_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text("nonsense")
    with pytest.raises(HarnessError, match=r"ready\.json was not written by `kce up --ready-file`"):
        find_cluster(tmp_path / "ready.json")


def test_a_cluster_that_does_not_answer_is_an_error(folder: Path) -> None:
    entry(folder, os.getpid(), birth(os.getpid()), "silent")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "none"))
        with pytest.raises(HarnessError, match=f"the cluster of pid {os.getpid()} does not answer"):
            command(find_cluster(None), "describe")
