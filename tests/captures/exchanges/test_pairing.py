"""Which answer belongs to which question, also where packets are missing or out of order.

Covers: captures/exchanges/undecided.py.
"""

from __future__ import annotations

import io
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges import pairing
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Conversation, Request, Response
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.pcapng_writer import PcapngWriter
from kce.captures.tcp.directions import Data, End, Gap
from kce.captures.tcp.streams import Connection
from tests.captures.exchanges.dialogue import METADATA, SERVER, UPDATE, Talk, header, outline, place, produce
from tests.captures.samples import CAPTURES, unzipped
from tests.sampling import examples


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 11])
def test_produce_without_acks_is_not_answered_and_shifts_nothing(version):
    talk = Talk()
    talk.tap.sent("client", produce(version, 0, 1))
    talk.ask(METADATA, 9, 2)
    talk.tap.sent("client", produce(version, 1, 3))
    talk.answer(wire.MetadataResponse(), 9, 2)
    talk.answer(wire.ProduceResponse(), version, 3)
    messages, quality = talk.decode()
    assert outline(messages) == [("Produce", 1), ("Metadata", 2), ("Produce", 3), ("<-", 2), ("<-", 3)]
    assert [m.answered for m in messages if isinstance(m, Request)] == [False, True, True]
    assert (quality.unanswered, quality.undecodable, quality.lines()) == (0, 0, [])


@pytest.mark.parametrize("length", [2**31 - 1, -1, -(2**31), 0, 3])
def test_an_impossible_frame_length_is_reported_and_survived(length):
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.answer(wire.UpdateMetadataResponse(), 5, 1)
    talk.tap.sent("client", struct.pack(">i", length) + b"\x00\x05garbage")
    talk.ask(UPDATE, 5, 2)
    talk.answer(wire.UpdateMetadataResponse(), 5, 2)
    messages, quality = talk.decode()
    assert outline(messages) == [("UpdateMetadata", 1), ("<-", 1), ("UpdateMetadata", 2), ("<-", 2)]
    assert quality.bad_lengths == 1
    assert any(f"packet 6 of x: a frame that announces {length} bytes" in line for line in quality.lines())
    assert not quality.sound


def test_bare_sasl_tokens_are_no_requests():
    talk = Talk()
    talk.tap.sent("client", wire.frame(header(17, 0, 1) + b"\x00\x05PLAIN"))
    talk.tap.sent("server", wire.frame(struct.pack(">i", 1) + bytes(6)))
    talk.tap.sent("client", wire.frame(b"\x00alice\x00secret"))
    talk.tap.sent("server", wire.frame(bytes(4)))
    talk.ask(METADATA, 9, 2)
    talk.answer(wire.MetadataResponse(), 9, 2)
    messages, quality = talk.decode()
    assert outline(messages) == [("SaslHandshake", 1), ("<-", 1), ("Metadata", 2), ("<-", 2)]
    assert quality.sound


def long_talk(count=8, size=300_000):
    """Exchanges of which every fourth request is a Produce of many packets."""
    talk = Talk()
    for i in range(1, count + 1):
        if i % 4 == 0:
            talk.tap.sent("client", produce(9, 1, i, "1", bytes(size)))
            talk.answer(wire.ProduceResponse(), 9, i)
        else:
            talk.ask(UPDATE, 5, i, "1")
            talk.answer(wire.UpdateMetadataResponse(), 5, i)
    talk.tap.close()
    return talk


def test_bytes_missing_inside_a_request_cost_only_its_body():
    talk = Talk()
    states = tuple(
        wire.UpdateMetadataTopicState(topic_name=f"topic-{i}" * 20, partition_states=()) for i in range(2000)
    )
    talk.ask(wire.UpdateMetadataRequest(controller_id=1, topic_states=states), 5, 1)
    talk.answer(wire.UpdateMetadataResponse(), 5, 1)
    talk.ask(UPDATE, 5, 2)
    talk.answer(wire.UpdateMetadataResponse(), 5, 2)
    messages, quality = talk.decode(lambda number: number != 5)  # the second of the request's packets
    assert outline(messages) == [("UpdateMetadata", 1), ("<-", 1), ("UpdateMetadata", 2), ("<-", 2)]
    assert messages[0].body is None
    assert messages[0].error == f"65000 of its {messages[0].frame_bytes} bytes are not in the capture"
    assert messages[2].error is None
    assert (quality.gaps, quality.gap_bytes, quality.undecodable, quality.skipped_bytes) == (1, 65000, 0, 0)


