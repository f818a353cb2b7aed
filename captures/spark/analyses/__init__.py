"""The analyses of `kce analyze`, one module each, named as its table.

To add one, write ``captures/spark/analyses/<name>.py`` with an ``ANALYSIS`` (``analysis.Analysis``) and append its name
to ``NAMES``. Command, findings, report, exports, Parquet and docs/schema.md (`make docs`) follow from that.

analysis   what an analysis declares          common   expressions that several queries share
words      phrases of findings                inputs   what analyses are made of
running    running values over long histories
"""

from __future__ import annotations

import importlib

from kce.captures.spark.analyses.analysis import Analysis

#: In the order of their tables in docs/schema.md and in everything that is printed.
NAMES = (
    "requests", "controllers", "leadership", "outages", "silences", "failovers", "clients", "errors", "slow_controls",
    "departures", "latency", "fenced", "stale_partitions", "zombies", "overlaps", "zombie_leaders", "churn",
    "unclean_elections", "isr_changes", "isr_storms", "under_replicated", "reassignments", "bounces",
    "control_behind_data",
    "metadata_cost", "propagation", "disagreements", "resends", "unanswered", "rebalances",
    "regressions", "transport",
)  # fmt: skip

#: By name, which is also that of the table and of `kce analyze --only`.
ANALYSES: dict[str, Analysis] = {name: importlib.import_module(f"{__name__}.{name}").ANALYSIS for name in NAMES}
