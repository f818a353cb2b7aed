"""The nodes of a cluster behind one interface: those in this process; `process_member` has those in their own.

A member keeps its ports over restarts. A process can be paused, and a node in memory; other in-process members raise
HarnessError.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path

import trio

from kce.harness.background import BackgroundTasks
from kce.harness.errors import HarnessError, NodeHalted
from kce.harness.links import Links
from kce.harness.node import Lag, Node, NodeStatus
from kce.harness.world import MemoryWorld, World
from kce.harness.world.machine import Machine

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 20


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

    def check_can_start(self) -> None:
        """Raises HarnessError for a node that runs, be it paused."""
        if self.state != "stopped":
            raise HarnessError(f"node {self.id} is {self.state if self.state == 'paused' else 'running already'}")

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

    @abstractmethod
    async def knows(self, brokers: Collection[int], topic: str = "", partitions: int = 0) -> bool:
        """Whether its metadata has these brokers alive, and leaders of that many partitions of the topic."""

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
        self.check_can_start()
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

    async def knows(self, brokers: Collection[int], topic: str = "", partitions: int = 0) -> bool:
        return self._running().knows(brokers, topic, partitions)

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
