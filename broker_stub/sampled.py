"""Measurements over time as in Kafka's metrics library. Times are in milliseconds, and never go back."""

from __future__ import annotations

import math
from typing import Final

import trio

_MAX_LONG: Final = 2**63 - 1


def now_ms() -> int:
    return int(trio.current_time() * 1000)


class _Sample:
    __slots__ = ("count", "last", "since", "value")

    def __init__(self, now: int) -> None:
        self.reset(now)

    def reset(self, now: int) -> None:
        self.since = self.last = now
        self.value = 0.0
        self.count = 0


class Samples:
    """Values by the sample that they came in: a new one begins when the current one is ``window_ms`` old.

    A sample counts until its last value is ``samples`` windows old, so one more than ``samples`` may.
    """

    __slots__ = ("_current", "_samples", "samples", "window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now: int) -> None:
        if not self._samples:
            self._samples.append(_Sample(now))
        sample = self._samples[self._current]
        if now - sample.since >= self.window_ms:
            sample = self._next(now)
        sample.value += value
        sample.count += 1
        sample.last = now

    def _next(self, now: int) -> _Sample:
        self._current = (self._current + 1) % (self.samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now))
        else:
            self._samples[self._current].reset(now)
        return self._samples[self._current]

    def purge(self, now: int) -> None:
        """Empty what is too old to count."""
        expired = now - self.samples * self.window_ms
        for sample in self._samples:
            if sample.last <= expired:
                sample.reset(now)

    def total(self, now: int) -> float:
        self.purge(now)
        return sum(sample.value for sample in self._samples)

    def count(self, now: int) -> int:
        self.purge(now)
        return sum(sample.count for sample in self._samples)

    def oldest(self, now: int) -> int:
        """When the oldest sample began; the first one begins now."""
        if not self._samples:
            self._samples.append(_Sample(now))
        return min(sample.since for sample in self._samples)


class Rate(Samples):
    """A second's share of what was recorded. A window that is not full yet counts as all but one of its samples."""

    __slots__ = ()

    def window(self, now: int) -> int:
        """Its length in ms."""
        self.purge(now)
        elapsed = now - self.oldest(now)
        missing = self.samples - 1 - elapsed // self.window_ms
        if missing > 0:
            elapsed += missing * self.window_ms
        return max(elapsed, 1)

    def measure(self, now: int) -> float:
        return self.total(now) / (self.window(now) / 1000)


class SimpleRate(Rate):
    """Over the time since the oldest sample began, which is at least one sample."""

    __slots__ = ()

    def window(self, now: int) -> int:
        self.purge(now)
        return max(now - self.oldest(now), self.window_ms)


class Average(Samples):
    """By default over two samples of 30 s, like a metric of Kafka without a configuration of its own."""

    __slots__ = ()

    def __init__(self, samples: int = 2, window_ms: int = 30_000) -> None:
        super().__init__(samples, window_ms)

    def measure(self, now: int) -> float:
        """NaN without values."""
        count = self.count(now)
        return self.total(now) / count if count else math.nan


class TokenBucket:
    """Fills at a constant rate up to a burst, and is full at first. It may be overdrawn: the balance is negative then.

    ``rate``: tokens a second; a burst is what comes in in ``samples`` windows.
    """

    __slots__ = ("_burst_seconds", "_tokens", "_updated_at", "rate")

    def __init__(self, rate: float, samples: int, window_ms: int) -> None:
        self.rate = rate
        self._burst_seconds = samples * window_ms / 1000
        self._tokens = 0.0
        self._updated_at: int | None = None

    def measure(self, now: int) -> float:
        """The balance. [!] After an infinite rate or NaN it is NaN for good."""
        burst = self._burst_seconds * self.rate
        if self._updated_at is None:
            self._tokens = burst
        else:
            self._tokens = _java_min(burst, self._tokens + self.rate * (now - self._updated_at) / 1000)
        self._updated_at = now
        return self._tokens

    def record(self, count: float, now: int) -> None:
        balance = self.measure(now)
        self._tokens = _java_min(self._burst_seconds * self.rate, balance - count)


def _java_min(one: float, other: float) -> float:
    """NaN if one of them is."""
    return math.nan if math.isnan(one) or math.isnan(other) else min(one, other)


def java_int(value: float) -> int:
    """Round half up to a long, the nearest if there is none, and keep its lower 32 bits, as Java does.

    [!] Beyond 2^63 the result is -1: a quota of 0 throttles nobody (rule B8.13). That of NaN is 0.
    """
    if math.isnan(value):
        return 0
    rounded = _MAX_LONG if value >= _MAX_LONG else -_MAX_LONG - 1 if value <= -_MAX_LONG else math.floor(value + 0.5)
    return (rounded + 2**31) % 2**32 - 2**31


def throttle_ms(rate: Rate, value: float, bound: float, now: int) -> float:
    """Milliseconds without records after which ``value``, which was measured now, is down to ``bound`` (rule B8.6)."""
    return (value - bound) / bound * rate.window(now) if bound else math.copysign(math.inf, bound)
