"""SIGINT at 20 moments of each command: no traceback, no process, no session, no part file is left.

The moments are spread over the time that the command takes when nothing interrupts it. The first is when the command
has installed its handlers: while Python itself starts, a signal is Python's.

Covers: harness/command.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trio

from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import four_letter_word
from kce.harness.interrupts import Interrupted, run
from kce.zookeeper.store.kazoo import KazooStore
from tests.harness.cli.support import KCE, up

ROOT = Path(__file__).parents[2]
CAPTURE = str(ROOT / "captures/samples/kafka-3.9.1-zombie.pcap.gz")
MOMENTS = 20
#: of commands that take long; `make kill-points` takes as many as of the others
MOMENTS_OF_LONG_COMMANDS = int(os.environ.get("KCE_SIGNAL_MOMENTS", "3"))


def test_a_signal_cancels_a_run_and_what_was_open_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    closed = []

    async def body() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            closed.append(True)

    with pytest.raises(Interrupted) as caught:
        run(body)
    assert (closed, caught.value.code) == ([True], 143)
    assert capsys.readouterr().err == "kce: interrupted\n"


def test_signals_after_the_first_one_hurry_a_run_that_ends() -> None:
    hurried = trio.Event()

    async def body() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True), trio.fail_after(10):
                signal.raise_signal(signal.SIGINT)
                await hurried.wait()

    with pytest.raises(Interrupted) as caught:
        run(body, on_another=hurried.set)
    assert caught.value.code == 143


def test_a_run_returns_its_result_and_raises_its_errors_as_they_are() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    async def fail() -> None:
        raise ZeroDivisionError

    assert run(add, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        run(fail)


def test_the_entry_point_imports_little_before_it_handles_sigint() -> None:
    """From its first statement SIGINT prints no traceback: until `main` has installed the handlers, it just ends."""
    script = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
before = set(sys.modules)
import kce.harness.command
new = {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}
print(signal.getsignal(signal.SIGINT).name, *sorted(new))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    default, *imported = done.stdout.split()
    assert default == "SIG_DFL"
    assert imported == ["kce", "kce.garbage", "kce.harness", "kce.harness.command", "kce.harness.interrupts"]


def test_the_entry_point_leaves_alone_who_ignores_sigint() -> None:
    """As a shell has it for what it starts in the background."""
    script = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import kce.harness.command
print(signal.getsignal(signal.SIGINT).name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "SIG_IGN\n"


def test_a_signal_during_an_import_has_its_exit_code(tmp_path: Path) -> None:
    """Of psutil, which stops the children: what the handler imports then is incomplete."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    script = """
import os, signal, subprocess, sys, types
from kce.harness import interrupts
sys.modules["psutil"] = types.ModuleType("psutil")
interrupts.exit_at_once()
with interrupts.remove_on_exit(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "kce: interrupted\n")
    assert not folder.exists()


def test_a_signal_leaves_semaphores_to_the_resource_tracker() -> None:
    """It ignores SIGTERM, so that there is no use in waiting for it; after SIGKILL the semaphores would stay."""
    script = """
import multiprocessing, os, signal
from kce.harness import interrupts
interrupts.CHILDREN_TIMEOUT_S = 3600
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
interrupts.exit_at_once()
os.kill(os.getpid(), signal.SIGINT)
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "kce: interrupted\n")
    assert not Path(f"/dev/shm/sem.{done.stdout.strip().removeprefix('/')}").exists()


def test_a_simulation_in_many_processes_ends_with_one_line(env: dict[str, str], tmp_path: Path) -> None:
    with started([*KCE, "simulate", "--seeds", "0..9999", "--jobs", "2"], env, tmp_path) as process:
        command = psutil.Process(process.pid)
        while not any("spawn_main" in word for child in command.children() for word in child.cmdline()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "kce: interrupted\n")
    check(tmp_path, set())


class Ran:
    """A finished process: its exit code, its output, and how long it ran since it handled signals."""

    def __init__(self, process: subprocess.Popen[str], seconds: float, output: str) -> None:
        self.code = process.returncode
        self.seconds = seconds
        self.output = output


@contextmanager
def started(command: list[str], env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def handles_signals(process: subprocess.Popen[str]) -> bool:
    """Whether it catches SIGTERM, which Python by itself does not."""
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process.pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def is_running(process: subprocess.Popen[str], seconds: float) -> bool:
    """Whether it still runs after so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def finish(command: list[str], env: dict[str, str], folder: Path, after_s: float | None = None) -> Ran:
    """Run it; with ``after_s`` send SIGINT so long after it handles signals."""
    with started(command, env, folder) as process:
        while not handles_signals(process) and is_running(process, 0.001):
            pass
        begin = time.monotonic()
        if after_s is not None and is_running(process, after_s):
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        return Ran(process, time.monotonic() - begin, output)


