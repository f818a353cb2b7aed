"""The results of `kce analyze`, as plain values."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from types import MappingProxyType
from typing import Any

from kce.captures.exchanges.quality import Quality
from kce.captures.spark.analyses import ANALYSES
from kce.captures.spark.analyses.analysis import THRESHOLDS, Finding, Section, Severity, Shown, Thresholds
from kce.captures.tables.rows import ENDPOINTS, Table

_SEVERITIES: tuple[Severity, ...] = ("alarm", "warning", "note")


def row_class(table: Table) -> type[Any]:
    """A frozen class for the rows of ``table``, with its columns as attributes; lists are tuples."""
    columns = [
        (column.name, Any, field(default=())) if column.name == "files" else (column.name, Any)
        for column in table.columns
    ]
    return make_dataclass(table.name, columns, frozen=True, slots=True)


#: Packets of a finding that a report cites.
MAX_CITED = 12

#: Tables for pictures only; not written or printed.
AUXILIARY = tuple(auxiliary.table for analysis in ANALYSES.values() for auxiliary in analysis.auxiliary)

#: Name of a table -> the class of its rows.
ROWS: Mapping[str, type[Any]] = MappingProxyType({
    table.name: row_class(table)
    for table in (*(analysis.table for analysis in ANALYSES.values()), ENDPOINTS, *AUXILIARY)
})  # fmt: skip

#: The output tables, in order.
PRINTED = tuple(name for name in ROWS if name not in {table.name for table in AUXILIARY})

_ENDPOINTS_SECTION = Section(
    position=80,
    heading="Brokers and their listeners",
    columns=(
        Shown("broker", "number", lambda r: r.broker_id),
        Shown("listener", "text", lambda r: r.listener),
        Shown("address", "text", lambda r: f"{r.host}:{r.port}"),
        Shown("rack", "text", lambda r: r.rack),
        Shown("first announced", "time", lambda r: r.first_time),
        Shown("last announced", "time", lambda r: r.last_time, wide=True),
    ),
    without_rows="No UpdateMetadata request announced any.",
)

#: (table, its section), in the order in which they are shown.
SECTIONS: tuple[tuple[str, Section], ...] = tuple(
    sorted(
        [(name, analysis.section) for name, analysis in ANALYSES.items() if analysis.section is not None]
        + [(ENDPOINTS.name, _ENDPOINTS_SECTION)],
        key=lambda each: each[1].position,
    )
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that a finding cites, with the decoded ``bodies`` of request and response."""

    file: str
    packet: int
    time: datetime.datetime
    api: str
    version: int
    client_id: str | None
    broker: str
    listener: str
    error: str | None
    latency_ms: float | None
    response_packet: int | None
    bodies: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The results of a run. Each table (``ROWS``) is an attribute, empty if its analysis did not run.

    ``ran`` are the selected tables, ``exchanges`` the requests that findings cite, if ``evidence`` was requested.
    """

    files: tuple[str, ...]
    quality: Quality
    tables: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = field(default=(), repr=False)
    ran: frozenset[str] = frozenset(ROWS)
    thresholds: Thresholds = THRESHOLDS

    def __getattr__(self, table: str) -> tuple[Any, ...]:
        if table not in ROWS:
            raise AttributeError(f"there is no table {table!r}")
        return self.tables.get(table, ())

    def findings(self) -> list[Finding]:
        """All findings, most serious first."""
        ran = sorted((a for a in ANALYSES.values() if a.table.name in self.ran), key=lambda analysis: analysis.rank)
        found = [replace(finding, analysis=a.table.name) for a in ran for finding in a.findings(self)]
        return sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity))

    def sentences(self) -> list[str]:
        """The texts of the findings."""
        return [finding.text for finding in self.findings()]
