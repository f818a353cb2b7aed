"""A cluster on command: ZooKeeper, nodes, and everything that can be done to them.

    async with harness.Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=4, replication_factor=3)
        old = await cluster.controller()
        await cluster.kill(old.id)
        new = await cluster.wait_for_controller(other_than=old)

Nodes run in this process, or each in its own with ``processes=True`` (then they can also be paused and killed for
good). ZooKeeper is an embedded real one, or yours with ``zookeeper="host:port/chroot"``. Whatever ends the ``async
with`` block, nothing is left running.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import trio

from captures.recorder import merge
from controller import admin, zk_data
from controller.admin import AdminError, TopicDescription
from controller.kafka_zk_client import KafkaZkClient
from controller.store import Delete, MetadataStore, StoreUnavailable
from controller.store.zookeeper import KazooStore
from controller.zk_client import ChangeHandler
from harness.errors import HarnessError, plain_error
from harness.faults import TcpProxy
from harness.guard import Guard
from harness.members import InProcessMember, Member, ProcessMember
from harness.node import METRICS_PORT, NodeStatus, now_ms
from harness.zookeeper import embedded_zookeeper

CONTROL, DATA = "CONTROL", "DATA"
SESSION_TIMEOUT_MS = 6000
#: how long the ``wait_for`` methods wait unless told otherwise
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class ActiveController:
    """Who holds /controller, and under which epoch."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """``properties`` are Kafka's and go to every node; None takes away one of ours. Port None is an ephemeral one;
    others count up by node."""

    brokers: int
    processes: bool
    zookeeper: str | None
    zookeeper_port: int | None
    control_port: int | None
    data_port: int | None
    metrics_port: int | None
    first_id: int
    properties: Mapping[str, str | None]
    record: Path | None
    log_level: str


class Cluster:
    """See the module. Every method that names a node raises HarnessError for one that does not exist."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        processes: bool = False,
        zookeeper: str | None = None,
        zookeeper_port: int | None = None,
        control_port: int | None = None,
        data_port: int | None = None,
        metrics_port: int | None = None,
        first_id: int = 1,
        properties: Mapping[str, str | None] | None = None,
        record: str | Path | None = None,
        data: str | Path | None = None,
        log_level: str = "INFO",
    ) -> None:
        """``properties``: Kafka's, for every node; None takes away what the cluster sets, such as its control plane.

        ``record``: a pcapng file for all traffic between nodes, written when the cluster ends.

        ``metrics_port``: where Prometheus finds the first node's metrics; those of the others count up.
        ``data``: a folder for logs and ZooKeeper's data, kept afterwards; by default a temporary one that is removed.
        """
        self._config = ClusterConfig(
            brokers, processes, zookeeper, zookeeper_port, control_port, data_port, metrics_port,
            first_id, properties or {},
            Path(record).absolute() if record else None, log_level,
        )  # fmt: skip
        self._data_given = Path(data).absolute() if data else None
        self._stack = AsyncExitStack()
        self._members: dict[int, Member] = {}
        self._proxies: dict[int, TcpProxy] = {}
        self._recordings: list[Path] = []
        self.record_problems: list[str] = []
        #: wall-clock ns since 1970 at which /controller was last seen to vanish; 0 before
        self.controller_gone_ns = 0

    # life

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as e:
            await self._stack.aclose()
            if (plain := plain_error(e)) is not e:
                raise plain from None
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # the body's exception goes on as it is: through the stack it would come out of the nursery in a group
        try:
            await self._stack.aclose()
        finally:
            self._merge_recordings()

    async def _start(self) -> None:
        stack, config = self._stack, self._config
        guard = self.guard = Guard()
        stack.callback(guard.close)
        self.data = self._make_data_folder(guard)
        if config.zookeeper is None:
            self.zookeeper = await stack.enter_async_context(
                embedded_zookeeper(self.data / "zookeeper", guard, port=config.zookeeper_port)
            )
        else:
            self.zookeeper = config.zookeeper
        self._store = await self._connect()
        stack.push_async_callback(self._store.aclose)
        self._zk = KafkaZkClient(self._store, now_ms=now_ms)
        await self._watch_controller()
        await self._zk.make_top_level_paths()
        self.cluster_id = await self._zk.get_or_create_cluster_id()
        nursery = await stack.enter_async_context(_cancelled_nursery())
        stack.push_async_callback(self._stop_members)
        for node_id in range(config.first_id, config.first_id + config.brokers):
            await self._add_member(node_id, guard, nursery)
        async with trio.open_nursery() as starting:
            for member in self._members.values():
                starting.start_soon(member.start)

    def _make_data_folder(self, guard: Guard) -> Path:
        folder = self._data_given
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="kce-"))
            guard.remove(folder)
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            probe = folder / "logs" / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise HarnessError(f"the data folder {folder} is not writable: {e.strerror or e}") from None
        return folder

    async def _connect(self) -> MetadataStore:
        timeout_ms = int(self._config.properties.get("zookeeper.connection.timeout.ms") or SESSION_TIMEOUT_MS)
        try:
            return await KazooStore.connect(
                self.zookeeper, session_timeout_ms=SESSION_TIMEOUT_MS, connection_timeout_ms=timeout_ms
            )
        except StoreUnavailable as e:
            raise HarnessError(str(e)) from None

    async def _add_member(self, node_id: int, guard: Guard, nursery: trio.Nursery) -> None:
        config = self._config
        hosts, slash, chroot = self.zookeeper.partition("/")
        host, _, port = hosts.partition(",")[0].rpartition(":")
        proxy = self._proxies[node_id] = TcpProxy(host, int(port))
        await nursery.start(proxy.run)
        offset = node_id - config.first_id
        control = config.control_port + offset if config.control_port else 0
        data = config.data_port + offset if config.data_port else 0
        wanted = {
            "broker.id": str(node_id),
            "listeners": f"{CONTROL}://127.0.0.1:{control},{DATA}://127.0.0.1:{data}",
            "listener.security.protocol.map": f"{CONTROL}:PLAINTEXT,{DATA}:PLAINTEXT",
            "control.plane.listener.name": CONTROL,
            "inter.broker.listener.name": DATA,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "auto.leader.rebalance.enable": "false",  # leaders move when somebody moves them
            **config.properties,
            "zookeeper.connect": f"127.0.0.1:{proxy.port}{slash}{chroot}",
        }
        properties = {key: text for key, text in wanted.items() if text is not None}
        if config.metrics_port:
            properties[METRICS_PORT] = str(config.metrics_port + offset)

        def record() -> Path | None:
            if config.record is None:
                return None
            part = (
                config.record.with_name(f"{config.record.name}.parts")
                / f"{len(self._recordings):03d}-node-{node_id}.pcapng"
            )
            self._recordings.append(part)
            return part

        if config.processes:
            self._members[node_id] = ProcessMember(
                node_id, properties, record, guard, self.data / "logs", config.log_level
            )
        else:
            self._members[node_id] = InProcessMember(node_id, properties, record, nursery)

    async def _stop_members(self) -> None:
        """All at once, and without controlled shutdown: there is nobody left to take over."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for member in self._members.values():
                    if member.state != "stopped":
                        reachable = not self._proxies[member.id].is_cut
                        nursery.start_soon(member.quit if reachable else member.kill)

    def _merge_recordings(self) -> None:
        record = self._config.record
        if record is None:
            return
        parts = [part for part in self._recordings if part.exists() and part.stat().st_size]
        if parts:
            self.record_problems = merge(parts, record)
        shutil.rmtree(record.with_name(f"{record.name}.parts"), ignore_errors=True)

    # nodes

    @property
    def members(self) -> Sequence[Member]:
        return list(self._members.values())

    def member(self, node_id: int) -> Member:
        try:
            return self._members[node_id]
        except KeyError:
            known = ", ".join(str(i) for i in self._members)
            raise HarnessError(f"there is no node {node_id} in this cluster; there are {known}") from None

    async def registered(self) -> set[int]:
        """Ids of the brokers that ZooKeeper knows to be alive."""
        return {int(broker) for broker in await self._zk.get_brokers(watch=False)}

    def bootstrap_servers(self) -> str:
        """The data listeners of all running nodes, as Kafka's clients take them."""
        return ",".join(m.addresses[DATA] for m in self._members.values() if m.state == "running" and m.addresses)

    async def kill(self, node_id: int) -> None:
        """As by kill -9: ZooKeeper finds out when the session expires."""
        await self.member(node_id).kill()

    async def stop(self, node_id: int) -> None:
        """Graceful, with controlled shutdown."""
        await self.member(node_id).stop()

    async def start(self, node_id: int) -> None:
        """Start a node that was stopped or killed, on its old ports, once ZooKeeper has let go of its id."""
        member = self.member(node_id)
        await self.wait_until(lambda: self._is_unregistered(node_id), f"broker {node_id} to be gone from ZooKeeper")
        await member.start()

    async def _is_unregistered(self, node_id: int) -> bool:
        return not await self._exists(zk_data.broker_path(node_id))

    async def restart(self, node_id: int) -> None:
        """Stop if it runs, then start."""
        if self.member(node_id).state != "stopped":
            await self.stop(node_id)
        await self.start(node_id)

    async def pause(self, node_id: int) -> None:
        """Stop the process in its tracks (SIGSTOP)."""
        await self.member(node_id).pause()

    async def resume(self, node_id: int) -> None:
        await self.member(node_id).resume()

    # faults

    async def cut_from_zookeeper(self, node_id: int) -> None:
        """Partition the node from ZooKeeper; its session expires if it is not healed in time."""
        self.member(node_id)
        self._proxies[node_id].cut()

    async def heal(self, node_id: int) -> None:
        self.member(node_id)
        self._proxies[node_id].heal()

    async def hold_control_requests(self, node_id: int) -> None:
        """Keep back what the node sends as controller, until ``release_control_requests``."""
        await self.member(node_id).hold()

    async def release_control_requests(self, node_id: int) -> None:
        await self.member(node_id).release()

    async def delete_controller(self) -> None:
        """Delete /controller by hand (rule 2.22)."""
        await self._store.write([Delete(zk_data.CONTROLLER)])

    async def node_status(self, node_id: int) -> NodeStatus:
        """What the node's controller module believes, which may be outdated: ask ZooKeeper by ``controller()``."""
        return await self.member(node_id).status()

    # controller

    async def controller_id(self) -> int | None:
        return await self._zk.get_controller_id()

    async def controller(self) -> ActiveController | None:
        """Who is controller now; None while nobody is."""
        controller_id = await self._zk.get_controller_id()
        epoch = await self._zk.get_controller_epoch()
        return None if controller_id is None or epoch is None else ActiveController(controller_id, epoch[0])

    async def wait_for_controller(self, *, other_than: ActiveController | None = None) -> ActiveController:
        """Until there is one, of a later epoch than ``other_than``. Raises HarnessError after PATIENCE_S."""
        found: list[ActiveController] = []

        async def elected() -> bool:
            now = await self.controller()
            if now is None or (other_than is not None and now.epoch <= other_than.epoch):
                return False
            found.append(now)
            return True

        await self.wait_until(elected, "a controller to be elected")
        return found[-1]

    async def _watch_controller(self) -> None:
        """Note when /controller vanishes, as ZooKeeper tells it."""

        def gone() -> None:
            self.controller_gone_ns = time.time_ns()

        handler = ChangeHandler(deleted=gone)
        await self._zk.register_and_check(zk_data.CONTROLLER, handler)

    # topics

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, str] | None = None,
        random: Random | None = None,
        wait: bool = True,
    ) -> uuid.UUID:
        """Create it in ZooKeeper and wait until every partition has a leader. Raises HarnessError.

        ``assignment`` gives the replicas of each partition; otherwise they are placed as Kafka places them.
        """
        with _admin_errors():
            topic_id = await admin.create_topic(
                self._zk, topic, partitions=partitions, replication_factor=replication_factor,
                assignment=assignment, config=config, random=random or Random(),
            )  # fmt: skip
        if wait:
            await self.wait_until(lambda: self._has_leaders(topic), f"leaders of topic {topic}")
        return topic_id

    async def _has_leaders(self, topic: str) -> bool:
        (described,) = await admin.describe_topics(self._zk, [topic])
        return all(
            p.leadership is not None and p.leadership.leader_and_isr.elected is not None for p in described.partitions
        )

    async def delete_topic(self, topic: str, *, wait: bool = True) -> None:
        """Mark it for deletion and wait until it is gone. Raises HarnessError."""
        with _admin_errors():
            await admin.delete_topic(self._zk, topic)
        if wait:
            await self.wait_until(lambda: self._is_gone(topic), f"topic {topic} to be deleted")

    async def _is_gone(self, topic: str) -> bool:
        return not await self._exists(zk_data.topic_path(topic))

    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]:
        """As ZooKeeper has them. Raises HarnessError for one that does not exist."""
        with _admin_errors():
            return await admin.describe_topics(self._zk, topics)

    # waiting

    async def _exists(self, path: str) -> bool:
        return (await self._store.exists([path]))[0] is not None

    async def wait_until(
        self, condition: Callable[[], Awaitable[bool]], what: str, patience_s: float = PATIENCE_S
    ) -> None:
        """Ask every 50 ms until it holds. Raises HarnessError that names ``what`` was waited for."""
        with trio.move_on_after(patience_s):
            while not await condition():  # noqa: ASYNC110 - what others do to ZooKeeper and to processes sets no event
                await trio.sleep(0.05)
            return
        raise HarnessError(
            f"waited {patience_s:g} s in vain for {what}; the logs of the nodes are in {self.data / 'logs'}"
        )


class _admin_errors:  # noqa: N801 - used like a function
    """What an administrator is refused, as HarnessError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, AdminError):
            raise HarnessError(str(error)) from None


@asynccontextmanager
async def _cancelled_nursery() -> AsyncIterator[trio.Nursery]:
    """Holds proxies and in-process nodes; what still runs at the end is cancelled."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()
