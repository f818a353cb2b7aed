"""What a `Cluster` waits for: the part of it that looks at ZooKeeper, at frames, and at what nodes know."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import trio

from kce.harness.cluster_config import ClusterConfig
from kce.harness.errors import HarnessError
from kce.harness.links import FrameEvent, Links
from kce.harness.members import Member
from kce.harness.settling import ActiveController
from kce.harness.world import ClusterWorld
from kce.harness.world.port import World
from kce.zookeeper import znodes
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import Session, SessionExpired

log = logging.getLogger(__name__)

#: default timeout of the ``wait`` methods
WAIT_TIMEOUT_S = 60.0
#: so long nodes may take to hear of each other, or of a topic
KNOWN_TIMEOUT_S = 10.0
POLL_S = 0.05


class Waiting:
    """`Cluster` sets the attributes. ``_observer`` is the world of its session, ``_progress`` is set by what may matter
    to whoever waits."""

    data: Path | None
    zk: KafkaZkClient
    store: Session
    links: Links
    controller_gone_ns: int
    _config: ClusterConfig
    _members: dict[int, Member]
    _world: ClusterWorld
    _observer: World
    _progress: trio.Event

    @property
    def logs(self) -> Path | None:
        """The folder of the nodes' logs; None for nodes in this process, whose logs are those of `logging`."""
        return self.data / "logs" if self.data is not None and self._config.processes else None

    async def registered(self) -> set[int]:
        """Ids of the brokers that are registered in ZooKeeper."""
        return {int(broker) for broker in await self.zk.get_brokers(watch=False)}

    async def controller_id(self) -> int | None:
        return await self.zk.get_controller_id()

    async def controller(self) -> ActiveController | None:
        """The active controller, or None."""
        controller_id = await self.zk.get_controller_id()
        epoch = await self.zk.get_controller_epoch()
        return None if controller_id is None or epoch is None else ActiveController(controller_id, epoch[0])

    async def wait_for_controller(self, *, other_than: ActiveController | None = None) -> ActiveController:
        """Wait for a controller of a later epoch than ``other_than``. Raises HarnessError after WAIT_TIMEOUT_S."""
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
        """Record when /controller is deleted."""

        def changed() -> None:
            self._progress.set()

        def deleted() -> None:
            self.controller_gone_ns = self._observer.now_ns()
            self._progress.set()

        handler = ChangeHandler(created=changed, changed=changed, deleted=deleted)
        await self.zk.register_and_check(znodes.CONTROLLER, handler)

    async def exists(self, path: str) -> bool:
        return (await self.store.exists([path]))[0] is not None

    async def wait_until(
        self, condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait until ``condition`` holds. It is checked when a frame passes, when /controller changes, and every 50 ms.

        Where ZooKeeper was gone for longer than the cluster's own session, it is checked again in the next one. Raises
        HarnessError that names ``what``.
        """

        async def holds() -> bool:
            try:
                return await condition()
            except SessionExpired as e:
                log.info("while waiting for %s: %s", what, e)
                return False

        def passed(event: FrameEvent) -> None:
            self._progress.set()

        with trio.move_on_after(timeout_s), self._frames_of_this_process(passed):
            while not await holds():
                with trio.move_on_after(POLL_S):
                    await self._progress.wait()
                self._progress = trio.Event()
            return
        where = f"; the logs of the nodes are in {self.logs}" if self.logs else ""
        raise HarnessError(f"timed out after {timeout_s:g} s waiting for {what}{where}")

    async def _wait_until_known(self, topic: str = "", partitions: int = 0) -> None:
        """Wait until the nodes that run know each other, and leaders of that many partitions of the topic: then a
        client may ask any of them. Of a broker that knows no brokers (rule B7.1), librdkafka's AdminClient asks for the
        controller once and then waits for ever.

        Who disturbs the cluster does not wait: there are rules, or after KNOWN_TIMEOUT_S a warning in the log.
        """

        async def is_known() -> bool:
            if self.links.rules:
                return True
            registered = await self.registered()
            members = [
                m for m in self._members.values()
                if m.state == "running" and m.id in registered and not self._world.is_cut(m.id)
            ]  # fmt: skip
            ids = [member.id for member in members]
            try:
                return all([await member.knows(ids, topic, partitions) for member in members])
            except HarnessError:  # one of them has ended
                return False

        what = f"all nodes to know the leaders of topic {topic}" if topic else "all nodes to know each other"
        try:
            await self.wait_until(is_known, what, KNOWN_TIMEOUT_S)
        except HarnessError as e:
            log.warning("%s", e)

    def _frames_of_this_process(self, callback: Callable[[FrameEvent], None]) -> AbstractContextManager[None]:
        """Node processes do not report frames only for this: polling is cheaper."""
        return nullcontext() if self._config.processes else self.links.listen(callback)
