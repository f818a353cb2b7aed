"""TCP reassembly: any order, any number of copies, any segmentation; gaps are reported.

Covers: kce.captures.tcp.directions
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.captures.tcp import directions, streams
from kce.captures.tcp.directions import Data, Earlier, End, Gap
from kce.captures.tcp.segments import ACK, FIN, RST, SYN, Place, Segment
from kce.captures.tcp.streams import MAX_OPENING_BYTES, Streams
from tests.sampling import examples

CLIENT, SERVER = (b"\x0a\x00\x00\x01", 40001), (b"\x0a\x00\x00\x02", 9092)
OTHER = (b"\x0a\x00\x00\x03", 40001)
MS = 1_000_000


class Wire:
    """Makes segments and feeds them to Streams; collects what comes out, by connection."""

    def __init__(self):
        self.streams = Streams()
        self.packet = 0
        self.now_ns = 0
        self.events = {}

    def send(self, sender, sequence, payload=b"", flags=ACK, ack=0, cut=0, after_ms=1):
        self.packet += 1
        self.now_ns += after_ms * MS
        receiver = SERVER if sender == CLIENT else CLIENT
        segment = Segment(
            Place(self.packet, self.now_ns, self.packet, "x"), *sender, *receiver,
            sequence & 0xFFFFFFFF, ack & 0xFFFFFFFF, flags, payload, cut,
        )  # fmt: skip
        self._take(self.streams.receive(segment))

    def open(self, client_isn=1000, server_isn=5000):
        self.send(CLIENT, client_isn, flags=SYN)
        self.send(SERVER, server_isn, flags=SYN | ACK, ack=client_isn + 1)
        self.send(CLIENT, client_isn + 1, ack=server_isn + 1)

    def finish(self):
        self._take(self.streams.finish())
        return self

    def _take(self, happened):
        for connection, events in happened:
            self.events.setdefault(connection.number, []).extend(
                (connection.endpoints[event.side], event) if not isinstance(event, End) else event for event in events
            )

    def sent(self, sender, number=1):
        """The bytes of one side, with ``...`` (an int of lost bytes) where there are gaps."""
        out = []
        for item in self.events.get(number, []):
            if isinstance(item, End) or item[0] != sender:
                continue
            event = item[1]
            if isinstance(event, Gap):
                out.append(event.size)
            elif out and isinstance(out[-1], bytes):
                out[-1] += event.data
            else:
                out.append(event.data)
        return out


def test_both_directions_and_the_end():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"question")
    wire.send(SERVER, 5001, b"answer", ack=1009)
    wire.send(CLIENT, 1009, flags=FIN | ACK)
    wire.send(SERVER, 5007, flags=FIN | ACK)
    wire.finish()
    assert wire.sent(CLIENT) == [b"question"]
    assert wire.sent(SERVER) == [b"answer"]
    assert wire.events[1][-1] == End()


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("isn", [900, 5000])
def test_ports_used_again_after_a_connection_whose_beginning_was_not_seen(isn, silent):
    wire = Wire()
    wire.send(CLIENT, 1001, b"old")
    if not silent:  # a server that answers nothing, and one of which the last answer is missing
        wire.send(SERVER, 5001, b"answer", ack=1004)
    wire.send(CLIENT, 1004, flags=FIN | ACK)
    wire.send(SERVER, 5001 if silent else 5017, flags=FIN | ACK)
    wire.open(client_isn=isn)
    wire.send(CLIENT, isn + 1, b"new")
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(CLIENT, 2)] == [[b"old"], [b"new"]]


@pytest.mark.parametrize("begin", [500, 1100], ids=["before the first one's beginning", "behind its end"])
def test_ports_used_again_with_numbers_close_by_and_a_handshake_that_was_lost(begin):
    wire = Wire()
    wire.open(client_isn=1000)
    wire.send(CLIENT, 1001, b"old")
    wire.send(CLIENT, 1004, flags=FIN | ACK)
    wire.send(SERVER, 5001, flags=FIN | ACK)
    wire.send(CLIENT, 1001, b"old")  # sent again
    wire.send(CLIENT, begin, b"new")
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(CLIENT, 2)] == [[b"old"], [b"new"]]


def test_ports_used_again_though_the_end_was_not_seen_either():
    wire = Wire()
    wire.send(CLIENT, 1001, b"old")
    wire.open(client_isn=1002)  # inside of what was sent
    wire.send(CLIENT, 1003, b"new")
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(CLIENT, 2)] == [[b"old"], [b"new"]]


def test_a_handshake_that_was_captured_late():
    wire = Wire()
    wire.send(CLIENT, 1001, b"first")
    wire.open()
    wire.send(CLIENT, 1006, b" second")
    wire.finish()
    assert wire.sent(CLIENT) == [b"first second"]


def test_places_are_those_of_the_packets_that_brought_the_bytes():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1004, b"def")
    wire.send(CLIENT, 1001, b"abc")
    assert [(e.data, e.place.packet) for _, e in wire.events[1]] == [(b"abc", 5), (b"def", 4)]


def test_retransmissions_overlaps_and_keepalives_add_nothing():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"abcdef")
    wire.send(CLIENT, 1001, b"abcdef")
    wire.send(CLIENT, 1004, b"XXXghi")
    wire.send(CLIENT, 1009, b"?")  # a keepalive: the last byte again
    wire.send(CLIENT, 1010, b"j")
    assert wire.sent(CLIENT) == [b"abcdefghij"]


def test_where_waiting_segments_overlap_the_first_bytes_win():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1005, b"5678")
    wire.send(CLIENT, 1003, b"34XXXX9a")  # covers what is there, and more on both sides
    wire.send(CLIENT, 1001, b"12YY")
    assert wire.sent(CLIENT) == [b"123456789a"]


def test_sequence_numbers_wrap():
    wire = Wire()
    wire.open(client_isn=2**32 - 4)
    wire.send(CLIENT, 2**32 - 3, b"abc")
    wire.send(CLIENT, 4, b"hij")
    wire.send(CLIENT, 0, b"defg")
    assert wire.sent(CLIENT) == [b"abcdefghij"]


def test_lost_bytes_that_were_acknowledged_are_soon_given_up():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"abc")
    wire.send(CLIENT, 1014, b"xyz")
    assert wire.sent(CLIENT) == [b"abc"]
    wire.send(SERVER, 5001, ack=1017)
    assert wire.sent(CLIENT) == [b"abc"]  # the capture may have swapped packets: they may still come
    wire.send(SERVER, 5001, ack=1017, after_ms=1050)
    assert wire.sent(CLIENT) == [b"abc", 10, b"xyz"]


def test_lost_bytes_that_nobody_acknowledged_are_waited_for_longer():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1014, b"xyz")
    wire.send(CLIENT, 1017, b"xyz", after_ms=2900)
    assert wire.sent(CLIENT) == []
    wire.send(CLIENT, 1001, b"retransmitted")
    assert wire.sent(CLIENT) == [b"retransmittedxyzxyz"]


def test_waiting_ends_with_time_even_if_only_others_talk():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1014, b"xyz")
    other = (b"\x0a\x00\x00\x03", 1)
    for _ in range(5):
        wire.send(other, 1, b"x", after_ms=1000)
    assert wire.sent(CLIENT) == [13, b"xyz"]


def test_waiting_ends_when_too_much_waits(monkeypatch):
    monkeypatch.setattr(directions, "MAX_HELD_BYTES", 100)
    wire = Wire()
    wire.open()
    for i in range(11):
        wire.send(CLIENT, 1011 + 10 * i, b"0123456789")
    assert wire.sent(CLIENT) == [10, b"0123456789" * 11]


def test_memory_is_bounded_whatever_is_sent(monkeypatch):
    monkeypatch.setattr(directions, "MAX_HELD_PIECES", 50)
    wire = Wire()
    wire.open()
    for i in range(1000):
        wire.send(CLIENT, 2000 + 10 * i, b"x", after_ms=0)  # holes and holes and no acknowledgement
        (connection,) = wire.streams._connections.values()
        assert len(connection._directions[0].held) <= 51


def test_bytes_cut_off_by_snaplen_are_a_gap_at_once():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"abc", cut=7)
    wire.send(CLIENT, 1011, b"def")
    assert wire.sent(CLIENT) == [b"abc", 7, b"def"]


def test_a_tail_that_was_acknowledged_but_never_seen_is_a_gap():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"abc")
    wire.send(SERVER, 5001, ack=1009)
    wire.finish()
    assert wire.sent(CLIENT) == [b"abc", 5]


def test_an_acknowledged_fin_is_no_lost_byte():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"abc", flags=FIN | ACK)
    wire.send(SERVER, 5001, ack=1005)
    wire.finish()
    assert wire.sent(CLIENT) == [b"abc"]


def test_joining_in_the_middle():
    wire = Wire()
    wire.send(SERVER, 700, b"old answer", ack=300)
    wire.send(CLIENT, 300, b"question", ack=710)
    wire.send(CLIENT, 308, b"!", ack=710)
    connection = next(iter(wire.streams._connections.values()))
    assert connection.client is None
    assert wire.sent(CLIENT) == []  # an earlier packet may come yet
    wire.send(CLIENT, 309, b"!", ack=710, after_ms=200)
    assert wire.sent(CLIENT) == [b"question!!"]
    assert wire.sent(SERVER) == [b"old answer"]
    assert [event.place.packet for _, event in wire.events[1]] == [1, 2, 3, 4]


def test_joining_where_packets_are_swapped():
    wire = Wire()
    wire.send(CLIENT, 307, b"n?", ack=710)
    wire.send(CLIENT, 300, b"questio", ack=710)
    wire.send(SERVER, 710, b"answer", ack=309)
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(SERVER)] == [[b"question?"], [b"answer"]]


def test_what_is_from_before_the_capture_and_sent_again_is_reported_once():
    wire = Wire()
    wire.send(CLIENT, 300, b"question", ack=710)
    for _ in range(2):
        wire.send(CLIENT, 290, b"earlier, question", ack=710, after_ms=200)
    wire.send(CLIENT, 295, b"ier, question", ack=710)
    wire.finish()
    delivered = [event for _, event in wire.events[1][:-1]]
    assert delivered == [Data(0, b"question", delivered[0].place), Earlier(0, b"earlier, q", delivered[1].place)]


def test_memory_is_bounded_while_a_connection_that_was_joined_may_have_begun_earlier():
    wire = Wire()
    for i in range(30):
        wire.send(CLIENT, 100_000 * i, bytes(100_000), after_ms=0)
        (connection,) = wire.streams._connections.values()
        assert connection._directions[0].held_bytes <= MAX_OPENING_BYTES + 100_000
    assert sum(len(event.data) for _, event in wire.events[1]) >= 1_000_000


def test_a_syn_ack_alone_tells_who_is_the_client():
    wire = Wire()
    wire.send(SERVER, 5000, flags=SYN | ACK, ack=1001)
    connection = next(iter(wire.streams._connections.values()))
    assert connection.endpoints[connection.client] == CLIENT


def test_a_new_syn_is_a_new_connection():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"first")
    wire.open(client_isn=90_000, server_isn=80_000)
    wire.send(CLIENT, 90_001, b"second")
    assert wire.sent(CLIENT, 1) == [b"first"]
    assert wire.events[1][-1] == End()
    assert wire.sent(CLIENT, 2) == [b"second"]


def test_a_repeated_syn_is_the_same_connection():
    wire = Wire()
    wire.send(CLIENT, 1000, flags=SYN)
    wire.open()
    wire.send(CLIENT, 1000, flags=SYN)
    wire.send(CLIENT, 1001, b"first")
    assert list(wire.events) == [1]


def test_other_data_on_the_ports_of_a_closed_connection_is_a_new_one():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"first", flags=FIN | ACK)
    wire.send(SERVER, 5001, flags=FIN | ACK)
    wire.send(CLIENT, 1001, b"first", flags=FIN | ACK)  # sent again
    wire.send(CLIENT, 900_000_000, b"second")  # its SYN was not captured
    wire.finish()
    assert wire.sent(CLIENT, 1) == [b"first"]
    assert wire.sent(CLIENT, 2) == [b"second"]


def test_after_a_reset_little_is_waited_for():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1004, b"def")
    wire.send(SERVER, 5001, flags=RST)
    wire.send(CLIENT, 1001, b"abc")  # swapped
    assert wire.sent(CLIENT) == [b"abcdef"]
    wire.send(CLIENT, 1010, b"jkl")
    wire.send(OTHER, 1, flags=SYN)
    assert wire.sent(CLIENT) == [b"abcdef"]
    wire.send(OTHER, 2, b"x", after_ms=200)
    assert wire.sent(CLIENT) == [b"abcdef", 3, b"jkl"]


def test_the_first_data_of_a_connection_comes_before_its_syn_and_the_last_fin_of_the_one_before_behind_it():
    wire = Wire()
    wire.open()
    wire.send(CLIENT, 1001, b"old")
    wire.send(CLIENT, 1004, flags=FIN | ACK)
    wire.send(CLIENT, 4_000_000_001, b"new")
    wire.send(SERVER, 5001, flags=FIN | ACK)
    wire.open(client_isn=4_000_000_000, server_isn=70_000)
    wire.send(SERVER, 70_001, b"answer", ack=4_000_000_004)
    wire.send(CLIENT, 4_000_000_004, b"!")
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(SERVER)] == [[b"old"], []]
    assert [wire.sent(CLIENT, 2), wire.sent(SERVER, 2)] == [[b"new!"], [b"answer"]]


def test_data_before_its_syn_with_numbers_a_little_lower_than_those_of_the_connection_before():
    wire = Wire()
    wire.send(CLIENT, 1001, b"old")
    wire.send(SERVER, 5001, b"answer")
    wire.send(CLIENT, 1004, flags=FIN | ACK, after_ms=200)
    wire.send(SERVER, 5007, flags=FIN | ACK)
    wire.send(CLIENT, 501, b"new")
    wire.open(client_isn=500, server_isn=90_000)
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(CLIENT, 2)] == [[b"old"], [b"new"]]


def test_data_that_acknowledges_what_was_never_sent_is_of_another_connection():
    """The data comes before its SYN, and its sequence numbers overlap those of the previous connection."""
    wire = Wire()
    wire.open(server_isn=5000)
    wire.send(CLIENT, 1001, b"old" * 100, ack=5001)
    wire.send(CLIENT, 1301, flags=FIN | ACK, ack=5001)
    wire.send(SERVER, 5001, flags=FIN | ACK)
    wire.send(CLIENT, 1001, b"old" * 100, ack=5002)  # sent again
    wire.send(CLIENT, 1201, b"new", ack=90_001)
    wire.open(client_isn=1200, server_isn=90_000)
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(CLIENT, 2)] == [[b"old" * 100], [b"new"]]


def test_a_syn_that_comes_long_after_is_not_late():
    """Its number is a little lower than that of the connection before, whose end was lost."""
    wire = Wire()
    wire.send(CLIENT, 1001, b"old")
    wire.open(client_isn=900)  # in time: of the same connection
    wire.send(CLIENT, 1004, b"!", after_ms=2000)
    wire.open(client_isn=500)
    wire.send(CLIENT, 501, b"new")
    wire.finish()
    assert [wire.sent(CLIENT), wire.sent(CLIENT, 2)] == [[100, b"old!"], [b"new"]]


def test_stray_resets_and_acknowledgements_are_no_connections():
    wire = Wire()
    wire.send(CLIENT, 1, flags=RST)
    wire.send(CLIENT, 1)
    wire.send(CLIENT, 1, flags=FIN | ACK)
    assert wire.finish().events == {}


def test_closed_connections_are_forgotten(monkeypatch):
    monkeypatch.setattr(streams, "MAX_CLOSED", 10)
    made = Streams()
    ended = 0
    for port in range(1, 101):
        for flags in (SYN, RST):
            segment = Segment(Place(port, 0, port, "x"), b"aaaa", port, b"bbbb", 9, 1, 0, flags, b"", 0)
            ended += sum(events[-1:] == [End()] for _, events in made.receive(segment))
    assert ended == 90
    assert len(made._connections) == 10


@st.composite
def deliveries(draw):
    """A stream, and segments of it: all of it is covered, in pieces that overlap, repeat and come in any order."""
    stream = draw(st.binary(min_size=1, max_size=300))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=8)) | {0, len(stream)})
    pieces = list(itertools.pairwise(cuts))
    for a, b in draw(st.lists(st.tuples(st.integers(0, len(stream)), st.integers(0, len(stream))), max_size=6)):
        pieces.append((min(a, b), max(a, b)))
    return stream, draw(st.permutations(pieces))


@settings(max_examples=examples(300), deadline=None)
@given(deliveries(), st.integers(0, 2**32 - 1))
def test_shuffled_repeated_overlapping_segments_give_the_stream(delivery, isn):
    stream, pieces = delivery
    wire = Wire()
    wire.open(client_isn=isn)
    for begin, end in pieces:
        wire.send(CLIENT, isn + 1 + begin, stream[begin:end])
    assert wire.sent(CLIENT) == [stream]
    places = [e.place.packet for item in wire.events[1] if not isinstance(item, End) for e in [item[1]]]
    assert set(places) <= set(range(4, 4 + len(pieces)))


@settings(max_examples=examples(300), deadline=None)
@given(deliveries(), st.data())
def test_what_is_lost_is_a_gap_of_the_right_size_and_all_else_is_there(delivery, data):
    stream, pieces = delivery
    kept = [piece for piece in pieces if data.draw(st.booleans())]
    wire = Wire()
    wire.open(client_isn=0)
    for begin, end in kept:
        wire.send(CLIENT, 1 + begin, stream[begin:end])
    wire.send(SERVER, 5001, ack=1 + len(stream))
    wire.finish()
    there = {i for begin, end in kept for i in range(begin, end)}
    at = 0
    for part in wire.sent(CLIENT):
        if isinstance(part, int):
            assert there.isdisjoint(range(at, at + part))
            at += part
        else:
            assert part == stream[at : at + len(part)]
            assert there.issuperset(range(at, at + len(part)))
            at += len(part)
    assert at == len(stream)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(), st.integers(0, 2**32 - 1) | st.integers(990, 1030), st.binary(max_size=20),
            st.integers(0, 31), st.integers(0, 2**32 - 1), st.integers(0, 50), st.integers(-5000, 5000),
        ),
        max_size=40,
    )
)  # fmt: skip
def test_nonsense_never_raises(segments):
    wire = Wire()
    for from_client, sequence, payload, flags, ack, cut, after_ms in segments:
        wire.send(CLIENT if from_client else SERVER, sequence, payload, flags, ack, cut, after_ms)
    wire.finish()
    for events in wire.events.values():
        assert events[-1] == End()
        assert all(item[1].size > 0 for item in events[:-1] if isinstance(item, tuple) and isinstance(item[1], Gap))
        assert all(item[1].data for item in events[:-1] if isinstance(item, tuple) and isinstance(item[1], Data))


@pytest.mark.parametrize("flags", [SYN, SYN | ACK])
def test_data_in_a_syn(flags):
    wire = Wire()
    wire.send(CLIENT, 1000, b"fast open", flags=flags)
    wire.send(CLIENT, 1010, b"!")
    assert wire.sent(CLIENT) == [b"fast open!"]
