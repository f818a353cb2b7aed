"""`kce` itself: help, version, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kce.harness.cli import COMMANDS, cli
from tests.harness.cli.support import KCE, kce
from tests.harness.conftest import Here, Output

#: each command in a process that has imported what `kce` has before it knows which is called
EACH_HELP = """\
import os
from kce.harness.cli import COMMANDS, main
for name in COMMANDS:
    if (child := os.fork()) == 0:
        raise SystemExit(main([name, "--help"]))
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.heavy
def test_help_and_version(env: dict[str, str], here: Here) -> None:
    top = here("--help")
    assert (top.code, top.err) == (0, "")
    each = subprocess.run(
        [sys.executable, "-c", EACH_HELP], capture_output=True, text=True, env=env, timeout=300, check=True
    )
    assert each.stderr == ""
    shown = each.stdout.split("ended with 0\n")
    assert shown.pop() == ""
    for name, text in zip(COMMANDS, shown, strict=True):
        assert f"\n  {name} " in top.out
        assert f"Usage: kce {name} " in text
        assert r"\b" not in text  # of click, which is to leave examples as they are
    assert kce("--version", env=env).stdout.startswith("kce, version 0.")
    wrong = kce("frobnicate", env=env)
    assert wrong.returncode == 2
    assert "No such command 'frobnicate'" in wrong.stderr


def _commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


def test_numpy_starts_no_threads_in_a_command() -> None:
    program = "import kce.harness.cli, numpy, os; print(len(os.listdir('/proc/self/task')))"
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env, check=True
    )
    assert ran.stdout == "1\n"


def test_every_command_and_option_is_explained() -> None:
    commands = list(_commands(cli, ()))
    assert [words for words, command in commands if not command.help] == []
    unexplained = [
        f"kce {' '.join(words)} {option.opts[0]}"
        for words, command in commands
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert unexplained == []


#: prints with rich, as `kce describe` and `kce analyze`
WITH_RICH = """\
import click
from kce.harness import cli
from kce.harness.cli.options import plain_console
cli.LazyGroup.get_command = lambda *_: click.Command("x", callback=lambda: plain_console().print("x"))
raise SystemExit(cli.main(["x"]))
"""


@pytest.mark.parametrize(
    "command",
    [[*KCE, "--help"], [*KCE, "schema", "LeaderAndIsr", "7"], [sys.executable, "-c", WITH_RICH]],
    ids=["help", "click", "rich"],
)
def test_a_reader_of_a_pipe_that_has_enough_is_no_failure(env: dict[str, str], command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, env=env, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["--help"], ["schema", "LeaderAndIsr"]], ids=" ".join)
def test_a_full_disk_for_the_output_is_one_line(env: dict[str, str], arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*KCE, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (1, "kce: cannot write: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="a device of POSIX")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_leads_nowhere(env: dict[str, str], closed: str, tmp_path: Path) -> None:
    """Else the file that is written takes its place, and gets what is printed."""
    trace = tmp_path / "trace.jsonl"
    capture = tmp_path / "traffic.pcapng"
    simulate = [*KCE, "simulate", "--seed", "1", "--steps", "1", "--trace", str(trace), "--record", str(capture)]
    for command in (simulate, [*KCE, "decode", str(capture)]):
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
        done = subprocess.run([*shell, *command], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert all(line.startswith("{") for line in trace.read_text().splitlines())


def test_nothing_is_running(here: Here, tmp_path: Path) -> None:
    for arguments in (["kill", "1"], ["topic", "list"], ["describe"]):
        assert here(*arguments) == Output(1, "", "kce: no cluster of yours is running: start one with `kce up`\n")
    missing = here("kill", "1", "--cluster", str(tmp_path / "nope.json"))
    assert missing.code == 1
    assert f"no cluster of yours is called {tmp_path}/nope.json, and there is no such file" in missing.err
    for content in ("{}", "[]", '"text"'):
        (tmp_path / "other.json").write_text(content)
        for command in (("kill", "1"), ("describe",), ("down",)):
            other = here(*command, "--cluster", str(tmp_path / "other.json"))
            assert (other.code, "other.json was not written by `kce up --ready-file`" in other.err) == (1, True)
