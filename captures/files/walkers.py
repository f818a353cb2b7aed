"""Packets by the thousand out of what is plain in a capture: the kernels of ``packet_kernels``, made ready for
one file (pcap), or for the interfaces of one section (pcapng)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

from kce.captures.files.formats import MAX_TIME_NS


class Stretch(NamedTuple):
    """Packets that follow one another: rows of ``captures.files.packet_kernels``, whose offsets are those of ``data``.

    Only what a walker fills in is there (NUMBER to WIRE). The rows are used again for the next stretch.
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
    """(data, where, number of the first packet, rows) -> (where it stopped, rows filled, bytes needed there)."""

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
    """A row of the walker's interfaces; its numerator is 0 where 64 bits do not hold the others."""
    common = math.gcd(interface.numerator, interface.denominator)
    numerator, denominator = interface.numerator // common, interface.denominator // common
    if max(denominator, abs(interface.offset_ns)) > MAX_TIME_NS:
        return interface.link_type, 0, 1, 0
    return interface.link_type, numerator, denominator, interface.offset_ns
