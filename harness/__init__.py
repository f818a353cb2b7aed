"""Puts the house together for a person or a test: clusters, faults, the pytest plugin and the `kce` command.

node        a stub broker and a controller contender in one ZooKeeper session
members     nodes in this process, or each in its own
cluster     all of it: ZooKeeper, members, and what can be done to them
transport   frames over TCP between nodes          faults    what can be made to go wrong
zookeeper   the embedded real ZooKeeper            guard     cleans up when we are killed
pytest_plugin   the fixture `kafka_cluster`        cli/      `kce`
"""

from __future__ import annotations

from harness.cluster import ActiveController, Cluster
from harness.errors import HarnessError

__all__ = ["ActiveController", "Cluster", "HarnessError"]
