"""The fast lane against the exact code: the same rows and the same counts, whatever is in the capture.

Covers: kce.captures.fast.columns, kce.captures.fast.control_columns, kce.captures.fast.frame_kernels,
kce.captures.fast.body_kernels, kce.captures.fast.body_programs, kce.captures.fast.packet_columns,
kce.captures.files.packet_kernels, kce.captures.tcp.segment_kernels
"""

from __future__ import annotations

import io
import random
import struct
from collections import Counter
from ipaddress import ip_address

import pyarrow as pa
import pytest

from kce import wire
from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.decode import by_time
from kce.captures.exchanges.pairing import NoResponse, Request, Response
from kce.captures.exchanges.quality import OF_OTHER_PORTS, Quality
from kce.captures.fast.columns import Reading
from kce.captures.fast.frame_kernels import PROGRAM
from kce.captures.fast.packet_columns import packet_batches
from kce.captures.files.index import splits
from kce.captures.files.pcap import WINDOW_BYTES, CaptureFile
from kce.captures.tables.rows import EXCHANGES, FRAMES, PACKETS, PARTITIONS
from kce.captures.tables.tabulate import exchange_row, frame_row, packet_row, partition_rows
from kce.captures.tcp.segments import Dissector, Segment
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.made_files import (
    START_NS,
    enhanced,
    ethernet,
    interface,
    ipv4,
    ipv6,
    obsolete,
    pcap,
    section,
    simple,
    tcp,
)
from tests.captures.samples import CAPTURES, scenario, unzipped
from tests.captures.wiretap import Wiretap, observe

SMALL_WINDOW = 20_000


def rows_of(batches):
    """Each row with how often it is there: the order is not promised."""
    rows = Counter()
    for batch in batches:
        columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
        rows.update(map(repr, zip(*(column.to_pylist() for column in columns), strict=True)))
    return rows


def exactly(data, ports=()):
    """{level: rows} and quality, as the reference makes them."""
    quality = Quality()
    assembly = Assembly(quality, ports)
    messages = []
    packets = []
    with CaptureFile(io.BytesIO(data), "x") as capture:
        for packet, segment in by_time(capture):
            quality.packets += 1
            quality.cut_packets += packet.wire_bytes > len(packet.data)
            packets.append(packet_row("x", packet, segment))
            if isinstance(segment, Segment) and ports and not {segment.source_port, segment.destination_port} & ports:
                quality.other_packets[OF_OTHER_PORTS] += 1
            elif isinstance(segment, Segment):
                messages += assembly.receive(segment)
            else:
                quality.other_packets[segment] += 1
        messages += assembly.finish()
        quality.dropped = capture.dropped
        quality.problems += [f"x: {problem}" for problem in capture.problems]
    frames = [frame_row(message) for message in messages if not isinstance(message, NoResponse)]
    pairs = [(m.request, m if isinstance(m, Response) else None) for m in messages if not isinstance(m, Request)]
    rows = {
        "packets": PACKETS.batch(packets),
        "frames": FRAMES.batch(frames),
        "exchanges": EXCHANGES.batch([exchange_row(*pair) for pair in pairs]),
        "partitions": PARTITIONS.batch([row for pair in pairs for row in partition_rows(*pair)]),
    }
    return {level: rows_of([batch]) for level, batch in rows.items()}, quality


def quickly(data, window_bytes=WINDOW_BYTES, ports=()):
    """The same of the fast lane, and how many rows it did not leave to the exact code."""
    found = {level: Counter() for level in ("packets", "frames", "exchanges", "partitions")}
    of_kernels = 0
    with CaptureFile(io.BytesIO(data), "x") as capture:
        reading = Reading.of(capture, window_bytes=window_bytes, ports=ports)
        for window in reading.windows():
            of_kernels += int((window.responses[:, PROGRAM] >= 0).sum())
            for level in ("frames", "exchanges", "partitions"):
                found[level] += rows_of([getattr(reading, level)(window)])
    with CaptureFile(io.BytesIO(data), "x") as capture:
        found["packets"] = rows_of(packet_batches(capture))
    return found, reading.quality, of_kernels


def check(data, window_bytes=WINDOW_BYTES, ports=()):
    wanted, quality = exactly(data, ports)
    found, counted, of_kernels = quickly(data, window_bytes, ports)
    for level, rows in wanted.items():
        assert found[level] == rows, level
    assert counted.to_json() == quality.to_json()
    return of_kernels


