"""`kce up`, and commands on its cluster from other processes.

Covers: harness/cli/fault.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest
from click.testing import CliRunner

from kce.harness import Cluster
from kce.harness.cli import fault
from kce.harness.cli.options import node_settings
from kce.harness.cli.up import _report_unsettled
from kce.harness.embedded_zookeeper import free_port
from kce.harness.errors import HarnessError
from kce.harness.world import memory
from tests.harness.cli.support import KCE, consecutive_free_ports, kce, up
from tests.harness.conftest import Here
from tests.harness.processes import family, wait_gone


@pytest.mark.slow
def test_a_day_with_a_cluster(env: dict[str, str], here: Here, tmp_path: Path) -> None:
    port = consecutive_free_ports(3)
    with up(tmp_path, env, "--brokers", "3", "--data-port", str(port)) as (process, ready):
        assert [n["id"] for n in ready["nodes"]] == [1, 2, 3]
        assert ready["nodes"][0]["listeners"]["DATA"] == f"127.0.0.1:{port}"
        created = kce(
            "topic", "create", "orders", "--replica-assignment", "1:2:3,2:3:1", "--config", "retention.ms=1", env=env
        )
        assert created.returncode == 0, created.stderr
        assert here("topic", "list").out == "orders\n"
        (topic,) = json.loads(here("topic", "describe", "--json").out)
        assert topic["config"] == {"retention.ms": "1"}
        assert [(p["leader"], p["replicas"]) for p in topic["partitions"]] == [(1, [1, 2, 3]), (2, [2, 3, 1])]
        assert "orders  1          2       2,3,1     2,3,1" in here("topic", "describe", "orders").out

        assert here("kill", "2").out == "node 2 is killed\n"
        again = here("kill", "2")
        assert (again.code, again.err) == (1, "kce: node 2 is not running\n")
        assert here("restart", "2").out == "node 2 is restarted\n"
        shrunk = here("isr", "shrink", "orders", "0", "2")
        assert shrunk.out == "broker 2 lags: it has left the ISR of orders-0\n"
        assert here("isr", "heal", "orders", "0", "2", "--wait").out == "broker 2 fetches orders-0 again\n"
        assert here("pause", "3").code == 0
        assert here("expire", "3", "--wait").out == "node 3 is without its ZooKeeper session\n"
        assert 3 not in [p["leader"] for p in json.loads(here("topic", "describe", "--json").out)[0]["partitions"]]
        assert here("resume", "3", "--wait").code == 0
        wrong = here("log-dir", "fail", "3", "/nowhere")
        assert (wrong.code, wrong.err.startswith("kce: there is no log directory /nowhere of node 3")) == (1, True)
        shown = json.loads(here("describe", "--json").out)
        assert shown["controller"] in (1, 2, 3)
        assert {k: v["state"] for k, v in shown["brokers"].items()} == {"1": "running", "2": "running", "3": "running"}
        unknown = here("kill", "9")
        assert unknown.err == "kce: there is no node 9 in this cluster; there are 1, 2, 3\n"

        elsewhere = here("topic", "list", "--zookeeper", ready["zookeeper"])
        assert elsewhere.out == "orders\n"
        assert here("topic", "create", "orders").err == ("kce: Topic 'orders' already exists.\n")
        assert here("topic", "delete", "orders").out == "topic orders is deleted\n"
        everyone = family(process.pid)
        assert len(everyone) >= 6
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert wait_gone(everyone) == []
    assert not Path(ready["data"]).exists()
    assert not (tmp_path / "ready.json").exists()
    assert here("describe").code == 1


@pytest.mark.slow
def test_json_for_scripts(env: dict[str, str]) -> None:
    """One line on stdout: what a script reads to know that the cluster is ready, and where."""
    with started([*KCE, "up", "--brokers", "1", "--json"], env) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["kind"], [n["state"] for n in ready["nodes"]]) == ("cluster", ["running"])
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == ""
        assert process.returncode == 0


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, start_new_session=True
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


@pytest.mark.slow
def test_kill_9_leaves_nothing_running(env: dict[str, str], here: Here, tmp_path: Path) -> None:
    record = tmp_path / "traffic.pcapng"
    with up(tmp_path, env, "--brokers", "2", "--record", str(record)) as (process, ready):
        assert here("pause", "1").code == 0  # a paused node cannot see that its parent is gone
        everyone = family(process.pid)
        process.kill()
        process.wait(10)
        assert wait_gone(everyone) == []
    assert not Path(ready["data"]).exists()
    assert list((tmp_path / "traffic.pcapng.parts").glob("*.pcapng"))  # what was recorded is not lost
    assert "no cluster of yours" in here("describe").err


@pytest.mark.slow
def test_refusals_of_up(env: dict[str, str], here: Here, zookeeper: str, tmp_path: Path) -> None:
    before = {p.pid for p in psutil.process_iter()}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        alone = kce("up", "--brokers", "1", "--data-port", port, env=env)
        for code, err in (
            (alone.returncode, alone.stderr),
            here("up", "--brokers", "1", "--control-port", port, "--zookeeper", f"{zookeeper}/refused")[::2],
            here("up", "--brokers", "1", "--zookeeper-port", port)[::2],
        ):
            assert code == 1
            assert port in err
            assert "in use" in err or "holds" in err
            assert "Traceback" not in err
    nowhere = here("up", "--zookeeper", f"127.0.0.1:{free_port()}", "--set", "zookeeper.connection.timeout.ms=200")
    assert (nowhere.code, "no ZooKeeper answers at" in nowhere.err) == (1, True)
    (tmp_path / "file").touch()
    unwritable = here("up", "--data", str(tmp_path / "file" / "x"))
    assert (unwritable.code, "is not writable" in unwritable.err) == (1, True)
    unwritable = here("up", "--record", str(tmp_path / "file" / "x"))
    assert (unwritable.code, unwritable.err) == (1, f"kce: {tmp_path}/file/x cannot be written: Not a directory\n")
    setting = here("up", "--set", "nonsense")
    assert (setting.code, "not KEY=VALUE" in setting.err) == (2, True)
    left = [p for p in psutil.process_iter() if p.pid not in before and _has_in_environment(p, str(tmp_path))]
    assert left == []


def _has_in_environment(process: psutil.Process, text: str) -> bool:
    try:
        return text in " ".join(process.environ().values())
    except psutil.Error:  # it has just ended
        return False


@pytest.mark.slow
def test_it_reports_a_node_and_a_zookeeper_that_are_gone(env: dict[str, str], tmp_path: Path) -> None:
    with up(tmp_path, env, "--brokers", "2", "--set", "log.retention.hours=1") as (process, ready):
        pids = {node["id"]: node["pid"] for node in ready["nodes"]}
        os.kill(pids[2], signal.SIGKILL)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "node 2: it ended by signal SIGKILL: " in line
        assert "`kce restart 2` starts it again" in line
        (java,) = [p for p in psutil.Process(process.pid).children() if p.name() == "java"]
        java.kill()
        line = next(line for line in process.stdout if "broke under" not in line)  # an operation may be on its way
        assert f"ZooKeeper at {ready['zookeeper']} does not answer" in line


async def test_it_reports_control_requests_that_nobody_answers() -> None:
    lines: list[str] = []
    async with Cluster(2, world=memory(seed=1)) as cluster:
        controller = await cluster.wait_for_controller()
        await _report_unsettled(cluster, lines.append)
        assert lines == []
        await cluster.hold_control_requests(controller.id)
        await cluster.create_topic("t", wait=False)
        await _report_unsettled(cluster, lines.append)
    (line,) = lines
    assert line.startswith("after 10 s ")
    assert "; the logs of the nodes are in " in line


async def test_it_does_not_report_what_follows_when_a_node_is_ended() -> None:
    lines: list[str] = []
    async with Cluster(2, world=memory(seed=1)) as cluster:
        controller = await cluster.wait_for_controller()
        await cluster.hold_control_requests(controller.id)
        await cluster.create_topic("t", wait=False)
        await cluster.kill(next(m.id for m in cluster.members if m.id != controller.id))
        await _report_unsettled(cluster, lines.append)
    assert lines == []


def test_settings_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.properties"
    config.write_text("# of broker 7\nbroker.id=7\nnum.io.threads=3\nnum.partitions=2\n")
    assert node_settings(config, ["num.partitions=5"]) == {"num.io.threads": "3", "num.partitions": "5"}
    assert capsys.readouterr().err == f"kce: warning: {config}: broker.id is ignored: each node gets its own\n"
    with pytest.raises(HarnessError, match=r"none cannot be read: No such file or directory$"):
        node_settings(tmp_path / "none", [])


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--set", "security.providers=A"], 2, "kce: security.providers=A: this protection does not exist here: "),
        (["--set", "num.io.threads=x"], 2, "kce: num.io.threads=x: must be a whole number from 1 to 2147483647\n"),
        (["--zookeeper", "127.0.0.1:1", "--set", "num.io.thread=4", "--set", "zookeeper.connection.timeout.ms=100"], 1,
         "kce: warning: num.io.thread has no effect: Kafka has no such setting; did you mean num.io.threads?\n"),
    ],
)  # fmt: skip
def test_settings_that_have_no_effect_are_reported(arguments: list[str], code: int, error: str, here: Here) -> None:
    failed = here("up", *arguments)
    assert failed.code == code
    assert failed.err.startswith(error)


def test_settings_of_the_cluster_are_no_settings_of_its_nodes(here: Here) -> None:
    for setting, error in (
        ("broker.id=5", "Error: --set broker.id=5: each node gets its own\n"),
        ("zookeeper.connect=zk:2181", "Error: --set zookeeper.connect=zk:2181: use --zookeeper\n"),
    ):
        failed = here("up", "--zookeeper", "127.0.0.1:1", "--set", setting)
        assert (failed.code, failed.err.endswith(error)) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--error", "6"], {"error": 6}),
        (["--error", "-1"], {"error": -1}),
        (["--error", "NOT_CONTROLLER"], {"error": "NOT_CONTROLLER"}),
        (["--controller-epoch", "7", "--drop"], {"controller_epoch": 7, "drop": True}),
        (["--broker-epoch", "older", "--drop"], {"broker_epoch": "older", "drop": True}),
    ],
)
def test_numbers_and_names_in_a_fault_from_the_shell(
    monkeypatch: pytest.MonkeyPatch, options: list[str], expected: dict[str, Any]
) -> None:
    sent: list[Any] = []

    def command(cluster: object, name: str, rule: object) -> dict[str, str]:
        sent.append(rule)
        return {"text": "added"}

    monkeypatch.setattr(fault, "find_cluster", lambda file, or_proxy: {})
    monkeypatch.setattr(fault, "command", command)
    assert CliRunner().invoke(fault.fault, ["add", *options], standalone_mode=False).output == "added\n"
    assert sent == [expected]


def test_faults_from_the_shell(env: dict[str, str], here: Here, tmp_path: Path) -> None:
    with up(tmp_path, env, "--brokers", "2", "--http-port", "0") as (_, ready):
        added = here("fault", "add", "--api", "LeaderAndIsr", "--to", "2", "--nth", "1", "--delay", "0.2")
        assert added.out == "fault 1 is added: requests api=LeaderAndIsr to=2 nth=1 delay=0.2\n"
        assert here("topic", "create", "t", "--replica-assignment", "2").code == 0
        assert json.loads(here("fault", "list", "--json").out) == {
            "1": {"api": ["LeaderAndIsr"], "to": 2, "nth": 1, "delay": 0.2}
        }
        # a topic is created when it is in ZooKeeper: its LeaderAndIsr may come later
        while not (stats := json.loads(here("fault", "stats", "--json").out)["1"])["fired"]:
            assert stats["matched"] == 0
        assert stats.items() >= {"matched": 1, "fired": 1}.items()
        assert here("fault", "stats").out.startswith("1  matched 1, acted on 1: requests api=")
        assert here("fault", "remove", "1").out == "fault 1 is removed: matched 1, acted on 1\n"
        assert here("fault", "remove", "1").err == "kce: there is no fault 1; there are none\n"
        wrong = here("fault", "add", "--api", "Leader")
        assert wrong.code == 2
        assert wrong.err.endswith("Error: api=Leader: Kafka has no such API; names are like LeaderAndIsr\n")
        headers = {"Authorization": f"Bearer {ready['http']['token']}"}
        with urlopen(Request(f"{ready['http']['url']}/nodes/1/pause", headers=headers, method="POST")) as response:
            assert json.load(response) == {"text": "node 1 is paused"}
        assert here("resume", "1").code == 0
        assert (tmp_path / "ready.json").stat().st_mode & 0o077 == 0  # it has the token
        controller = json.loads(here("describe", "--json").out)["controller"]
        assert here("hold", str(controller)).out.startswith(f"node {controller} is held back")
        assert here("cut", str(controller)).code == 0
        assert here("release", str(controller)).code == 0
        assert here("heal", str(controller)).code == 0
        assert here("delete-controller").out == "/controller is deleted\n"
        assert here("link", "cut", "1", "2").out == "what node 1 sends to node 2 waits\n"
        assert here("link", "heal", "1", "2").out == "what node 1 sends to node 2 arrives\n"
        assert here("bounce", "2", "--wait").out == "node 2 is bounced\n"
        old = json.loads(here("describe", "--json").out)["controller"]
        zombie = here("zombie")
        assert zombie.out == f"node {old} is a zombie: its control requests wait for `kce release {old}`\n"
        assert json.loads(here("describe", "--json").out)["controller"] == 3 - old
        assert here("release", str(old)).code == 0
        assert here("heal", str(old), "--wait").code == 0
        assert here("clock", "jump", "1", "-3600").out == "the clock of node 1 has jumped by -3600.0 s\n"
        assert here("disk", "slow", "1", "0.5").out == "the disk of node 1 takes 0.5 s longer\n"
        assert here("disk", "slow", "1", "99").err == "kce: a disk cannot be slower by 99 s, only by 0 to 60 s\n"
        assert here("disk", "slow", "1", "0").code == 0
        one = here("zookeeper", "kill-leader")
        assert (one.code, one.err.endswith("is no ensemble of this cluster: use zookeepers=3\n")) == (1, True)
        url = f"{ready['http']['url']}/nodes/2/disk/fill"
        with urlopen(Request(url, headers=headers, method="POST")) as response:
            assert json.load(response) == {"text": "the disk of node 2 is full"}
        assert here("disk", "free", "2").out == "the disk of node 2 has space\n"


@pytest.mark.slow
def test_a_script_starts_a_cluster_uses_it_and_ends_it(env: dict[str, str], here: Here, tmp_path: Path) -> None:
    record = tmp_path / "traffic.pcapng"
    command = ("up", "--wait", "--brokers", "1", "--name", "ci", "--json", "--record", str(record))
    begun = kce(*command, env=env, timeout=180)
    assert begun.returncode == 0, begun.stderr
    ready = json.loads(begun.stdout)
    everyone = family(ready["pid"])
    try:
        assert "`kce down` stops the cluster." in begun.stderr
        assert here("topic", "create", "orders", "--cluster", "ci").code == 0
        assert here("kill", "1").code == 0
        assert "node 1 is killed" in Path(ready["output"]).read_text()
        taken = kce("up", "-d", "--name", "ci", env=env)
        assert (taken.returncode, taken.stdout) == (1, "")
        assert taken.stderr == f"kce: the cluster of pid {ready['pid']} has the name ci already\n"
        ended = here("down")
        assert (ended.code, ended.out) == (0, "ci has ended\n")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ready["pid"], signal.SIGKILL)
    assert wait_gone(everyone) == []
    assert record.exists()
    assert not Path(ready["output"]).parent.exists()
    again = here("down")
    assert (again.code, again.err) == (
        1,
        "kce: no cluster of yours is running: start one with `kce up` or `kce proxy`\n",
    )
