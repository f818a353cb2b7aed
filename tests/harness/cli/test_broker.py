"""`kce broker` with the server.properties of a Kafka distribution, which is beside this file as it is.

Covers: harness/cli/serving.py.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import trio
from kazoo.client import KazooClient

from kce.harness.cli.serving import serve
from tests.harness.cli.support import KCE, background, kce
from tests.harness.conftest import Here
from tests.harness.test_interrupts import MOMENTS_OF_LONG_COMMANDS, check, finish, zookeeper_sessions

if TYPE_CHECKING:
    from kce.harness.node import Node

KAFKAS = str(Path(__file__).parent / "server.properties")


def broker(*overrides: str) -> list[str]:
    return ["broker", "--config", KAFKAS, *(word for text in overrides for word in ("--override", text))]


def at(zookeeper: str, log_dirs: Path, *more: str) -> Iterable[str]:
    return f"zookeeper.connect={zookeeper}", f"log.dirs={log_dirs}", "listeners=PLAINTEXT://:0", *more


@pytest.mark.slow
def test_kafkas_file_as_it_is_makes_a_broker(env: dict[str, str], here: Here, zookeeper: str, tmp_path: Path) -> None:
    where = f"{zookeeper}/kce-broker"
    command = broker(*at(where, tmp_path / "logs", "broker.id=7", "num.io.thread=4", "socket.send.buffer.bytes=1"))
    with background(env, command, "Ctrl-C stops it.") as process:
        assert here("topic", "create", "orders", "--zookeeper", where, "--partitions", "2").code == 0
        shown = json.loads(here("describe", "--zookeeper", where, "--json").out)
        assert (shown["controller"], set(shown["brokers"])) == (7, {"7"})
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        output = process.stdout.read()
        assert process.wait(30) == 0
    assert "Stopping ..." in output
    assert "controlled shutdown succeeded" in output
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    gone = here("describe", "--zookeeper", where, "--json")
    assert json.loads(gone.out)["brokers"] == {}
    with background(env, command, "Ctrl-C stops it."):  # the same directories, and the id that they know
        (topic,) = json.loads(here("topic", "describe", "--zookeeper", where, "--json").out)
        assert [p["replicas"] for p in topic["partitions"]] == [[7], [7]]


@pytest.mark.slow
def test_ctrl_c_twice_does_not_wait_for_a_controller(env: dict[str, str], zookeeper: str, tmp_path: Path) -> None:
    """The controller is not there: attempts of a controlled shutdown would take hours."""
    client = KazooClient(zookeeper)
    client.start()
    client.create("/kce-broker-twice/controller", b'{"version":1,"brokerid":99,"timestamp":"0"}', makepath=True)
    client.stop()
    client.close()
    more = ("broker.id=7", "controlled.shutdown.retry.backoff.ms=3600000")
    command = broker(*at(f"{zookeeper}/kce-broker-twice", tmp_path / "logs", *more))
    with background(env, command, "Ctrl-C stops it.") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "Stopping ..." not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 0
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing(env: dict[str, str], zookeeper: str, tmp_path: Path) -> None:
    command = [*KCE, *broker(*at(f"{zookeeper}/kce-broker-ends", tmp_path / "logs"))]
    sessions = zookeeper_sessions(zookeeper)
    for moment in range(MOMENTS_OF_LONG_COMMANDS):
        ran = finish(command, env, tmp_path, moment * 3 / MOMENTS_OF_LONG_COMMANDS)
        assert "Traceback" not in ran.output
        assert ran.code in (0, 130)
        assert (ran.output.count("Stopping ...") or ran.output.count("kce: interrupted")) == 1
        check(tmp_path, {str(path.relative_to(tmp_path)) for path in (tmp_path / "logs").rglob("*")})
    assert zookeeper_sessions(zookeeper) <= sessions  # those of earlier tests may have expired


class StartingNode:
    """A node that is shut down before it is up: its ``run`` just ends."""

    def __init__(self) -> None:
        self.runs, self.ended = trio.Event(), trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        self.runs.set()
        await self.ended.wait()

    async def shutdown(self) -> None:
        self.ended.set()


async def test_a_signal_during_the_start_ends_it_without_an_error() -> None:
    node = StartingNode()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, cast("Node", node), str)
        await node.runs.wait()
        nursery.cancel_scope.cancel()
    assert node.ended.is_set()


def test_settings_that_cannot_be_are_one_line_and_those_without_effect_warn(env: dict[str, str]) -> None:
    ran = kce(*broker("num.io.thread=4", "socket.send.buffer.bytes=1", "log.retention.ms=0"), env=env)
    assert (ran.returncode, ran.stdout) == (2, "")
    ignored, unknown, error = ran.stderr.splitlines()
    assert "num.io.thread has no effect: Kafka has no such setting; did you mean num.io.threads?" in unknown
    assert "socket.send.buffer.bytes=1 has no effect: Kafka has this setting, this project ignores it" in ignored
    assert error == "kce: log.retention.ms=0: must be unlimited (-1) or at least 1"


def test_variables_have_their_values_in_the_file_and_in_overrides(tmp_path: Path, env: dict[str, str]) -> None:
    file = tmp_path / "server.properties"
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    file.write_text(f"broker.id=${{env:ID}}\nconfig.providers=env\nconfig.providers.env.class={provider}\n")
    variable = "--override", "log.retention.ms=${env:KEEP}"
    ran = kce("broker", "--config", str(file), *variable, env=env | {"ID": "1", "KEEP": "0"})
    assert (ran.returncode, ran.stderr.splitlines()) == (
        2, ["kce: log.retention.ms=0: must be unlimited (-1) or at least 1"],
    )  # fmt: skip


def test_a_provider_that_does_not_exist(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nconfig.providers=vault\nconfig.providers.vault.class=com.example.Vault\n")
    for command in (("broker", "--config", str(file)), ("up", "--config", str(file))):
        ran = here(*command)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert ran.err.startswith("kce: config.providers.vault.class=com.example.Vault: ")


def test_files_and_overrides_that_cannot_be(here: Here, tmp_path: Path) -> None:
    missing = here("broker", "--config", str(tmp_path / "none"))
    assert (missing.code, missing.err.startswith(f"kce: {tmp_path}/none cannot be read: ")) == (1, True)
    override = here(*broker("nonsense"))
    assert (override.code, "--override nonsense: not KEY=VALUE" in override.err) == (2, True)
    without = here("broker")
    assert (without.code, "Missing option '--config'" in without.err) == (2, True)
