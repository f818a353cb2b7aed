"""A store that measures latency: `ZooKeeperRequestLatencyMs` (rule 12.8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from kce.zookeeper.store import (
    Acls,
    Check,
    MetadataStore,
    MultiFailed,
    NodeData,
    Op,
    OpResult,
    SessionState,
    Stat,
    StoreError,
    WatchEvent,
)

T = TypeVar("T")


class MeteredStore(MetadataStore):
    """Wraps another store. ``observe`` gets the latency in ms of each call, which may be many requests on the wire."""

    def __init__(self, store: MetadataStore, observe: Callable[[float], None]) -> None:
        self._store = store
        self._observe = observe

    @property
    def on_watch(self) -> Callable[[WatchEvent], None]:
        return self._store.on_watch

    @on_watch.setter
    def on_watch(self, callback: Callable[[WatchEvent], None]) -> None:
        self._store.on_watch = callback

    @property
    def on_session(self) -> Callable[[SessionState], None]:
        return self._store.on_session

    @on_session.setter
    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        self._store.on_session = callback

    @property
    def session_id(self) -> int:
        return self._store.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._store.session_timeout_ms

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        return await self._timed(self._store.get_data(paths, watch=watch))

    async def get_decoded(self, paths: Sequence[str], decode: Callable[[bytes, int], T]) -> list[T | StoreError]:
        return await self._timed(self._store.get_decoded(paths, decode))

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        return await self._timed(self._store.exists(paths, watch=watch))

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        return await self._timed(self._store.get_children(paths, watch=watch))

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        return await self._timed(self._store.write(ops, fence=fence))

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        return await self._timed(self._store.multi(groups))

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        return await self._timed(self._store.get_acl(paths))

    async def set_acl(self, paths: Sequence[str], acls: Acls) -> list[Stat | StoreError]:
        return await self._timed(self._store.set_acl(paths, acls))

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _timed(self, call: Awaitable[T]) -> T:
        begun_at = trio.current_time()
        try:
            return await call
        finally:
            self._observe(1000 * (trio.current_time() - begun_at))
