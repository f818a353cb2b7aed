"""A node in its own process: `python -m kce.harness.node_process`, started and controlled by `harness.process_member`.

It reads JSON lines on stdin. The first is the configuration: {"ask": 1, "properties": {...}, "record": path or null,
"log_level": "INFO", "log_folder": path or null, "members": [ids of the cluster's nodes], "rules": {number: rule},
"subscribed": false, "lags": [{"topic": ..., "partition": ..., "broker": ...}], "machine": {...}}. It responds on stdout
with {"event": "ready", "addresses": {...}, "bound": {...}} or {"event": "failed", "error": text}, then executes the
commands of ``_obey``. An answer has the ``ask`` of its command. While subscribed it writes {"event": "frame", ...} for
each frame that passes its links. SIGTERM is a graceful shutdown. When stdin closes, the parent is gone and the node
ends at once.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from kce.harness.errors import HarnessError, plain_error
from kce.harness.faults import Rule
from kce.harness.links import Links
from kce.harness.logs import log_only_what_is_shown, log_to_folder, log_to_stderr
from kce.harness.node import Lag, Node
from kce.harness.world import RealWorld
from kce.harness.world.clock import MonotonicClock
from kce.harness.world.scheduling import ask_for_short_slices
from kce.wire.vocabulary import TopicPartition

EXIT_FAILED = 1


def tune_process() -> None:
    """Run the garbage collector rarely: a failover of a large cluster creates millions of long-lived objects without
    cycles; scanning them repeatedly took a third of its time. And run soon after being woken.
    """
    gc.set_threshold(100_000, 20, 20)
    ask_for_short_slices()


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def serve() -> int:
    """Its nursery holds the node, the reader of commands and the watcher of signals."""
    commands = Commands()
    begin = json.loads(await commands.next())
    log_only_what_is_shown()
    log_to_stderr(begin["log_level"])
    if begin["log_folder"]:
        log_to_folder(Path(begin["log_folder"]))
    try:
        links = Links(begin["members"])
        rules = {int(number): _add_rule(links, rule) for number, rule in begin["rules"].items()}
        world = RealWorld()
        world.machine.update(begin["machine"])
        record = Path(begin["record"]) if begin["record"] else None
        node = Node(begin["properties"], world=world, links=links, record=record)
        node.lags = set(map(_lag, begin["lags"]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commands.die_with_parent)
            reporting = Reporting(links, nursery)
            reporting.want(begin["subscribed"])
            nursery.start_soon(_obey, commands, node, rules, reporting, nursery.cancel_scope)
            nursery.start_soon(_shut_down_on_signal, node, nursery.cancel_scope)
            await nursery.start(node.run)
            _answer(begin, "ready", addresses=node.addresses(), bound=node.bound_addresses())
    except (HarnessError, BaseExceptionGroup) as e:
        error = plain_error(e)
        if not isinstance(error, HarnessError):
            raise
        logging.getLogger(__name__).error("%s", error)
        _answer(begin, "failed", error=str(error))
        return EXIT_FAILED
    return 0


class Commands:
    """Lines on stdin. The end of stdin kills the process: its parent is gone."""

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

    async def next_read(self) -> str:
        """The next command, read by ``die_with_parent``."""
        while not self._lines:
            self._more = trio.Event()
            await self._more.wait()
        return self._lines.pop(0)


class Reporting:
    """Reports frames to the parent while it subscribes."""

    def __init__(self, links: Links, nursery: trio.Nursery) -> None:
        self._links = links
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None

    def want(self, wanted: bool) -> None:
        if wanted and self._scope is None:
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._report, self._scope)
        elif not wanted and self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _report(self, scope: trio.CancelScope) -> None:
        with scope, self._links.subscribe() as frames:
            async for event in frames:
                write({"event": "frame", **event.to_json()})


def _add_rule(links: Links, given: dict[str, Any]) -> Rule:
    rule = Rule.from_json(given["fields"])
    rule.newest = given["newest"]
    links.add(rule)
    return rule


def _lag(fields: dict[str, Any]) -> Lag:
    return Lag(TopicPartition(fields["topic"], fields["partition"]), fields["broker"])


def _fail_log_dir(node: Node, log_dir: str, answer: Callable[..., None]) -> None:
    try:
        halts = node.log_dirs.halts_without(log_dir)
    except HarnessError as e:
        answer("log dir", error=str(e))
        return
    answer("log dir", error="", halts=halts)
    node.log_dirs.fail(log_dir)


async def _obey(
    commands: Commands, node: Node, rules: dict[int, Rule], reporting: Reporting, everything: trio.CancelScope
) -> None:
    links = node.links.links
    while True:
        command = json.loads(await commands.next_read())
        answer = functools.partial(_answer, command)
        match command:
            case {"command": "add rule", "number": number, "rule": rule}:
                rules[number] = _add_rule(links, rule)
            case {"command": "remove rule", "number": number}:
                removed = rules.pop(number)
                links.remove(removed)
                answer("rule", matched=removed.matched, fired=removed.fired)
            case {"command": "count rule", "number": number}:
                answer("rule", matched=rules[number].matched, fired=rules[number].fired)
            case {"command": "subscribe", "wanted": wanted}:
                reporting.want(wanted)
            case {"command": "lag", "lag": lag, "wanted": wanted}:
                node.lag(_lag(lag), wanted)
            case {"command": "machine", "machine": machine}:
                node.world.machine.update(machine)
            case {"command": "fail log dir", "log_dir": log_dir}:
                _fail_log_dir(node, log_dir, answer)
            case {"command": "status"}:
                answer("status", **asdict(node.status()))
            case {"command": "knows", "brokers": brokers, "topic": topic, "partitions": partitions}:
                answer("knows", knows=node.knows(brokers, topic, partitions))
            case {"command": "quit"}:
                await node.shutdown(controlled=False)
                everything.cancel()


def _answer(command: dict[str, Any], event: str, **fields: Any) -> None:
    ask = {"ask": command["ask"]} if "ask" in command else {}
    write({"event": event, **fields, **ask})


async def _shut_down_on_signal(node: Node, everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            await node.shutdown()
            everything.cancel()
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    tune_process()
    sys.exit(trio.run(serve, clock=MonotonicClock()))
