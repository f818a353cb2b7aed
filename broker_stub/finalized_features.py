"""What a broker knows of the feature levels that the cluster has agreed on (KIP-584): it is told, it tells clients, and
a controller waits until its own broker knows what it has written (rule 4.22).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import trio

Range = tuple[int, int]
#: the epoch that clients are told where nothing is known (rule B1.40)
NO_EPOCH: Final = -1


class FeatureCacheUpdateFailed(Exception):
    """What was read cannot be: it is older than what is known, or this broker does not support it."""


class FinalizedFeatures(NamedTuple):
    """``features``: name -> level. ``epoch`` is the version of /feature."""

    features: Mapping[str, int]
    epoch: int


class FinalizedFeatureCache:
    """``supported``: name -> lowest and highest level of this broker; ``on_change`` is called after each change."""

    def __init__(self, supported: Mapping[str, Range], on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self._supported = supported
        self._current: FinalizedFeatures | None = None
        self._changed = trio.Event()

    @property
    def current(self) -> FinalizedFeatures | None:
        """None where features are disabled, or nothing has been read."""
        return self._current

    def update(self, features: Mapping[str, int], epoch: int) -> None:
        """Raises FeatureCacheUpdateFailed, and keeps what it has."""
        if self._current is not None and epoch < self._current.epoch:
            raise FeatureCacheUpdateFailed(f"epoch {epoch} is older than {self._current.epoch}, which is known")
        lacking = {
            name: level
            for name, level in features.items()
            if not (found := self._supported.get(name, (0, 0)))[0] <= level <= found[1]
        }
        if lacking:
            raise FeatureCacheUpdateFailed(f"this broker does not support {lacking}, only {dict(self._supported)}")
        self._set(FinalizedFeatures(dict(features), epoch))

    def clear(self) -> None:
        self._set(None)

    def _set(self, current: FinalizedFeatures | None) -> None:
        self._current = current
        self.on_change()
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_until_epoch(self, epoch: int, timeout_s: float) -> None:
        """Until ``epoch``, or a later one, is known. Raises ValueError, TimeoutError."""
        if timeout_s < 0:
            raise ValueError(f"{timeout_s} s cannot be waited")
        with trio.move_on_after(timeout_s):
            while self._current is None or self._current.epoch < epoch:
                await self._changed.wait()
            return
        known = None if self._current is None else self._current.epoch
        raise TimeoutError(f"epoch {epoch} of the features was not seen within {timeout_s:g} s, only {known}")
