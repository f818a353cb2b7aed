"""The outside world of a node, behind one port: connections, ZooKeeper, time, randomness, files.

port          `World`, the port; `ClusterWorld`, the port of a whole cluster
real_world    sockets, kazoo, the wall clock; its disk is `real_disk`
memory_world  the same, simulated in one process: deterministic, from one seed
network, memory_disk, virtual_time    parts of `memory_world`
scheduling    what a process asks of the kernel
clock         what trio measures durations with in a process that serves requests
machine       what is wrong with a node's clock and disk
tls, listeners_tls, tls_failures  the TLS of a node's connections, and what it says when it fails
tcp_stream, tcp_proxy          connections of `real_world`; slices of its files leave without being read

No other module of a node opens a socket or a file, reads a clock or draws a random number: a contract in
pyproject.toml and tests/harness/world/test_one_door.py check it.
"""

from __future__ import annotations

from kce.harness.world.memory_world import MemoryClusterWorld, MemoryWorld, memory
from kce.harness.world.port import ClusterWorld, Connected, Listener, World, uuids
from kce.harness.world.real_world import RealClusterWorld, RealWorld, real

__all__ = [
    "ClusterWorld",
    "Connected",
    "Listener",
    "MemoryClusterWorld",
    "MemoryWorld",
    "RealClusterWorld",
    "RealWorld",
    "World",
    "memory",
    "real",
    "uuids",
]
