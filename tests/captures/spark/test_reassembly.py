"""Blocks that were shuffled give what the exact code finds, connection by connection, however files are cut.

Covers: kce.captures.fast.segment_counts
"""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.exchanges.quality import Quality
from kce.captures.fast.blocks import Block, in_time
from kce.captures.files import packet_kernels as k
from kce.captures.files.chronology import chronological
from kce.captures.files.index import splits
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.split import WHOLE
from kce.captures.spark.buckets import decoded
from kce.captures.spark.levels import block_batches
from kce.captures.spark.work import File
from kce.captures.tables.rows import BLOCKS, DECODED
from kce.captures.tables.tabulate import connection_row, decoded_row
from kce.captures.tcp.segments import Dissector, Segment, connection_text
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.fast.segments_counted import SegmentsCounted
from tests.captures.fast.test_bulk import packets_of, rows_of
from tests.captures.made_files import START_NS, ipv4, pcap, tcp
from tests.captures.samples import CAPTURES, unzipped
from tests.captures.wiretap import observe

BUCKETS = 5


def shuffled(files, cut_bytes=None, seed=0):
    """DECODED rows as Spark's tasks would make them, and what they counted."""
    batches = []
    for number, file in enumerate(files):
        parts = [WHOLE] if cut_bytes is None else splits(file, cut_bytes)
        for part in parts:
            batches += block_batches(File(file.name, str(file)), number, part, BUCKETS)
    random.Random(seed).shuffle(batches)  # as blocks arrive from tasks
    rows = pa.Table.from_batches(batches, BLOCKS.schema)
    order = [(name, "ascending") for name in ("bucket", "begin_ns", "number", "packet")]
    return of_batches(decoded(rows.sort_by(order).to_batches(max_chunksize=7), "redacted"))


def of_batches(batches):
    table = pa.Table.from_batches(batches, DECODED.schema)
    counted = Quality()
    for text in table.column("quality").drop_null().to_pylist():
        counted.add(Quality.from_json(text))
    return rows_of(table.filter(table.column("quality").is_null()).to_batches()), counted


def exactly(files):
    """The same of the exact code: every connection by itself, its segments in chronological order."""
    quality = Quality()
    connections = defaultdict(list)
    for number, file in enumerate(files):
        with CaptureFile(file, file.name) as capture:
            dissector = Dissector(file.name)
            latest = 0
            for packet in chronological(capture, lambda packet: packet.time_ns):
                latest = max(latest, packet.time_ns)
                quality.packets += 1
                quality.cut_packets += packet.wire_bytes > len(packet.data)
                segment = dissector.dissect(packet)
                if isinstance(segment, Segment):
                    ends = (segment.source, segment.source_port), (segment.destination, segment.destination_port)
                    connections[connection_text(*ends)].append((latest, number, packet.number, segment))
                else:
                    quality.other_packets[segment] += 1
            quality.dropped += capture.dropped
            quality.problems += [f"{file.name}: {problem}" for problem in capture.problems]
    rows = []
    for connection, placed in connections.items():
        assembly = Assembly(quality)
        counts = SegmentsCounted()
        known = quality.connections
        messages = []
        for order, (*_, segment) in enumerate(sorted(placed, key=lambda each: each[:3])):
            counts.add(segment)
            messages += assembly.receive(segment._replace(place=segment.place._replace(order=order)))
        messages += assembly.finish()
        for message in messages:
            if not isinstance(message, Request):
                response = message if isinstance(message, Response) else None
                rows.append(decoded_row(message.request, response, "redacted"))
        rows.append(connection_row((connection, quality.connections > known, *counts.columns())))
    return rows_of([DECODED.batch(rows)]), quality


def check(files, cut_bytes=None):
    wanted, quality = exactly(files)
    found, counted = shuffled(files, cut_bytes)
    assert found == wanted
    for each in (quality, counted):
        each.notes.sort()
    assert counted == quality
    return wanted


