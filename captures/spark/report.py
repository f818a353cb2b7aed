"""Findings as one self-contained HTML page: quality, findings, pictures, tables."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from kce.captures.spark.analyses import ANALYSES
from kce.captures.spark.analyses.analysis import LEFT, Chart, Finding, Kind, Place, Section
from kce.captures.spark.findings import MAX_CITED, SECTIONS, Findings
from kce.captures.spark.incidents import Incident, incidents
from kce.captures.spark.timeline import Axis, axis_of, chart_html, since_trigger, strip_html
from kce.captures.tables.rows import SCHEMA_VERSION
from kce.wire.vocabulary import LEADER_DURING_DELETE, NO_LEADER

#: Rows of a section and of another table on the page.
MAX_ROWS = 200
MAX_SHOWN = 40
#: Items of a list in a cell.
MAX_CELL = 8

#: Characters that HTML does not allow, and marks that turn the direction of what follows or hide in a name; names of
#: topics and clients may hold any.
_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)

#: The packets that a finding names at its end.
_PACKETS = re.compile(r" \(packets? [0-9][0-9, ]*(and [0-9]+ more)?\)(?=\.$)")

_SCRIPT = Markup((Path(__file__).parent / "templates" / "report.js").read_text())  # noqa: S704 - our own

_LEADERS = {None: "–", NO_LEADER: "none", LEADER_DURING_DELETE: "deleted"}


#: Analyses whose findings are shown in a section of their own.
_COSTS = frozenset({"metadata_cost", "resends"})

#: Columns of tables that the page leaves out.
_HIDDEN = frozenset({"files", "reset_files", "topic_id"})


class _Drawn(NamedTuple):
    """A section with its picture or chart and the text of its cells; ``rows`` is how many it would have."""

    name: str
    section: Section
    picture: Markup | None
    chart: Chart | None
    cells: list[list[str | Markup]]
    rows: int


class _Told(NamedTuple):
    """An incident as the page shows it."""

    incident: Incident
    strip: Markup | None
    steps: list[tuple[Any, str]]


def render(findings: Findings) -> str:
    """The page."""
    anchors = {(e.file, e.packet): f"packet-{number}" for number, e in enumerate(findings.exchanges, 1)}
    cell = partial(_cell, files=frozenset(findings.files))
    told = incidents(findings)
    all_findings = findings.findings()
    others = _other_packets(told, all_findings, anchors)
    anchors |= {place: f"moment-{number}" for number, place in enumerate(others, 1)}
    links = partial(_links, anchors=anchors)
    several = len(findings.files) > 1
    templates = environment()
    templates.filters["cell"] = cell
    templates.filters["anchor"] = lambda place: anchors.get(tuple(place))
    templates.filters["value"] = partial(_value, cell=cell, links=links)
    begin, end = _span(findings)
    drawn = [_drawn(findings, name, section, cell, links) for name, section in SECTIONS]
    axis = axis_of([each.chart for each in drawn if each.chart is not None], told)

    def anchor(place: Place) -> str | None:
        return anchors.get(place)

    in_sections = {name for name, section in SECTIONS if section.columns}
    other_tables = [analysis.table for name, analysis in ANALYSES.items() if name not in in_sections]
    page = templates.get_template("report.html.j2").render(
        f=findings,
        begin=begin,
        end=end,
        axis=axis,
        ticks=[] if axis is None else _ticks(axis),
        script=_SCRIPT,
        brokers=sorted({endpoint.broker_id for endpoint in findings.endpoints}),
        files=[Path(file).name for file in findings.files],
        incidents=[_Told(incident, strip_html(incident), list(since_trigger(incident))) for incident in told],
        findings=[_with_evidence(f) for f in all_findings if f.analysis not in _COSTS],
        costs=[_with_evidence(f) for f in all_findings if f.analysis in _COSTS],
        sections=[each for each in drawn if each.picture or each.chart or each.rows or each.section.without_rows],
        chart=lambda of: None if axis is None else chart_html(of, axis, anchor),
        tables=[(table, getattr(findings, table.name)) for table in other_tables if getattr(findings, table.name)],
        others=others,
        several_files=several,
        left=LEFT,
        shown=lambda table: [c.name for c in table.columns if c.name not in _HIDDEN and (several or c.name != "file")],
        max_shown=MAX_SHOWN,
        schema_version=SCHEMA_VERSION,
    )
    return escaped(page)


def _other_packets(
    told: Iterable[Incident], findings: Iterable[Finding], shown: Container[Place]
) -> dict[Place, tuple[str, str]]:
    """(heading, explanation) of packets that are no shown requests, such as responses and the ends of connections."""
    found: dict[Place, tuple[str, str]] = {}
    for step in (step for incident in told for step in incident.steps):
        if step.place is not None and step.place not in shown:
            found.setdefault(step.place, (step.text, f"{_clock(step.time)}, the {step.name} of an incident"))
    for finding in findings:
        cited, places = _with_evidence(finding)
        for place in places:
            if place not in shown:
                found.setdefault(place, ("not decoded here", f"Cited for: {cited.text}"))
    return found


def environment() -> jinja2.Environment:
    """The templates of reports."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("kce.captures.spark", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["time"] = _clock
    made.filters["ms"] = _ms
    made.filters["count"] = lambda number: f"{number:,}"
    return made


