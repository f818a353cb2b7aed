"""The index of large captures, made in tasks: each surveys one piece of a file, the driver only joins the pieces.

The data source's planner has no tasks; it gets the splits as the option ``splits``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from kce.captures.errors import CaptureError
from kce.captures.files.index import Piece, cuts, join, survey
from kce.captures.files.split import Split
from kce.captures.spark.work import File

#: Fewer pieces are left to the planner, which surveys this many in the time that a job takes.
LEAST_PIECES = 32

#: Most tasks of the survey; beyond it a task surveys several pieces.
_MOST_TASKS = 10_000


def indexed(spark: SparkSession, files: Sequence[File], target_bytes: int) -> dict[str, list[Split]]:
    """Path -> splits of about ``target_bytes``, of the files that can be cut; none if there are few pieces.

    The planner finds the splits of other files.
    """
    pieces: list[tuple[str, tuple[int, int]]] = []
    for path in dict.fromkeys(file.path for file in files):
        try:
            pieces += [(path, cut) for cut in cuts(path, target_bytes)]
        except CaptureError:
            continue  # the task that opens it reports the error
    if len(pieces) < LEAST_PIECES:
        return {}
    surveyed: dict[str, list[Piece | None]] = {}
    for path, piece in spark.sparkContext.parallelize(pieces, min(len(pieces), _MOST_TASKS)).map(_survey).collect():
        surveyed.setdefault(path, []).append(piece)
    found: dict[str, list[Split]] = {}
    for path, of_file in surveyed.items():
        whole = [piece for piece in of_file if piece is not None]
        if len(whole) == len(of_file):
            found[path] = join(path, whole)
    return found


def _survey(task: tuple[str, tuple[int, int]]) -> tuple[str, Piece | None]:
    path, cut = task
    try:
        return path, survey(path, *cut)
    except CaptureError:
        return path, None


def as_option(splits: Mapping[str, Sequence[Split]]) -> str:
    """The splits as JSON."""
    return json.dumps({
        path: [split._replace(head=base64.b64encode(split.head).decode()) for split in of_file]  # type: ignore[arg-type]
        for path, of_file in splits.items()
    })  # fmt: skip


def from_option(text: str) -> dict[str, list[Split]]:
    """The reverse of ``as_option``."""
    return {
        path: [Split(*values)._replace(head=base64.b64decode(values[4])) for values in of_file]
        for path, of_file in json.loads(text).items()
    }
