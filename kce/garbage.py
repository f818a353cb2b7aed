"""Work without garbage collection, and without what only a collection would find."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Rests:
    """Who wants collections to rest. They may overlap: tasks, and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._collected = False

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._collected = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._collected:
                gc.enable()


_rests = _Rests()


@contextmanager
def no_collection(*, freeze: bool = False) -> Iterator[None]:
    """Disable garbage collection during work that makes many objects and no cycles: scanning them wastes time.

    With ``freeze``, what exists in the end is not scanned later either, until ``thaw``.
    """
    _rests.begin()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        _rests.end()


def thaw() -> None:
    """Let collections scan what was frozen."""
    gc.unfreeze()


def let_go(error: BaseException) -> None:
    """Let a caught error, and those behind it, forget where they were raised.

    The calls there hold what they worked on, such as a request of many megabytes, and often the error itself: then all
    of it stays until a collection, and those are rare.
    """
    behind: BaseException | None = error
    while behind is not None:
        behind.__traceback__ = None
        behind = behind.__context__
