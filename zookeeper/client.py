"""Reads that arm watches, and writes that are fenced: the part of the client that knows nothing of Kafka's nodes.

A handler is registered for a path and only enqueues (rule 1.61). A watch is set by reading a path that has a handler
(1.56), fires once, and is set again by the next read (1.57); what fires for a path without handler is dropped (1.59).
Every controller write is in a multi whose first operation checks the version of /controller_epoch (1.46).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.errors import ControllerMoved, IllegalState
from controller.model import EpochZkVersion
from controller.store import (
    BadVersion,
    Check,
    Data,
    Delete,
    MetadataStore,
    MultiFailed,
    NoNode,
    Op,
    OpResult,
    Stat,
    StoreError,
    WatchEvent,
    WatchType,
    value,
)
from controller.zk_data import CONTROLLER_EPOCH

Handler = Callable[[], None]

#: the write is not fenced (rule 1.46)
UNFENCED = EpochZkVersion(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeHandler:
    """What to call when the node is created, its data is changed, or it is deleted."""

    created: Handler | None = None
    changed: Handler | None = None
    deleted: Handler | None = None


class ZkClient:
    """Owns the handlers; the session is the store's."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        store.on_watch = self._on_watch
        self._change_handlers: dict[str, ChangeHandler] = {}
        self._child_handlers: dict[str, Handler] = {}

    # handlers

    def register_change_handler(self, path: str, handler: ChangeHandler) -> None:
        self._change_handlers[path] = handler

    def unregister_change_handler(self, path: str) -> None:
        self._change_handlers.pop(path, None)

    def register_child_handler(self, path: str, handler: Handler) -> None:
        self._child_handlers[path] = handler

    def unregister_child_handler(self, path: str) -> None:
        self._child_handlers.pop(path, None)

    async def register_and_check(self, path: str, handler: ChangeHandler) -> bool:
        """Register, then ask whether the node exists, which arms the watch even if it does not (rule 1.58)."""
        self.register_change_handler(path, handler)
        return (await self.exists([path]))[0] is not None

    def _on_watch(self, event: WatchEvent) -> None:
        if event.type is WatchType.CHILDREN:
            child_handler = self._child_handlers.get(event.path)
            if child_handler is not None:
                child_handler()
            return
        handler = self._change_handlers.get(event.path)
        if handler is None:
            return
        call = {
            WatchType.CREATED: handler.created,
            WatchType.CHANGED: handler.changed,
            WatchType.DELETED: handler.deleted,
        }[event.type]
        if call is not None:
            call()

    # reads

    async def exists(self, paths: Sequence[str]) -> list[Stat | None]:
        watched = [path in self._change_handlers for path in paths]
        if all(watched) or not any(watched):
            return await self.store.exists(paths, watch=all(watched))
        return [(await self.store.exists([path], watch=w))[0] for path, w in zip(paths, watched, strict=True)]

    async def get_data(self, paths: Sequence[str]) -> list[Data | StoreError]:
        return await self.store.get_data(paths, watch=[path in self._change_handlers for path in paths])

    async def get_one(self, path: str) -> Data | None:
        """None where there is no node. The watch of a handler is then set on its creation."""
        answer = (await self.get_data([path]))[0]
        if not isinstance(answer, NoNode):
            return value(answer)
        if path in self._change_handlers and (await self.exists([path]))[0] is not None:
            return await self.get_one(path)
        return None

    async def get_children(self, path: str, *, watch: bool = True) -> list[str]:
        """Sorted names; none where there is no node. Arms the child watch if a handler is registered."""
        armed = watch and path in self._child_handlers
        answer = (await self.store.get_children([path], watch=armed))[0]
        return [] if isinstance(answer, NoNode) else value(answer)

    # writes

    async def fenced(self, ops: Sequence[Op], expected: EpochZkVersion) -> list[OpResult | StoreError]:
        """Each operation by itself, on condition that /controller_epoch still has version ``expected`` (rule 1.46).

        Raises ControllerMoved if it has another (1.47); what else fails is in place in the answer.
        """
        if expected == UNFENCED:
            return await self.store.write(ops)
        if expected < 0:
            raise IllegalState(f"expected version {expected} of {CONTROLLER_EPOCH}")
        try:
            return await self.store.write(ops, fence=Check(CONTROLLER_EPOCH, expected))
        except MultiFailed as e:
            if isinstance(e.error, BadVersion):
                raise ControllerMoved(f"{CONTROLLER_EPOCH} is no longer at version {expected}") from None
            raise e.error from None

    async def delete(self, paths: Sequence[str], expected: EpochZkVersion) -> None:
        """Delete nodes, fenced; those that are gone already are fine."""
        for answer in await self.fenced([Delete(path) for path in paths], expected):
            if not isinstance(answer, NoNode):
                value(answer)
