"""Ordinary packets by the thousand: kernels of ``packet_kernels``, bound to a pcap file or a pcapng section."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

from kce.captures.files.formats import MAX_TIME_NS


class Stretch(NamedTuple):
    """Consecutive packets: rows of ``captures.files.packet_kernels`` with offsets into ``data``.

    Only the columns NUMBER to WIRE are set.
    """

    data: npt.NDArray[np.uint8]
    packets: npt.NDArray[np.int64]


class Interface(NamedTuple):
    link_type: int
    snaplen: int
    numerator: int
    denominator: int
    offset_ns: int


class Walk(Protocol):
    """(data, offset, number of the first packet, rows) -> (offset of the end, rows filled, bytes needed to go on)."""

    def __call__(
        self, data: npt.NDArray[np.uint8], at: int, number: int, rows: npt.NDArray[np.int64], /
    ) -> tuple[int, int, int]: ...


def pcap_walk(order: str, ns_per_unit: int, link_type: int) -> Walk:
    from kce.captures.files.packet_kernels import walk_pcap  # here, for it takes a while to import

    return lambda data, at, number, rows: walk_pcap(data, at, order == ">", ns_per_unit, link_type, number, rows)


def pcapng_walk(order: str, described: Sequence[Interface]) -> Walk:
    import numpy as np

    from kce.captures.files.packet_kernels import walk_pcapng

    interfaces = np.array([_reduced(interface) for interface in described], np.int64)
    return lambda data, at, number, rows: walk_pcapng(data, at, order == ">", interfaces, number, rows)


def _reduced(interface: Interface) -> tuple[int, int, int, int]:
    """An interface as a row for the walker; the numerator is 0 if the others do not fit 64 bits."""
    common = math.gcd(interface.numerator, interface.denominator)
    numerator, denominator = interface.numerator // common, interface.denominator // common
    if max(denominator, abs(interface.offset_ns)) > MAX_TIME_NS:
        return interface.link_type, 0, 1, 0
    return interface.link_type, numerator, denominator, interface.offset_ns
