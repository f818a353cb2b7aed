"""Puts the house together for a person or a test: clusters, faults, the pytest plugin and the `kce` command.

node        a stub broker and a controller contender in one ZooKeeper session
members     nodes in this process, or each in its own
cluster     all of it: ZooKeeper, members, and what can be done to them
transport   frames over TCP between nodes          faults    what can be made to go wrong
zookeeper   the embedded real ZooKeeper            guard     cleans up when we are killed
pytest_plugin   the fixture `kafka_cluster`        cli/      `kce`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kce.harness.cluster import ActiveController, Cluster
    from kce.harness.errors import HarnessError

__all__ = ["ActiveController", "Cluster", "HarnessError"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: pytest loads the plugin, and with it this package, in every run."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "kce.harness.errors" if name == "HarnessError" else "kce.harness.cluster"
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value
