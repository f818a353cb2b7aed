"""A cluster for code without async: plain pytest, unittest, scripts.

    with SyncCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=4, replication_factor=3)
        old = cluster.wait_for_controller()
        cluster.kill(old.id)
        cluster.wait_for_controller(other_than=old)

It runs a `Cluster` in a thread of its own. Its methods are those of `Cluster`, each returns when the work is done.
In memory, virtual time stands still between two calls.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import trio

from kce.harness.cluster import Cluster
from kce.harness.errors import HarnessError, plain_error
from kce.harness.faults import Rule
from kce.harness.history import History
from kce.harness.links import FrameEvent
from kce.harness.members import Member
from kce.harness.waiting import POLL_S, WAIT_TIMEOUT_S
from kce.harness.world import MemoryClusterWorld

P = ParamSpec("P")
T = TypeVar("T")

_Call = Callable[[Cluster], Awaitable[Any]]


class _Answer:
    """The result of a call, once the thread has it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def put(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._done.set()

    def get(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


def _blocking(
    method: Callable[Concatenate[Cluster, P], Awaitable[T]],
) -> Callable[Concatenate[SyncCluster, P], T]:
    """The method of `Cluster`, as one that blocks."""

    @functools.wraps(method)
    def call(self: SyncCluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self.call(lambda cluster: method(cluster, *args, **kwargs))
        return result

    return call


class SyncCluster:
    """The arguments are those of `Cluster`."""

    def __init__(self, brokers: int = 3, **arguments: Any) -> None:
        self._arguments: dict[str, Any] = {"brokers": brokers, **arguments}
        self._cluster = Cluster(**self._arguments)
        self._calls: queue.SimpleQueue[tuple[_Call, _Answer] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._arrived = trio.Event()
        #: ends a call in memory, before which nothing else is heard; None while there is none
        self._give_up: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise HarnessError("the cluster is running already")
        started, self._ended = _Answer(), _Answer()
        self._thread = threading.Thread(target=self._run, args=(started,), name="kce-cluster", daemon=True)
        self._thread.start()
        try:
            started.get()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the cluster. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._put(None)
        if (give_up := self._give_up) is not None:  # Ctrl-C, or another thread's
            with contextlib.suppress(trio.RunFinishedError):
                give_up()
        thread.join()
        self._ended.get()

    def call(self, function: Callable[[Cluster], Awaitable[T]]) -> T:
        """Run an async function with the `Cluster` in its thread, and return its result."""
        if self._thread is None:
            raise HarnessError("the cluster is not running")
        answer = _Answer()
        self._put((function, answer))
        result: T = answer.get()
        return result

    # the thread

    def _put(self, call: tuple[_Call, _Answer] | None) -> None:
        self._calls.put(call)
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._wake_up)

    def _wake_up(self) -> None:
        self._arrived.set()

    def _run(self, started: _Answer) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._serve, started)
        except BaseException as e:  # noqa: BLE001 - it is raised in the thread that waits
            error = plain_error(e)
        started.put(error=error)
        self._ended.put(error=error)
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call[1].put(error=HarnessError(f"the cluster has ended: {error or 'it was closed'}"))

    async def _serve(self, started: _Answer) -> None:
        """Its nursery holds the calls."""
        async with self._cluster as cluster:
            in_memory = isinstance(cluster.world, MemoryClusterWorld)
            self._token = None if in_memory else trio.lowlevel.current_trio_token()
            started.put()
            async with trio.open_nursery() as nursery:
                while True:
                    while not in_memory and self._calls.empty():
                        self._arrived = trio.Event()
                        if self._calls.empty():
                            await self._arrived.wait()
                    call = self._calls.get()  # in memory this blocks the run, so that its time stands still
                    if call is None:
                        nursery.cancel_scope.cancel()
                        return
                    if in_memory:
                        token = trio.lowlevel.current_trio_token()
                        self._give_up = partial(token.run_sync_soon, nursery.cancel_scope.cancel)
                        await self._answer(cluster, *call)
                        self._give_up = None
                    else:
                        nursery.start_soon(self._answer, cluster, *call)

    @staticmethod
    async def _answer(cluster: Cluster, function: _Call, answer: _Answer) -> None:
        try:
            result = await function(cluster)
        except Exception as e:  # noqa: BLE001 - it is raised in the thread that waits
            answer.put(error=plain_error(e))
        except BaseException:
            answer.put(error=HarnessError("the cluster has ended"))
            raise
        else:
            answer.put(result)

    # the methods of Cluster

    kill = _blocking(Cluster.kill)
    stop = _blocking(Cluster.stop)
    start = _blocking(Cluster.start)
    restart = _blocking(Cluster.restart)
    pause = _blocking(Cluster.pause)
    resume = _blocking(Cluster.resume)
    repair = _blocking(Cluster.repair)
    reset = _blocking(Cluster.reset)
    proxy = _blocking(Cluster.proxy)
    cut_from_zookeeper = _blocking(Cluster.cut_from_zookeeper)
    heal = _blocking(Cluster.heal)
    hold_control_requests = _blocking(Cluster.hold_control_requests)
    release_control_requests = _blocking(Cluster.release_control_requests)
    expire_session = _blocking(Cluster.expire_session)
    kill_zookeeper_leader = _blocking(Cluster.kill_zookeeper_leader)
    restart_zookeeper = _blocking(Cluster.restart_zookeeper)
    shrink_isr = _blocking(Cluster.shrink_isr)
    heal_isr = _blocking(Cluster.heal_isr)
    fail_log_dir = _blocking(Cluster.fail_log_dir)
    bounce = _blocking(Cluster.bounce)
    cut_link = _blocking(Cluster.cut_link)
    heal_link = _blocking(Cluster.heal_link)
    delay_zookeeper = _blocking(Cluster.delay_zookeeper)
    mute_zookeeper = _blocking(Cluster.mute_zookeeper)
    rewrite_controller = _blocking(Cluster.rewrite_controller)
    delete_controller_epoch = _blocking(Cluster.delete_controller_epoch)
    rewrite_controller_epoch = _blocking(Cluster.rewrite_controller_epoch)
    second_controller = _blocking(Cluster.second_controller)
    zombie_controller = _blocking(Cluster.zombie_controller)
    jump_clock = _blocking(Cluster.jump_clock)
    fill_disk = _blocking(Cluster.fill_disk)
    free_disk = _blocking(Cluster.free_disk)
    slow_disk = _blocking(Cluster.slow_disk)
    wait_until_settled = _blocking(Cluster.wait_until_settled)
    add_rule = _blocking(Cluster.add_rule)
    remove_rule = _blocking(Cluster.remove_rule)
    count_rule = _blocking(Cluster.count_rule)
    delete_controller = _blocking(Cluster.delete_controller)
    node_status = _blocking(Cluster.node_status)
    registered = _blocking(Cluster.registered)
    controller = _blocking(Cluster.controller)
    controller_id = _blocking(Cluster.controller_id)
    wait_for_controller = _blocking(Cluster.wait_for_controller)
    create_topic = _blocking(Cluster.create_topic)
    delete_topic = _blocking(Cluster.delete_topic)
    describe_topics = _blocking(Cluster.describe_topics)
    exists = _blocking(Cluster.exists)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until ``condition``, which may call methods of this object, holds. Raises HarnessError."""
        if inspect.iscoroutinefunction(condition):  # its result would be taken for true
            raise HarnessError("wait_until of a SyncCluster takes a function that is not async")
        deadline = self.call(_current_time) + timeout_s
        while not condition():
            if self.call(_current_time) >= deadline:
                raise HarnessError(f"timed out after {timeout_s:g} s waiting for {what}")
            self.call(_poll)

    @contextmanager
    def faults(self, rule: Rule, *more: Rule, must_fire: bool = True) -> Iterator[Rule]:
        """`Cluster.faults`."""
        manager = self._cluster.faults(rule, *more, must_fire=must_fire)
        self.call(lambda _: manager.__aenter__())
        try:
            yield rule
        except BaseException as e:
            error = e
            self.call(lambda _: manager.__aexit__(type(error), error, error.__traceback__))
            raise
        self.call(lambda _: manager.__aexit__(None, None, None))

    def wait_for_event(self, *args: Any, **selection: Any) -> list[FrameEvent]:
        """``history.wait_for``."""
        return self.call(lambda cluster: cluster.history.wait_for(*args, **selection))

    @property
    def cluster(self) -> Cluster:
        """The `Cluster`, for what needs no waiting: ``cluster.links.rules``."""
        return self._cluster

    @property
    def history(self) -> History:
        return self._cluster.history

    @property
    def members(self) -> Sequence[Member]:
        return self._cluster.members

    def member(self, node_id: int) -> Member:
        return self._cluster.member(node_id)

    @property
    def cluster_id(self) -> str:
        return self._cluster.cluster_id

    @property
    def zookeeper(self) -> str:
        """host:port/chroot."""
        return self._cluster.zookeeper

    def bootstrap_servers(self) -> str:
        """The data listeners of all running nodes, for bootstrap.servers of a client."""
        return self._cluster.bootstrap_servers()


async def _current_time(_: Cluster) -> float:
    return trio.current_time()


async def _poll(_: Cluster) -> None:
    await trio.sleep(POLL_S)
