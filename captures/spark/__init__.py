"""Captures in Spark: a data source, reassembly by connection, analyses, and the job that puts them together.

    from kce.captures.spark import analyze

    findings = analyze(["capture.pcapng"], report="report.html", out="tables/")
    for sentence in findings.sentences():
        print(sentence)

``analyze`` needs Java 17 or later. It returns a ``Findings`` of plain values (``captures.spark.findings``) and raises
``captures.errors.CaptureError``, in one line, for what it cannot read. This package alone imports pyspark.

source       the data source; levels, pushdown, tail: its rows, filters and stream
reassembly   captures -> exchanges, partitions, endpoints; buckets, segment_counts: what its tasks do
analyses     DataFrame -> DataFrame                   job          analyze()
findings     what comes out; sentences: in words      report, exports, text: as HTML, JSON, Markdown, text
session      a quiet local Spark                      schemas      captures.rows as Spark sees it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kce.extras import require

if TYPE_CHECKING:
    from kce.captures.spark.findings import Findings
    from kce.captures.spark.job import analyze

__all__ = ["Findings", "analyze"]

require("numpy", "numba", "pyarrow", "pyspark", purpose="the analysis")


def __getattr__(name: str) -> Any:
    """What is here, when it is asked for: Spark's workers import this package, too, and have no use for the job."""
    if name == "analyze":
        from kce.captures.spark.job import analyze

        return analyze
    if name == "Findings":
        from kce.captures.spark.findings import Findings

        return Findings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
