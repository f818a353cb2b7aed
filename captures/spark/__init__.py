"""Captures in Spark: a data source, reassembly by connection, analyses, and the job that puts them together.

    from captures.spark import analyze

    findings = analyze(["capture.pcapng"], report="report.html", out="tables/")
    for sentence in findings.sentences():
        print(sentence)

``analyze`` needs Java 17 or later. It returns a ``Findings`` of plain values (``captures.spark.findings``) and raises
``captures.errors.CaptureError``, in one line, for what it cannot read. This package alone imports pyspark.

source       the data source: files -> packets        reassembly   packets -> exchanges, partitions, endpoints
analyses     DataFrame -> DataFrame                   job          analyze()
findings     what comes out, as plain values          report       the same as HTML with pictures
session      a quiet local Spark                      schemas      captures.rows as Spark sees it
"""

from captures.spark.findings import Findings
from captures.spark.job import analyze

__all__ = ["Findings", "analyze"]