@pytest.mark.heavy
@pytest.mark.parametrize("name", CAPTURES)
def test_equal_on_captures_of_real_kafka(name):
    data = unzipped(name)
    for window_bytes in (WINDOW_BYTES, SMALL_WINDOW):
        assert check(data, window_bytes) > 50


def test_equal_where_ports_are_given():
    of_3 = scenario("kafka-3.9.1-zombie")["brokers"]["3"]
    ports = {of_3["control"], of_3["data"]}
    data = unzipped("kafka-3.9.1-zombie")
    _, everything = exactly(data)
    _, of_3 = exactly(data, ports)
    assert 0 < of_3.requests < everything.requests
    assert 0 < of_3.other_packets[OF_OTHER_PORTS] < of_3.packets
    for window_bytes in (WINDOW_BYTES, SMALL_WINDOW):
        assert check(data, window_bytes, ports) > 10


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_equal_on_damaged_captures(case):
    for seed in range(2):
        seen = observe(tap_of(seed), seed, **CASES[case])
        assert check(seen.pcap, WINDOW_BYTES if seed else 100_000) > 10


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["kafka-3.9.1-zombie", "kafka-1.1.1-tour"])
def test_equal_where_packets_are_far_from_their_place(name):
    """Both sort by time, so nothing is lost, also where a block of the file ends between a packet and its place."""
    head, packets = unzipped(name)[:24], records_of(unzipped(name))
    rng = random.Random(7)
    for _ in range(40):
        at = rng.randrange(len(packets) - 400)
        packets.insert(at + rng.randrange(150, 400), packets.pop(at))
    displaced = head + b"".join(packets)
    assert exactly(displaced)[1].to_json() == exactly(unzipped(name))[1].to_json()
    for window_bytes in (WINDOW_BYTES, SMALL_WINDOW):
        check(displaced, window_bytes)


def records_of(data):
    """The packets of a little-endian pcap, with their headers."""
    records, at = [], 24
    while at < len(data):
        end = at + 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        records.append(data[at:end])
        at = end
    return records


def small(seed):
    tap = Wiretap(seed, talks=5, exchanges=12, retransmits=0.02)
    return observe(tap, seed, loss=0.002).pcap


