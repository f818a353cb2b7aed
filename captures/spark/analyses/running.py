"""Running values over histories of any length, in parallel.

A window over the whole history of a broker is one task, however long that is. Here a history is cut into chunks of
time: a window runs inside each, and what the chunks before it amount to is added, from one small row for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

#: Seconds of history that are one task at most.
CHUNK_S: Final = 300


class Running(NamedTuple):
    """What is kept of the rows so far: an associative function of them, in order, that ignores null."""

    of_rows: Callable[[Column], Column]  #: of the rows of a window
    of_group: Callable[[Column, Column], Column]  #: of all rows, given their order
    of_two: Callable[[Column, Column], Column]  #: of the result of earlier rows and that of later ones


LAST: Final = Running(
    lambda value: f.last(value, ignorenulls=True),
    lambda value, order: f.max_by(value, f.when(value.isNotNull(), order)),
    lambda earlier, later: f.coalesce(later, earlier),
)
HIGHEST: Final = Running(f.max, lambda value, order: f.max(value), f.greatest)
LOWEST: Final = Running(f.min, lambda value, order: f.min(value), f.least)
TOTAL: Final = Running(
    f.sum,
    lambda value, order: f.sum(value),
    lambda earlier, later: f.coalesce(earlier + later, later, earlier),
)


def chunk(time: str) -> Column:
    """The number of the chunk of ``time``."""
    return f.floor(f.unix_seconds(time) / CHUNK_S)


def with_running(
    frame: DataFrame, running: Running, value: Column, name: str, *, keys: Sequence[str], order: Sequence[str],
    before: bool = False, is_long: bool,
) -> DataFrame:  # fmt: skip
    """Add ``name``: ``running`` of ``value`` over the rows of the same ``keys`` up to each row.

    ``order`` begins with a time and gives each row a place of its own. ``before`` leaves the row itself out. ``keys``
    may be null. A history that is not long is left whole, which saves planning and a join.
    """
    so_far = (Window.unboundedPreceding, -1 if before else 0)
    if not is_long:
        whole = Window.partitionBy(*keys).orderBy(*order).rowsBetween(*so_far)
        return frame.withColumn(name, running.of_rows(value).over(whole))
    chunked = frame.withColumn("chunk", chunk(order[0]))
    inside = Window.partitionBy(*keys, "chunk").orderBy(*order).rowsBetween(*so_far)
    earlier = Window.partitionBy(*keys).orderBy("chunk").rowsBetween(Window.unboundedPreceding, -1)
    carried = (
        chunked.groupBy(*keys, "chunk")
        .agg(running.of_group(value, f.struct(*order)).alias("carried"))
        .withColumn("carried", running.of_rows(f.col("carried")).over(earlier))
        .where("carried is not null")
        .withColumnsRenamed({key: f"{key}_carried" for key in (*keys, "chunk")})
    )
    same = [f.col(key).eqNullSafe(f.col(f"{key}_carried")) for key in (*keys, "chunk")]
    return (
        chunked.withColumn(name, running.of_rows(value).over(inside))
        .join(carried, same, "left")
        .withColumn(name, running.of_two(f.col("carried"), f.col(name)))
        .drop("carried", "chunk", *(f"{key}_carried" for key in (*keys, "chunk")))
    )
