"""A command in the background: `kce up --wait` and `kce proxy --wait` start it, and return when it is ready.

The command runs again in a session of its own, with a folder for its output; when it is ready it writes one line of
JSON on stdout. `kce down` ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from kce.harness import interrupts
from kce.harness.errors import HarnessError
from kce.harness.running import registry

#: the hidden option of the command that runs in the background
OPTION = "--background"
_ARGUMENTS = "kce.arguments"
_OUTPUT = "output.log"


class DetachableCommand(click.Command):
    """Remembers the arguments that it was called with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


F = TypeVar("F", bound=Callable[..., Any])


def detach_option(what: str) -> Callable[[F], F]:
    return click.option(
        "-d", "--detach", "--wait", "detach", is_flag=True,
        help=f"Return when the {what} is ready; it runs in the background until `kce down`.",
    )  # fmt: skip


class Ready(NamedTuple):
    """What the command wrote when it was ready: its line of JSON, and its text."""

    described: dict[str, Any]
    text: str


def output_of(folder: Path) -> Path:
    """Where a command in the background writes."""
    return folder / _OUTPUT


def start() -> Ready | int:
    """Run the command of this click context in the background until it is ready; its exit code if it ends instead.

    A signal meanwhile ends it, too. Raises HarnessError.
    """
    context = click.get_current_context()
    folder = Path(tempfile.mkdtemp(prefix=f"{context.info_name}-", dir=registry()))
    command = [
        sys.executable, "-m", "kce.harness", str(context.info_name), *context.meta[_ARGUMENTS], OPTION, str(folder),
    ]  # fmt: skip
    with interrupts.remove_on_exit(str(folder)):
        output = output_of(folder)
        try:
            with output.open("wb") as written:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=written, start_new_session=True
                )
            shown = output.open(errors="replace")  # now: a process that fails late removes it
        except OSError as e:
            interrupts.remove(str(folder))
            raise HarnessError(f"a process in the background cannot be started: {e}") from None
        assert process.stdout is not None
        line = process.stdout.readline()
        with shown:
            text = shown.read()
        if line:
            return Ready(json.loads(line), text)
        code = process.wait()
        interrupts.remove(str(folder))
        click.echo(text, nl=False, err=True)
        return code if code > 0 else interrupts.EXIT_SIGNAL - code


def show(ready: Ready | int, as_json: bool) -> int:
    """Print what a command in the background has said; the exit code."""
    if isinstance(ready, int):
        return ready
    click.echo(ready.text, nl=False, err=as_json)
    if as_json:
        click.echo(json.dumps(ready.described))
    return 0
