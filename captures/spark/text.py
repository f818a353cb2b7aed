"""Findings as text: drawn on a terminal, elsewhere columns for programs.

Off a terminal a table is its name behind a #, a line of column names and a line per row, with columns two or more
spaces apart, untruncated, "-" for null, without the file if there is only one. On a terminal a table has the columns
that fit.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kce.captures.exchanges.render import printable
from kce.captures.spark.analyses.analysis import LEFT, Kind, Shown
from kce.captures.spark.findings import PRINTED, SECTIONS, Findings
from kce.wire.vocabulary import LEADER_DURING_DELETE, NO_LEADER

#: Rows of a table that a terminal shows.
MAX_ROWS = 60

_STYLES = {"alarm": "bold red", "warning": "yellow"}

_LEADERS = {None: "-", NO_LEADER: "none", LEADER_DURING_DELETE: "deleted"}

#: How values are formatted on a terminal.
_FORMATS: dict[Kind, Callable[[Any], object]] = {
    "text": lambda value: _text(value),
    "number": lambda value: _text(value),
    "count": lambda value: value,
    "ms": lambda value: "-" if value is None else f"{value:.1f}",
    "time": lambda value: "-" if value is None else f"{value:%H:%M:%S.%f}"[:-3],
    "leader": lambda value: _LEADERS.get(value, value),
    "packets": lambda places: _text(tuple(packet for _, packet in places)),
}


def print_findings(findings: Findings, console: Console) -> None:
    """Quality first, then the findings in words, then the tables."""
    drawn = console.is_terminal
    _line(console, "Capture quality" if drawn else "# quality", "bold" if drawn else None)
    quality = findings.quality
    _line(console, f"packets {quality.packets}")
    _line(console, f"kafka connections {quality.connections}")
    _line(console, f"requests {quality.requests}, responses {quality.responses}")
    for line in quality.lines():
        _line(console, line)
    _line(console, "\nFindings" if drawn else "\n# findings", "bold" if drawn else None)
    for finding in findings.findings():
        mark = "" if finding.severity == "note" else f"{finding.severity}: "
        _line(console, mark + finding.text, _STYLES.get(finding.severity))
    if drawn:
        for name, section in SECTIONS:
            rows = [row for row in getattr(findings, name) if section.wanted(row)]
            columns = [column for column in section.columns if not column.wide]
            if rows and columns:
                unit = ", in milliseconds" if any(column.kind == "ms" for column in columns) else ""
                _line(console, f"\n{section.heading}{unit}", "bold")
                console.print(_draw(columns, rows[:MAX_ROWS]))
                if len(rows) > MAX_ROWS:
                    _line(console, f"and {len(rows) - MAX_ROWS} more: use --out or --report, or pipe the output")
    else:
        for name in PRINTED:
            if name in findings.ran:
                _line(console, "\n" + _plain(name, getattr(findings, name), with_files=len(findings.files) > 1))


def _line(console: Console, text: str, style: str | None = None) -> None:
    text = "\n".join(printable(line) for line in text.split("\n"))
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _draw(columns: Sequence[Shown], rows: Sequence[Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.header, justify="left" if column.kind in LEFT else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(_FORMATS[c.kind](c.value(row))))) for c in columns))
    return table


def _plain(name: str, rows: Sequence[Any], *, with_files: bool) -> str:
    if not rows:
        return f"# {name}\n(none)"
    names = [f.name for f in dataclasses.fields(rows[0]) if with_files or not _names_files(f.name)]
    lines = [names, *([_text(getattr(row, column)) for column in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    table = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join((f"# {name}", *table))


def _names_files(column: str) -> bool:
    """Whether a column only says in which files other columns' packets are."""
    return column.rpartition("_")[2] in ("file", "files")


def _text(value: Any) -> str:
    match value:
        case None | ():
            return "-"
        case datetime.datetime():
            return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
        case float():
            return f"{value:.3f}"
        case tuple():
            return ",".join(map(str, value))
        case bool():
            return "yes" if value else "no"
        case _:
            return printable(str(value)) or "-"
