"""A single node in the process of its command: `kce broker`, `kce controller`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import click
import trio

from kce.harness import interrupts
from kce.harness.errors import HarnessError, plain_error
from kce.harness.logs import log_to_stderr
from kce.harness.node import Node
from kce.harness.node_process import tune_process

#: the exit code for settings that cannot be, as for wrong usage
EXIT_SETTINGS = 2


def serve_node(properties: Mapping[str, str], log_level: str, news: Callable[[Node], str]) -> int:
    """Run a node until a signal, which shuts it down, and return the exit code. ``news`` is printed once it is up.

    Raises HarnessError if it cannot start or cannot go on.
    """
    log_to_stderr(log_level)
    tune_process()
    try:
        node = Node(properties)
    except HarnessError as e:
        click.echo(f"kce: {e}", err=True)
        return EXIT_SETTINGS

    def stopping() -> None:
        click.echo("Stopping ... (Ctrl-C again gives up the controlled shutdown)", err=True)

    with contextlib.suppress(interrupts.Interrupted):
        interrupts.run(serve, node, news, on_signal=stopping, on_another=node.hurry)
    return 0


async def serve(node: Node, news: Callable[[Node], str]) -> None:
    """Its nursery holds the node, and the task that shuts it down when this one is cancelled. Raises HarnessError."""
    over = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_shut_down_when_cancelled, node, over)
            await nursery.start(_run_until_shutdown, node, over)
            click.echo(f"{news(node)} Ctrl-C stops it.", err=True)
    except (HarnessError, BaseExceptionGroup) as e:
        raise plain_error(e) from None


async def _run_until_shutdown(node: Node, over: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    try:
        with trio.CancelScope(shield=True):  # a shutdown needs the node's tasks
            await node.run(task_status)
        await trio.lowlevel.checkpoint_if_cancelled()  # one that has not been up owes the nursery a start, or this
    finally:
        over.set()


async def _shut_down_when_cancelled(node: Node, over: trio.Event) -> None:
    try:
        await over.wait()
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await node.shutdown()
        raise
