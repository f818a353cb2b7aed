"""The limit of connections per client address: `max.connections.per.ip` (rules B1.45, B1.46)."""

from __future__ import annotations

from collections import Counter


class ConnectionQuotas:
    """Counts open connections over all listeners of a server."""

    def __init__(self, max_connections_per_ip: int) -> None:
        self.max_connections_per_ip = max_connections_per_ip
        self._open: Counter[str] = Counter()

    def acquire(self, host: str) -> bool:
        """Count a connection from ``host``; False if it exceeds the limit, and then not counted."""
        if self._open[host] >= self.max_connections_per_ip:
            return False
        self._open[host] += 1
        return True

    def release(self, host: str) -> None:
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]

    def open_from(self, host: str) -> int:
        return self._open[host]
