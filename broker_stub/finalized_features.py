"""A broker's cache of the cluster's finalized feature levels (KIP-584).

Clients read it through ApiVersions. A controller waits until its own broker has the levels that it wrote (rule 4.22).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import trio

Range = tuple[int, int]
#: the epoch in ApiVersions responses before any features are known (rule B1.40)
NO_EPOCH: Final = -1


class FeatureCacheUpdateFailed(Exception):
    """The new features are older than the cached ones, or this broker does not support them."""


class FinalizedFeatures(NamedTuple):
    """``features``: name -> level. ``epoch`` is the version of /feature."""

    features: Mapping[str, int]
    epoch: int


class FinalizedFeatureCache:
    """``supported``: name -> lowest and highest level that this broker supports. ``on_change`` follows each change."""

    def __init__(self, supported: Mapping[str, Range], on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self._supported = supported
        self._current: FinalizedFeatures | None = None
        self._changed = trio.Event()

    @property
    def current(self) -> FinalizedFeatures | None:
        """None if features are disabled or not yet read."""
        return self._current

    def update(self, features: Mapping[str, int], epoch: int) -> None:
        """Raises FeatureCacheUpdateFailed, and then keeps the old features."""
        if self._current is not None and epoch < self._current.epoch:
            raise FeatureCacheUpdateFailed(f"epoch {epoch} is older than the known epoch {self._current.epoch}")
        unsupported = {
            name: level
            for name, level in features.items()
            if not (found := self._supported.get(name, (0, 0)))[0] <= level <= found[1]
        }
        if unsupported:
            raise FeatureCacheUpdateFailed(f"this broker does not support {unsupported}, only {dict(self._supported)}")
        self._set(FinalizedFeatures(dict(features), epoch))

    def clear(self) -> None:
        self._set(None)

    def _set(self, current: FinalizedFeatures | None) -> None:
        self._current = current
        self.on_change()
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_until_epoch(self, epoch: int, timeout_s: float) -> None:
        """Wait for ``epoch`` or a later one. Raises ValueError, TimeoutError."""
        if timeout_s < 0:
            raise ValueError(f"the timeout {timeout_s} s is negative")
        with trio.move_on_after(timeout_s):
            while self._current is None or self._current.epoch < epoch:
                await self._changed.wait()
            return
        known = None if self._current is None else self._current.epoch
        raise TimeoutError(f"feature epoch {epoch} did not arrive within {timeout_s:g} s; the latest is {known}")
