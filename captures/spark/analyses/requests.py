"""Requests by API and version."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import as_table
from kce.captures.tables.rows import Column, Table

TABLE = Table(
    "requests",
    "Requests by API and version.",
    (
        Column("api_key", pa.int16(), ""),
        Column("api", pa.string(), ""),
        Column("version", pa.int16(), ""),
        Column("requests", pa.int64(), ""),
        Column("responses", pa.int64(), "how many of them were seen to be answered"),
        Column("errors", pa.int64(), "how many were answered with a top-level error"),
        Column("request_bytes", pa.int64(), ""),
        Column("response_bytes", pa.int64(), ""),
    ),
)


def run(of: Frames) -> DataFrame:
    counted = of.exchanges.groupBy("api_key", "api", "version").agg(
        f.count("*").alias("requests"),
        f.count("response_packet").alias("responses"),
        f.count_if(f.col("error_code") != 0).alias("errors"),
        f.sum("request_bytes").alias("request_bytes"),
        f.coalesce(f.sum("response_bytes"), f.lit(0)).alias("response_bytes"),
    )
    return as_table(TABLE, counted).orderBy("api_key", "version")


def picture(found: Results) -> str | None:
    """How many requests of each API."""
    if not found.requests:
        return None
    from kce.captures.spark import drawing as d  # here, for matplotlib takes a while to import

    totals: dict[str, int] = {}
    for row in found.requests:
        totals[row.api] = totals.get(row.api, 0) + row.requests
    names = sorted(totals, key=lambda name: (-totals[name], name))[: d.MAX_ROWS]
    with d.style():
        figure, axes = d.figure(0.25 * len(names) + 0.35)
        colours = [d.CONTROL_COLOURS.get(name, d.OTHER_API) for name in names]
        bars = axes.barh(range(len(names)), [totals[name] for name in names], height=0.66, color=colours)
        axes.bar_label(bars, [f"{totals[name]:,}" for name in names], padding=4, color=d.MUTED, fontsize=8.5)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.1, y=0.02)
        return d.svg(figure, "requests", "Requests by API")


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    section=Section(
        position=60,
        heading="Requests by API",
        columns=(
            Shown("API", "text", lambda r: r.api),
            Shown("version", "number", lambda r: r.version),
            Shown("requests", "count", lambda r: r.requests),
            Shown("answered", "count", lambda r: r.responses),
            Shown("errors", "count", lambda r: r.errors),
            Shown("bytes out", "count", lambda r: r.request_bytes),
            Shown("bytes in", "count", lambda r: r.response_bytes),
        ),
        picture=picture,
        without_rows="No requests were seen.",
    ),
)
