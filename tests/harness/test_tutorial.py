"""The tutorial: its commands exist with these options, and its test passes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from kce.harness.cli import cli

TEXT = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines() if line.startswith("kce ")]
COMMANDS = [shlex.split(line, comments=True)[1:] for line in LINES]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_tutorial_parses(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traffic.pcapng").touch()
    command: click.Command | None = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    assert command is not None
    command.make_context("kce", words)


def test_its_test_passes() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    names["test_leaders_move"]()


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 15
