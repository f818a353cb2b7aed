"""Captures in Spark: the data source, reassembly by connection, analyses, and the job that runs them.

    from kce.captures.spark import analyze

    findings = analyze(["capture.pcapng"], report="report.html", out="tables/")
    for sentence in findings.sentences():
        print(sentence)

    for name, found in analyze_each(["one.pcapng", "two.pcapng"]):  # each by itself
        ...

``analyze`` needs Java 17 or later for captures of more than 1 GB or of many requests (``captures.spark.small``), and on
a cluster. It returns ``Findings`` of plain
values (``captures.spark.findings``) and raises a one-line ``captures.errors.CaptureError`` for files that it cannot
read. Only this package imports pyspark.

source       the data source; levels, pushdown, tail: its rows, filters and stream
indexing     splits of large files, made in tasks
reassembly   captures -> exchanges, partitions, endpoints; buckets: its tasks
cutting      large connections in several tasks; chunks: what each finds, and whether it is right
analyses     DataFrame -> DataFrame                   job          analyze()
findings     the results                              report, exports, text: as HTML, JSON, Markdown, text
small        small captures, decoded by the driver    sail         their queries, without Java; sail_server
session      a quiet local Spark; versions            schemas      captures.tables.rows as Spark types
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kce.extras import require

if TYPE_CHECKING:
    from kce.captures.spark.findings import Findings
    from kce.captures.spark.job import analyze, analyze_each

__all__ = ["Findings", "analyze", "analyze_each"]

require("numpy", "numba", "pyarrow", "pyspark", purpose="the analysis")


def __getattr__(name: str) -> Any:
    """Import on first use: Spark's workers import this package, too, and do not need the job."""
    if name in ("analyze", "analyze_each"):
        from kce.captures.spark import job

        return getattr(job, name)
    if name == "Findings":
        from kce.captures.spark.findings import Findings

        return Findings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