def test_every_single_lost_packet_costs_at_most_what_it_held():
    talk = long_talk()
    whole, _ = talk.decode()
    everything = set(outline(whole))
    assert len(everything) == 16
    packets = len(list(CaptureFile(io.BytesIO(talk.target.getvalue()))))
    for lost in range(1, packets + 1):
        messages, _ = talk.decode(lambda number, lost=lost: number != lost)
        got = outline(messages)
        assert set(got) <= everything, lost
        assert len(got) == len(set(got)), lost
        # without its request a response cannot be decoded, so it is lost, too
        assert len(everything) - len(got) <= 2, (lost, everything - set(got))


def test_joining_in_the_middle_finds_the_rest():
    talk = long_talk(count=12, size=1000)
    whole = outline(talk.decode()[0])
    packets = len(list(CaptureFile(io.BytesIO(talk.target.getvalue()))))
    for first in range(4, packets - 6):
        messages, quality = talk.decode(lambda number, first=first: number >= first)
        got = outline(messages)
        assert set(got) <= set(whole), first
        # complete from the next request on; requests are every second packet here
        rest = whole[first - 4 + (first % 2) :]
        assert set(got) >= set(rest), (first, set(rest) - set(got))
        assert quality.undecodable == 0


def test_joining_in_the_middle_finds_requests_that_the_snap_length_cut():
    """Each is cut, so none of them can be decoded, but a cut frame ends where its packet does, and is answered."""
    topics = tuple(wire.UpdateMetadataTopicState(topic_name=f"topic-{i}") for i in range(40))
    update = wire.UpdateMetadataRequest(controller_id=1, controller_epoch=3, topic_states=topics)
    talk = Talk()
    for number in range(4):
        talk.ask(update, 6, number, client_id="1")
        talk.answer(wire.UpdateMetadataResponse(), 6, number)
    messages, quality = talk.decode(lambda number: number > 5, snap=120)
    pairs = [("UpdateMetadata", number) if asked else ("<-", number) for number in (1, 2, 3) for asked in (True, False)]
    assert outline(messages) == pairs
    assert [m.head[:2] for m in messages if isinstance(m, Request)] == [(1, 3)] * 3
    assert (quality.other_connections, quality.skipped_bytes) == ({}, 0)


def test_a_long_response_whose_request_comes_late():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.answer(wire.UpdateMetadataResponse(), 5, 1)
    brokers = tuple(wire.MetadataResponseBroker(node_id=i, host="h" * 100, port=1) for i in range(800))
    answer = wire.MetadataResponse(brokers=brokers)
    talk.answer(answer, 9, 2)  # as if by a capture card that swaps packets
    talk.ask(METADATA, 9, 2)
    messages, quality = talk.decode()
    (late,) = [m for m in messages if not isinstance(m, Request) and m.request.correlation_id == 2]
    assert late.body == answer
    assert quality.sound


def test_a_response_that_was_captured_before_its_request():
    talk = long_talk(count=3)
    packets = list(CaptureFile(io.BytesIO(talk.target.getvalue())))
    packets[5], packets[6] = packets[6], packets[5]
    swapped = io.BytesIO()
    writer = PcapngWriter(swapped)
    for packet in packets:
        writer.packet(packet.time_ns, packet.link_type, packet.data)
    decoder = Decoder(CaptureFile(io.BytesIO(swapped.getvalue())))
    messages = list(decoder.messages())
    assert sorted(outline(messages)) == sorted(outline(talk.decode()[0]))
    assert [m.place.time_ns for m in messages] == sorted(m.place.time_ns for m in messages)
    assert decoder.quality.unmatched_responses == 0


def test_requests_from_before_the_capture_that_were_sent_again():
    talk = Talk()
    for correlation_id in (1, 2, 3):
        talk.ask(UPDATE, 5, correlation_id)
        talk.answer(wire.UpdateMetadataResponse(), 5, correlation_id)
    talk.ask(METADATA, 9, 4)
    packets = list(CaptureFile(io.BytesIO(talk.target.getvalue())))
    first, second = packets[3], packets[5]
    again = io.BytesIO()
    writer = PcapngWriter(again)
    late_ns = packets[-1].time_ns + 300_000_000
    for packet in (*packets[7:], first._replace(time_ns=late_ns), first._replace(time_ns=late_ns + 1),
                   second._replace(time_ns=late_ns + 2)):  # fmt: skip
        writer.packet(packet.time_ns, packet.link_type, packet.data)
    decoder = Decoder(CaptureFile(io.BytesIO(again.getvalue()), "x"))
    messages = list(decoder.messages())
    assert outline(messages) == [
        ("UpdateMetadata", 3),
        ("<-", 3),
        ("Metadata", 4),
        *[("UpdateMetadata", i) for i in (1, 2)],
    ]
    assert [m.answered for m in messages if isinstance(m, Request)] == [True, True, False, False]
    assert decoder.quality.unanswered == 1