def left_running(folder: Path) -> list[str]:
    """Processes of a command that had ``folder`` as its XDG_RUNTIME_DIR."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_RUNTIME_DIR") == str(folder) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def check(folder: Path, before: set[str]) -> None:
    """Nothing is left but what ``before`` lists."""
    deadline = time.monotonic() + 10
    while (processes := left_running(folder)) and time.monotonic() < deadline:
        psutil.wait_procs([], 0.05)
    assert processes == []
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()} <= before


def zookeeper_sessions(zookeeper: str) -> int:
    """Sessions that the server knows, by its command `mntr`."""

    async def count() -> int:
        host, _, port = zookeeper.partition("/")[0].rpartition(":")
        text = await four_letter_word(host, int(port), "mntr")
        return int(re.search(r"zk_global_sessions\s+(\d+)", text)[1])  # type: ignore[index]

    return trio.run(count)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", CAPTURE],
        ["schema", "LeaderAndIsr"],
        ["--help"],
        ["replay", CAPTURE, "--as", "controller", "--to", "127.0.0.1:1", "--broker", "3", "--record", "new.pcapng"],
        ["topic", "create", "t", "--zookeeper", "{zookeeper}/none"],
        ["describe", "--zookeeper", "{zookeeper}/none"],
        ["leader", "--zookeeper", "{zookeeper}", "--path", "/nobody"],
        ["elect", "--zookeeper", "{zookeeper}", "--path", "/e", "--address", "a:1", "--exec", "true"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_that_are_brief(arguments: list[str], zookeeper: str, env: dict[str, str], tmp_path: Path) -> None:
    command = [*KCE, *(text.format(zookeeper=zookeeper) for text in arguments)]
    undisturbed = finish(command, env, tmp_path)
    may_stay = {"new.pcapng"}
    sessions = zookeeper_sessions(zookeeper)
    step = undisturbed.seconds / MOMENTS
    interrupted = 0
    for moment in range(MOMENTS):
        ran = finish(command, env, tmp_path, moment * step)
        assert "Traceback" not in ran.output
        assert "Exception ignored" not in ran.output
        if ran.code == 130:
            interrupted += 1
            assert ran.output.count("kce: interrupted") == 1
            assert ran.output.endswith("kce: interrupted\n")
        else:  # Python gives signals their default back when it ends: the command was done
            assert ran.code in (undisturbed.code, -signal.SIGINT)
        check(tmp_path, may_stay)
    assert interrupted
    deadline = time.monotonic() + 2  # far less than a session's timeout
    while zookeeper_sessions(zookeeper) > sessions:
        assert time.monotonic() < deadline, "a session is left"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "seconds", "may_stay"),
    [
        (["analyze", CAPTURE, "--out", "tables", "--report", "report.html"], 14.0, ()),
        (["demo"], 60.0, ("demo/capture.pcapng",)),
        (
            ["up", "--brokers", "2", "--record", "traffic.pcapng", "--ready-file", "ready.json"],
            6.0,
            ("traffic.pcapng",),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_that_take_long(
    arguments: list[str], seconds: float, may_stay: tuple[str, ...], env: dict[str, str], tmp_path: Path
) -> None:
    interrupted = 0
    for moment in range(MOMENTS_OF_LONG_COMMANDS):
        ran = finish([*KCE, *arguments], env, tmp_path, moment * seconds / MOMENTS_OF_LONG_COMMANDS)
        assert "Traceback" not in ran.output, f"moment {moment}"
        if arguments[0] == "up":
            assert ran.code in (0, 130)
            assert (ran.output.count("Stopping ...") or ran.output.count("kce: interrupted")) == 1
            interrupted += 1
        elif moment and ran.code in (0, -signal.SIGINT):  # the command was done; later moments are too late, too
            assert left_running(tmp_path) == []
            break
        else:
            assert ran.code == 130
            assert ran.output.endswith("kce: interrupted\n")
            interrupted += 1
            if (tmp_path / "report.html").exists():  # all is written, and only what is printed then was cut short
                assert {path.suffix for path in (tmp_path / "tables").rglob("part-*")} <= {".parquet"}
                assert left_running(tmp_path) == []
                break
        check(tmp_path, {*may_stay})
    assert interrupted


@pytest.mark.slow
def test_up_at_a_zookeeper_of_yours_ends_its_sessions(env: dict[str, str], zookeeper: str, tmp_path: Path) -> None:
    """The same data folder can be used again at once, and nobody waits for the sessions to expire."""
    where = f"{zookeeper}/ctrl-c"
    data = tmp_path / "data"
    for _ in range(2):
        with up(tmp_path, env, "--brokers", "2", "--zookeeper", where, "--data", str(data)) as (process, ready):
            assert [node["id"] for node in ready["nodes"]] == [1, 2]
            process.send_signal(signal.SIGTERM)
            process.wait(30)

        async def left() -> list[str]:
            store = await KazooStore.connect(where, session_timeout_ms=6000, connection_timeout_ms=10_000)
            paths = ["/controller", "/brokers/ids/1", "/brokers/ids/2"]
            found = await store.exists(paths)
            await store.aclose()
            return [path for path, stat in zip(paths, found, strict=True) if stat is not None]

        assert trio.run(left) == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("after_s", [0.05, 0.4, 0.8, None])
async def test_a_cluster_that_is_cancelled_ends_its_sessions(
    zookeeper: str, processes: bool, after_s: float | None
) -> None:
    """While it starts, and (None) when it has started. The session timeout is far longer than the test."""
    where = f"{zookeeper}/cancelled-{processes}-{after_s}"
    properties = {"zookeeper.session.timeout.ms": "9000"}
    with trio.CancelScope() as scope:
        if after_s is not None:
            scope.deadline = trio.current_time() + after_s
        async with Cluster(2, zookeeper=where, processes=processes, properties=properties) as cluster:
            if after_s is None:
                await cluster.wait_for_controller()
                scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    store = await KazooStore.connect(where, session_timeout_ms=6000, connection_timeout_ms=10_000)
    found = await store.exists(["/controller", "/brokers/ids/1", "/brokers/ids/2"])
    await store.aclose()
    assert found == [None, None, None]


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"])
def test_matplotlib_without_a_folder_of_its_own(tmp_path: Path, variable: str) -> None:
    """It would make one among the temporary files, and fail at exit, when they are gone."""
    (tmp_path / "file").touch()
    source = (
        "import os; from kce.harness.interrupts import temporary_files\n"
        "before = os.environ['MPLCONFIGDIR']\n"
        "with temporary_files():\n"
        "    import matplotlib; print(matplotlib.get_configdir(), matplotlib.get_cachedir())\n"
        "assert os.environ['MPLCONFIGDIR'] == before"
    )
    homes = {"XDG_CONFIG_HOME": str(tmp_path / "a"), "XDG_CACHE_HOME": str(tmp_path / "b"), "MPLCONFIGDIR": ""}
    env = {**os.environ, **homes, "TMPDIR": str(tmp_path)}
    script = [sys.executable, "-c", source]
    ran = subprocess.run(
        script, env=env | {variable: str(tmp_path / "file")}, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    assert {Path(folder).parents[1] for folder in ran.stdout.split()} == {tmp_path}
    assert not list(tmp_path.glob("kce-*"))
    ran = subprocess.run(script, env=env, capture_output=True, text=True, check=True)  # it has them
    assert ran.stdout.split() == [str(tmp_path / "a" / "matplotlib"), str(tmp_path / "b" / "matplotlib")]
