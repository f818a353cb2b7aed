"""Rows of results: what was measured, the peer, the ratio and the spread of the repeats."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KAFKA = "Kafka 3.9.1"
HEAD = f"{'':<56}{'ours':>11} {'':<12}{'spread':<28}{'peer':<24}{'':>11}  {'spread':<28}{'ratio':>7}"


@dataclass
class Row:
    """``values`` and ``peer_values`` are those of the repeats; a peer that is a limit has one value, or none.

    ``less``: whether less is better. A ratio above 1 is better than the peer. With as many repeats of both it is the
    median of their ratios, otherwise the ratio of the medians.
    """

    name: str
    unit: str
    peer: str
    less: bool = False
    values: list[float] = field(default_factory=list)
    peer_values: list[float] = field(default_factory=list)

    def ratio(self) -> float | None:
        mine, theirs = self.values, self.peer_values
        if not theirs:
            return None
        if len(mine) != len(theirs):
            mine, theirs = [statistics.median(mine)], [statistics.median(theirs)]
        return statistics.median(b / a if self.less else a / b for a, b in zip(mine, theirs, strict=True))

    def result(self) -> dict[str, Any]:
        theirs = self.peer_values
        return {
            "value": statistics.median(self.values), "unit": self.unit, "peer": self.peer,
            "peer_value": statistics.median(theirs) if theirs else None, "ratio": self.ratio(),
            "spread": [min(self.values), max(self.values)],
            "peer_spread": [min(theirs), max(theirs)] if theirs else None,
            "repeats": len(self.values), "less_is_better": self.less,
        }  # fmt: skip

    def __str__(self) -> str:
        found = self.result()
        line = (
            f"{self.name:<56}{number(found['value']):>11} {self.unit:<12}{spread(found['spread']):<28}{self.peer:<24}"
        )
        if found["ratio"] is not None:
            line += f"{number(found['peer_value']):>11}  {spread(found['peer_spread']):<28}{found['ratio']:>7.2f}"
        return line.rstrip()


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread(ends: Sequence[float]) -> str:
    return " - ".join(map(number, ends))


def report(rows: Iterable[Row], json_file: str | Path | None) -> None:
    """Print the rows as a table, and write them to ``json_file``: {name: value, unit, peer, peer_value, ratio, ...}."""
    rows = list(rows)
    print(HEAD)
    for row in rows:
        print(row)
    if json_file is not None:
        Path(json_file).write_text(json.dumps({row.name: row.result() for row in rows}, indent=2) + "\n")
