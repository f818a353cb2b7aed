"""A node as a process of its own: `python -m harness.node_process`, started and led by `harness.members`.

It reads JSON lines on stdin, the first of which says what to be: {"properties": {...}, "record": path or null,
"log_level": "INFO"}. It answers on stdout with {"event": "ready", "addresses": {...}} or {"event": "failed", "error":
text}, then obeys {"command": "hold" | "release" | "quit"} and answers {"command": "status"}. SIGTERM is a graceful
shutdown. The end of stdin is that of whoever started it, and so of the node, at once.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from harness.errors import HarnessError, plain_error
from harness.node import Node

EXIT_FAILED = 1


def collect_rarely() -> None:
    """Let the garbage collector look for cycles rarely. A failover of a large cluster makes millions of objects that
    stay and are in no cycle; looking at all of them again and again as they grow in number took a third of its time.
    """
    gc.set_threshold(100_000, 20, 20)


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def serve() -> int:
    """Its nursery holds the node, the reader of commands and the watcher of signals."""
    commands = Commands()
    begin = json.loads(await commands.next())
    logging.basicConfig(
        stream=sys.stderr,
        level=begin["log_level"],
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    try:
        node = Node(begin["properties"], record=Path(begin["record"]) if begin["record"] else None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commands.die_with_parent)
            await nursery.start(node.run)
            nursery.start_soon(_obey, commands, node, nursery.cancel_scope)
            nursery.start_soon(_shut_down_on_signal, node, nursery.cancel_scope)
            say({"event": "ready", "addresses": node.addresses()})
    except (HarnessError, BaseExceptionGroup) as e:
        error = plain_error(e)
        if not isinstance(error, HarnessError):
            raise
        logging.getLogger(__name__).error("%s", error)
        say({"event": "failed", "error": str(error)})
        return EXIT_FAILED
    return 0


class Commands:
    """Lines on stdin. Their end kills the process without further ado: nobody is left whom it could serve."""

    def __init__(self) -> None:
        self._stream = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        self._buffer = b""
        self._lines: list[str] = []
        self._more = trio.Event()

    async def next(self) -> str:
        while not self._lines:
            await self._read()
        return self._lines.pop(0)

    async def _read(self) -> None:
        data = await self._stream.receive_some()
        if not data:
            os._exit(EXIT_FAILED)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._lines += [line.decode() for line in lines]

    async def die_with_parent(self) -> None:
        while True:
            await self._read()
            self._more.set()

    async def later(self) -> str:
        """The next command, read by ``die_with_parent``."""
        while not self._lines:
            self._more = trio.Event()
            await self._more.wait()
        return self._lines.pop(0)


async def _obey(commands: Commands, node: Node, everything: trio.CancelScope) -> None:
    while True:
        match json.loads(await commands.later())["command"]:
            case "hold":
                node.hold.hold()
            case "release":
                node.hold.release()
            case "status":
                say({"event": "status", **asdict(node.status())})
            case "quit":
                await node.shutdown(controlled=False)
                everything.cancel()


async def _shut_down_on_signal(node: Node, everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            await node.shutdown()
            everything.cancel()
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for whoever leads us
    collect_rarely()
    sys.exit(trio.run(serve))
