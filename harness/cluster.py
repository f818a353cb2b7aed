"""A cluster: ZooKeeper, nodes, and the operations on them.

    async with harness.Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=4, replication_factor=3)
        old = await cluster.controller()
        await cluster.kill(old.id)
        new = await cluster.wait_for_controller(other_than=old)

Nodes run in this process, or each in its own with ``processes=True``; only processes can be paused. ZooKeeper is an
embedded real one, or yours with ``zookeeper="host:port/chroot"``. However the ``async with`` block ends, nothing is
left running.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    suppress,
)
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from kce.harness.background import BackgroundTasks
from kce.harness.cluster_config import DATA, ClusterConfig
from kce.harness.errors import HarnessError, SettingWarning, plain_error
from kce.harness.faults import CONTROLLER, Rule, applied
from kce.harness.guard import Guard
from kce.harness.history import History
from kce.harness.interventions import Held, Interventions, check_can_register
from kce.harness.links import Links
from kce.harness.members import InProcessMember, Member
from kce.harness.node import NodeStatus
from kce.harness.original import Original, raise_epoch
from kce.harness.process_member import ProcessMember
from kce.harness.recordings import Recordings
from kce.harness.settling import unsettled
from kce.harness.topics import Topics
from kce.harness.users import write_users
from kce.harness.waiting import POLL_S, WAIT_TIMEOUT_S
from kce.harness.world import ClusterWorld, MemoryClusterWorld, RealClusterWorld, real, uuids
from kce.harness.world.port import SECRETS
from kce.wire.configuration import ConfigError
from kce.zookeeper import znodes
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.node_json import BadZNode
from kce.zookeeper.store import Session, SessionState, StoreUnavailable


class Cluster(Interventions, Topics):
    """See the module. Every method that names a node raises HarnessError for one that does not exist."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        controllers: int = 0,
        racks: Sequence[str] = (),
        world: ClusterWorld | None = None,
        processes: bool = False,
        zookeeper: str | None = None,
        zookeeper_port: int | None = None,
        zookeepers: int = 1,
        control_port: int | None = None,
        data_port: int | None = None,
        metrics_port: int | None = None,
        first_id: int = 1,
        properties: Mapping[str, str | None] | None = None,
        nodes: Mapping[int, Mapping[str, str | None]] | None = None,
        users: Mapping[str, str] | None = None,
        record: str | Path | None = None,
        history: bool | None = None,
        data: str | Path | None = None,
        log_level: str = "INFO",
    ) -> None:
        """``world``: `kce.memory(seed=7)` simulates everything in this process. The default is the real world
        with your ``zookeeper`` ("host:port/chroot") or an embedded one.

        ``properties``: Kafka's, for every node; None removes one that the cluster sets, such as the control plane.
        ``controllers``: this many more nodes, which contend for controller and take no replicas. ``racks`` are given to
        the nodes in turn. ``nodes``: properties of single nodes by id. A setting without effect is a SettingWarning.

        ``users``: passwords by name, of users that SCRAM knows when the first node starts.

        ``zookeepers``: servers of the embedded ZooKeeper; `kill_zookeeper_leader` needs three or more.

        ``record``: a pcapng file for all traffic between nodes, written when the cluster ends.

        ``history``: whether `history` keeps the frames; by default it does for nodes in this process.

        ``metrics_port``: serves the first node's metrics for Prometheus; the others count up.
        ``data``: a folder for records, logs and ZooKeeper's data, kept afterwards; by default a temporary one that is
        removed. In memory records last as long as the cluster.
        """
        self._config = ClusterConfig(
            range(first_id, first_id + brokers + controllers), processes, zookeeper_port, control_port, data_port,
            metrics_port, properties or {}, log_level, nodes or {}, racks,
            range(first_id + brokers, first_id + brokers + controllers), zookeepers,
        )  # fmt: skip
        for warning in self._config.check():
            warnings.warn(warning, SettingWarning, stacklevel=2)
        self._users = users or {}
        self._data_given = Path(data).absolute() if data else None
        self._stack = AsyncExitStack()
        self._world = world or real(zookeeper)
        if zookeeper is not None and world is not None:
            raise HarnessError("give either a world or a ZooKeeper: kce.harness.world.real_world(zookeeper) is both")
        if processes and not self._world.processes:
            raise HarnessError("nodes in memory run inside this process: leave out processes=True")
        #: every frame that passes, and rules for them
        self.links = Links(self._config.node_ids)
        #: every frame, for nodes in this process, or with ``history=True``
        self.history = History(self.links, is_kept=not processes if history is None else history)
        self.held: dict[Held, Rule] = {}
        self._rule_numbers: dict[Rule, int] = {}
        #: nodes whose log directories may have failed; listeners with a proxy; see `reset`
        self.to_restart: set[int] = set()
        self._proxied: set[tuple[int, str]] = set()
        #: the controller epoch before it was rewritten or deleted
        self.epoch_before: int | None = None
        #: set when a ZooKeeper watch fires or a frame passes
        self._progress = trio.Event()
        self._members: dict[int, Member] = {}
        self._recordings = Recordings(Path(record).absolute() if record else None)
        self.record_problems: list[str] = []
        #: whether the cluster itself has a connection to its ZooKeeper
        self.zookeeper_connected = True
        #: wall-clock time, in ns since 1970, of the last deletion of /controller; 0 before the first
        self.controller_gone_ns = 0

    # start and end

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as e:
            try:
                await self._stack.aclose()
            finally:
                self.record_problems = self._recordings.merge()
            if (plain := plain_error(e)) is not e:
                raise plain from None
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # the body's exception does not pass through the stack: the nursery would wrap it in a group
        try:
            await self._stack.aclose()
        finally:
            self.record_problems = self._recordings.merge()

    async def _start(self) -> None:
        stack, config = self._stack, self._config
        self._recordings.check()
        running = self._world.running(self._data_given, config.zookeeper_port, config.zookeepers)
        self.data = await stack.enter_async_context(running)
        self._observer = self._world.observer()
        #: the cluster's ZooKeeper
        self.store = await self._connect()
        stack.push_async_callback(self.store.aclose)
        new_uuid = uuids(self._observer.random("uuids"))
        self.store.on_session = self._session_changed
        self.zk = KafkaZkClient(self.store, now_ms=self._observer.now_ms, new_uuid=new_uuid)
        await self._watch_controller()
        await self.zk.create_top_level_paths()
        self.cluster_id = await self.zk.get_or_create_cluster_id()
        await write_users(self.zk, self._users, self._observer.random(SECRETS))
        self._original = await Original.read(self.zk)
        tasks = await stack.enter_async_context(BackgroundTasks.running())
        stack.push_async_callback(self._stop_members)
        for node_id in sorted(self.links.members):
            await self._add_member(node_id, tasks)
        self._report_frames(tasks)
        if self.history.is_kept:
            stack.enter_context(self.links.listen(self.history.record))
        async with trio.open_nursery() as starting:
            for member in self._members.values():
                starting.start_soon(member.start)
        await self._wait_until_known()

    def _session_changed(self, state: SessionState) -> None:
        if state in (SessionState.CONNECTED, SessionState.DISCONNECTED):
            self.zookeeper_connected = state is SessionState.CONNECTED

    @property
    def world(self) -> ClusterWorld:
        return self._world

    @property
    def zookeeper(self) -> str:
        """host:port/chroot."""
        return self._world.zookeeper_connect

    @property
    def zookeeper_config(self) -> ZooKeeperClientConfig:
        """How the cluster itself connects to ZooKeeper."""
        return self._config.zookeeper_client(self.zookeeper)

    @property
    def guard(self) -> Guard:
        """Cleans up after a process that was killed. Raises HarnessError in memory, which needs none."""
        if not isinstance(self._world, RealClusterWorld):
            raise HarnessError("a cluster in memory has no guard: it leaves nothing behind")
        return self._world.guard

    def _report_frames(self, tasks: BackgroundTasks) -> None:
        """Node processes report frames while this process has subscribers."""

        def subscribe(wanted: bool) -> None:
            for process in self._processes():
                tasks.start_soon(process.subscribe, wanted)

        self.links.on_subscribers = subscribe

    def _processes(self) -> list[ProcessMember]:
        """Nodes that have links of their own."""
        return [m for m in self._members.values() if isinstance(m, ProcessMember)]

    async def _connect(self) -> Session:
        try:
            return await self._observer.zookeeper(self.zookeeper_config)
        except (ConfigError, StoreUnavailable) as e:
            raise HarnessError(str(e)) from None

    async def _add_member(self, node_id: int, tasks: BackgroundTasks) -> None:
        config = self._config
        world, zookeeper_connect = await self._world.node(node_id, tasks)
        properties = config.node_properties(node_id, zookeeper_connect, "" if self.data is None else str(self.data))

        def record() -> Path | None:
            return self._recordings.part(node_id)

        if config.processes:
            assert self.logs is not None
            self._members[node_id] = ProcessMember(
                node_id, properties, record, tasks, self.guard, self.links, self.logs, config.log_level
            )
        else:
            self._members[node_id] = InProcessMember(node_id, properties, record, tasks, world, self.links)

    async def _stop_members(self) -> None:
        """All at once and without controlled shutdown, because no node is left to take over."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for member in self._members.values():
                    if member.state != "stopped":
                        reachable = not self._world.is_cut(member.id)
                        nursery.start_soon(member.quit if reachable else member.kill)

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

    def bootstrap_servers(self) -> str:
        """The data listeners of all running nodes, for bootstrap.servers of a client."""
        return ",".join(m.addresses[DATA] for m in self._members.values() if m.state == "running" and m.addresses)

    async def kill(self, node_id: int) -> None:
        """Kill the node as kill -9 does: ZooKeeper notices when its session expires."""
        await self.member(node_id).kill()

    async def stop(self, node_id: int) -> None:
        """Graceful, with controlled shutdown."""
        await self.member(node_id).stop()

    async def start(self, node_id: int) -> None:
        """Start a stopped node on its old ports, as soon as its old registration is gone from ZooKeeper.

        Raises HarnessError for a node that runs, is cut off, or cannot start.
        """
        member = self.member(node_id)
        member.check_can_start()
        check_can_register(self, node_id)
        await self.wait_until(lambda: self._is_unregistered(node_id), f"broker {node_id} to be gone from ZooKeeper")
        await member.start()

    async def _is_unregistered(self, node_id: int) -> bool:
        return not await self.exists(znodes.broker_path(node_id))

    async def restart(self, node_id: int) -> None:
        """Stop if it runs, then start. Raises HarnessError for a node that is cut off, which is left as it is."""
        check_can_register(self, node_id)
        await self._stop_if_running(self.member(node_id))
        await self.start(node_id)

    async def _stop_if_running(self, member: Member) -> None:
        if member.state != "stopped":
            await member.stop()

    async def pause(self, node_id: int) -> None:
        """Suspend the process (SIGSTOP)."""
        await self.member(node_id).pause()

    async def resume(self, node_id: int) -> None:
        await self.member(node_id).resume()

    async def proxy(self, node_id: int, port: int, *, listener: str = DATA, host: str = "127.0.0.1") -> str:
        """Put a proxy of yours before a listener of a node: restart the node so that it advertises ``host:port``.

        Returns the host:port to which the proxy has to forward. ``port`` 0 removes the proxy.
        """
        member = self.member(node_id)
        await self._stop_if_running(member)
        addresses = dict(member.bound)
        if listener not in addresses:
            raise HarnessError(f"node {node_id} has no listener {listener}; there are {', '.join(addresses)}")
        target = addresses[listener]
        addresses[listener] = f"{host}:{port}" if port else target
        (self._proxied.add if port else self._proxied.discard)((node_id, listener))
        member.properties["advertised.listeners"] = ",".join(f"{name}://{at}" for name, at in addresses.items())
        await self.start(node_id)
        return target

    async def repair(self) -> None:
        """End all faults, start all nodes that are stopped, and wait until all are registered."""
        for member in self._members.values():
            member.machine.mend()
            await member.machine_changed()
        for node_id, member in self._members.items():
            await self.heal(node_id)
            if member.state == "paused":
                await member.resume()
        self.held.clear()
        for rule in tuple(self._rule_numbers):
            await self.remove_rule(rule)
        for lag in {lag for member in self._members.values() for lag in member.lags}:
            await self.heal_isr(*lag.partition, lag.broker)
        await self.wait_until(self._all_run_again, "all nodes to be registered")
        await self.wait_for_controller()

    async def _all_run_again(self) -> bool:
        """Starts those that are stopped: a disk that was full may end a node even now."""
        for node_id, member in self._members.items():
            if member.state == "stopped":
                await self.start(node_id)
        are_registered = await self.registered() == self._members.keys()
        return are_registered and all(member.state == "running" for member in self._members.values())

    async def reset(self) -> None:
        """Make the cluster as new, for the next test: no faults, all nodes running behind no proxy, one controller, no
        topics, and with them no groups and transactions, the settings, quotas, users, ACLs and tokens of its start, no
        history. Producer ids and epochs go on."""
        if self.epoch_before is not None:
            await raise_epoch(self.zk, self.epoch_before)
            self.epoch_before = None
            await self.delete_controller()
        await self.repair()
        for node_id in sorted(self.to_restart):
            await self.restart(node_id)
        self.to_restart.clear()
        for node_id, listener in sorted(self._proxied):
            await self.proxy(node_id, 0, listener=listener)
        active = await self.wait_for_controller()
        if active.id in self._members and (await self.node_status(active.id)).controller_epoch != active.epoch:
            await self.delete_controller()  # it was named, and has not taken over
            await self.wait_for_controller(other_than=active)
        await self._original.restore(self.zk)
        for topic in await self.describe_topics():
            if not topic.marked_for_deletion:
                await self.delete_topic(topic.name, wait=False)
        await self.wait_until(self._has_no_topics, "all topics to be deleted")
        self.history.clear()

    async def _has_no_topics(self) -> bool:
        return not await self.describe_topics()

    # faults

    async def add_rule(self, rule: Rule) -> None:
        """Apply a rule from now on. Raises HarnessError where nodes are processes and the rule holds a function."""
        fields = rule.to_json() if self._config.processes else {}
        rule.newest = {str(b): int(e) for b, (_, e) in (await self.zk.get_brokers(watch=False)).items()}
        with suppress(BadZNode):  # somebody has broken it: the newest epoch is the newest that is seen
            if (epoch := await self.zk.get_controller_epoch()) is not None:
                rule.newest[CONTROLLER] = int(epoch[0])
        number = max(self._rule_numbers.values(), default=0) + 1
        if isinstance(self._world, MemoryClusterWorld):
            rule.use_seed_of_run(f"{self._world.seed}/rule {number}")
        self.links.add(rule)
        self._rule_numbers[rule] = number
        for process in self._processes():
            await process.add_rule(number, {"fields": fields, "newest": rule.newest})

    async def remove_rule(self, rule: Rule) -> None:
        """Remove a rule; frames that it holds go on. Afterwards its counts are those of all nodes."""
        self.links.remove(rule)
        number = self._rule_numbers.pop(rule)
        for process in self._processes():
            matched, fired = await process.remove_rule(number)
            rule.matched, rule.fired = rule.matched + matched, rule.fired + fired

    async def count_rule(self, rule: Rule) -> tuple[int, int]:
        """How many frames the rule has matched so far, and on how many it acted. Raises KeyError for one that was not
        added."""
        number = self._rule_numbers[rule]
        counts = [(rule.matched, rule.fired), *[await process.count_rule(number) for process in self._processes()]]
        return sum(matched for matched, _ in counts), sum(fired for _, fired in counts)

    def faults(self, rule: Rule, *more: Rule, must_fire: bool = True) -> AbstractAsyncContextManager[Rule]:
        """Apply rules during the block; yields the first. A rule that has not fired at the end is an AssertionError
        that shows what came instead, unless ``must_fire`` is False."""
        return applied(self, (rule, *more), must_fire=must_fire)

    async def node_status(self, node_id: int) -> NodeStatus:
        """The node's own view, which may be stale; ``controller()`` reads ZooKeeper."""
        return await self.member(node_id).status()

    async def wait_until_settled(self, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until ZooKeeper has noticed who is gone, every partition that can has a live leader, and the brokers
        know (`kce.harness.settling`). Raises HarnessError with what is missing."""
        reason: str | None = None

        async def is_settled() -> bool:
            nonlocal reason
            for _ in range(2):  # between two events of the controller, or of ZooKeeper, nothing shows
                reason = await unsettled(self)
                if reason is not None:
                    return False
                await trio.sleep(POLL_S)
            return True

        try:
            await self.wait_until(is_settled, "the cluster to settle", timeout_s)
        except HarnessError as e:
            raise HarnessError(f"{e}: {reason}") from None