@pytest.mark.parametrize("seed", range(9))
def test_equal_on_spoilt_bytes(seed):
    """Bytes are changed anywhere, also in lengths, headers and the records of the file itself."""
    rng = random.Random(seed)
    data = bytearray(small(seed % 3))
    for _ in range(rng.choice([1, 5, 40])):
        data[rng.randrange(24, len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    check(bytes(data[: rng.randrange(len(data) // 2, len(data))]), rng.choice([WINDOW_BYTES, SMALL_WINDOW]))


def packets_of(data):
    """(time_ns, IPv4 packet) of what ``wiretap`` writes."""
    at = 24
    while at < len(data):
        seconds, ns, size, _ = struct.unpack_from("<IIII", data, at)
        yield seconds * 10**9 + ns, data[at + 16 : at + 16 + size]
        at += 16 + size


def as_ipv6(packet):
    """Addresses of which one half is negative as a signed number, and one is not."""
    ends = [ip_address(f"{prefix}::{packet[at + 3]:x}") for prefix, at in (("2001:db8", 12), ("fe80", 16))]
    if packet[20:22] > packet[22:24]:
        ends.reverse()
    return ipv6(packet[20:], source=str(ends[0]), destination=str(ends[1]))


WRAPPED = {
    "ethernet": (1, ethernet),
    "two VLAN tags": (1, lambda packet: ethernet(packet, tags=(0x88A8, 0x8100))),
    "cooked": (113, lambda packet: bytes(14) + b"\x08\x00" + packet),
    "cooked, version 2": (276, lambda packet: b"\x08\x00" + bytes(18) + packet),
    "loopback": (0, lambda packet: b"\x02\x00\x00\x00" + packet),
    "loopback of a big-endian host": (0, lambda packet: b"\x00\x00\x00\x02" + packet),
    "IPv6": (101, as_ipv6),
    "IPv6 in ethernet": (1, lambda packet: ethernet(as_ipv6(packet), protocol=0x86DD)),
    "GRE": (101, lambda packet: ipv4(b"\0\0\x08\0" + packet, protocol=47)),
    "IP options": (
        101,
        lambda packet: b"\x46\0" + struct.pack(">H", len(packet) + 4) + packet[4:20] + bytes(4) + packet[20:],
    ),
    "trailer": (1, lambda packet: ethernet(packet) + bytes(6)),
}


@pytest.mark.heavy
@pytest.mark.parametrize("wrapping", WRAPPED)
@pytest.mark.parametrize("order", "<>")
def test_equal_whatever_is_around_a_packet(wrapping, order):
    link_type, wrap = WRAPPED[wrapping]
    wrapped = [(time_ns, wrap(packet)) for time_ns, packet in packets_of(small(0))]
    of_kernels = check(pcap(wrapped, order=order, link_type=link_type, nanoseconds=order == "<"), SMALL_WINDOW)
    assert of_kernels > 10
    of_both = pcap([(t, data[:200], len(data)) for t, data in wrapped], order=order, link_type=link_type)
    check(of_both, SMALL_WINDOW)  # cut short


@pytest.mark.heavy
@pytest.mark.parametrize("resolution", [3, 6, 9, 0x80 | 20, 0x80 | 100])
@pytest.mark.parametrize("order", "<>")
def test_equal_in_pcapng(resolution, order):
    """Sections, interfaces of several kinds, blocks of other kinds in between."""
    rng = random.Random(resolution)
    unit = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    out = section(order=order) + interface(101, (9, bytes([resolution])), (14, b"\1" * 8), order=order)
    out += interface(1, (9, bytes([resolution])), (1, b"an interface"), order=order)
    for number, (time_ns, packet) in enumerate(packets_of(small(1))):
        ticks = min(time_ns * unit // 10**9, 2**64 - 1)
        match rng.randrange(40):
            case 0:
                out += simple(packet, order=order)
            case 1:
                out += obsolete(ticks, packet, order=order)
            case 2:
                out += section(order=order) + interface(101, (9, bytes([resolution])), order=order)
                out += interface(1, order=order)
            case 3:
                out += enhanced(ticks, packet, interface_id=7, order=order)
            case n if n % 2:
                out += enhanced(ticks, ethernet(packet), interface_id=1, order=order)
            case _:
                out += enhanced(ticks, packet, order=order)
        if number == 300:
            order = rng.choice("<>")
            out += section(order=order) + interface(101, order=order) + interface(1, order=order)
    check(out, SMALL_WINDOW)
    check(out[: len(out) - 7])


def dialogue(*turns):
    """A connection on which these frames go by: (0 for the client's, bytes behind the length)."""
    ports = [(40001, 9092), (9092, 40001)]
    sequences = [1000, 5000]
    packets = []
    for side, flags, frame in [(0, 0x02, None), (1, 0x12, None), *((side, 0x18, frame) for side, frame in turns)]:
        data = b"" if frame is None else struct.pack(">i", len(frame)) + frame
        for at in range(0, len(data) or 1, 1000):
            segment = tcp(
                data[at : at + 1000], source_port=ports[side][0], destination_port=ports[side][1],
                sequence=sequences[side], acknowledgement=sequences[1 - side], flags=flags,
            )  # fmt: skip
            source, destination = ("10.0.0.1", "10.0.0.2")[:: 1 - 2 * side]
            packets.append((START_NS + len(packets) * 1000, ipv4(segment, source=source, destination=destination)))
            sequences[side] += len(data[at : at + 1000]) or 1
    return pcap(packets, link_type=101, nanoseconds=True)


def asks(message, version, number, client_id="me"):
    return 0, wire.encode_request(message, api_version=version, correlation_id=number, client_id=client_id)


def says(message, version, number):
    return 1, wire.encode_response(message, api_version=version, correlation_id=number)


def metadata(number, client_id="me", version=9):
    request, response = wire.MetadataRequest(topics=()), wire.MetadataResponse(cluster_id="c")
    return asks(request, version, number, client_id), says(response, version, number)


REQUEST, RESPONSE = metadata(7)
FETCH = wire.FetchRequest(topics=(wire.FetchTopic(topic="t", partitions=(wire.FetchPartition(),)),))
PRODUCE = wire.ProduceRequest(acks=0, topic_data=(wire.TopicProduceData(name="t"),))
TAGGED = asks(FETCH, 15, 7)[1][:-1] + b"\x02\x00\x02\x61\x00\x07\x01x"

ODD = {
    "a client id beyond ASCII": metadata(7, "größe"),
    "no client id": metadata(7, None),
    "another correlation id": (REQUEST, metadata(9)[1]),
    "answers in another order": (REQUEST, metadata(8)[0], metadata(8)[1], RESPONSE),
    "the answer before the question": (RESPONSE, REQUEST),
    "bytes behind the body": ((0, REQUEST[1] + b"more"), (1, RESPONSE[1] + b"more")),
    "a body cut short": ((0, REQUEST[1][:-2]), (1, RESPONSE[1][:-2])),
    "an API that there is not": ((0, struct.pack(">hhih", 999, 0, 7, -1)), (1, struct.pack(">ii", 7, 7))),
    "an API without a number for it": ((0, struct.pack(">hhih", -1, 0, 7, -1)),),
    "a version that there is not": ((0, struct.pack(">hhih", 3, 31, 7, -1)), RESPONSE),
    "a version below zero": ((0, struct.pack(">hhih", 3, -1, 7, -1)), RESPONSE),
    "a request too short": ((0, b"\0\3\0\1\0"), REQUEST, RESPONSE),
    "a response too short": (REQUEST, (1, b"\0\0\0\7")),
    "a KRaft node's": ((0, struct.pack(">hhih", 62, 0, 7, -1)), RESPONSE),
    "a quorum's Fetch": (asks(wire.FetchRequest(topics=(wire.FetchTopic(topic="__cluster_metadata"),)), 12, 7),),
    "a quorum's Fetch by id": ((0, asks(FETCH, 13, 7)[1][:35] + b"\x02" + bytes(15) + b"\x01" + bytes(20)),),
    "SASL with bare tokens": (
        asks(wire.SaslHandshakeRequest(mechanism="PLAIN"), 0, 7), says(wire.SaslHandshakeResponse(), 0, 7),
        (0, b"\0me\0secret"), (1, b""), REQUEST, RESPONSE,
    ),
    "acks=0": (asks(PRODUCE, 9, 5), asks(PRODUCE, 9, 6), REQUEST, RESPONSE),
    "acks=0 and a timeout that cannot be": (asks(wire.ProduceRequest(acks=0, timeout_ms=-2), 9, 7), REQUEST),
    "acks that there are not": (asks(wire.ProduceRequest(acks=7), 9, 7), says(wire.ProduceResponse(), 9, 7)),
    "tagged fields": (asks(FETCH, 15, 6), says(wire.FetchResponse(), 15, 6), (0, TAGGED)),
    "an ApiVersions refused": (
        (0, struct.pack(">hhih", 18, 9, 7, -1) + b"\0\2x\2y\0"), (1, struct.pack(">ihi", 7, 35, 0)),
    ),
    "a controller's": (
        asks(wire.LeaderAndIsrRequest(controller_id=3, controller_epoch=4, broker_epoch=5), 4, 7),
        says(wire.LeaderAndIsrResponse(error_code=11), 4, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_equal_on_odd_frames(odd):
    ordinary = [turn for number in range(20, 40) for turn in metadata(number)]
    check(dialogue(*ordinary, *ODD[odd], *[turn for number in range(40, 60) for turn in metadata(number)]))
    check(dialogue(*ODD[odd], *ordinary))


def test_packets_of_splits_are_those_of_the_whole(tmp_path):
    file = tmp_path / "x"
    for data in (small(0), unzipped("kafka-2.8.2-tour")):
        file.write_bytes(data)
        divided = splits(file, 30_000)
        assert len(divided) > 5
        found = Counter()
        for split in divided:
            with CaptureFile(file, "x", split=split) as capture:
                found += rows_of(packet_batches(capture))
        with CaptureFile(file, "x") as capture:
            dissector = Dissector("x")
            wanted = [packet_row("x", packet, dissector.dissect(packet)) for packet in capture]
        assert found == rows_of([PACKETS.batch(wanted)])


def test_more_connections_than_there_was_room_for():
    """Connections that are over make room, and what is known of those under way moves."""
    rng = random.Random(5)
    packets = []
    for number in range(1600):
        ends = {"source_port": 1024 + number, "destination_port": 9092}
        data = wire.frame(metadata(1)[0][1])
        packets += [tcp(flags=2, sequence=9, **ends), tcp(data, sequence=10, **ends)]
        packets += [tcp(data[:4] + data[4:8] + b"\0\0\0\2" + data[12:], sequence=10 + len(data), **ends)]
        if rng.random() < 0.6:
            packets.append(tcp(flags=4, sequence=10 + 2 * len(data), **ends))
    whole = pcap([(START_NS + i, ipv4(packet)) for i, packet in enumerate(packets)], link_type=101)
    check(whole, 30_000)
