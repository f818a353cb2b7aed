"""Findings in a file: HTML for reading, JSON for programs, Markdown for a ticket or a pull request."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kce.captures.errors import CaptureError
from kce.captures.exchanges.render import printable
from kce.captures.spark.findings import PRINTED, Findings
from kce.captures.tables.rows import SCHEMA_VERSION

FORMS = ("html", "json", "markdown")

#: How the names of their files end.
ENDINGS = {"html": ".html", "json": ".json", "markdown": ".md"}

#: Rows of a table that Markdown shows.
MAX_ROWS = 50


def rendered(found: Findings, form: str) -> str:
    """``form`` is one of FORMS."""
    if form == "html":
        from kce.captures.spark.report import render  # here, for matplotlib takes a while to import

        return render(found)
    return {"json": to_json, "markdown": to_markdown}[form](found)


def check_report(path: str | os.PathLike[str], captures: Iterable[str]) -> None:
    """Raises CaptureError if its folder does not exist, or it is one: a long analysis would be in vain.

    Raises it also for one of the ``captures``, which the report would overwrite.
    """
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise CaptureError(f"{os.fspath(path)}: there is no folder {folder} for the report")
    if Path(path).is_dir():
        raise CaptureError(f"{os.fspath(path)}: a folder, not a file for the report")
    if Path(path).exists() and any(os.path.exists(name) and os.path.samefile(name, path) for name in captures):
        raise CaptureError(f"{os.fspath(path)}: the report would overwrite this capture")


def write_report(found: Findings, path: str | os.PathLike[str], form: str = "html") -> None:
    """Raises CaptureError when the file cannot be written."""
    write_text(rendered(found, form), path)  # made first, so that a failure leaves no empty file


def write_text(whole: str, path: str | os.PathLike[str]) -> None:
    """Raises CaptureError when the file cannot be written; a full disk leaves no half of it."""
    is_open = False
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            is_open = True
            file.write(whole)
    except OSError as e:
        if is_open and Path(path).is_file():
            Path(path).unlink()
        raise CaptureError(f"{os.fspath(path)}: cannot be written ({e.strerror or e})") from None


def to_json(found: Findings) -> str:
    """One object: schema_version, files, quality, findings, tables, evidence. Times are ISO 8601."""
    whole = {
        "schema_version": SCHEMA_VERSION,
        "files": found.files,
        "quality": {**json.loads(found.quality.to_json()), "sound": found.quality.sound, "said": found.quality.lines()},
        "findings": [
            {
                "analysis": finding.analysis,
                "severity": finding.severity,
                "text": finding.text,
                "evidence": [{"file": file, "packet": packet} for file, packet in finding.evidence],
            }
            for finding in found.findings()
        ],
        "tables": {name: [_plain(row) for row in getattr(found, name)] for name in PRINTED if name in found.ran},
        "evidence": [_plain(exchange) for exchange in found.exchanges],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def to_markdown(found: Findings) -> str:
    """Quality, findings, and the tables that have rows."""
    lines = ["# Control plane report", "", ", ".join(f"`{_cell(file)}`" for file in found.files), ""]
    quality = found.quality
    lines += ["## Capture quality", ""]
    lines += [f"{quality.packets:,} packets, {quality.requests:,} requests, {quality.responses:,} responses.", ""]
    lines += [f"- {_cell(line)}" for line in quality.lines()] + ["", "## Findings", ""]
    lines += [f"- **{finding.severity}**: {_cell(finding.text)}" for finding in found.findings()]
    for name in PRINTED:
        rows = getattr(found, name)
        if not rows:
            continue
        columns = [field.name for field in dataclasses.fields(rows[0]) if field.name != "files"]
        lines += ["", f"## {name}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in rows[:MAX_ROWS]:
            lines.append("| " + " | ".join(_cell(_text(getattr(row, column))) for column in columns) + " |")
        if len(rows) > MAX_ROWS:
            lines += ["", f"The first {MAX_ROWS} of {len(rows):,}."]
    return "\n".join(lines) + "\n"


def _plain(row: Any) -> dict[str, Any]:
    return {field.name: _value(getattr(row, field.name)) for field in dataclasses.fields(row)}


def _value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime.datetime():
            return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3]
        case float():
            return f"{value:,.2f}"
        case tuple():
            more = f" and {len(value) - 10} more" if len(value) > 10 else ""
            return ", ".join(map(str, value[:10])) + more
        case _:
            return str(value)


def _cell(text: str) -> str:
    """Escape a value for a Markdown cell."""
    return "".join("\\" + c if c in "\\`*_[]<>|#" else c for c in printable(text))
