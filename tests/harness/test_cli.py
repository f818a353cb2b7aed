"""`kce` as a person runs it: processes, files, exit codes and what is printed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cli import COMMANDS
from harness.zookeeper import free_port

KCE = [sys.executable, "-m", "harness"]


def kce(*arguments: str, env: dict[str, str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KCE, *arguments], capture_output=True, text=True, env=env, timeout=timeout, check=False)


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Those of ``pids`` that still live after ``seconds``."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [p.pid for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def up(tmp_path: Path, env: dict[str, str], *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running `kce up`, and what its ready file says."""
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [*KCE, "up", "--ready-file", str(ready), "--set", "zookeeper.session.timeout.ms=1500", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        seen = ""
        while "Ctrl-C stops it all" not in seen:
            line = process.stdout.readline()
            assert line, f"it ended:\n{seen}"
            seen += line
        watchdog.cancel()
        yield process, json.loads(ready.read_text())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        process.stdout.close()


def family(process: subprocess.Popen[str]) -> list[int]:
    """It and everything that it has started, ZooKeeper and the guard included."""
    return [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]


def test_help_and_version(env: dict[str, str]) -> None:
    top = kce("--help", env=env)
    assert top.returncode == 0
    for name in COMMANDS:
        assert f"\n  {name} " in top.stdout
        shown = kce(name, "--help", env=env)
        assert shown.returncode == 0, shown.stderr
        assert "Usage: kce" in shown.stdout
        assert r"\b" not in shown.stdout  # of click, which is to leave examples as they are
    assert kce("--version", env=env).stdout.startswith("kce, version 0.")
    wrong = kce("frobnicate", env=env)
    assert wrong.returncode == 2
    assert "No such command 'frobnicate'" in wrong.stderr


def test_nothing_is_running(env: dict[str, str], tmp_path: Path) -> None:
    for arguments in (["kill", "1"], ["topic", "list"], ["describe"]):
        failed = kce(*arguments, env=env)
        assert (failed.returncode, failed.stderr) == (
            1,
            "kce: no cluster of yours is running: start one with `kce up`\n",
        )
    missing = kce("kill", "1", "--cluster", str(tmp_path / "nope.json"), env=env)
    assert missing.returncode == 1
    assert "nope.json cannot be read: No such file" in missing.stderr


@pytest.mark.slow
def test_a_day_with_a_cluster(env: dict[str, str], tmp_path: Path) -> None:
    port = free_port()
    with up(tmp_path, env, "--brokers", "3", "--data-port", str(port)) as (process, ready):
        assert [n["id"] for n in ready["nodes"]] == [1, 2, 3]
        assert ready["nodes"][0]["listeners"]["DATA"] == f"127.0.0.1:{port}"
        created = kce(
            "topic", "create", "orders", "--replica-assignment", "1:2:3,2:3:1", "--config", "retention.ms=1", env=env
        )
        assert created.returncode == 0, created.stderr
        assert kce("topic", "list", env=env).stdout == "orders\n"
        (topic,) = json.loads(kce("topic", "describe", "--json", env=env).stdout)
        assert topic["config"] == {"retention.ms": "1"}
        assert [(p["leader"], p["replicas"]) for p in topic["partitions"]] == [(1, [1, 2, 3]), (2, [2, 3, 1])]
        assert "orders  1          2       2,3,1     2,3,1" in kce("topic", "describe", "orders", env=env).stdout

        assert kce("kill", "2", env=env).stdout == "node 2 is killed\n"
        again = kce("kill", "2", env=env)
        assert (again.returncode, again.stderr) == (1, "kce: node 2 is not running\n")
        assert kce("restart", "2", env=env).stdout == "node 2 is restarted\n"
        for command in ("pause", "resume"):
            assert kce(command, "3", env=env).returncode == 0
        shown = json.loads(kce("describe", "--json", env=env).stdout)
        assert shown["controller"] in (1, 2, 3)
        assert {k: v["state"] for k, v in shown["brokers"].items()} == {"1": "running", "2": "running", "3": "running"}
        unknown = kce("kill", "9", env=env)
        assert unknown.stderr == "kce: there is no node 9 in this cluster; there are 1, 2, 3\n"

        elsewhere = kce("topic", "list", "--zookeeper", ready["zookeeper"], env=env)
        assert elsewhere.stdout == "orders\n"
        assert kce("topic", "create", "orders", env=env).stderr == (
            "kce: topic orders already exists, or is still being deleted\n"
        )
        assert kce("topic", "delete", "orders", env=env).stdout == "topic orders is deleted\n"
        everyone = family(process)
        assert len(everyone) >= 6
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert wait_gone(everyone, 5) == []
    assert not Path(ready["data"]).exists()
    assert not (tmp_path / "ready.json").exists()
    assert kce("describe", env=env).returncode == 1


@pytest.mark.slow
def test_kill_9_leaves_nothing_running(env: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "traffic.pcapng"
    with up(tmp_path, env, "--brokers", "2", "--record", str(record)) as (process, ready):
        assert kce("pause", "1", env=env).returncode == 0  # a paused node cannot see that its parent is gone
        everyone = family(process)
        process.kill()
        process.wait(10)
        assert wait_gone(everyone, 10) == []
    assert not Path(ready["data"]).exists()
    assert list((tmp_path / "traffic.pcapng.parts").glob("*.pcapng"))  # what was recorded is not lost
    assert "no cluster of yours" in kce("describe", env=env).stderr


@pytest.mark.slow
def test_refusals_of_up(env: dict[str, str], tmp_path: Path) -> None:
    before = {p.pid for p in psutil.process_iter()}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for option in ("--data-port", "--control-port", "--zookeeper-port"):
            failed = kce("up", "--brokers", "1", option, port, env=env)
            assert failed.returncode == 1
            assert port in failed.stderr
            assert "in use" in failed.stderr or "holds" in failed.stderr
            assert "Traceback" not in failed.stderr
    nowhere = kce("up", "--zookeeper", f"127.0.0.1:{free_port()}", env=env)
    assert (nowhere.returncode, "no ZooKeeper answers at" in nowhere.stderr) == (1, True)
    (tmp_path / "file").touch()
    unwritable = kce("up", "--data", str(tmp_path / "file" / "x"), env=env)
    assert (unwritable.returncode, "is not writable" in unwritable.stderr) == (1, True)
    setting = kce("up", "--set", "nonsense", env=env)
    assert (setting.returncode, "not KEY=VALUE" in setting.stderr) == (2, True)
    left = [p for p in psutil.process_iter() if p.pid not in before and _has_in_environment(p, str(tmp_path))]
    assert left == []


def _has_in_environment(process: psutil.Process, text: str) -> bool:
    try:
        return text in " ".join(process.environ().values())
    except psutil.Error:  # it has just ended
        return False
