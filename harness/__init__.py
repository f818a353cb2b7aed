"""Assembles clusters for a person or a test: nodes, faults, the pytest plugin and the `kce` command.

world/       everything that a node takes from outside: real, or simulated in memory from a seed
node         a stub broker and a controller contender in one ZooKeeper session
members      nodes in this process, or each in its own process
cluster      ZooKeeper, members, and the operations on them
links        every frame passes here: rules (faults), recorder, subscribers
embedded_zookeeper   a real ZooKeeper on loopback, `zookeeper_ensemble` several of them
guard        cleans up after a process that was killed
pytest_plugin        the fixture `kafka_cluster`       cli/     `kce`
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # the module typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from kce.harness.cluster import Cluster
    from kce.harness.errors import HarnessError, SettingWarning
    from kce.harness.settling import ActiveController
    from kce.harness.sync_cluster import SyncCluster

__all__ = ["ActiveController", "Cluster", "HarnessError", "SettingWarning", "SyncCluster"]

#: public name -> the module that defines it
_DEFINED_IN = {
    "ActiveController": "settling",
    "Cluster": "cluster",
    "HarnessError": "errors",
    "SettingWarning": "errors",
    "SyncCluster": "sync_cluster",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: pytest loads the plugin, and with it this package, in every run."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
    return value
