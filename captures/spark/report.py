"""Findings as one HTML page that needs nothing else: quality first, findings in words, pictures, then the tables."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path

import jinja2
from markupsafe import Markup

from captures.analysis_rows import (
    BOUNCES,
    CHURN,
    CONTROL_BEHIND_DATA,
    DISAGREEMENTS,
    ISR_CHANGES,
    ISR_STORMS,
    METADATA_COST,
    OVERLAPS,
    PROPAGATION,
    REBALANCES,
    REGRESSIONS,
    RESENDS,
    TRANSPORT,
    UNANSWERED,
    UNCLEAN_ELECTIONS,
)
from captures.rows import SCHEMA_VERSION
from captures.spark import pictures
from captures.spark.findings import Findings

#: Rows of leadership, and of another table, that the page shows, and packets that it names for one finding.
MAX_ROWS = 200
MAX_SHOWN = 40
MAX_EVIDENCE = 12

#: Shown as they are, under what the page draws and explains.
_TABLES = (
    OVERLAPS, UNCLEAN_ELECTIONS, CHURN, ISR_STORMS, ISR_CHANGES, BOUNCES, CONTROL_BEHIND_DATA, METADATA_COST,
    PROPAGATION, DISAGREEMENTS, REGRESSIONS, RESENDS, UNANSWERED, REBALANCES, TRANSPORT,
)  # fmt: skip


def render(findings: Findings) -> str:
    """The page."""
    anchors = {(e.file, e.packet): f"packet-{number}" for number, e in enumerate(findings.exchanges, 1)}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("captures.spark", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["time"] = lambda moment: f"{moment:%H:%M:%S.%f}"[:-3]
    environment.filters["ms"] = _ms
    environment.filters["count"] = lambda number: f"{number:,}"
    environment.filters["leader"] = lambda leader: {None: "–", -1: "none", -2: "deleted"}.get(leader, str(leader))
    environment.filters["cell"] = functools.partial(_cell, files=frozenset(findings.files))
    environment.filters["anchor"] = lambda place: anchors.get(tuple(place))
    begin, end = _span(findings)
    return environment.get_template("report.html.j2").render(
        f=findings,
        begin=begin,
        end=end,
        brokers=sorted({endpoint.broker_id for endpoint in findings.endpoints}),
        files=[Path(file).name for file in findings.files],
        timeline=_markup(pictures.controller_timeline(findings.controllers, findings.ticks)),
        leadership=_markup(pictures.leadership_timeline(findings.leadership, end)),
        requests=_markup(pictures.requests_by_api(findings.requests)),
        latency=_markup(pictures.latency_distribution(findings.latency, findings.latency_counts)),
        isr=_markup(pictures.isr_timeline(findings.isr_changes, findings.bounces)),
        told=[(f, f.evidence[:MAX_EVIDENCE]) for f in findings.findings()],
        tables=[(table, getattr(findings, table.name)) for table in _TABLES if getattr(findings, table.name)],
        several_files=len(findings.files) > 1,
        hidden={"files", "topic_id"} | ({"file"} if len(findings.files) == 1 else set()),
        max_shown=MAX_SHOWN,
        max_rows=MAX_ROWS,
        schema_version=SCHEMA_VERSION,
    )


def _span(findings: Findings) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """From the first control request to the last."""
    if not findings.controllers:
        return None, None
    return min(c.first_time for c in findings.controllers), max(c.last_time for c in findings.controllers)


def _markup(svg: str | None) -> Markup | None:
    return None if svg is None else Markup(svg)  # noqa: S704  # made by matplotlib, which escapes what it draws


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def _cell(value: object, files: frozenset[str] = frozenset()) -> str:
    """A value of any table in few words; of ``files`` the names without their folders."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case datetime.datetime():
            return f"{value:%H:%M:%S.%f}"[:-3]
        case float():
            return f"{value:,.2f}"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case tuple():
            more = f" and {len(value) - 8} more" if len(value) > 8 else ""
            return ", ".join(map(str, value[:8])) + more
        case str() if value in files:
            return Path(value).name
        case _:
            return str(value)