def test_messages_come_in_the_order_of_their_packets_even_if_one_connection_has_to_wait():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.ask(UPDATE, 5, 2)
    talk.connect()
    talk.ask(UPDATE, 5, 7)
    packets = list(CaptureFile(io.BytesIO(talk.target.getvalue())))
    late = io.BytesIO()
    writer = PcapngWriter(late)
    latest = packets[3]._replace(time_ns=packets[-1].time_ns)
    for packet in (*packets[:3], *packets[4:], latest):  # the first request is captured last
        writer.packet(packet.time_ns, packet.link_type, packet.data)
    messages = list(Decoder(CaptureFile(io.BytesIO(late.getvalue()))).messages())
    assert [(m.correlation_id, m.place.packet) for m in messages] == [(2, 4), (7, 8), (1, 9)]


def test_requests_that_wait_at_the_end_are_unanswered_and_strangers_are_counted():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.tap.sent("server", wire.frame(struct.pack(">i", 77) + bytes(2)))
    messages, quality = talk.decode()
    assert outline(messages) == [("UpdateMetadata", 1)]
    assert (quality.unanswered, quality.unmatched_responses) == (1, 1)


def test_a_frame_broken_off_is_reported():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.tap.sent("client", struct.pack(">i", 100) + bytes(50))
    _, quality = talk.decode()
    assert quality.unfinished == 1


def test_a_packet_full_of_broken_lengths_is_got_through():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    frame = wire.frame(wire.encode_request(METADATA, api_version=9, correlation_id=1, client_id="client"))
    rounds = [
        struct.pack(">i", -1) + frame[:8] + struct.pack(">i", correlation_id) + frame[12:]
        for correlation_id in range(2, 1200)
    ]
    talk.tap.sent("client", b"".join(rounds))
    messages, quality = talk.decode()
    assert [m.correlation_id for m in messages] == list(range(1, 1200))
    assert quality.bad_lengths == 1198
    assert len(quality.notes) == 20


def test_given_ports_tell_who_the_client_is_and_leave_others_out():
    """Mid-stream, and what the broker sends looks like requests: it is a response with Kafka's own traffic in it."""
    talk = Talk()
    for correlation_id in (1, 2):
        request = wire.encode_request(UPDATE, api_version=5, correlation_id=correlation_id, client_id="mirrored")
        talk.tap.sent("server", wire.frame(request))
    talk.ask(UPDATE, 5, 7, "1")
    talk.answer(wire.UpdateMetadataResponse(), 5, 7)
    packets = list(CaptureFile(io.BytesIO(talk.target.getvalue())))[3:]
    mid_stream = io.BytesIO()
    writer = PcapngWriter(mid_stream)
    for packet in packets:
        writer.packet(packet.time_ns, packet.link_type, packet.data)

    def read(*ports):
        decoder = Decoder(CaptureFile(io.BytesIO(mid_stream.getvalue()), "x"), dict.fromkeys(ports, ""))
        return [m.correlation_id for m in decoder.messages() if isinstance(m, Request)], decoder.quality

    assert read()[0] == [7]  # the other side answers
    assert read(SERVER[1])[0] == [7]
    found, quality = read(SERVER[1] + 1)
    assert (found, quality.other_packets) == ([], {"TCP of other ports": len(packets)})


