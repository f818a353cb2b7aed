"""The commands that change a running cluster: one for each of `kce.harness.actions`, such as `kce kill NODE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kce.harness.actions import ACTIONS, ARGUMENTS, GROUPS, Action
from kce.harness.cli.options import cluster_option
from kce.harness.running import command, find_cluster


def _command(action: Action) -> click.Command:
    def run(cluster_file: Path | None, wait: bool, **arguments: Any) -> int:
        more = {"wait": True} if wait else {}
        click.echo(command(find_cluster(cluster_file), action.words, **arguments, **more)["text"])
        return 0

    for name in reversed(action.arguments):
        run = click.argument(name, type=ARGUMENTS[name][0])(run)
    run = click.option(
        "--wait", is_flag=True,
        help="Return when ZooKeeper has noticed, every partition that can has a leader, and the brokers know.",
    )(run)  # fmt: skip
    # so that -3600 is a number, and no option
    settings = {"ignore_unknown_options": "seconds" in action.arguments}
    return click.command(action.words.split()[-1], help=action.help, context_settings=settings)(cluster_option(run))


def _commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {name: click.Group(name, help=text) for name, text in GROUPS.items()}
    for action in ACTIONS:
        group, _, inner = action.words.partition(" ")
        if inner:
            parent = found[group]
            assert isinstance(parent, click.Group)
            parent.add_command(_command(action))
        else:
            found[group] = _command(action)
    return found


#: by the first word after `kce`
COMMANDS = _commands()


def __getattr__(name: str) -> click.Command:
    try:
        return COMMANDS[name]
    except KeyError:
        raise AttributeError(name) from None
