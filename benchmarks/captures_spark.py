"""Spark's part of ``benchmarks.captures``: the exchanges of a capture by API, in a session of local[2].

    python -m benchmarks.captures_spark FILE [warm|warm-all|shuffle|cold ...]

warm      the level exchanges of the data source, in which each task has a share of the connections: no shuffle;
          with tshark's columns
warm-all  the same with all columns
shuffle   segments, shuffled by connection and put together then, as `kce analyze` does; with the columns of warm
cold      the same as warm; the parent process measures the time, Java's start included

All run in one session, one after the other; without arguments, their names are read from stdin, one per line. Prints
JSON for each: how many seconds it took, and what was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kce.captures.spark import reassembly
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.session import local_session
from kce.captures.spark.source import KafkaCapture, register
from kce.captures.tables.rows import LEVELS

TASKS = 2


#: tshark's columns
FIELDS = ("packet", "time", "api_key", "api", "version", "correlation_id", "client_id")


def everything(spark: SparkSession, file: str) -> DataFrame:
    return spark.read.format(KafkaCapture.name()).option("level", "exchanges").option("tasks", TASKS).load(file)


def exchanges(spark: SparkSession, file: str) -> DataFrame:
    schema = spark_schema(LEVELS["exchanges"].of(FIELDS))
    source = spark.read.format(KafkaCapture.name()).schema(schema)
    return source.option("level", "exchanges").option("tasks", TASKS).load(file)


def shuffled(spark: SparkSession, file: str) -> DataFrame:
    size = str(Path(file).stat().st_size // TASKS + 1)
    decoded = reassembly.decode(spark, [file], TASKS, names=FIELDS, maxPartitionBytes=size)
    return decoded.where(f.col("quality").isNull() & f.col("tcp").isNull())


WHAT: dict[str, Callable[[SparkSession, str], DataFrame]] = {
    "warm": exchanges,
    "warm-all": everything,
    "shuffle": shuffled,
    "cold": exchanges,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("what", nargs="*", metavar="|".join(WHAT))
    args = parser.parse_args()
    if unknown := set(args.what) - set(WHAT):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    with local_session(master=f"local[{TASKS}]") as spark:
        register(spark)
        for what in args.what or map(str.strip, sys.stdin):
            begin = time.perf_counter()
            counted = WHAT[what](spark, args.file).groupBy("api").count().collect()
            seconds = time.perf_counter() - begin
            found = {row["api"]: row["count"] for row in counted}
            print(json.dumps({"seconds": seconds, "exchanges": found}), flush=True)


if __name__ == "__main__":
    main()
