"""Connections that are cut give what they give whole, wherever somebody proposes to cut them.

Covers: kce.captures.fast.cuts, kce.captures.exchanges.seams, kce.captures.spark.cutting, kce.captures.spark.buckets.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kce import wire
from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.seams import seam_of
from kce.captures.fast.blocks import Flows, dissected, first_block, segment_of
from kce.captures.fast.cuts import Cut, Cuts, Sample, chosen, chunks_of, sampled
from kce.captures.files import packet_kernels as k
from kce.captures.files.index import splits
from kce.captures.files.pcap import CaptureFile
from kce.captures.spark.buckets import decoded
from kce.captures.spark.chunks import Found, holding
from kce.captures.spark.chunks import rows_of as rows_of_chunks
from kce.captures.spark.levels import block_batches
from kce.captures.spark.work import File
from kce.captures.tables.rows import BLOCKS, CHUNKED, DECODED
from kce.captures.tcp.streams import connection_key
from tests.captures.exchanges.test_exactness import CASES
from tests.captures.fast.test_bulk import packets_of, rows_of
from tests.captures.made_files import START_NS, ipv4, pcap, tcp
from tests.captures.wiretap import Wiretap, observe

BUCKETS = 5
ORDER = [(name, "ascending") for name in ("bucket", "begin_ns", "number", "packet")]


def reassembled(files, cut_bytes, cuts=None):
    """DECODED rows, or CHUNKED ones, as Spark's tasks would make them."""
    batches = [
        batch
        for number, file in enumerate(files)
        for part in splits(file, cut_bytes)
        for batch in block_batches(File(file.name, str(file)), number, part, BUCKETS, (), cuts)
    ]
    random.Random(1).shuffle(batches)  # as blocks arrive from tasks
    blocks = pa.Table.from_batches(batches, BLOCKS.schema).sort_by(ORDER)
    if cuts is not None and cuts.only is not None:
        blocks = blocks.filter(pc.is_null(blocks["quality"]))
    made = decoded(blocks.to_batches(max_chunksize=7), "redacted", cuts=cuts)
    return pa.Table.from_batches(made, (DECODED if cuts is None else CHUNKED).schema)


def in_chunks(files, cut_bytes, of):
    """DECODED rows by chunks, the cuts that hold, and how many passes that took."""
    known, passes = {}, []
    cuts = Cuts(of, BUCKETS)
    while True:
        rows, chunks = reassembled(files, cut_bytes, Cuts.from_json(cuts.to_json())), cuts.chunks()
        passes.append((rows, chunks))
        found = [Found.from_json(text) for text in rows["chunk"].drop_null().to_pylist()]
        assert {each.bucket for each in found} <= chunks.keys()
        known |= {chunks[each.bucket]: each for each in found}
        of = holding(of, known)
        right = {chunk for flow, some in of.items() for chunk in chunks_of(flow, some)}
        if right <= known.keys():
            break
        cuts = Cuts(of, BUCKETS).of_chunks(right - known.keys())
    parts = []
    for rows, chunks in passes:
        wrong = pa.array([bucket for bucket, chunk in chunks.items() if chunk not in right], pa.int32())
        kept = pc.and_(pc.is_null(rows["chunk"]), pc.invert(pc.is_in(rows["bucket"], wrong)))
        parts.append(rows.filter(kept).drop_columns(["bucket", "chunk"]))
    for flow, some in of.items():
        made = rows_of_chunks(flow, [known[chunk] for chunk in chunks_of(flow, some)])
        parts.append(pa.Table.from_batches([DECODED.batch(made)]))
    return pa.concat_tables(parts), of, len(passes)


def facts(rows):
    """All rows, and the sum of the counts."""
    quality = Quality()
    for text in rows["quality"].drop_null().to_pylist():
        quality.add(Quality.from_json(text))
    quality.notes.sort()
    return rows_of(rows.filter(pc.is_null(rows["quality"])).to_batches()), quality


def check(files, cut_bytes, of):
    """Chunks give what whole connections give. Returns the cuts that hold, and the number of passes."""
    rows, held, passes = in_chunks(files, cut_bytes, of)
    found, wanted = facts(rows), facts(reassembled(files, cut_bytes))
    assert found[1] == wanted[1]
    assert found[0] == wanted[0]
    return held, passes


def proposed(files, cut_bytes):
    """The cuts that samples of each part propose."""
    samples = []
    for file in files:
        for part in splits(file, cut_bytes):
            with CaptureFile(file, split=part) as capture:
                block = first_block(capture, 1 << 20)
            samples += [] if block is None else sampled(block, part.end - part.begin)
    return chosen(samples, cut_bytes)


def count(cuts):
    return sum(len(of_flow) for of_flow in cuts.values())


