"""Capture files and packets built by hand, byte by byte, so that the readers are not tested against our own writers."""

from __future__ import annotations

import ipaddress
import struct

from kce import wire
from kce.captures.record.recorder import Recorder

SECOND = 1_000_000_000
START_NS = 1_795_229_115 * SECOND


def pcap(packets, *, order="<", nanoseconds=False, link_type=1, snaplen=262144):
    """``packets`` are (time_ns, data) or (time_ns, data, wire_bytes)."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link_type)
    for time_ns, data, *wire_bytes in packets:
        fraction = time_ns % SECOND // (1 if nanoseconds else 1000)
        out += struct.pack(order + "IIII", time_ns // SECOND, fraction, len(data), *(wire_bytes or [len(data)])) + data
    return out


def block(kind, body, order="<"):
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def options(*pairs, order="<"):
    out = b""
    for code, value in pairs:
        out += struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)
    return out + bytes(4) if out else b""


def section(*pairs, order="<"):
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options(*pairs, order=order), order)


def interface(link_type=1, *pairs, order="<", snaplen=0):
    return block(1, struct.pack(order + "HHI", link_type, 0, snaplen) + options(*pairs, order=order), order)


def enhanced(ticks, data, *, interface_id=0, wire_bytes=None, order="<"):
    wire_bytes = len(data) if wire_bytes is None else wire_bytes
    fixed = struct.pack(order + "IIIII", interface_id, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire_bytes)
    return block(6, fixed + data, order)


def simple(data, *, wire_bytes=None, order="<"):
    return block(3, struct.pack(order + "I", len(data) if wire_bytes is None else wire_bytes) + data, order)


def obsolete(ticks, data, *, interface_id=0, order="<"):
    fixed = struct.pack(order + "HHIIII", interface_id, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(2, fixed + data, order)


def tcp(
    payload=b"", *, source_port=40001, destination_port=9092, sequence=1, acknowledgement=0, flags=0x18, option=b""
):
    offset = (20 + len(option)) // 4 << 4
    return (
        struct.pack(">HHIIBBHHH", source_port, destination_port, sequence & 0xFFFFFFFF, acknowledgement & 0xFFFFFFFF,
                    offset, flags, 65535, 0, 0) + option + payload
    )  # fmt: skip


def ipv4(payload, *, source="10.0.0.1", destination="10.0.0.2", protocol=6, total=None, fragment=0, identification=7,
         option=b""):  # fmt: skip
    header_bytes = 20 + len(option)
    total = header_bytes + len(payload) if total is None else total
    return (
        struct.pack(">BBHHHBBH", 0x40 | header_bytes // 4, 0, total, identification, fragment, 64, protocol, 0)
        + ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed + option + payload
    )  # fmt: skip


def ipv6(payload, *, source="fd00::1", destination="fd00::2", following=6, length=None):
    length = len(payload) if length is None else length
    return (
        struct.pack(">IHBB", 6 << 28, length, following, 64)
        + ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed + payload
    )  # fmt: skip


def ethernet(payload, *, protocol=0x0800, tags=()):
    out = bytes(12)
    for tag in tags:
        out += struct.pack(">HH", tag, 5)
    return out + struct.pack(">H", protocol) + payload


def record_kraft(path):
    """A capture of a KRaft broker that registers with its controller and is alive."""
    recorder = Recorder(path)
    tap = recorder.connection(("127.0.0.1", 40001), ("127.0.0.1", 9093))
    for correlation_id, (key, version) in enumerate([(62, 4), (63, 1), (63, 1)]):
        header = struct.pack(">hhih", key, version, correlation_id, 8) + b"broker-1" + b"\x00"
        tap.sent("client", wire.frame(header + bytes(30)))
        tap.sent("server", wire.frame(struct.pack(">i", correlation_id) + bytes(20)))
    tap.close()
    recorder.close()
