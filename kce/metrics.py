"""Metrics under the names that Kafka gives them in JMX, and their registry. `harness.prometheus` exposes them.

This module imports no room, so every room may count with it.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, ItemsView, Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: samples that a histogram looks back on: those of Kafka's metrics library
RESERVOIR_SIZE = 1028


class MetricName(NamedTuple):
    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The name of its MBean."""
        keys = (("type", self.type), ("name", self.name), *self.tags)
        return f"{self.group}:{','.join(f'{key}={value}' for key, value in keys)}"


@dataclass(frozen=True, slots=True)
class Gauge:
    read: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Meter:
    """``read`` returns the count so far; two reads give the rate."""

    read: Callable[[], int]


class Histogram:
    """``count`` and ``sum`` are of all values since the last ``clear``, quantiles of the latest `RESERVOIR_SIZE`."""

    def __init__(self) -> None:
        self.clear()

    @classmethod
    def of(cls, count: int, total: float, latest: Iterable[float]) -> Histogram:
        """Of values that were counted elsewhere."""
        made = cls()
        made.count, made.sum = count, total
        made._latest.extend(sorted(latest))
        return made

    def clear(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._latest: collections.deque[float] = collections.deque(maxlen=RESERVOIR_SIZE)

    def update(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self._latest.append(value)

    @property
    def min(self) -> float:
        return min(self._latest, default=0.0)

    @property
    def max(self) -> float:
        return max(self._latest, default=0.0)

    def quantile(self, q: float) -> float:
        """The smallest value that at least the share ``q`` of the latest is not above; 0 without any."""
        if not self._latest:
            return 0.0
        return sorted(self._latest)[max(0, math.ceil(q * len(self._latest)) - 1)]


class Timer(Histogram):
    """A histogram of durations in ms; ``count`` serves as a meter."""


Metric = Gauge | Meter | Histogram


class Metrics:
    """What there is now. Names come and go with what they tell of."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Metric] = {}

    def add(self, name: MetricName, metric: Metric) -> None:
        """Raises ValueError for a name that is taken."""
        if name in self._metrics:
            raise ValueError(f"there is a metric {name} already")
        self._metrics[name] = metric

    def remove(self, name: MetricName) -> None:
        del self._metrics[name]

    def __getitem__(self, name: MetricName) -> Metric:
        return self._metrics[name]

    def __contains__(self, name: MetricName) -> bool:
        return name in self._metrics

    def items(self) -> ItemsView[MetricName, Metric]:
        return self._metrics.items()
