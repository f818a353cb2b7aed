"""The watches that a session has set, so that it can set them again after a reconnection. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kce.zookeeper.store import WatchType

#: paths in one setWatches request
_MOST = 1000


class Watch(enum.Enum):
    """Kinds of watches in setWatches: on an existing node, on a missing node, on children."""

    DATA = "data"
    EXIST = "exist"
    CHILD = "child"


#: the watches that an event uses up
_USED_UP = {
    WatchType.CREATED: (Watch.EXIST,),
    WatchType.CHANGED: (Watch.DATA,),
    WatchType.DELETED: (Watch.DATA, Watch.CHILD),
    WatchType.CHILDREN: (Watch.CHILD,),
}


class ArmedWatches:
    """The watched paths, as they are known to the server."""

    def __init__(self) -> None:
        self._paths: dict[Watch, set[str]] = {kind: set() for kind in Watch}

    def add(self, kind: Watch, paths: Iterable[str]) -> None:
        self._paths[kind].update(paths)

    def use_up(self, event: WatchType, path: str) -> bool:
        """Whether there was such a watch: after a reconnection, the server reports a deletion for each kind."""
        was_armed = False
        for kind in _USED_UP[event]:
            watched = self._paths[kind]
            was_armed = was_armed or path in watched
            watched.discard(path)
        return was_armed

    def clear(self) -> None:
        for watched in self._paths.values():
            watched.clear()

    def parts(self) -> list[dict[Watch, Sequence[str]]]:
        """All watches, in the order in which they are set again, a request each."""
        return list(in_parts({kind: sorted(watched) for kind, watched in self._paths.items()}))


def in_parts(paths: Mapping[Watch, Sequence[str]]) -> Iterator[dict[Watch, Sequence[str]]]:
    """``paths`` by kind, a setWatches request each."""
    for kind, watched in paths.items():
        for begin in range(0, len(watched), _MOST):
            yield {kind: watched[begin : begin + _MOST]}
