"""The input of analyses, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from kce.captures.spark.analyses import outages, silences
from kce.captures.spark.analyses.analysis import Frames
from kce.captures.spark.analyses.common import accepted_states, leader_changes, state_versions


def frames(
    exchanges: DataFrame, partitions: DataFrame, live_brokers: DataFrame, connections: DataFrame,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame, *, is_long: bool = False,
) -> Frames:  # fmt: skip
    """``keep`` caches what several analyses share."""
    controls = keep(exchanges.where("is_control"))
    states = keep(accepted_states(partitions))
    leaders, versions = keep(leader_changes(states)), keep(state_versions(states))
    signs = keep(silences.signs(exchanges, connections))
    silent = keep(silences.silences(exchanges, signs, is_long=is_long))
    moves = keep(outages.moves(signs, silent, leaders, is_long=is_long))
    return Frames(
        exchanges, controls, partitions, live_brokers, connections, states, leaders, versions, silent, moves, is_long
    )
