"""The nodes of a cluster that are processes of their own: `node_process`, started, asked and ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import trio

from kce.harness.background import BackgroundTasks
from kce.harness.errors import HarnessError
from kce.harness.guard import Guard
from kce.harness.links import FrameEvent, Links
from kce.harness.logs import SERVER_LOG, last_words
from kce.harness.members import SHUTDOWN_TIMEOUT_S, Member
from kce.harness.node import Lag, NodeStatus
from kce.harness.world.machine import Machine

READY_TIMEOUT_S = 60
#: from the end of its output to the end of a process
EXIT_TIMEOUT_S = 2
#: glibc keeps the memory of large requests for the next ones; to get it anew from the kernel is a fault for each page
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


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
        self._numbers = itertools.count(1)
        self._rules: dict[int, dict[str, Any]] = {}
        #: where the answers to commands go, by number; None once the process writes no more
        self._asked: dict[int, trio.MemorySendChannel[dict[str, Any]]] | None = None

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
        self.check_can_start()
        self._log_folder.mkdir(exist_ok=True)
        with self.log_path.open("ab") as log:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "kce.harness.node_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0, env=MEMORY | os.environ,
            )  # fmt: skip
        self._guard.watch(process.pid)
        self._process, self._paused = process, False
        self._asked = {}
        self._tasks.start_soon(self._read, process, self._asked)
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
            with contextlib.suppress(HarnessError):  # it ended: what it wrote last is in its log
                answer = await self._ask(begin)
        if scope.cancelled_caught:
            answer["error"] = f"it did not come up within {READY_TIMEOUT_S} s, see {self.log_path}"
        if answer["event"] != "ready":
            await self._end(process, 0 if scope.cancelled_caught else EXIT_TIMEOUT_S)
            answer["error"] = answer["error"] or self.end_reason()
            raise HarnessError(f"node {self.id}: {answer['error']}")
        self.addresses = answer["addresses"]
        self.bound = answer["bound"]
        self._keep_ports()

    def end_reason(self) -> str:
        """The reason why the process has ended, from its exit code and its log."""
        return self._end_reason(self._process)

    def _end_reason(self, process: trio.Process | None) -> str:
        code = None if process is None else process.returncode
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

    async def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The node's answer to a command. Whoever no longer waits for theirs disturbs nobody.

        Raises HarnessError if the process ends before.
        """
        process = self._running()
        number, asked = next(self._numbers), self._asked
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        if asked is None:
            send.close()
        else:
            asked[number] = send
        try:
            await self._send(command | {"ask": number})
            return await receive.receive()
        except (trio.EndOfChannel, OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await self._end(process, EXIT_TIMEOUT_S)  # the next one may have started meanwhile
            raise HarnessError(f"node {self.id}: {self._end_reason(process)}") from None
        finally:
            if asked is not None:
                asked.pop(number, None)

    async def _read(self, process: trio.Process, asked: dict[int, trio.MemorySendChannel[dict[str, Any]]]) -> None:
        """Read the node's stdout: frames for the subscribers, and answers to commands."""
        assert process.stdout is not None
        buffer = b""
        try:
            async for data in process.stdout:
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if message["event"] == "frame":
                        self._links.publish(FrameEvent.from_json(message))
                    elif (channel := asked.get(message["ask"])) is not None:
                        channel.send_nowait(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the end of the process
        finally:
            if self._asked is asked:
                self._asked = None
            for channel in asked.values():
                channel.close()

    async def _end(self, process: trio.Process, patience_s: float = 0) -> None:
        """Wait that long for the process to end, then kill it."""
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
        await self._end(process, SHUTDOWN_TIMEOUT_S)

    async def quit(self) -> None:
        if self._paused:
            await self.resume()
        process = self._running()
        with contextlib.suppress(OSError, trio.BrokenResourceError):
            await self._send({"command": "quit"})
        await self._end(process, SHUTDOWN_TIMEOUT_S)

    async def kill(self) -> None:
        process = self._running()
        process.kill()
        await self._end(process)

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
        answer = await self._ask({"command": command, "number": number})
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
        process = self._running()
        answer = await self._ask({"command": "fail log dir", "log_dir": log_dir})
        if answer["error"]:
            raise HarnessError(answer["error"])
        if answer["halts"]:
            await self._end(process, SHUTDOWN_TIMEOUT_S)

    async def status(self) -> NodeStatus:
        status = await self._ask({"command": "status"})
        unanswered = {int(broker): size for broker, size in status["unanswered"].items()}
        return NodeStatus(status["believes_active"], status["controller_epoch"], unanswered)

    async def knows(self, brokers: Collection[int], topic: str = "", partitions: int = 0) -> bool:
        question = {"command": "knows", "brokers": list(brokers), "topic": topic, "partitions": partitions}
        return bool((await self._ask(question))["knows"])


def _of_another_process(seconds: float) -> None:
    """Its disk is used there."""


def _as_json(lag: Lag) -> dict[str, Any]:
    return {**lag.partition._asdict(), "broker": lag.broker}
