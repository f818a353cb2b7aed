"""The nodes of a cluster, in this process or each in its own, behind one interface.

A member keeps its ports over restarts. A process can be paused, and a node in memory; other in-process members raise
HarnessError.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from kce.harness.background import BackgroundTasks
from kce.harness.errors import HarnessError, NodeHalted
from kce.harness.guard import Guard
from kce.harness.links import FrameEvent, Links
from kce.harness.logs import SERVER_LOG, last_words
from kce.harness.node import Lag, Node, NodeStatus
from kce.harness.world import MemoryWorld, World
from kce.harness.world.machine import Machine

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 60
SHUTDOWN_TIMEOUT_S = 20
#: from the end of its output to the end of a process
EXIT_TIMEOUT_S = 2
#: glibc keeps the memory of large requests for the next ones; to get it anew from the kernel is a fault for each page
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


class Member(ABC):
    """One node. ``properties`` are those of the next start. ``addresses`` are advertised, ``bound`` those of
    the sockets, by listener."""

    def __init__(
        self, node_id: int, properties: dict[str, str], record: Callable[[], Path | None], machine: Machine
    ) -> None:
        self.id = node_id
        self.properties = properties
        self.addresses: dict[str, str] = {}
        self.bound: dict[str, str] = {}
        #: those of the next start, too
        self.lags: set[Lag] = set()
        #: `machine_changed` tells the node
        self.machine = machine
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
        """Return when the node serves. Raises HarnessError with the error of a node that does not start."""

    @abstractmethod
    async def stop(self) -> None:
        """Shut down gracefully: controlled shutdown, then close the session."""

    @abstractmethod
    async def quit(self) -> None:
        """Stop serving and close the session, without controlled shutdown."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the node as kill -9 does: its connections break, its session lasts until it expires."""

    @abstractmethod
    async def status(self) -> NodeStatus:
        """The view of the node's controller module."""

    async def lag(self, lag: Lag, wanted: bool) -> None:
        """Let a follower lag from now on, or not any more; a stopped node hears of it when it starts."""
        if wanted:
            self.lags.add(lag)
        else:
            self.lags.discard(lag)
        if self.state != "stopped":
            await self._lag(lag, wanted)

    @abstractmethod
    async def _lag(self, lag: Lag, wanted: bool) -> None:
        """Tell the running node."""

    @abstractmethod
    async def machine_changed(self) -> None:
        """Tell a running node of its machine; a stopped one hears of it when it starts."""

    @abstractmethod
    async def fail_log_dir(self, log_dir: str) -> None:
        """Let a log directory fail until the next start. Raises HarnessError for one that is not online."""

    def end_reason(self) -> str:
        """Why a stopped node has ended."""
        return "it has ended"

    async def pause(self) -> None:
        raise HarnessError(f"node {self.id} runs inside this process and cannot be paused: use processes=True")

    async def resume(self) -> None:
        raise HarnessError(f"node {self.id} runs inside this process and cannot be resumed: use processes=True")

    def _keep_ports(self) -> None:
        """The next start uses the ports of this one. Listeners that AlterConfigs has added are not the file's."""
        given = self.properties["listeners"]
        self.properties["listeners"] = ",".join(
            f"{name}://{where}" for name, where in self.bound.items() if f"{name}://" in given
        )


