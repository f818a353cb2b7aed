"""The nodes of a cluster, in this process or each in its own: one way to lead both.

A member keeps its ports over restarts. What only a process can suffer (kill -9, being paused) an in-process member
refuses in words.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from harness.errors import HarnessError
from harness.guard import Guard
from harness.node import Node, NodeStatus

READY_TIMEOUT_S = 60
SHUTDOWN_TIMEOUT_S = 20


class Member(ABC):
    """One node. ``properties`` are those of the next start; ``addresses`` those of the running one, by listener."""

    def __init__(self, node_id: int, properties: dict[str, str], record: Callable[[], Path | None]) -> None:
        self.id = node_id
        self.properties = properties
        self.addresses: dict[str, str] = {}
        self._record = record

    @property
    @abstractmethod
    def state(self) -> str:
        """running, paused, or stopped."""

    @property
    def pid(self) -> int | None:
        return None

    @abstractmethod
    async def start(self) -> None:
        """Returns when the node serves. Raises HarnessError with what the node said when it does not come up."""

    @abstractmethod
    async def stop(self) -> None:
        """Graceful: controlled shutdown, then the end of its session."""

    @abstractmethod
    async def quit(self) -> None:
        """Stop serving and end the session, without controlled shutdown."""

    @abstractmethod
    async def kill(self) -> None:
        """As if by kill -9: its connections break, its session lives on until it expires."""

    @abstractmethod
    async def hold(self) -> None:
        """Keep back the control requests it sends as controller."""

    @abstractmethod
    async def release(self) -> None:
        """Let them go."""

    @abstractmethod
    async def status(self) -> NodeStatus:
        """What its controller module believes."""

    async def pause(self) -> None:
        raise HarnessError(f"node {self.id} runs inside this process and cannot be paused: use processes=True")

    async def resume(self) -> None:
        raise HarnessError(f"node {self.id} runs inside this process and cannot be resumed: use processes=True")

    def _keep_ports(self) -> None:
        """Listeners of the next start are those of this one."""
        self.properties["listeners"] = ",".join(f"{name}://{where}" for name, where in self.addresses.items())


class InProcessMember(Member):
    def __init__(
        self, node_id: int, properties: dict[str, str], record: Callable[[], Path | None], nursery: trio.Nursery
    ) -> None:
        super().__init__(node_id, properties, record)
        self._nursery = nursery
        self._ended = trio.Event()
        self._ended.set()
        self.node: Node | None = None

    @property
    def state(self) -> str:
        return "stopped" if self._ended.is_set() else "running"

    def _running(self) -> Node:
        if self.node is None or self._ended.is_set():
            raise HarnessError(f"node {self.id} is not running")
        return self.node

    async def start(self) -> None:
        if not self._ended.is_set():
            raise HarnessError(f"node {self.id} is running already")
        node = Node(self.properties, record=self._record())
        ended = trio.Event()
        await self._nursery.start(self._run, node, ended)
        self.node, self._ended = node, ended
        self.addresses = node.addresses()
        self._keep_ports()

    async def _run(self, node: Node, ended: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        try:
            await node.run(task_status)
        finally:
            ended.set()

    async def stop(self) -> None:
        await self._running().shutdown()
        await self._ended.wait()

    async def quit(self) -> None:
        await self._running().shutdown(controlled=False)
        await self._ended.wait()

    async def kill(self) -> None:
        await self._running().abandon()
        await self._ended.wait()

    async def hold(self) -> None:
        self._running().hold.hold()

    async def release(self) -> None:
        self._running().hold.release()

    async def status(self) -> NodeStatus:
        return self._running().status()


class ProcessMember(Member):
    def __init__(
        self,
        node_id: int,
        properties: dict[str, str],
        record: Callable[[], Path | None],
        guard: Guard,
        log_folder: Path,
        log_level: str,
    ) -> None:
        super().__init__(node_id, properties, record)
        self._guard = guard
        self.log_path = log_folder / f"node-{node_id}.log"
        self._log_level = log_level
        self._process: trio.Process | None = None
        self._paused = False

    @property
    def state(self) -> str:
        if self._process is None or self._process.poll() is not None:
            return "stopped"
        return "paused" if self._paused else "running"

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def _running(self) -> trio.Process:
        if self._process is None or self._process.poll() is not None:
            raise HarnessError(f"node {self.id} is not running")
        return self._process

    async def start(self) -> None:
        if self.state != "stopped":
            raise HarnessError(f"node {self.id} is running already")
        with self.log_path.open("ab") as log:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "harness.node_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0,
            )  # fmt: skip
        self._guard.watch(process.pid)
        self._process, self._paused = process, False
        record = self._record()
        begin = {
            "properties": self.properties,
            "record": str(record) if record else None,
            "log_level": self._log_level,
        }
        answer: dict[str, Any] = {"event": "failed", "error": f"it ended without a word, see {self.log_path}"}
        with trio.move_on_after(READY_TIMEOUT_S) as scope:
            try:
                await self._say(begin)
                answer = json.loads(await self._line())
            except (OSError, trio.BrokenResourceError, HarnessError):
                pass  # it ended: what it wrote last is in its log
        if scope.cancelled_caught:
            answer["error"] = f"it did not come up within {READY_TIMEOUT_S} s, see {self.log_path}"
        if answer["event"] != "ready":
            await self._end()
            raise HarnessError(f"node {self.id}: {answer['error']}")
        self.addresses = answer["addresses"]
        self._keep_ports()

    async def _say(self, message: dict[str, Any]) -> None:
        process = self._running()
        assert process.stdin is not None
        await process.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def _line(self) -> bytes:
        """What the node says next."""
        process = self._running()
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            data = await process.stdout.receive_some()
            if not data:
                raise HarnessError(f"node {self.id} has ended, see {self.log_path}")
            line += data
        return line

    async def _end(self, patience_s: float = 0) -> None:
        """Wait that long for the process to end, then make it."""
        process = self._process
        if process is None:
            return
        with trio.CancelScope(shield=True):
            with trio.move_on_after(patience_s):
                await process.wait()
            if process.poll() is None:
                process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await trio.aclose_forcefully(stream)
        self._guard.forget(process.pid)

    async def stop(self) -> None:
        process = self._running()
        if self._paused:
            await self.resume()
        process.terminate()
        await self._end(SHUTDOWN_TIMEOUT_S)

    async def quit(self) -> None:
        if self._paused:
            await self.resume()
        with contextlib.suppress(OSError, trio.BrokenResourceError):
            await self._say({"command": "quit"})
        await self._end(SHUTDOWN_TIMEOUT_S)

    async def kill(self) -> None:
        self._running().kill()
        await self._end()

    async def pause(self) -> None:
        os.kill(self._running().pid, signal.SIGSTOP)
        self._paused = True

    async def resume(self) -> None:
        os.kill(self._running().pid, signal.SIGCONT)
        self._paused = False

    async def hold(self) -> None:
        await self._say({"command": "hold"})

    async def release(self) -> None:
        await self._say({"command": "release"})

    async def status(self) -> NodeStatus:
        await self._say({"command": "status"})
        told = json.loads(await self._line())
        unanswered = {int(broker): size for broker, size in told["unanswered"].items()}
        return NodeStatus(told["believes_active"], told["controller_epoch"], unanswered)