@pytest.fixture
def file(tmp_path):
    def write(data, name="x.pcap"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", CASES)
def test_equal_where_samples_propose_to_cut(case, seed, file):
    """Loss, segments sent again, out of order, several requests in flight, wrapped sequence numbers, reused ports."""
    path = file(observe(Wiretap(seed, talks=5, exchanges=150), seed, **CASES[case]).pcap)
    size = path.stat().st_size // 40
    of = proposed([path], size)
    assert count(of) > 30
    held, _ = check([path], size, of)
    assert count(held) >= (1 if "1%" in case or "all" in case else 10)


def places(path):
    """By connection: (time, what is really there: a seam or None) of all its packets."""
    assembly = Assembly(Quality())
    found = {}
    with CaptureFile(path) as capture:
        for block in dissected(capture, Quality()):
            flows = Flows().number(block.packets)
            for index, packet in enumerate(block.packets):
                flow = tuple(flows[packet[k.FLOW] >> 1, :5].tolist())
                segment = segment_of(block, index, index, ["x"])
                under_way = assembly.under_way(connection_key(segment))
                seam = None if under_way is None else seam_of(*under_way)
                found.setdefault(flow, []).append((int(packet[k.TIME]), seam))
                list(assembly.receive(segment))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", ["whole", "0.1% lost", "all of it"])
def test_equal_wherever_somebody_proposes_to_cut(case, seed, file):
    """Half of the proposals are right, the others are places of somewhere else, or the last request is another."""
    path = file(observe(Wiretap(seed, talks=4, exchanges=60, retransmits=0.03), seed, **CASES[case]).pcap)
    rng = random.Random(seed)
    of = {}
    for flow, of_flow in places(path).items():
        seams = [seam for _, seam in of_flow if seam is not None]
        if not seams:
            continue
        cuts = {}
        for _ in range(8):
            time_ns, seam = rng.choice(of_flow)
            if seam is None or rng.random() < 0.3:
                seam = rng.choice(seams)
            elif rng.random() < 0.2:
                seam = seam._replace(last=seam.last._replace(correlation_id=seam.last.correlation_id + 1))
            cuts[time_ns] = Cut(time_ns, seam)
        of[flow] = [cuts[time_ns] for time_ns in sorted(cuts)]
    held, passes = check([path], path.stat().st_size // 3, of)
    assert passes > 1
    assert count(held) < count(of)


def test_every_place_that_is_one_holds(file):
    """Each request is a chunk of its own, also where bytes of the chunk before are sent again."""
    path = file(observe(Wiretap(3, talks=2, exchanges=40, retransmits=0.03), 3).pcap)
    of = {}
    for flow, of_flow in places(path).items():
        last = max(at for at, (_, seam) in enumerate(of_flow) if seam is not None)
        cuts = {seam.sequences: Cut(time_ns, seam) for time_ns, seam in of_flow[: last + 1] if seam is not None}
        of[flow] = list(cuts.values())
    held, _ = check([path], path.stat().st_size, of)
    assert held == of
    assert count(of) > 40


def test_a_connection_in_several_files_and_what_another_host_saw(file):
    """The second file begins in the middle; a third overlaps both in time."""
    packets = list(packets_of(observe(Wiretap(2, talks=4, exchanges=150), 2, **CASES["0.01% lost"]).pcap))
    rng = random.Random(7)
    parts = [[], [], []]
    for at, packet in enumerate(packets):
        parts[2 if rng.random() < 0.1 else int(at > len(packets) // 2)].append(packet)
    whole = file(pcap(packets, link_type=101, nanoseconds=True), "whole.pcap")
    of = proposed([whole], whole.stat().st_size // 20)
    files = [file(pcap(part, link_type=101, nanoseconds=True), f"{'bac'[at]}.pcap") for at, part in enumerate(parts)]
    held, _ = check(files, files[0].stat().st_size // 3, of)
    assert count(held) > 3


class Line:
    """One connection packet by packet, each 10 ms after the one before."""

    def __init__(self):
        self.packets = []
        self.now_ns = START_NS
        self.next = [1000, 5000]
        self.number = 0

    def packet(self, side, payload=b"", flags=0x18, sequence=None, seen=True):
        sequence = self.next[side] if sequence is None else sequence
        ports = (40001, 9092) if side == 0 else (9092, 40001)
        hosts = ("10.0.0.1", "10.0.0.2") if side == 0 else ("10.0.0.2", "10.0.0.1")
        segment = tcp(
            payload, source_port=ports[0], destination_port=ports[1], sequence=sequence, flags=flags,
            acknowledgement=self.next[1 - side],
        )  # fmt: skip
        self.now_ns += 10_000_000
        if seen:
            self.packets.append((self.now_ns, ipv4(segment, source=hosts[0], destination=hosts[1])))
        if sequence == self.next[side]:
            self.next[side] += len(payload) + bool(flags & 3)

    def opened(self):
        self.packet(0, flags=2)
        self.packet(1, flags=0x12)
        self.packet(0, flags=0x10)

    def ask(self):
        self.number += 1
        request = wire.encode_request(
            wire.MetadataRequest(topics=()), api_version=9, correlation_id=self.number, client_id="c"
        )
        self.packet(0, wire.frame(request))

    def answer(self, number, lost=False):
        """A response, of which the observer may have lost the middle; where that begins, and what it is."""
        topics = tuple(wire.MetadataResponseTopic(name=f"topic-{at}") for at in range(20))
        response = wire.frame(
            wire.encode_response(wire.MetadataResponse(topics=topics), api_version=9, correlation_id=number)
        )
        self.packet(1, response[:100])
        middle = self.next[1]
        self.packet(1, response[100:200], seen=not lost)
        self.packet(1, response[200:])
        return middle, response[100:200]

    def exchange(self, lost=False):
        self.ask()
        middle = self.answer(self.number, lost)
        self.packet(0, flags=0x10)
        return middle

    def checked(self, file, at):
        """Cut where the observer saw packet ``at``, the first of a request, if that is a place. How many cuts hold."""
        path = file(pcap(self.packets, link_type=101))
        ((flow, of_flow),) = places(path).items()
        time_ns, seam = of_flow[at]
        assert seam is not None
        held, _ = check([path], path.stat().st_size, {flow: [Cut(time_ns, seam)]})
        return count(held)


def test_what_a_chunk_repeats_of_the_one_before_is_known(file):
    line = Line()
    line.opened()
    middle, lost = line.exchange()
    at = len(line.packets)
    line.exchange()
    line.packet(1, lost, sequence=middle)
    assert line.checked(file, at) == 1


def test_a_hole_before_a_cut_that_is_filled_behind_it(file):
    """It is not a retransmission, which the chunk that has it cannot know."""
    line = Line()
    line.opened()
    middle, lost = line.exchange(lost=True)
    line.now_ns += 5_000_000_000  # the hole has become a gap
    line.exchange()
    at = len(line.packets)
    line.exchange()
    assert line.checked(file, at) == 1
    line.packet(1, lost, sequence=middle)
    assert line.checked(file, at) == 0


def test_a_syn_that_comes_again_behind_a_cut(file):
    """It has the first sequence number of this connection, so it does not begin another."""
    line = Line()
    line.opened()
    line.exchange()
    at = len(line.packets)
    line.exchange()
    line.packet(0, flags=2, sequence=1000)
    line.exchange()
    assert line.checked(file, at) == 0


@pytest.mark.parametrize(("flags", "held"), [(0x11, 0), (0x14, 0), (0x10, 1)])
def test_data_behind_the_end(flags, held, file):
    """After FIN or RST they may belong to another connection, which the beginning of this one decides."""
    line = Line()
    line.opened()
    line.exchange()
    at = len(line.packets)
    line.exchange()
    line.packet(0, flags=flags, sequence=line.next[0])
    line.exchange()
    assert line.checked(file, at) == held


def test_a_clock_that_is_set_back(file):
    line = Line()
    line.opened()
    line.exchange()
    at = len(line.packets)
    line.exchange()
    line.now_ns -= 200_000_000_000
    for _ in range(80):
        line.exchange()
    assert line.checked(file, at) == 0


def place_in(line, file):
    """What a sample proposes."""
    with CaptureFile(file(pcap(line.packets, link_type=101))) as capture:
        (sample,) = sampled(first_block(capture, 1 << 20), 1000)
    assert sample.size == 1000
    return sample.cut


def test_a_place_is_found_behind_an_exchange(file):
    line = Line()
    line.exchange()
    assert place_in(line, file) is None  # nothing follows
    sequences = tuple(line.next)
    line.exchange()
    cut = place_in(line, file)
    assert cut.seam.sequences == sequences
    assert cut.seam.client == (bytes([10, 0, 0, 1]), 40001)
    assert cut.seam.last[1:] == (3, 9, 1, "c")
    assert cut.time_ns == line.packets[5][0]


def test_a_place_is_found_behind_several_requests_in_flight(file):
    line = Line()
    line.ask()
    line.ask()
    line.answer(1)
    line.ask()
    line.answer(2)
    line.ask()
    line.answer(3)
    assert place_in(line, file) is None  # one was always in flight
    line.answer(4)
    sequences = tuple(line.next)
    line.exchange()
    cut = place_in(line, file)
    assert (cut.seam.sequences, cut.seam.last.correlation_id) == (sequences, 4)


@pytest.mark.parametrize("what", ["lost", "repeated", "opened", "at once", "not acknowledged", "other bytes"])
def test_no_place_is_found_where_something_is_wrong(what, file):
    line = Line()
    if what == "opened":
        line.opened()
    line.exchange(lost=what == "lost")
    if what == "not acknowledged":
        line.next[1] -= 1
    if what == "other bytes":
        line.packet(1, b"abc")
    line.exchange()
    if what == "repeated":
        line.packets[2] = line.packets[2][0], line.packets[1][1]
    if what == "at once":
        line.packets = [(START_NS, data) for _, data in line.packets]
    assert place_in(line, file) is None


def test_cuts_are_chosen_by_size():
    flow, other = (0, 1, 0, 2, 3), (0, 1, 0, 2, 4)
    samples = [Sample(flow, at, 60, None if at == 5 else Cut(at, at)) for at in range(10)]
    samples += [Sample(other, at, 4, Cut(at, at)) for at in range(10)]
    of = chosen(reversed(samples), 200)
    assert {flow: [cut.time_ns for cut in cuts] for flow, cuts in of.items()} == {flow: [2, 4, 6, 8]}