events = st.lists(
    st.one_of(
        st.builds(Data, st.integers(0, 1), st.binary(min_size=1, max_size=60), st.builds(place, st.integers(1, 99))),
        st.builds(
            lambda side, key, version, rest: Data(side, wire.frame(header(key, version, 5) + rest), place(1)),
            st.integers(0, 1), st.integers(-1, 90), st.integers(-1, 20), st.binary(max_size=40),
        ),
        st.builds(Gap, st.integers(0, 1), st.integers(1, 300)),
    ),
    max_size=20,
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(events, st.sampled_from([None, 0, 1]))
def test_nonsense_never_raises(happened, client):
    connection = Connection(1, ((b"aaaa", 1), (b"bbbb", 2)), 0)
    connection.client = client
    conversation = Conversation(connection)
    for event in (*happened, End()):
        for message in conversation.receive(event):
            assert message is not None
    assert not conversation.quality.requests or conversation.quality.connections == 1


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_mutated_captures_raise_nothing_but_capture_error(data):
    whole = bytearray(unzipped("kafka-3.9.1-zombie")[:60_000])
    for _ in range(data.draw(st.integers(1, 30))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoder = Decoder(CaptureFile(io.BytesIO(bytes(whole))))
        for _ in decoder.messages():
            pass
        decoder.quality.lines()
    except CaptureError:
        pass


@pytest.mark.parametrize("name", ["kafka-3.9.1-tour", "kafka-0.10.2.2-tour"])
@pytest.mark.parametrize("seed", range(3))
def test_lost_and_swapped_packets_of_real_traffic_invent_nothing(name, seed):
    rng = random.Random(seed)
    with CaptureFile(CAPTURES[name]) as capture:
        packets = list(capture)

    def decode(packets):
        out = io.BytesIO()
        writer = PcapngWriter(out)
        for packet in packets:
            writer.packet(packet.time_ns, packet.link_type, packet.data)
        decoder = Decoder(CaptureFile(io.BytesIO(out.getvalue())))
        return {
            (
                type(m).__name__,
                *((m if isinstance(m, Request) else m.request).peers.client),
                m.frame_bytes,
                outline([m])[0],
            )
            for m in decoder.messages()
        }

    whole = decode(packets)
    kept = [packet for packet in packets if rng.random() > 0.01]
    for _ in range(40):
        at = rng.randrange(len(kept) - 3)
        kept.insert(at, kept.pop(at + rng.randrange(1, 3)))
    got = decode(kept)
    assert got <= whole
    assert len(whole) - len(got) <= 3 * (len(packets) - len(kept))
    swapped = packets.copy()
    for _ in range(40):
        at = rng.randrange(len(swapped) - 3)
        swapped.insert(at, swapped.pop(at + rng.randrange(1, 3)))
    assert decode(swapped) == whole


def test_joining_inside_records_that_hold_requests_invents_none():
    """A Produce of many packets whose records are LeaderAndIsr requests, one behind the other, up to a packet's end."""
    talk = Talk()
    carried = b""
    for correlation_id in range(1000, 1200):
        carried += wire.frame(wire.encode_request(UPDATE, api_version=5, correlation_id=correlation_id, client_id="7"))
    talk.tap.sent("client", produce(9, 1, 1, records=bytes(70_000) + carried))
    talk.answer(wire.ProduceResponse(), 9, 1)
    for correlation_id in (2, 3):
        talk.tap.sent("client", produce(9, 1, correlation_id))
        talk.answer(wire.ProduceResponse(), 9, correlation_id)
    messages, quality = talk.decode(lambda number: number > 4)
    assert outline(messages) == [("Produce", 2), ("<-", 2), ("Produce", 3), ("<-", 3)]
    assert quality.undecodable == 0


def test_many_responses_wait_for_the_stream_of_requests():
    """One request of 500 is captured last but for a gap: more responses than that wait for theirs."""
    talk = Talk()
    for correlation_id in range(500):
        talk.ask(METADATA, 9, correlation_id)
        talk.answer(wire.MetadataResponse(), 9, correlation_id)
    messages, quality = talk.decode(lambda number: number != 4)  # the first request
    assert sum(isinstance(m, Response) for m in messages) == 499
    assert quality.unmatched_responses == 1


def test_early_responses_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(pairing, "MAX_EARLY_BYTES", 20_000)
    talk = Talk()
    for correlation_id in range(100):
        talk.ask(METADATA, 9, correlation_id)
        talk.answer(wire.MetadataResponse(cluster_id="x" * 1000), 9, correlation_id)
    messages, quality = talk.decode(lambda number: number != 4)
    responses = [m for m in messages if isinstance(m, Response)]
    # the first are whole, of others only the beginning is kept, and in the end the oldest are dropped
    assert 0 < len(responses) < 99
    assert quality.unmatched_responses == 100 - len(responses)
    assert any("too many to keep" in (m.error or "") for m in responses)


@pytest.mark.parametrize("size", [255, 256, 1000, 32_767])
def test_client_ids_may_be_long(size):
    talk = Talk()
    for correlation_id in range(3):
        talk.ask(METADATA, 9, correlation_id, "c" * size)
        talk.answer(wire.MetadataResponse(), 9, correlation_id)
    messages, _ = talk.decode()
    assert len(messages) == 6
    assert {m.client_id for m in messages if isinstance(m, Request)} == {"c" * size}
    if size <= 1000:
        assert len(talk.decode(lambda number: number > 4)[0]) == 4  # joined in the middle
