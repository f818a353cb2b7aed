"""The rows of a level, as a task of the data source makes them."""

from __future__ import annotations

import pyarrow as pa

from kce.captures.files.split import WHOLE
from kce.captures.spark.levels import message_batches, packet_batches
from kce.captures.spark.pushdown import Wanted
from kce.captures.spark.work import File, Share
from kce.captures.tables.rows import LEVELS
from tests.captures.samples import CAPTURES

ZOMBIE = CAPTURES["kafka-3.9.1-zombie"]


TOUR = CAPTURES["kafka-2.8.2-tour"]


EVERYTHING = Share(0, 1)


def table(level, *paths, share=EVERYTHING, wanted=None, bodies="none", fail_fast=False, names=None, ports=()):
    given = [File(str(path), str(path)) for path in paths]
    wanted = wanted or Wanted()
    if level == "packets":
        batches = [b for file in given for b in packet_batches(file, WHOLE, wanted, fail_fast=fail_fast, names=names)]
    else:
        batches = list(
            message_batches(level, given, share, wanted, bodies=bodies, fail_fast=fail_fast, names=names, ports=ports)
        )
    schema = LEVELS[level].schema
    return pa.Table.from_batches(batches, schema if names is None else pa.schema([schema.field(n) for n in names]))


def rows(read, *but):
    """Rows as a comparable set, without the columns ``but``."""
    return sorted(repr([v for k, v in row.items() if k not in but]) for row in read.to_pylist())


def same(level, given, *but):
    return rows(pa.Table.from_pylist(given, LEVELS[level].schema), *but)
