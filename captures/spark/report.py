"""Findings as one HTML page that needs nothing else: quality first, findings in words, pictures, then the tables."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import jinja2
from markupsafe import Markup

from captures.errors import CaptureError
from captures.rows import SCHEMA_VERSION
from captures.spark import pictures
from captures.spark.findings import Findings

#: Rows of a table that the page shows.
MAX_ROWS = 200


def render(findings: Findings) -> str:
    """The page."""
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
        max_rows=MAX_ROWS,
        schema_version=SCHEMA_VERSION,
    )


def write_report(findings: Findings, path: str | os.PathLike[str]) -> None:
    """Raises CaptureError when the file cannot be written."""
    try:
        Path(path).write_text(render(findings), encoding="utf-8")
    except OSError as e:
        raise CaptureError(f"{os.fspath(path)}: cannot be written ({e.strerror or e})") from None


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
