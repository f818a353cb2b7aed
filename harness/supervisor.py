"""The server of `kce up` and `kce proxy` for other commands: a file with addresses, and a socket.

The socket speaks JSON lines, one request and one response each: {"command": "kill", "node": 2} -> {"ok": true, ...} or
{"error": text}. The file (see ``describe``) is in a folder of this user, where `kce.harness.running`, the client, finds
it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import trio

from kce.harness.cluster import Cluster
from kce.harness.errors import HarnessError
from kce.harness.faults import Rule
from kce.harness.guard import Guard, birth
from kce.harness.running import ANSWER_TIMEOUT_S, registry

MAX_REQUEST_BYTES = 65536


class Target(Protocol):
    """What commands act on: a cluster, or a proxy."""

    async def add_rule(self, rule: Rule) -> None: ...
    async def remove_rule(self, rule: Rule) -> None: ...
    async def count_rule(self, rule: Rule) -> tuple[int, int]:
        """How many frames the rule has matched so far, and on how many it acted."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its part of the content of `--ready-file`."""
        ...

    async def act(self, command: str, request: dict[str, Any]) -> str | None:
        """Execute a command that changes something; a sentence, or None for an unknown one. Raises HarnessError."""
        ...


class ClusterTarget:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.add_rule, self.remove_rule, self.count_rule = cluster.add_rule, cluster.remove_rule, cluster.count_rule

    def describe(self) -> dict[str, Any]:
        cluster = self._cluster
        return {
            "kind": "cluster",
            "cluster_id": cluster.cluster_id,
            "zookeeper": cluster.zookeeper,
            "bootstrap_servers": cluster.bootstrap_servers(),
            "data": str(cluster.data),
            "nodes": [
                {"id": m.id, "pid": m.pid, "state": m.state, "listeners": dict(m.addresses)} for m in cluster.members
            ],
        }

    async def act(self, command: str, request: dict[str, Any]) -> str | None:
        cluster = self._cluster
        node_actions: dict[str, tuple[Callable[[int], Awaitable[None]], str]] = {
            "kill": (cluster.kill, "killed"),
            "pause": (cluster.pause, "paused"),
            "resume": (cluster.resume, "resumed"),
            "restart": (cluster.restart, "restarted"),
            "cut": (cluster.cut_from_zookeeper, "cut off from ZooKeeper"),
            "heal": (cluster.heal, "connected to ZooKeeper"),
            "hold": (cluster.hold_control_requests, "held back: its control requests wait"),
            "release": (cluster.release_control_requests, "released"),
        }
        match command, request:
            case _, {"node": int(node)} if command in node_actions:
                action, done = node_actions[command]
                await action(node)
                return f"node {node} is {done}"
            case "delete-controller", _:
                await cluster.delete_controller()
                return "/controller is deleted"
        return None


def write_atomically(path: Path, text: str) -> None:
    """Write atomically: a reader finds the whole text or no file. Raises HarnessError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        part.replace(path)
    except OSError as e:
        raise HarnessError(f"{path} cannot be written: {e.strerror or e}") from None


class Supervisor:
    """Serves the socket of one target until cancelled. ``on_change`` is called with a sentence for each action.

    ``name`` is what the user calls the target. ``guard`` removes the files if this process is killed.
    """

    def __init__(self, target: Target, guard: Guard, on_change: Callable[[str], None], name: str | None = None) -> None:
        self._target = target
        self._on_change = on_change
        self._name = name
        self.socket_path = registry() / f"{os.getpid()}.sock"
        self._file = registry() / f"{os.getpid()}.json"
        self._busy = trio.Lock()
        self._faults: dict[int, Rule] = {}
        self._last_fault = 0
        for path in (self._file, self.socket_path):
            guard.remove(path)

    def describe(self) -> dict[str, Any]:
        """The content of `--ready-file`."""
        process = {"name": self._name, "pid": os.getpid(), "birth": birth(os.getpid()), "socket": str(self.socket_path)}
        return process | self._target.describe()

    def publish(self, ready_file: Path | None) -> None:
        text = json.dumps(self.describe(), indent=2) + "\n"
        write_atomically(self._file, text)
        if ready_file is not None:
            write_atomically(ready_file, text)

    def retract(self, ready_file: Path | None) -> None:
        for path in (self._file, self.socket_path, ready_file):
            if path is not None:
                path.unlink(missing_ok=True)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.socket_path.unlink(missing_ok=True)
        with trio.socket.socket(socket.AF_UNIX) as listening:
            await listening.bind(str(self.socket_path))
            listening.listen()
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    accepted, _ = await listening.accept()
                    nursery.start_soon(self._serve, trio.SocketStream(accepted))

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                with trio.fail_after(ANSWER_TIMEOUT_S):
                    request = await _read_line(stream)
                    await stream.send_all(json.dumps(await self._answer(request)).encode() + b"\n")
        except (trio.BrokenResourceError, trio.TooSlowError, OSError):
            return

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            async with self._busy:
                return {"ok": True, **await self._obey(request)}
        except HarnessError as e:
            return {"error": str(e)}
        except (ValueError, KeyError, TypeError) as e:
            return {"error": f"not a command: {line[:100]!r} ({e})"}

    async def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        command = request["command"]
        if command == "describe":
            return self.describe()
        if command == "fault list":
            return {"faults": {number: rule.to_json() for number, rule in self._faults.items()}}
        if command == "fault stats":
            counts = {number: await self._target.count_rule(rule) for number, rule in self._faults.items()}
            return {
                "faults": {
                    number: {"rule": self._faults[number].describe(), "matched": matched, "fired": fired}
                    for number, (matched, fired) in counts.items()
                }
            }
        text = await self._act(command, request)
        self._on_change(text)
        return {"text": text}

    async def _act(self, command: str, request: dict[str, Any]) -> str:
        """Execute a command that changes something; returns a sentence. Raises HarnessError."""
        match command, request:
            case "fault add", {"rule": dict(fields)}:
                rule = Rule.from_json(fields)
                await self._target.add_rule(rule)
                self._last_fault += 1
                self._faults[self._last_fault] = rule
                return f"fault {self._last_fault} is added: {rule.describe()}"
            case "fault remove", {"number": int(number)}:
                if number not in self._faults:
                    raise HarnessError(f"there is no fault {number}; there are {', '.join(map(str, self._faults))}")
                rule = self._faults.pop(number)
                await self._target.remove_rule(rule)
                return f"fault {number} is removed: {rule.matched} frames matched, it acted on {rule.fired}"
        text = await self._target.act(command, request)
        if text is None:
            raise HarnessError(f"not a command: {command} of {request}")
        return text


async def _read_line(stream: trio.SocketStream) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_REQUEST_BYTES:
        data = await stream.receive_some(4096)
        if not data:
            break
        line += data
    return line
