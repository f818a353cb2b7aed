"""How many connections a broker accepts, and how fast (rules B1.45-B1.52)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kce.wire.configuration import ConfigError, Properties

UNLIMITED = 2**31 - 1
_INTEGER = re.compile(r"[-+]?[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on open connections and on connections created per second.

    ``of_listener`` and ``rate_of_listener``: a listener without its own limit has the broker's for itself, the
    inter-broker listener too (rules B1.47, B1.50).
    """

    total: int = UNLIMITED
    per_ip: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    of_listener: Mapping[str, int] = field(default_factory=dict)
    rate: int = UNLIMITED
    rate_of_listener: Mapping[str, int] = field(default_factory=dict)
    samples: int = 11
    sample_seconds: int = 1

    @classmethod
    def from_properties(cls, read: Properties, listeners: Iterable[str]) -> ConnectionLimits:
        """Raises ConfigError."""
        names = tuple(listeners)
        per_ip, overrides = read.integer("max.connections.per.ip"), _overrides(read)
        if per_ip == 0 and not overrides:
            raise read.refusal("max.connections.per.ip", "must be at least 1 without max.connections.per.ip.overrides")

        def of_listeners(setting: str) -> dict[str, int]:
            of_broker = read.integer(setting)
            own = {name for name in names if read.given(f"listener.name.{name.lower()}.{setting}")}
            limited = names if of_broker < UNLIMITED else own
            return {name: read.listener_integer(name, setting) if name in own else of_broker for name in limited}

        return cls(
            total=read.integer("max.connections"),
            per_ip=per_ip,
            per_ip_overrides=overrides,
            of_listener=of_listeners("max.connections"),
            rate=read.integer("max.connection.creation.rate"),
            rate_of_listener=of_listeners("max.connection.creation.rate"),
            samples=read.integer("quota.window.num"),
            sample_seconds=read.integer("quota.window.size.seconds"),
        )


def _overrides(read: Properties) -> dict[str, int]:
    """Address -> limit, a negative one admits nobody. Kafka resolves the names of hosts; here only localhost is one."""
    key = "max.connections.per.ip.overrides"
    text = (read.given(key) or "").strip()
    found = {}
    for entry in re.sub(r"(\s*,)+$", "", text).split(",") if text.strip(", ") else ():
        host, colon, limit = entry.rpartition(":")
        host = host.strip().strip("[]")
        if not colon or not _INTEGER.fullmatch(limit.strip()) or not -UNLIMITED - 1 <= int(limit) <= UNLIMITED:
            raise ConfigError(f"{key}={read.given(key)}: {entry!r} is not HOST:LIMIT")
        found["127.0.0.1" if host in ("localhost", "") else host] = int(limit)
    return found
