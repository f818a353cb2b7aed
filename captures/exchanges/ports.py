"""The configured ports of a cluster's listeners."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Port of a listener -> its plane, one of PLANES, or "" if unspecified.
Ports = Mapping[int, str]

NO_PORTS: Ports = MappingProxyType({})

#: The planes of listeners (KIP-291).
PLANES = ("control", "data")


def listener_ports(text: str) -> Ports:
    """Parse ``9091=control,9092=data,9093``. Raises ValueError."""
    ports = {}
    for part in text.split(","):
        port, _, plane = part.strip().partition("=")
        if not port.isdecimal() or ("=" in part and plane not in PLANES):
            raise ValueError(f"{text!r} is no list of ports, such as 9092,9093 or 9091=control,9092=data")
        if not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r}: ports are from 1 to 65535")
        ports[int(port)] = plane
    return ports
