"""Kafka's control plane, made visible, drivable and testable.

    async with kce.Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=4, replication_factor=3)

The names here are the public face; each is imported on first use. The folders beside this file are links to the rooms
at the top of the repository (ARCHITECTURE.md).
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # type checkers take it for typing's, whose import would cost more than all the rest
if TYPE_CHECKING:
    from kce import wire
    from kce.harness.cluster import Cluster
    from kce.harness.commit_history import CommitHistory
    from kce.harness.errors import HarnessError, SettingWarning
    from kce.harness.faults import Rule
    from kce.harness.links import FrameEvent, Selection
    from kce.harness.proxy import Proxy
    from kce.harness.settling import ActiveController
    from kce.harness.sync_cluster import SyncCluster
    from kce.harness.world import memory, real

__all__ = [
    "ActiveController", "Cluster", "CommitHistory", "FrameEvent", "HarnessError", "Proxy", "Rule", "Selection",
    "SettingWarning", "SyncCluster", "memory", "real", "wire",
]  # fmt: skip

#: public name -> the module that defines it; packages of kce are their own
_DEFINED_IN = {
    "ActiveController": "kce.harness.settling",
    "Cluster": "kce.harness.cluster",
    "CommitHistory": "kce.harness.commit_history",
    "FrameEvent": "kce.harness.links",
    "HarnessError": "kce.harness.errors",
    "Proxy": "kce.harness.proxy",
    "Rule": "kce.harness.faults",
    "Selection": "kce.harness.links",
    "SettingWarning": "kce.harness.errors",
    "SyncCluster": "kce.harness.sync_cluster",
    "memory": "kce.harness.world",
    "real": "kce.harness.world",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_DEFINED_IN.get(name, f"{__name__}.{name}"))
    value = globals()[name] = getattr(module, name) if name in _DEFINED_IN else module
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
