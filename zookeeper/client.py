"""The ZooKeeper client without Kafka's znodes: reads that set watches, and fenced writes.

Handlers are registered by path and only enqueue (rule 1.61). Reading a path that has a handler sets a watch (1.56). The
watch fires once; the next read sets it again (1.57). Events for a path without handler are dropped (1.59). Every write
of the controller is a multi whose first operation checks the version of /controller_epoch (1.46).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kce.zookeeper.errors import ControllerMoved, IllegalState
from kce.zookeeper.model import EpochZkVersion
from kce.zookeeper.store import (
    BadVersion,
    Check,
    Delete,
    MetadataStore,
    MultiFailed,
    NodeData,
    NoNode,
    Op,
    OpResult,
    Stat,
    StoreError,
    WatchEvent,
    WatchType,
    decoded,
    value,
)
from kce.zookeeper.znodes import CONTROLLER_EPOCH

T = TypeVar("T")

WatchHandler = Callable[[], None]

#: as expected version: do not fence the write (rule 1.46)
UNFENCED = EpochZkVersion(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeHandler:
    """Callbacks for creation of the node, change of its data, and deletion."""

    created: WatchHandler | None = None
    changed: WatchHandler | None = None
    deleted: WatchHandler | None = None


class ZkClient:
    """Owns the handlers; the store owns the session."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        store.on_watch = self._on_watch
        self._change_handlers: dict[str, ChangeHandler] = {}
        self._child_handlers: dict[str, WatchHandler] = {}

    # handlers

    def register_change_handler(self, path: str, handler: ChangeHandler) -> None:
        self._change_handlers[path] = handler

    def unregister_change_handler(self, path: str) -> None:
        self._change_handlers.pop(path, None)

    def register_child_handler(self, path: str, handler: WatchHandler) -> None:
        self._child_handlers[path] = handler

    def unregister_child_handler(self, path: str) -> None:
        self._child_handlers.pop(path, None)

    async def register_and_check(self, path: str, handler: ChangeHandler) -> bool:
        """Register the handler, set the watch, and return whether the node exists (rule 1.58)."""
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

    async def get_data(self, paths: Sequence[str]) -> list[NodeData | StoreError]:
        return await self.store.get_data(paths, watch=[path in self._change_handlers for path in paths])

    async def get_decoded(self, paths: Sequence[str], decode: Callable[[bytes, int], T]) -> list[T | StoreError]:
        """What ``decode`` makes of each path's data and version; it may be called on another thread."""
        if self._change_handlers.keys().isdisjoint(paths):
            return await self.store.get_decoded(paths, decode)
        return decoded(await self.get_data(paths), decode)

    async def get_one(self, path: str) -> NodeData | None:
        """Data of the node, None if it does not exist: a handler then watches its creation."""
        answer = (await self.get_data([path]))[0]
        if not isinstance(answer, NoNode):
            return value(answer)
        if path in self._change_handlers and (await self.exists([path]))[0] is not None:
            return await self.get_one(path)
        return None

    async def get_children(self, path: str, *, watch: bool = True) -> list[str]:
        """Sorted names, empty if the node does not exist. Sets the child watch if a handler is registered."""
        watched = watch and path in self._child_handlers
        answer = (await self.store.get_children([path], watch=watched))[0]
        return [] if isinstance(answer, NoNode) else value(answer)

    async def get_children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """``get_children`` of each, without watches."""
        answers = await self.store.get_children(paths)
        return [[] if isinstance(answer, NoNode) else value(answer) for answer in answers]

    # writes

    async def fenced(self, ops: Sequence[Op], expected: EpochZkVersion) -> list[OpResult | StoreError]:
        """Write each operation separately if /controller_epoch has version ``expected`` (rule 1.46).

        Raises ControllerMoved if it has another version (1.47). Other errors are returned in place.
        """
        if expected == UNFENCED:
            return await self.store.write(ops)
        if expected < 0:
            raise IllegalState(f"expected version {expected} of {CONTROLLER_EPOCH}")
        try:
            return await self.store.write(ops, fence=Check(CONTROLLER_EPOCH, expected))
        except MultiFailed as e:
            raise (_moved(expected) if isinstance(e.error, BadVersion) else e.error) from None

    async def fenced_together(
        self, groups: Sequence[Sequence[Op]], expected: EpochZkVersion
    ) -> list[list[OpResult] | MultiFailed]:
        """Like ``fenced``, but the operations of each group are done together or not at all; MultiFailed in place."""
        fence: list[Op] = [] if expected == UNFENCED else [Check(CONTROLLER_EPOCH, expected)]
        answers: list[list[OpResult] | MultiFailed] = []
        for answer in await self.store.multi([[*fence, *group] for group in groups]):
            if not isinstance(answer, MultiFailed):
                answers.append(answer[len(fence) :])
            elif answer.index < len(fence):
                raise _moved(expected) if isinstance(answer.error, BadVersion) else answer.error
            else:
                answers.append(MultiFailed(answer.index - len(fence), answer.error))
        return answers

    async def delete(self, paths: Sequence[str], expected: EpochZkVersion) -> None:
        """Delete nodes, fenced. Missing nodes are not an error."""
        for answer in await self.fenced([Delete(path) for path in paths], expected):
            if not isinstance(answer, NoNode):
                value(answer)


def _moved(expected: EpochZkVersion) -> ControllerMoved:
    return ControllerMoved(f"{CONTROLLER_EPOCH} is no longer at version {expected}")
