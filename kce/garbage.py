"""Work without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection(*, freeze: bool = False) -> Iterator[None]:
    """Disable garbage collection during work that makes many objects and no cycles: scanning them wastes time.

    With ``freeze``, what exists in the end is not scanned later either, until ``thaw``.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if collects:
            gc.enable()


def thaw() -> None:
    """Let collections scan what was frozen."""
    gc.unfreeze()