class InProcessMember(Member):
    def __init__(
        self,
        node_id: int,
        properties: dict[str, str],
        record: Callable[[], Path | None],
        tasks: BackgroundTasks,
        world: World,
        links: Links,
    ) -> None:
        super().__init__(node_id, properties, record, world.machine)
        self._tasks = tasks
        self._world = world
        self._links = links
        self._ended = trio.Event()
        self._ended.set()
        self.node: Node | None = None
        self._halted = ""
        self._is_paused = False

    @property
    def state(self) -> str:
        return "stopped" if self._ended.is_set() else "paused" if self._is_paused else "running"

    async def pause(self) -> None:
        if not isinstance(self._world, MemoryWorld):
            await super().pause()
            return
        self._running()
        self._is_paused = True
        self._world.pause()

    async def resume(self) -> None:
        if not isinstance(self._world, MemoryWorld):
            await super().resume()
            return
        self._running()
        self._is_paused = False
        self._world.resume()

    def _running(self) -> Node:
        if self.node is None or self._ended.is_set():
            raise HarnessError(f"node {self.id} is not running")
        return self.node

    async def start(self) -> None:
        if not self._ended.is_set():
            raise HarnessError(f"node {self.id} is running already")
        node = Node(self.properties, world=self._world, links=self._links, record=self._record())
        node.lags = self.lags
        ended = trio.Event()
        await self._tasks.start(self._run, node, ended)
        self.node, self._ended = node, ended
        self.addresses = node.addresses()
        self.bound = node.bound_addresses()
        self._keep_ports()

    async def _run(self, node: Node, ended: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        self._halted = ""
        try:
            await node.run(task_status)
        except NodeHalted as e:
            if not node.is_up:
                raise
            log.error("node %d has halted: %s", self.id, e)
            self._halted = str(e)
        finally:
            if self._is_paused:
                await self.resume()
            ended.set()

    async def stop(self) -> None:
        if self._is_paused:
            await self.resume()
        await self._running().shutdown()
        await self._ended.wait()

    async def quit(self) -> None:
        node = self._running()
        if self._is_paused:
            await self.resume()
        with trio.move_on_after(SHUTDOWN_TIMEOUT_S) as scope:
            await node.shutdown(controlled=False)
        if scope.cancelled_caught:
            node.cancel()
        await self._ended.wait()

    async def kill(self) -> None:
        await self._running().abandon()
        await self._ended.wait()

    def end_reason(self) -> str:
        return self._halted or super().end_reason()

    async def status(self) -> NodeStatus:
        return self._running().status()

    async def _lag(self, lag: Lag, wanted: bool) -> None:
        self._running().lag(lag, wanted)

    async def machine_changed(self) -> None:
        await trio.lowlevel.checkpoint()  # its world has the same object

    async def fail_log_dir(self, log_dir: str) -> None:
        node = self._running()
        if node.log_dirs.halts_without(log_dir):  # halting would end this process, too
            await self.kill()
        else:
            node.log_dirs.fail(log_dir)


class ProcessMember(Member):
    def __init__(
        self,
        node_id: int,
        properties: dict[str, str],
        record: Callable[[], Path | None],
        tasks: BackgroundTasks,
        guard: Guard,
        links: Links,
        log_folder: Path,
        log_level: str,
    ) -> None:
        super().__init__(node_id, properties, record, Machine(_of_another_process))
        self._tasks = tasks
        self._guard = guard
        self._links = links
        self._log_folder = log_folder / f"node-{node_id}"
        self.log_path = self._log_folder / SERVER_LOG
        self._log_level = log_level
        self._process: trio.Process | None = None
        self._paused = False
        self._sending = trio.Lock()
        self._rules: dict[int, dict[str, Any]] = {}
        self._answers: trio.MemoryReceiveChannel[dict[str, Any]]

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
        self._log_folder.mkdir(exist_ok=True)
        with self.log_path.open("ab") as log:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "kce.harness.node_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0, env=MEMORY | os.environ,
            )  # fmt: skip
        self._guard.watch(process.pid)
        self._process, self._paused = process, False
        answers, self._answers = trio.open_memory_channel[dict[str, Any]](math.inf)
        self._tasks.start_soon(self._read, process, answers)
        record = self._record()
        begin = {
            "properties": self.properties,
            "record": str(record) if record else None,
            "log_level": self._log_level,
            "log_folder": str(self._log_folder),
            "members": sorted(self._links.members),
            "rules": self._rules,
            "subscribed": self._links.has_subscribers,
            "lags": [_as_json(lag) for lag in sorted(self.lags)],
            "machine": self.machine.to_json(),
        }
        answer: dict[str, Any] = {"event": "failed", "error": ""}
        with trio.move_on_after(READY_TIMEOUT_S) as scope:
            try:
                await self._send(begin)
                answer = await self._answer()
            except (OSError, trio.BrokenResourceError, HarnessError):
                pass  # it ended: what it wrote last is in its log
        if scope.cancelled_caught:
            answer["error"] = f"it did not come up within {READY_TIMEOUT_S} s, see {self.log_path}"
        if answer["event"] != "ready":
            await self._end(0 if scope.cancelled_caught else EXIT_TIMEOUT_S)
            answer["error"] = answer["error"] or self.end_reason()
            raise HarnessError(f"node {self.id}: {answer['error']}")
        self.addresses = answer["addresses"]
        self.bound = answer["bound"]
        self._keep_ports()

    def end_reason(self) -> str:
        """The reason why the process has ended, from its exit code and its log."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "it has not ended"
        how = f"with exit code {code}" if code >= 0 else f"by signal {signal.Signals(-code).name}"
        why = last_words(self.log_path)
        return f"it ended {how}{f': {why}' if why else ''} (log: {self.log_path})"

    async def _send(self, message: dict[str, Any]) -> None:
        process = self._running()
        assert process.stdin is not None
        async with self._sending:
            await process.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def _read(self, process: trio.Process, answers: trio.MemorySendChannel[dict[str, Any]]) -> None:
        """Read the node's stdout: frames for the subscribers, and answers to commands."""
        assert process.stdout is not None
        buffer = b""
        with answers:
            try:
                async for data in process.stdout:
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in lines:
                        message = json.loads(line)
                        if message["event"] == "frame":
                            self._links.publish(FrameEvent.from_json(message))
                        else:
                            answers.send_nowait(message)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the end of the process

    async def _answer(self) -> dict[str, Any]:
        """The node's next answer to a command."""
        try:
            return await self._answers.receive()
        except trio.EndOfChannel:
            await self._end(EXIT_TIMEOUT_S)
            raise HarnessError(f"node {self.id}: {self.end_reason()}") from None

    async def _end(self, patience_s: float = 0) -> None:
        """Wait that long for the process to end, then kill it."""
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
            await self._send({"command": "quit"})
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

    async def add_rule(self, number: int, rule: dict[str, Any]) -> None:
        """Apply a rule in the node's process, also in the next one."""
        self._rules[number] = rule
        if self.state == "running":
            await self._send({"command": "add rule", "number": number, "rule": rule})

    async def remove_rule(self, number: int) -> tuple[int, int]:
        """Remove it; returns how many frames matched there, and on how many it acted."""
        self._rules.pop(number, None)
        return await self._rule("remove rule", number)

    async def count_rule(self, number: int) -> tuple[int, int]:
        """How many frames matched there, and on how many it acted."""
        return await self._rule("count rule", number)

    async def _rule(self, command: str, number: int) -> tuple[int, int]:
        if self.state != "running":
            return 0, 0
        await self._send({"command": command, "number": number})
        answer = await self._answer()
        return answer["matched"], answer["fired"]

    async def subscribe(self, wanted: bool) -> None:
        """Switch the node's reports of frames on or off. A node that ends meanwhile reports none."""
        with contextlib.suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError, HarnessError):
            await self._send({"command": "subscribe", "wanted": wanted})

    async def _lag(self, lag: Lag, wanted: bool) -> None:
        await self._send({"command": "lag", "lag": _as_json(lag), "wanted": wanted})

    async def machine_changed(self) -> None:
        if self.state != "stopped":
            await self._send({"command": "machine", "machine": self.machine.to_json()})

    async def fail_log_dir(self, log_dir: str) -> None:
        await self._send({"command": "fail log dir", "log_dir": log_dir})
        answer = await self._answer()
        if answer["error"]:
            raise HarnessError(answer["error"])
        if answer["halts"]:
            await self._end(SHUTDOWN_TIMEOUT_S)

    async def status(self) -> NodeStatus:
        await self._send({"command": "status"})
        status = await self._answer()
        unanswered = {int(broker): size for broker, size in status["unanswered"].items()}
        return NodeStatus(status["believes_active"], status["controller_epoch"], unanswered)


def _of_another_process(seconds: float) -> None:
    """Its disk is used there."""


def _as_json(lag: Lag) -> dict[str, Any]:
    return {**lag.partition._asdict(), "broker": lag.broker}
