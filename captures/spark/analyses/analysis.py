"""An analysis: its columns, query, findings and presentation.

Each module beside this one declares one ``Analysis`` and registers it by its name in ``captures.spark.analyses``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from pyspark.sql import DataFrame

from kce.captures.exchanges.quality import Quality
from kce.captures.tables.rows import Table

Severity = Literal["alarm", "warning", "note"]

#: How a value is formatted: a tuple of places as ``packets``. All but text, time and packets are aligned to the right.
Kind = Literal["text", "number", "count", "ms", "time", "leader", "packets"]

#: The kinds that are aligned to the left.
LEFT: frozenset[Kind] = frozenset({"text", "time", "packets"})

#: (file, packet)
Place = tuple[str, int]


class Frames(NamedTuple):
    """The input of an analysis: see ``captures.spark.reassembly``.

    ``exchanges`` and ``partitions`` have the columns that ``at_listeners`` adds: ``broker_id``, ``listener``,
    ``broker``. Several analyses share ``controls`` (the exchanges of control requests), ``states``
    (``common.accepted_states``), ``leaders`` (``common.leader_changes``), ``versions`` (``common.state_versions``),
    ``silences`` (``silences.silences``) and ``moves`` (``outages.moves``). ``inputs.frames`` makes them.
    """

    exchanges: DataFrame
    controls: DataFrame
    partitions: DataFrame
    live_brokers: DataFrame
    connections: DataFrame
    states: DataFrame
    leaders: DataFrame
    versions: DataFrame
    silences: DataFrame
    moves: DataFrame
    is_long: bool  #: whether histories are cut, so that none is one task (``running``)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits from which on findings are warnings; `kce analyze --threshold NAME=VALUE` sets them."""

    outage_ms: float = 1000.0  #: time without a leader, from the last sign of life of the old one
    slow_control_ms: float = 1000.0  #: latency of a control request
    slow_news_ms: float = 1000.0  #: time that a broker waits for metadata of a new leader
    isr_storm_shrinks: float = 3.0  #: how often the ISR of one partition shrinks in a storm


#: The defaults.
THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class Finding:
    """One conclusion in words. ``evidence`` are the packets that show it, ``analysis`` the table it is drawn from."""

    severity: Severity
    text: str
    evidence: tuple[Place, ...] = ()
    analysis: str = ""


class Results(Protocol):
    """The rows of all analyses that ran, by the name of their table; of the others there are none."""

    @property
    def quality(self) -> Quality: ...

    @property
    def thresholds(self) -> Thresholds: ...

    def __getattr__(self, table: str) -> tuple[Any, ...]: ...


class Shown(NamedTuple):
    """A column as people see it: ``value`` takes a row. One that is ``wide`` is left out on a terminal."""

    header: str
    kind: Kind
    value: Callable[[Any], Any]
    wide: bool = False


#: What a mark on the time axis looks like; the report's style sheet has a class for each.
Look = Literal[
    "bar", "leader-0", "leader-1", "leader-2", "leader-3", "leader-4", "leader-5", "leader-6", "leader-7", "none",
    "LeaderAndIsr", "UpdateMetadata", "StopReplica", "refused", "left", "joined", "back", "failed",
    "silence", "change", "spread", "wait",
]  # fmt: skip


#: Looks of brokers, in turn; and how many lanes a chart has.
BROKER_LOOKS: tuple[Look, ...] = (
    "leader-0", "leader-1", "leader-2", "leader-3", "leader-4", "leader-5", "leader-6", "leader-7",
)  # fmt: skip
MOST_LANES = 40


class Mark(NamedTuple):
    """Something on the time axis: a bar from ``begin`` to ``end``, or a tick if ``end`` is None."""

    look: Look
    begin: datetime.datetime
    end: datetime.datetime | None
    title: str
    place: Place | None = None


class Lane(NamedTuple):
    """A row of the time axis."""

    label: str
    marks: tuple[Mark, ...]


class Chart(NamedTuple):
    """Lanes, and what their looks mean."""

    lanes: tuple[Lane, ...]
    legend: tuple[tuple[Look, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of the report, and a table on a terminal. Sections are shown in the order of ``position``.

    ``chart`` is drawn on the time axis that all sections share. ``hint`` explains the picture or table. Only rows that
    are ``wanted`` are shown. The texts ``without_rows`` and ``without_picture`` stand in place of what is missing;
    where there is neither row nor picture nor such a text, the section is left out.
    """

    position: int
    heading: str
    hint: str = ""
    columns: tuple[Shown, ...] = ()
    wanted: Callable[[Any], bool] = lambda row: True
    picture: Callable[[Results], str | None] | None = None
    chart: Callable[[Results], Chart | None] | None = None
    without_rows: str = ""
    without_picture: str = ""


class Auxiliary(NamedTuple):
    """A table that only a picture needs: it is neither written nor printed."""

    table: Table
    run: Callable[[Frames], DataFrame]


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """``table`` has the name of the analysis, that of its module. ``run`` gives the table's columns, in its types.

    ``findings`` draws conclusions from the rows. ``rank`` orders findings of one severity.
    """

    table: Table
    run: Callable[[Frames], DataFrame]
    rank: int = 0
    findings: Callable[[Results], Iterable[Finding]] = lambda results: ()
    section: Section | None = None
    auxiliary: tuple[Auxiliary, ...] = ()
