"""Findings as tables of text: drawn on a terminal; elsewhere columns that a program can take apart.

Off a terminal a table is its name behind a #, a line of column names and a line per row, columns two or more spaces
apart, nothing cut short, "-" where there is no value. On a terminal it has what fits there and is of use.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from captures.render import printable
from captures.spark.findings import ROWS, Findings

#: Rows of a table that a terminal shows.
MAX_ROWS = 60

_STYLES = {"alarm": "bold red", "warning": "yellow"}

#: Those that are drawn in pictures, not told.
_FOR_PICTURES = ("ticks", "latency_counts")


class _Drawn(NamedTuple):
    """A table on a terminal: a column is its header and what makes its text; headers that end in ">" are numbers."""

    title: str
    columns: dict[str, Callable[[Any], object]]


def _leader(leader: int | None) -> object:
    return {None: "-", -1: "none", -2: "deleted"}.get(leader, leader)


_DRAWN = {
    "requests": _Drawn(
        "Requests by API and version",
        {
            "API": lambda r: r.api,
            "version>": lambda r: r.version,
            "requests>": lambda r: r.requests,
            "answered>": lambda r: r.responses,
            "errors>": lambda r: r.errors,
            "bytes out>": lambda r: r.request_bytes,
            "bytes back>": lambda r: r.response_bytes,
        },
    ),
    "controllers": _Drawn(
        "Controllers by epoch",
        {
            "epoch>": lambda r: r.controller_epoch,
            "id>": lambda r: r.controller_id,
            "first request": lambda r: _clock(r.first_time),
            "last request": lambda r: _clock(r.last_time),
            "requests>": lambda r: r.requests,
            "brokers": lambda r: ",".join(r.brokers),
            "decisions>": lambda r: r.decisions,
            "refused>": lambda r: r.fenced,
        },
    ),
    "leadership": _Drawn(
        "Leadership changes",
        {
            "time": lambda r: _clock(r.time),
            "packet>": lambda r: r.packet,
            "partition": lambda r: f"{r.topic}-{r.partition}",
            "from>": lambda r: _leader(r.from_leader),
            "to>": lambda r: _leader(r.to_leader),
            "leader epoch>": lambda r: _text(r.to_epoch),
            "in sync": lambda r: _text(r.isr),
            "by epoch>": lambda r: r.decision_epoch,
        },
    ),
    "latency": _Drawn(
        "Latency by API, version and listener, in milliseconds",
        {
            "API": lambda r: r.api,
            "version>": lambda r: r.version,
            "listener": lambda r: r.listener,
            "answered>": lambda r: r.requests,
            "median>": lambda r: f"{r.p50_ms:.1f}",
            "90 %>": lambda r: f"{r.p90_ms:.1f}",
            "99 %>": lambda r: f"{r.p99_ms:.1f}",
            "longest>": lambda r: f"{r.max_ms:.1f}",
        },
    ),
    "fenced": _Drawn(
        "Requests refused for a stale epoch",
        {
            "error": lambda r: r.error,
            "sender": lambda r: _sender(r),
            "refused by": lambda r: r.broker,
            "API": lambda r: r.api,
            "packets": lambda r: _text(r.packets),
        },
    ),
    "stale_partitions": _Drawn(
        "STALE_CONTROLLER_EPOCH for single partitions: no fencing",
        {
            "controller>": lambda r: r.controller_id,
            "epoch>": lambda r: r.controller_epoch,
            "answered by": lambda r: r.broker,
            "requests>": lambda r: r.requests,
            "partitions>": lambda r: r.partitions,
        },
    ),
    "endpoints": _Drawn(
        "Brokers and their listeners",
        {
            "broker>": lambda r: r.broker_id,
            "listener": lambda r: r.listener,
            "address": lambda r: f"{r.host}:{r.port}",
            "rack": lambda r: _text(r.rack),
            "first announced": lambda r: _clock(r.first_time),
        },
    ),
}


def print_findings(findings: Findings, console: Console) -> None:
    """Quality first, then the findings in words, then the tables."""
    drawn = console.is_terminal
    _line(console, "How much could be read" if drawn else "# quality", "bold" if drawn else None)
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
        for name, table in _DRAWN.items():
            if rows := getattr(findings, name):
                _line(console, f"\n{table.title}", "bold")
                console.print(_draw(table, rows[:MAX_ROWS]))
                if len(rows) > MAX_ROWS:
                    _line(console, f"and {len(rows) - MAX_ROWS} more: see --out or --report, or pipe this somewhere")
    else:
        for name in ROWS:
            if name not in findings.ran or name in _FOR_PICTURES:
                continue
            _line(console, "\n" + _plain(name, getattr(findings, name)))


def _line(console: Console, text: str, style: str | None = None) -> None:
    text = "\n".join(printable(line) for line in text.split("\n"))
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _draw(drawn: _Drawn, rows: Sequence[Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for header in drawn.columns:
        table.add_column(header.rstrip(">"), justify="right" if header.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(make(row)))) for make in drawn.columns.values()))
    return table


def _plain(name: str, rows: Sequence[Any]) -> str:
    if not rows:
        return f"# {name}\n(none)"
    names = [f.name for f in dataclasses.fields(rows[0])]
    lines = [names, *([_text(getattr(row, column)) for column in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    table = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join((f"# {name}", *table))


def _sender(row: Any) -> str:
    if row.controller_id is None:
        return f"broker {row.sender_broker_id}"
    return f"{row.controller_id} in epoch {row.controller_epoch}"


def _clock(moment: datetime.datetime) -> str:
    return f"{moment:%H:%M:%S.%f}"[:-3]


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
