"""The fast profile, `pytest --fast` or `make test-fast`: no slow tests, and a sample of the inputs that tests check.

Without it, tests check everything. Tests whose parameter sets or examples take long use `examples`, or are marked
`heavy`: a fast run takes one in `SHARE` of their parameter sets, and leaves them out if they have none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

SHARE = 4

#: fixtures that start a JVM
_SLOW_FIXTURES = frozenset(("kafka_cluster", "zookeeper"))

#: set by conftest.py before test modules are imported
fast = False


def examples(count: int) -> int:
    """How many examples of ``count`` this run checks."""
    return -(-count // SHARE) if fast else count


def in_fast_runs(items: Sequence[pytest.Function]) -> set[pytest.Function]:
    """The tests that a fast run takes."""
    heavy = defaultdict(list)
    chosen = set()
    for item in items:
        if item.get_closest_marker("slow") is not None or not _SLOW_FIXTURES.isdisjoint(item.fixturenames):
            continue
        if item.get_closest_marker("heavy") is None:
            chosen.add(item)
        elif "[" in item.nodeid:
            heavy[item.nodeid.partition("[")[0]].append(item)
    for variants in heavy.values():
        chosen.update(sorted(variants, key=lambda item: item.nodeid, reverse=True)[::SHARE])
    return chosen
