"""The server of `kce up` and `kce proxy` for other commands: a file with addresses, and a socket.

The socket speaks JSON lines, one request and one response each: {"command": "kill", "node": 2} -> {"ok": true, ...} or
{"error": text}. The file (see ``describe``) is in a folder of this user, where `kce.harness.running`, the client, finds
it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from kce.harness import http_server
from kce.harness.commands import Commands, Target
from kce.harness.errors import HarnessError
from kce.harness.guard import Guard, birth
from kce.harness.http_api import HttpApi
from kce.harness.running import ANSWER_TIMEOUT_S, registry
from kce.harness.world.real_world import RealWorld

MAX_REQUEST_BYTES = 65536


def write_atomically(path: Path, text: str) -> None:
    """Write atomically: a reader finds the whole text or no file. Raises HarnessError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch(mode=0o600)  # it may have a token
        part.write_text(text)
        part.replace(path)
    except OSError as e:
        raise HarnessError(f"{path} cannot be written: {e.strerror or e}") from None


class Supervisor:
    """Serves commands on a socket, and over HTTP with ``http_port``, until cancelled. See `Commands`.

    ``name`` is what the user calls the target. ``guard`` removes the files if this process is killed.
    """

    def __init__(
        self,
        target: Target,
        guard: Guard,
        on_change: Callable[[str], None],
        name: str | None = None,
        http_port: int | None = None,
    ) -> None:
        self.socket_path = registry() / f"{os.getpid()}.sock"
        self._file = registry() / f"{os.getpid()}.json"
        self._http_port = http_port
        process = {"name": name, "pid": os.getpid(), "birth": birth(os.getpid()), "socket": str(self.socket_path)}
        self.commands = Commands(target, process, on_change)
        for path in (self._file, self.socket_path):
            guard.remove(path)

    def publish(self, ready_file: Path | None) -> None:
        text = json.dumps(self.commands.describe(), indent=2) + "\n"
        write_atomically(self._file, text)
        if ready_file is not None:
            write_atomically(ready_file, text)

    def retract(self, ready_file: Path | None) -> None:
        for path in (self._file, self.socket_path, ready_file):
            if path is not None:
                path.unlink(missing_ok=True)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Raises HarnessError for an HTTP port that is taken, or a socket that cannot be made."""
        self.socket_path.unlink(missing_ok=True)
        with trio.socket.socket(socket.AF_UNIX) as listening:
            try:
                await listening.bind(str(self.socket_path))
            except OSError as e:  # most often its path is too long
                text = f"{self.socket_path} cannot be made: {e.strerror or e}"
                raise HarnessError(f"{text}; set XDG_RUNTIME_DIR to another, shorter folder") from None
            listening.listen()
            async with trio.open_nursery() as nursery:
                if self._http_port is not None:
                    await self._serve_http(self._http_port, nursery)
                task_status.started()
                while True:
                    accepted, _ = await listening.accept()
                    nursery.start_soon(self._serve, trio.SocketStream(accepted))

    async def _serve_http(self, port: int, nursery: trio.Nursery) -> None:
        token = secrets.token_urlsafe(24)
        api = HttpApi(self.commands.execute, token)
        try:
            bound = await nursery.start(http_server.serve, api, RealWorld(), port)
        except OSError as e:
            raise HarnessError(f"port {port} of {http_server.HOST} cannot be listened on: {e.strerror or e}") from None
        self.commands.process["http"] = {"url": f"http://{http_server.HOST}:{bound}", "token": token}

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
            return {"ok": True, **await self.commands.execute(json.loads(line))}
        except HarnessError as e:
            return {"error": str(e)}
        except ValueError as e:
            return {"error": f"not a command: {line[:100]!r} ({e})"}


async def _read_line(stream: trio.SocketStream) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_REQUEST_BYTES:
        data = await stream.receive_some(4096)
        if not data:
            break
        line += data
    return line
