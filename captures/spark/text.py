"""Findings as tables of text: drawn on a terminal; elsewhere columns that a program can take apart.

Off a terminal a table is its name behind a #, a line of column names and a line per row, columns two or more spaces
apart, nothing cut short, "-" where there is no value.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from captures.spark.findings import Findings

#: which of the findings are told, and the title over each
_TABLES = {
    "requests": "Requests by API and version",
    "controllers": "Controllers by epoch",
    "leadership": "Leadership changes",
    "latency": "Latency by API and listener",
    "fenced": "Requests refused for a stale epoch",
    "stale_partitions": "STALE_CONTROLLER_EPOCH inside partitions of LeaderAndIsr answers (no fencing)",
    "zombies": "Zombie controllers",
    "endpoints": "Brokers and their listeners",
}


def print_findings(findings: Findings, console: Console) -> None:
    """Quality first, then the findings in words, then the tables."""
    console.print("# quality" if not console.is_terminal else "[bold]How much could be read[/]")
    quality = findings.quality
    _line(console, f"packets {quality.packets}")
    _line(console, f"kafka connections {quality.connections}")
    _line(console, f"requests {quality.requests}, responses {quality.responses}")
    for line in quality.lines():
        _line(console, line)
    console.print("\n# findings" if not console.is_terminal else "\n[bold]Findings[/]")
    for i, sentence in enumerate(findings.sentences()):
        _line(console, sentence, style="bold red" if i < len(findings.zombies) else None)
    for name, title in _TABLES.items():
        rows = getattr(findings, name)
        if console.is_terminal:
            if rows:
                console.print()
                console.print(_drawn(title, rows))
        else:
            _line(console, "\n" + _plain(name, rows))


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _drawn(title: str, rows: Sequence[Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [f.name for f in dataclasses.fields(rows[0]) if any(getattr(row, f.name) is not None for row in rows)]
    for name in shown:
        numbers = all(isinstance(getattr(row, name), (int, float, type(None))) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(getattr(row, name)) for name in shown))
    return table


def _plain(name: str, rows: Sequence[Any]) -> str:
    if not rows:
        return f"# {name}\n(none)"
    names = [f.name for f in dataclasses.fields(rows[0])]
    lines = [names, *([_text(getattr(row, column)) for column in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    table = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join((f"# {name}", *table))


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
            return str(value) or "-"
