"""Follows a folder of notifications in ZooKeeper: sequential nodes that say what has changed (rules 1.36, B9.29)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import trio

from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import Delete, NodeData, NoNode, SessionExpired, SessionState, StoreError, value

log = logging.getLogger(__name__)

#: whoever follows them deletes notifications that are older than this
CHANGE_EXPIRATION_MS = 15 * 60 * 1000
_DIGITS = 10


class ChangeNotifications:
    """``changed`` gets the content of each notification, in their order; one that fails is logged and skipped.

    ``what`` is for the log. Its owner reports the session's states, and runs ``run``.
    """

    def __init__(
        self, zk: KafkaZkClient, path: str, changed: Callable[[bytes], Awaitable[None]], what: str = "change"
    ) -> None:
        self._zk = zk
        self._path = path
        self._changed = changed
        self._what = what
        self._last_executed = -1
        self._event = trio.Event()

    def session_changed(self, state: SessionState) -> None:
        """Call with every new state of the session, because watches end with the session."""
        if state is SessionState.ESTABLISHED:
            self._event.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports started when the folder is watched, and its notifications so far have been read. Until cancelled."""
        self._zk.register_child_handler(self._path, lambda: self._event.set())
        await self._try_read()
        task_status.started()
        while True:
            await self._event.wait()
            self._event = trio.Event()
            await self._try_read()

    async def _try_read(self) -> None:
        try:
            await self.read()
        except (StoreError, SessionExpired) as e:  # read again in the next session
            log.info("%s could not be read: %s", self._path, e)

    async def read(self) -> None:
        """Apply the new ones, and renew the watch. Raises StoreError, SessionExpired."""
        names = [name for name in await self._zk.get_children(self._path) if name[-_DIGITS:].isdigit()]
        paths = [f"{self._path}/{name}" for name in sorted(names, key=_number)]
        notifications = dict(zip(paths, await self._zk.get_data(paths), strict=True))
        for path, found in notifications.items():
            if _number(path) > self._last_executed and isinstance(found, NodeData):
                self._last_executed = _number(path)
                try:
                    await self._changed(found.data)
                except SessionExpired:
                    raise
                except Exception:  # the next ones are applied nevertheless
                    log.exception("could not apply the %s in %s", self._what, path)
        await self._purge(notifications)

    async def _purge(self, notifications: Mapping[str, NodeData | StoreError]) -> None:
        oldest = self._zk.now_ms() - CHANGE_EXPIRATION_MS
        expired = [p for p, found in notifications.items() if isinstance(found, NodeData) and found.stat.ctime < oldest]
        for answer in await self._zk.store.write([Delete(path) for path in expired]):
            if not isinstance(answer, NoNode):  # another broker deleted it first
                value(answer)


def _number(path: str) -> int:
    return int(path[-_DIGITS:])