def escaped(page: str) -> str:
    """The page without control characters."""
    return _CONTROL_CHARACTERS.sub(lambda match: repr(match[0])[1:-1], page)


def _links(places: Sequence[Place], anchors: Mapping[Place, str]) -> Markup:
    """The numbers of packets; those of packets that the page shows lead there."""
    numbers = [
        Markup('<a href="#{}">{}</a>').format(anchors[place], place[1]) if place in anchors else escape(place[1])
        for place in places[:MAX_CELL]
    ]
    more = [f" and {len(places) - MAX_CELL} more"] if len(places) > MAX_CELL else []
    return Markup("").join([Markup(", ").join(numbers), *more])


def _value(row: object, column: str, cell: Callable[[object], str], links: Callable[[Any], Markup]) -> str | Markup:
    """A value of any table. A column of packets has one with their files beside it."""
    value = getattr(row, column)
    prefix, is_packet, plural = column.rpartition("packet")
    if not is_packet or plural not in ("", "s") or value is None:
        return cell(value)
    file = getattr(row, f"{prefix}file{plural}", None) or getattr(row, "file", None)
    if file is None:
        return cell(value)
    return links(list(zip(file, value, strict=True)) if plural else [(file, value)])


def _drawn(
    findings: Findings, name: str, section: Section, cell: Callable[[object], str], links: Callable[[Any], Markup]
) -> _Drawn:
    formats: dict[Kind, Callable[[Any], str | Markup]] = {
        "text": cell,
        "number": lambda value: "–" if value is None else str(value),
        "count": lambda value: f"{value:,}",
        "ms": _ms,
        "time": _clock,
        "leader": lambda value: _LEADERS.get(value, str(value)),
        "packets": links,
    }
    rows = [row for row in getattr(findings, name) if section.wanted(row)] if section.columns else []
    cells = [[formats[column.kind](column.value(row)) for column in section.columns] for row in rows[:MAX_ROWS]]
    picture = None if section.picture is None else section.picture(findings)
    chart = None if section.chart is None else section.chart(findings)
    # made by matplotlib, which escapes what it draws
    return _Drawn(name, section, None if picture is None else Markup(picture), chart, cells, len(rows))  # noqa: S704


def _with_evidence(finding: Finding) -> tuple[Finding, tuple[Place, ...]]:
    """The packets are shown as links below the text, so that it need not list them."""
    places = finding.evidence[:MAX_CITED]
    return replace(finding, text=_PACKETS.sub("", finding.text)) if places else finding, places


def _ticks(axis: Axis) -> list[tuple[str, str]]:
    """Six moments of the axis, without a script; with one, the page makes them."""
    step = (axis.end - axis.begin) / 5
    return [(f"{number / 5:.3f}", _clock(axis.begin + number * step)) for number in range(6)]


def _span(findings: Findings) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """The times of the first and the last control request."""
    if not findings.controllers:
        return None, None
    return min(c.first_time for c in findings.controllers), max(c.last_time for c in findings.controllers)


def _clock(moment: datetime.datetime | None) -> str:
    return "–" if moment is None else f"{moment:%H:%M:%S.%f}"[:-3]


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
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
            return _clock(value)
        case float():
            return f"{value:,.2f}"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case tuple():
            more = f" and {len(value) - MAX_CELL} more" if len(value) > MAX_CELL else ""
            return ", ".join(map(str, value[:MAX_CELL])) + more
        case str() if value in files:
            return Path(value).name
        case _:
            return str(value)