@pytest.fixture
def file(tmp_path):
    def write(data, name="x.pcap"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.mark.heavy
@pytest.mark.parametrize("name", CAPTURES)
def test_equal_on_captures_of_real_kafka(name, file):
    check([file(unzipped(name))])


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_equal_on_damaged_captures_that_are_cut(case, file):
    """Loss, segments sent again, out of order, in the middle of messages; cut into splits anywhere."""
    path = file(observe(tap_of(1), 1, **CASES[case]).pcap)
    size = path.stat().st_size
    check([path], size // 7)


def test_equal_where_a_connection_runs_across_files(file):
    """Two hosts took turns, and the second file begins in the middle of messages; a third overlaps both in time."""
    packets = list(packets_of(observe(tap_of(2), 2, **CASES["all of it"]).pcap))
    rng = random.Random(7)
    parts = [[], [], []]
    for at, packet in enumerate(packets):
        parts[2 if rng.random() < 0.1 else int(at > len(packets) // 2)].append(packet)
    files = [file(pcap(part, link_type=101, nanoseconds=True), f"{'bac'[at]}.pcap") for at, part in enumerate(parts)]
    check(files, files[0].stat().st_size // 3)


@pytest.mark.parametrize(("apart_ns", "retransmits"), [(2_000_000, 6), (1000, 3)])
def test_equal_where_ports_are_used_again_and_what_is_no_segment_comes_between(file, apart_ns, retransmits):
    """The last segment once more is a copy if it comes within 1 ms, as where a bridge and its ports are captured."""
    packets = []
    ends = {"source_port": 40001, "destination_port": 9092}
    for turn in range(3):
        begin = 1000 + 70_000_000 * turn
        packets += [tcp(flags=2, sequence=begin, **ends), tcp(b"no Kafka", sequence=begin + 1, **ends)]
        packets += [tcp(b"no Kafka", sequence=begin + 1, **ends), tcp(b"a", sequence=begin + 8, **ends)]
        packets += [tcp(b"later", sequence=begin + 19, **ends), tcp(b"first", sequence=begin + 9, **ends)]
        packets += [tcp(b"overlaps", sequence=begin + 12, **ends), tcp(flags=4, sequence=begin + 24, **ends)]
    frames = [ipv4(packet) for packet in packets]
    frames[5:5] = [ipv4(b"\0" * 20, protocol=17), b"\x45"]
    given = file(pcap([(START_NS + at * apart_ns, frame) for at, frame in enumerate(frames)], link_type=101))
    (row,) = check([given])
    assert f"'retransmits': {retransmits}," in row
    assert "'out_of_order': 3" in row
    assert "'resets': 3" in row


def test_a_file_that_is_no_capture_is_counted(file):
    found, counted = shuffled([file(b"no capture")])
    assert not found
    assert len(counted.unreadable) == 1


def test_more_connections_than_there_was_room_for(file):
    packets = [tcp(b"x" * (number % 3), source_port=1024 + number, sequence=1) for number in range(3000)]
    frames = [(START_NS + at, ipv4(packet)) for at, packet in enumerate(packets * 2)]
    assert sum(check([file(pcap(frames, link_type=101, nanoseconds=True))]).values()) == 3000


# blocks in time


def block(file, times):
    packets = np.zeros((len(times), k.COLUMNS), np.int64)
    packets[:, k.KIND], packets[:, k.FILE], packets[:, k.TIME] = k.SEGMENT, file, times
    packets[:, k.SIZE], packets[:, k.PAYLOAD] = 1, np.arange(len(times))
    return Block(np.array([time % 251 for time in times], np.uint8), packets, max(times[0], 0))


def merged(blocks, least_bytes):
    out = list(in_time(blocks, least_bytes))
    for given in out:
        payload = given.data[given.packets[:, k.PAYLOAD]]
        assert (payload == given.packets[:, k.TIME] % 251).all()
    return [(int(t), int(f)) for given in out for t, f in given.packets[:, [k.TIME, k.FILE]]], len(out)


@pytest.mark.parametrize("seed", range(4))
def test_files_are_merged_by_time_each_in_its_own_order(seed):
    rng = random.Random(seed)
    blocks, wanted = [], []
    for file in range(3):
        times = np.cumsum([rng.choice([0, 0, 1, 5]) for _ in range(200)]).tolist()
        latest = 0
        swapped = [max(0, time - rng.choice([0, 0, 0, 3])) for time in times]  # a clock that goes back
        at = 0
        while at < len(times):
            size = rng.randrange(1, 30)
            latest = max(latest, swapped[at])
            blocks.append((latest, file, at, block(file, swapped[at : at + size])._replace(begin_ns=latest)))
            latest = max(latest, *swapped[at : at + size])
            at += size
        keys = np.maximum.accumulate(swapped).tolist()
        wanted += [(key, file, at, time) for at, (key, time) in enumerate(zip(keys, swapped, strict=True))]
    ordered = [each[-1] for each in sorted(blocks, key=lambda each: each[:3])]
    in_order = [(time, file) for _, file, _, time in sorted(wanted)]
    for least_bytes in (1, 5000, 10**9):
        found, count = merged(ordered, least_bytes)
        assert found == in_order
        assert (count == 1) == (least_bytes == 10**9)


def test_what_waits_is_bounded_by_what_overlaps():
    """Blocks that follow one another are given as they come, also where a clock stands still."""
    given = []

    def blocks():
        for at in range(50):
            given.append(at)
            yield block(0, [7] * 100 if at < 25 else [at] * 100)

    for number, _ in enumerate(in_time(blocks(), 1)):
        assert len(given) <= number + 2
