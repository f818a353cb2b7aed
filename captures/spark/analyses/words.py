"""Phrases that findings share."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from kce.captures.spark.analyses.analysis import Place, Results
from kce.captures.tables.rows import MAX_EVIDENCE

#: Maximum number of rows of one table described individually; beyond it findings state only the count.
MOST = 5

_CONTROL = ("LeaderAndIsr", "StopReplica", "UpdateMetadata")


#: Why what was not seen may have happened.
MISSING: Final = "control requests may be missing or incomplete"


def incomplete_controls(found: Results) -> int:
    """How many control requests lack bytes."""
    return sum(found.quality.incomplete[f"{api} request"] for api in _CONTROL)


def lacks_controls(found: Results) -> bool:
    """Whether control requests lack bytes, or may be missing: nobody can say that something was not said.

    What was lost at the end of a connection, or with all of it, leaves no gap; but where two connections have gaps,
    more was lost than a packet.
    """
    quality = found.quality
    return bool(
        incomplete_controls(found) or quality.control_gaps or (lacks_packets(found) and quality.gap_connections > 1)
    )


def lacks_packets(found: Results) -> bool:
    """Whether whole packets are missing; what a snap length cuts off is known."""
    return found.quality.gaps > 0 and not found.quality.cut_packets


def evidence_of(row: Any) -> tuple[Place, ...]:
    """The packets that a row names."""
    return tuple(zip(row.files, row.packets, strict=False))


def evidence_of_all(rows: Iterable[Any]) -> tuple[Place, ...]:
    """The packets that rows name, each once and in order; of many those of the first rows, at most MAX_EVIDENCE."""
    return tuple(sorted(first_places(place for row in rows for place in evidence_of(row))))


def first_places(places: Iterable[Place]) -> tuple[Place, ...]:
    """Each once; of many the first MAX_EVIDENCE."""
    return tuple(islice(dict.fromkeys(places), MAX_EVIDENCE))


def brokers(ids: Iterable[str]) -> str:
    ids = list(ids)
    return f"broker{'s' * (len(ids) != 1)} {listed(ids)}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def some(items: Iterable[object], most: int = 10) -> str:
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def packets(numbers: Iterable[int]) -> str:
    """``packet 7``, ``packets 7, 9``."""
    numbers = list(numbers)
    return f"packet{'s' * (len(numbers) != 1)} {some(numbers)}"


def clock(time: datetime.datetime) -> str:
    """Time of day with milliseconds."""
    return f"{time:%H:%M:%S.%f}"[:-3]


def duration(ms: float) -> str:
    """``4 ms``, ``3.17 s``."""
    return f"{ms / 1000:,.2f} s" if ms >= 1000 else f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def listed(items: list[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1] if items else "")))
