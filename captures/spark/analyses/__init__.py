"""What exchanges mean: DataFrame -> DataFrame, one function per question, composed with ``DataFrame.transform``.

Input are ``exchanges`` and ``partitions`` with the columns that ``at_listeners`` adds (``broker_id``, ``listener``,
``broker``), ``live_brokers`` and ``connections``, as ``captures.spark.reassembly`` gives them; output are the tables of
the same names in ``captures.analysis_rows``. Nothing here reads or writes files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame

from captures.spark.analyses.brokers import bounces
from captures.spark.analyses.controllers import controllers, fenced, overlaps, stale_partitions, ticks, zombies
from captures.spark.analyses.partitions import (
    churn,
    disagreements,
    isr_changes,
    isr_storms,
    leadership,
    metadata_cost,
    propagation,
    regressions,
    resends,
    unclean_elections,
)
from captures.spark.analyses.traffic import (
    at_listeners,
    control_behind_data,
    latency,
    latency_counts,
    rebalances,
    requests,
    transport,
    unanswered,
)


class Frames(NamedTuple):
    """What analyses are made of."""

    exchanges: DataFrame
    partitions: DataFrame
    live_brokers: DataFrame
    connections: DataFrame


#: name -> analysis; the names are those of the tables, and of `kce analyze --only`
ANALYSES: dict[str, Callable[[Frames], DataFrame]] = {
    "requests": lambda of: requests(of.exchanges),
    "controllers": lambda of: controllers(of.exchanges, of.partitions),
    "leadership": lambda of: leadership(of.partitions),
    "latency": lambda of: latency(of.exchanges),
    "fenced": lambda of: fenced(of.exchanges),
    "stale_partitions": lambda of: stale_partitions(of.exchanges, of.partitions),
    "zombies": lambda of: zombies(of.exchanges),
    "overlaps": lambda of: overlaps(of.exchanges),
    "churn": lambda of: churn(leadership(of.partitions)),
    "unclean_elections": lambda of: unclean_elections(of.partitions),
    "isr_changes": lambda of: isr_changes(of.partitions),
    "isr_storms": lambda of: isr_storms(isr_changes(of.partitions)),
    "bounces": lambda of: bounces(of.exchanges, of.live_brokers),
    "control_behind_data": lambda of: control_behind_data(of.exchanges),
    "metadata_cost": lambda of: metadata_cost(of.exchanges, of.partitions),
    "propagation": lambda of: propagation(of.partitions),
    "disagreements": lambda of: disagreements(of.partitions),
    "resends": lambda of: resends(of.exchanges),
    "unanswered": lambda of: unanswered(of.exchanges),
    "rebalances": lambda of: rebalances(of.exchanges),
    "regressions": lambda of: regressions(of.exchanges, of.partitions),
    "transport": lambda of: transport(of.connections),
}

__all__ = [
    "ANALYSES",
    "Frames",
    "at_listeners",
    "bounces",
    "churn",
    "control_behind_data",
    "controllers",
    "disagreements",
    "fenced",
    "isr_changes",
    "isr_storms",
    "latency",
    "latency_counts",
    "leadership",
    "metadata_cost",
    "overlaps",
    "propagation",
    "rebalances",
    "regressions",
    "requests",
    "resends",
    "stale_partitions",
    "ticks",
    "transport",
    "unanswered",
    "unclean_elections",
    "zombies",
]
