"""Which connections are Kafka's, what is said in them, which answer belongs to which question."""

from __future__ import annotations

import io
import itertools
import random
import struct
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.protocol import serialization

import wire
from captures import framing
from captures.cluster import Cluster
from captures.decode import Decoder
from captures.errors import CaptureError
from captures.exchanges import Conversation, Request
from captures.pcap import CaptureFile
from captures.pcapng_writer import PcapngWriter
from captures.recognise import Verdict
from captures.recorder import MAX_SEGMENT_BYTES, Recorder
from captures.render import Renderer, json_line
from captures.segments import Place
from captures.tcp_directions import Data, End, Gap
from captures.tcp_streams import Connection
from tests.captures.samples import CAPTURES, unzipped

CLIENT, SERVER = ("127.0.0.1", 40001), ("127.0.0.1", 9093)


class Talk:
    """A capture in the making: one connection after the other, and what is then decoded of it."""

    def __init__(self):
        self.target = io.BytesIO()
        self.recorder = Recorder(self.target, clock=itertools.count(10**18, 1_000_000).__next__)
        self.ports = itertools.count(40001)
        self.connect()

    def connect(self):
        self.tap = self.recorder.connection(("127.0.0.1", next(self.ports)), SERVER)
        return self.tap

    def ask(self, message, version, correlation_id, client_id="client"):
        frame = wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=client_id)
        self.tap.client_to_server(wire.frame(frame))

    def answer(self, message, version, correlation_id):
        frame = wire.encode_response(message, api_version=version, correlation_id=correlation_id)
        self.tap.server_to_client(wire.frame(frame))

    def decode(self, keep=lambda number: True):
        """(messages, quality) of the packets that ``keep`` keeps."""
        packets = list(CaptureFile(io.BytesIO(self.target.getvalue())))
        kept = io.BytesIO()
        writer = PcapngWriter(kept)
        for packet in packets:
            if keep(packet.number):
                writer.packet(packet.time_ns, packet.link_type, packet.data, packet.wire_bytes)
        decoder = Decoder(CaptureFile(io.BytesIO(kept.getvalue()), "x"))
        return list(decoder.messages()), decoder.quality


def told(messages):
    """Requests as (api, correlation id), responses as (api, correlation id, its request's correlation id)."""
    return [
        (m.api_name, m.correlation_id) if isinstance(m, Request) else ("<-", m.request.correlation_id) for m in messages
    ]


def header(key, version, correlation_id, client_id="client", flexible=False):
    text = client_id.encode()
    return struct.pack(">hhih", key, version, correlation_id, len(text)) + text + (b"\x00" if flexible else b"")


def produce(version, acks, correlation_id, client_id="client", records=bytes(100)):
    """The frame of a Produce request; what its records hold is nobody's business here."""
    partition = wire.PartitionProduceData(records=records)
    message = wire.ProduceRequest(
        acks=acks, timeout_ms=1500, topic_data=(wire.TopicProduceData(name="orders", partition_data=(partition,)),)
    )
    return wire.frame(
        wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=client_id)
    )


METADATA = wire.MetadataRequest(topics=())
UPDATE = wire.UpdateMetadataRequest(controller_id=1, controller_epoch=3)


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 11])
def test_produce_without_acks_is_not_answered_and_shifts_nothing(version):
    talk = Talk()
    talk.tap.client_to_server(produce(version, 0, 1))
    talk.ask(METADATA, 9, 2)
    talk.tap.client_to_server(produce(version, 1, 3))
    talk.answer(wire.MetadataResponse(), 9, 2)
    talk.answer(wire.ProduceResponse(), version, 3)
    messages, quality = talk.decode()
    assert told(messages) == [("Produce", 1), ("Metadata", 2), ("Produce", 3), ("<-", 2), ("<-", 3)]
    assert [m.answered for m in messages if isinstance(m, Request)] == [False, True, True]
    assert (quality.unanswered, quality.undecodable, quality.lines()) == (0, 0, [])


def test_apis_without_a_body_here_have_their_header_decoded():
    talk = Talk()
    talk.tap.client_to_server(wire.frame(header(74, 0, 7, "me", flexible=True) + b"whatever"))
    talk.tap.server_to_client(wire.frame(struct.pack(">i", 7) + b"whatever"))
    (request, response), quality = talk.decode()
    assert (request.api_name, request.version, request.client_id, request.body, request.error) == (
        "ListClientMetricsResources", 0, "me", None, None,
    )  # fmt: skip
    assert (response.body, response.error, response.latency_ns) == (None, None, 1_000_000)
    assert quality.undecodable == 0


def test_bytes_left_over_behind_a_body_are_told_and_no_failure():
    """librdkafka ends its Metadata 12 in one byte too many; Kafka takes no offence."""
    talk = Talk()
    frame = wire.encode_request(METADATA, api_version=12, correlation_id=1, client_id="rdkafka")
    talk.tap.client_to_server(wire.frame(frame + b"\0"))
    answer = wire.encode_response(wire.MetadataResponse(controller_id=4), api_version=12, correlation_id=1)
    talk.tap.server_to_client(wire.frame(answer + b"???"))
    (request, response), quality = talk.decode()
    assert (request.body, request.client_id, request.error, request.left_over) == (METADATA, "rdkafka", None, 1)
    assert (response.body.controller_id, response.error, response.left_over) == (4, None, 3)
    assert quality.sound
    assert quality.lines() == ["2 messages with bytes behind the body, which Kafka ignores"]
    assert Renderer(Cluster()).line(response).endswith("3 bytes left over behind the body")


def test_bytes_left_over_inside_a_tagged_field_are_a_failure():
    talk = Talk()
    good = wire.encode_request(wire.UpdateMetadataRequest(type=2), api_version=8, correlation_id=1, client_id="1")
    assert good.endswith(b"\x01\x00\x01\x02")
    talk.tap.client_to_server(wire.frame(good[:-2] + b"\x02\x02\x02"))
    (request,), quality = talk.decode()
    assert (request.body, request.left_over, quality.undecodable) == (None, 0, 1)
    assert "1 bytes left over in tagged field 0" in request.error


def test_neither_records_nor_credentials_are_shown():
    secret = b"s3cret-payload"
    talk = Talk()
    talk.tap.client_to_server(produce(9, 1, 1, records=secret))
    talk.ask(wire.SaslAuthenticateRequest(auth_bytes=secret), 2, 2)
    talk.ask(wire.RenewDelegationTokenRequest(hmac=secret), 2, 3)
    upsert = wire.ScramCredentialUpsertion(name="alice", salt=secret, salted_password=secret)
    talk.ask(wire.AlterUserScramCredentialsRequest(upsertions=(upsert,)), 0, 4)
    talk.ask(wire.EnvelopeRequest(request_data=secret), 0, 5)
    messages, _ = talk.decode()
    assert [m.error for m in messages] == [None] * 5
    for message in messages:
        for text in (json_line(message, Cluster()), Renderer(Cluster()).line(message)):
            assert secret.hex() not in text
            assert secret.decode() not in text
        assert '{"bytes":14' in json_line(message, Cluster())


def test_unknown_apis_and_versions_are_told_and_keep_their_place():
    talk = Talk()
    talk.ask(METADATA, 9, 1)
    talk.tap.client_to_server(wire.frame(header(999, 1, 2)))
    talk.tap.client_to_server(wire.frame(header(4, 42, 3, flexible=True) + b"future"))
    talk.answer(wire.MetadataResponse(), 9, 1)
    talk.tap.server_to_client(wire.frame(struct.pack(">i", 2)))
    talk.tap.server_to_client(wire.frame(struct.pack(">i", 3) + b"\x00future"))
    messages, quality = talk.decode()
    assert told(messages) == [
        ("Metadata", 1),
        ("Unknown(999)", 2),
        ("LeaderAndIsr", 3),
        ("<-", 1),
        ("<-", 2),
        ("<-", 3),
    ]
    assert [m.error for m in messages] == [
        None, "no API has key 999", "LeaderAndIsr has versions 0-7, not 42", None, None,
        "LeaderAndIsr has versions 0-7, not 42",
    ]  # fmt: skip
    assert quality.undecodable == 3
    assert not quality.sound


def test_a_refused_api_versions_is_read_as_version_0():
    talk = Talk()
    talk.tap.client_to_server(wire.frame(header(18, 9, 1, flexible=True) + b"\x05kcat\x02"))
    talk.answer(wire.ApiVersionsResponse(error_code=35), 9, 1)
    (request, response), quality = talk.decode()
    assert (request.version, request.error) == (9, None)
    assert (response.version, response.body.error_code) == (0, 35)
    assert quality.sound


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame[:-3],
        lambda frame: frame[:-8] + b"\x7f\xff\xff\xff" + frame[-4:],  # array count 2^31-1
    ],
)
def test_bodies_that_cannot_be_decoded_say_so(spoil):
    talk = Talk()
    good = wire.encode_request(UPDATE, api_version=0, correlation_id=1, client_id="1")
    talk.tap.client_to_server(wire.frame(spoil(good)))
    talk.tap.server_to_client(wire.frame(struct.pack(">i", 1) + b"\x00"))
    (request, response), quality = talk.decode()
    assert request.body is None
    assert "UpdateMetadataRequest 0" in request.error
    assert response.body is None
    assert "UpdateMetadataResponse 0" in response.error
    assert (request.client_id, quality.undecodable) == ("1", 2)


@pytest.mark.parametrize("length", [2**31 - 1, -1, -(2**31), 0, 3])
def test_an_impossible_frame_length_is_told_and_survived(length):
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.answer(wire.UpdateMetadataResponse(), 5, 1)
    talk.tap.client_to_server(struct.pack(">i", length) + b"\x00\x05garbage")
    talk.ask(UPDATE, 5, 2)
    talk.answer(wire.UpdateMetadataResponse(), 5, 2)
    messages, quality = talk.decode()
    assert told(messages) == [("UpdateMetadata", 1), ("<-", 1), ("UpdateMetadata", 2), ("<-", 2)]
    assert quality.bad_lengths == 1
    assert any(f"packet 6 of x: a frame that announces {length} bytes" in line for line in quality.lines())
    assert not quality.sound


@pytest.mark.parametrize("length", [2**31 - 1, -1])
def test_a_connection_that_begins_with_an_impossible_length_is_not_kafka(length):
    talk = Talk()
    talk.tap.client_to_server(struct.pack(">i", length) + b"\x00\x05\x00\x01")
    messages, quality = talk.decode()
    assert messages == []
    assert quality.lines() == ["no Kafka traffic was found, but 1 connection of unrecognised"]


# what is not Kafka


def zookeeper_conversation():
    """As kazoo writes it, and as ZooKeeper answers."""
    connect = serialization.Connect(0, 0, 10000, 0, bytes(16), False).serialize()
    yield "client", struct.pack(">i", len(connect)) + connect
    yield "server", struct.pack(">iiiqi", 37, 0, 10000, 77, 16) + bytes(17)
    for xid, path in enumerate(["/brokers/ids", "/controller", "/brokers/topics", "/controller_epoch"], 1):
        for request in (serialization.GetData(path, None), serialization.Exists(path, None)):
            body = struct.pack(">ii", xid, request.type) + request.serialize()
            yield "client", struct.pack(">i", len(body)) + body
            yield "server", struct.pack(">iiqi", 16 + 40, xid, 99, 0) + bytes(40)
    yield "client", struct.pack(">iii", 8, -2, 11)  # a ping


OTHERS = {
    "ZooKeeper": list(zookeeper_conversation()),
    "HTTP": [("client", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ("server", b"HTTP/1.1 200 OK\r\n\r\n" + bytes(500))],
    "TLS": [("client", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(500)), ("server", b"\x16\x03\x03\x00\x7a")],
    "SSH": [("server", b"SSH-2.0-OpenSSH_9.2\r\n"), ("client", b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(1000))],
    "unrecognised": [("client", bytes(5000)), ("server", bytes(5000))],
}  # fmt: skip


@pytest.mark.parametrize("protocol", OTHERS)
def test_other_protocols_are_left_alone(protocol):
    talk = Talk()
    for side, data in OTHERS[protocol]:
        talk.tap.sent(side, data)
    talk.connect()
    talk.ask(UPDATE, 5, 1)
    messages, quality = talk.decode()
    assert told(messages) == [("UpdateMetadata", 1)]
    assert quality.other_connections == {protocol: 1}
    assert f"left alone, for they are not Kafka: 1 connection of {protocol}" in quality.lines()


@pytest.mark.parametrize("protocol", OTHERS)
def test_other_protocols_are_left_alone_from_the_middle_on(protocol):
    talk = Talk()
    for side, data in OTHERS[protocol]:
        talk.tap.sent(side, data)
    for first in range(4, 4 + len(OTHERS[protocol])):
        messages, quality = talk.decode(lambda number, first=first: number >= first)
        assert messages == []
        assert quality.requests == 0


def test_a_connection_without_data_is_nothing():
    talk = Talk()
    talk.tap.close()
    messages, quality = talk.decode()
    assert (messages, quality.other_connections) == ([], {})


def test_much_data_of_something_else_is_not_kept():
    rng = random.Random(7)
    talk = Talk()
    for _ in range(100):
        talk.tap.client_to_server(rng.randbytes(60_000))
    messages, quality = talk.decode(lambda number: number > 3)
    assert (messages, dict(quality.other_connections)) == ([], {"unrecognised": 1})


# KRaft


@pytest.mark.parametrize(
    ("key", "name"), [(62, "BrokerRegistration"), (63, "BrokerHeartbeat"), (52, "Vote"), (59, "FetchSnapshot")]
)
def test_kraft_traffic_is_named(key, name):
    talk = Talk()
    talk.tap.client_to_server(wire.frame(header(key, 0, 1, "broker-1", flexible=True) + bytes(20)))
    (request,), quality = talk.decode()
    assert (request.api_name, request.body) == (name, None)
    assert quality.kraft == {name: 1}
    assert f"this capture holds KRaft traffic ({name}): there is no ZooKeeper-mode controller in it" in quality.lines()
    assert not quality.sound


@pytest.mark.parametrize("version", [12, 13, 14, 15, 17])
@pytest.mark.parametrize("quorum", [True, False])
def test_a_fetch_of_the_metadata_log_is_kraft_traffic(version, quorum):
    body = header(1, version, 1, "raft-client-1", flexible=True)
    if version < 15:
        body += struct.pack(">i", 1)  # replica id
    body += struct.pack(">iiibii", 500, 0, 8 * 1024 * 1024, 0, 0, -1)
    if version < 13:
        topic = b"__cluster_metadata" if quorum else b"orders"
        body += b"\x02" + bytes([len(topic) + 1]) + topic
    else:
        body += b"\x02" + (uuid.UUID(int=1) if quorum else uuid.UUID(int=2**100)).bytes
    talk = Talk()
    talk.tap.client_to_server(wire.frame(body + bytes(40)))
    _, quality = talk.decode()
    assert quality.kraft == ({"Fetch": 1} if quorum else {})


# SASL before SaslAuthenticate


def test_bare_sasl_tokens_are_no_requests():
    talk = Talk()
    talk.tap.client_to_server(wire.frame(header(17, 0, 1) + b"\x00\x05PLAIN"))
    talk.tap.server_to_client(wire.frame(struct.pack(">i", 1) + bytes(6)))
    talk.tap.client_to_server(wire.frame(b"\x00alice\x00secret"))
    talk.tap.server_to_client(wire.frame(bytes(4)))
    talk.ask(METADATA, 9, 2)
    talk.answer(wire.MetadataResponse(), 9, 2)
    messages, quality = talk.decode()
    assert told(messages) == [("SaslHandshake", 1), ("<-", 1), ("Metadata", 2), ("<-", 2)]
    assert quality.sound


# what is missing


def long_talk(count=8, size=300_000):
    """Exchanges of which every fourth request is a Produce of many packets."""
    talk = Talk()
    for i in range(1, count + 1):
        if i % 4 == 0:
            talk.tap.client_to_server(produce(9, 1, i, "1", bytes(size)))
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
    assert told(messages) == [("UpdateMetadata", 1), ("<-", 1), ("UpdateMetadata", 2), ("<-", 2)]
    assert messages[0].body is None
    assert messages[0].error == f"65000 of its {messages[0].frame_bytes} bytes are not in the capture"
    assert messages[2].error is None
    assert (quality.gaps, quality.gap_bytes, quality.undecodable, quality.skipped_bytes) == (1, 65000, 0, 0)


def test_every_single_lost_packet_costs_at_most_what_it_held():
    talk = long_talk()
    whole, _ = talk.decode()
    everything = set(told(whole))
    assert len(everything) == 16
    packets = len(list(CaptureFile(io.BytesIO(talk.target.getvalue()))))
    for lost in range(1, packets + 1):
        messages, _ = talk.decode(lambda number, lost=lost: number != lost)
        got = told(messages)
        assert set(got) <= everything, lost
        assert len(got) == len(set(got)), lost
        # of a lost request the response is lost, too: nothing tells any more what it is
        assert len(everything) - len(got) <= 2, (lost, everything - set(got))


def test_joining_in_the_middle_finds_the_rest():
    talk = long_talk(count=12, size=1000)
    whole = told(talk.decode()[0])
    packets = len(list(CaptureFile(io.BytesIO(talk.target.getvalue()))))
    for first in range(4, packets - 6):
        messages, quality = talk.decode(lambda number, first=first: number >= first)
        got = told(messages)
        assert set(got) <= set(whole), first
        # complete from the next request on; requests are every second packet here
        rest = whole[first - 4 + (first % 2) :]
        assert set(got) >= set(rest), (first, set(rest) - set(got))
        assert quality.undecodable == 0


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
    assert sorted(told(messages)) == sorted(told(talk.decode()[0]))
    assert [m.place.packet for m in messages] == sorted(m.place.packet for m in messages)
    assert decoder.quality.unmatched_responses == 0


@pytest.mark.parametrize(("client_id", "correlation_id"), [("other", 3), ("client", 1), ("client", 2_000_000)])
def test_a_request_inside_a_record_is_none(client_id, correlation_id):
    """A packet of a Produce request begins with what looks like a request, and the packet before it is missing."""
    nested = wire.frame(wire.encode_request(UPDATE, api_version=5, correlation_id=correlation_id, client_id=client_id))
    talk = Talk()
    talk.ask(METADATA, 9, 1)
    talk.answer(wire.MetadataResponse(), 9, 1)
    head = produce(9, 1, 2, records=b"")
    payload = bytes(MAX_SEGMENT_BYTES - len(head)) + nested + bytes(1000)
    talk.tap.client_to_server(wire.frame((head + payload)[4:]))
    talk.ask(METADATA, 9, 3)
    messages, _ = talk.decode(lambda number: number != 6)
    assert told(messages) == [("Metadata", 1), ("<-", 1), ("Metadata", 3)]


def test_a_response_inside_a_record_is_none():
    """Behind a gap stands what could be the awaited response, with more behind it up to where a packet ends."""
    talk = Talk()
    talk.ask(wire.FetchRequest(topics=()), 11, 1)
    could_be = struct.pack(">ii", 504, 1) + bytes(500)
    partition = wire.FetchableTopicResponse(
        topic="orders", partitions=(wire.FetchResponsePartitionData(records=bytes(100) + could_be),)
    )
    frame = wire.frame(
        wire.encode_response(wire.FetchResponse(responses=(partition,)), api_version=11, correlation_id=1)
    )
    talk.tap.server_to_client(frame[:90])
    talk.tap.server_to_client(frame[90:])
    for correlation_id in (2, 3):
        talk.ask(METADATA, 9, correlation_id)
        talk.answer(wire.MetadataResponse(), 9, correlation_id)
    assert told(talk.decode()[0])[1] == ("<-", 1)
    messages, _ = talk.decode(lambda number: number != 5)
    assert told(messages) == [("Fetch", 1), ("Metadata", 2), ("<-", 2), ("Metadata", 3), ("<-", 3)]


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
    assert told(messages) == [
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
    for packet in (*packets[:3], *packets[4:], packets[3]):  # the first request is captured last
        writer.packet(packet.time_ns, packet.link_type, packet.data)
    messages = list(Decoder(CaptureFile(io.BytesIO(late.getvalue()))).messages())
    assert [(m.correlation_id, m.place.packet) for m in messages] == [(2, 4), (7, 8), (1, 9)]


def test_requests_that_wait_at_the_end_are_unanswered_and_strangers_are_counted():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.tap.server_to_client(wire.frame(struct.pack(">i", 77) + bytes(2)))
    messages, quality = talk.decode()
    assert told(messages) == [("UpdateMetadata", 1)]
    assert (quality.unanswered, quality.unmatched_responses) == (1, 1)


def test_a_frame_broken_off_is_told():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    talk.tap.client_to_server(struct.pack(">i", 100) + bytes(50))
    _, quality = talk.decode()
    assert quality.unfinished == 1


# frames


def place(number):
    return Place(number, number, number, "x")


def never(*_):
    raise AssertionError("the stream was never lost")


@settings(deadline=None)
@given(st.lists(st.binary(min_size=4, max_size=60), max_size=8), st.lists(st.integers(1, 9), min_size=1))
def test_frames_come_out_however_the_bytes_come_in(payloads, sizes):
    stream = b"".join(wire.frame(payload) for payload in payloads)
    framer = framing.Framer(never, never)
    frames, at = [], 0
    for number, size in enumerate(itertools.cycle(sizes), 1):
        if at >= len(stream):
            break
        frames += framer.data(stream[at : at + size], place(number))
        at += size
    assert [frame.payload for frame in frames] == payloads
    framer.finish()
    assert not framer.unfinished


@pytest.mark.parametrize("end", ["gap", "end of the capture"])
def test_between_what_is_missing_everything_is_recognised(end):
    """Mid-stream, a packet begins with what could be the header of a long request: it is not waited for in vain."""
    talk = Talk()
    fake = struct.pack(">ihhih", 60_000, 6, 5, 9, 2) + b"me"
    first = talk.tap
    first.client_to_server(b"joined in the middle of a frame" + bytes(50))
    first.client_to_server(fake + bytes(30))
    for correlation_id in (7, 8):
        talk.ask(UPDATE, 5, correlation_id, "1")
    lost = []
    if end == "gap":
        first.client_to_server(bytes(100))
        lost.append(11)
        talk.ask(UPDATE, 5, 10, "1")
    messages, _ = talk.decode(lambda number: number > 3 and number not in lost)
    assert [m.correlation_id for m in messages] == ([7, 8, 10] if end == "gap" else [7, 8])


def test_a_packet_full_of_broken_lengths_is_got_through():
    talk = Talk()
    talk.ask(UPDATE, 5, 1)
    frame = wire.frame(wire.encode_request(METADATA, api_version=9, correlation_id=1, client_id="client"))
    rounds = [
        struct.pack(">i", -1) + frame[:8] + struct.pack(">i", correlation_id) + frame[12:]
        for correlation_id in range(2, 1200)
    ]
    talk.tap.client_to_server(b"".join(rounds))
    messages, quality = talk.decode()
    assert [m.correlation_id for m in messages] == list(range(1, 1200))
    assert quality.bad_lengths == 1198
    assert len(quality.notes) == 20


def test_of_a_long_frame_that_nobody_reads_only_the_head_is_kept(monkeypatch):
    monkeypatch.setattr(framing, "HEAD_BYTES", 100)
    asked = []
    for wanted in (True, False):
        framer = framing.Framer(never, lambda head, length, wanted=wanted: asked.append((len(head), length)) or wanted)
        stream = wire.frame(bytes(1000))
        frames = []
        for i in range(0, len(stream), 70):
            frames += framer.data(stream[i : i + 70], place(i))
        assert [(len(frame.payload), frame.length, frame.lost) for frame in frames] == [
            (1000 if wanted else 100, 1000, 0)
        ]
    assert asked == [(100, 1000), (100, 1000)]


def test_what_was_passed_over_before_a_gap_is_recognised_when_its_requests_have_come(monkeypatch):
    known = []

    def find(buffer, _begin, _borders, _final):
        at = [buffer.find(frame) for frame in known if frame in buffer]
        return (Verdict.YES, min(at)) if at else (Verdict.MORE, len(buffer))

    frames = [wire.frame(bytes([i]) * 8) for i in range(5)]

    def fed():
        known.clear()
        framer = framing.Framer(find, lambda _head, _length: True, lost=True, patient=True)
        for number, piece in enumerate([b"xy" + frames[0] + frames[1][:-3], 5, 6, frames[2] + frames[3], 7, frames[4]]):
            assert (framer.gap(piece) if isinstance(piece, int) else framer.data(piece, place(number))) == []
        return framer

    framer = fed()
    assert framer.search() == []
    known[:] = frames
    assert [(frame.payload[0], frame.lost) for frame in framer.search()] == [(0, 0), (1, 3), (2, 0), (3, 0), (4, 0)]
    assert (framer.skipped, framer.waiting) == (2, False)
    framer = fed()
    known[:] = frames[3:]  # what is before it will not be recognised any more: Kafka answers in order
    assert [frame.payload[0] for frame in framer.search()] == [3, 4]
    assert framer.skipped == 2 + 12 + 9 + 12
    monkeypatch.setattr(framing, "MAX_LOST_BYTES", 30)
    framer = fed()
    assert framer.finish() == []
    assert framer.skipped == 2 + 12 + 9 + 12 * 3


def test_what_cannot_be_a_frame_does_not_swallow_what_follows():
    def find(buffer, _begin, _borders, _final):
        at = buffer.find(b"good") - 4
        return (Verdict.YES, at) if at >= 0 else (Verdict.MORE, len(buffer))

    framer = framing.Framer(find, lambda _head, _length: True, believes=lambda head: head == b"good")
    good = wire.frame(b"good" + bytes(60))
    taken = framer.data(good + struct.pack(">i", 1_000_000) + b"ba", place(1))
    assert [frame.payload for frame in taken] == [good[4:]]
    assert framer.data(b"d!" + bytes(40), place(2)) == []
    assert framer.searching
    taken = framer.data(bytes(10) + good[:9], place(3)) + framer.data(good[9:], place(4))
    assert [(frame.payload, frame.place.packet) for frame in taken] == [(good[4:], 4)]
    assert framer.skipped == 4 + 4 + 40 + 10


def test_the_place_of_a_frame_is_the_last_packet_that_carried_a_byte_of_it():
    framer = framing.Framer(never, never)
    data = wire.frame(b"abcdefgh")
    assert framer.data(data[:6], place(9)) == []
    (frame,) = framer.data(data[6:], place(4))  # retransmitted out of order
    assert frame.place.packet == 9


def test_given_ports_tell_who_the_client_is_and_leave_others_out():
    """Mid-stream, and what the broker sends looks like requests: it is a response with Kafka's own traffic in it."""
    talk = Talk()
    for correlation_id in (1, 2):
        request = wire.encode_request(UPDATE, api_version=5, correlation_id=correlation_id, client_id="mirrored")
        talk.tap.server_to_client(wire.frame(request))
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

    assert read()[0] == [1, 2]
    assert read(SERVER[1])[0] == [7]
    found, quality = read(SERVER[1] + 1)
    assert (found, quality.other_packets) == ([], {"TCP of other ports": len(packets)})


def test_names_cannot_take_over_a_terminal_or_break_a_line():
    state = wire.UpdateMetadataTopicState(
        topic_name="\x1b[2Jevil\nkce: all is well",
        partition_states=(wire.UpdateMetadataPartitionState(partition_index=0),),
    )
    talk = Talk()
    talk.ask(wire.UpdateMetadataRequest(topic_states=(state,)), 5, 1, client_id="me")
    (request,), _ = talk.decode()
    line = Renderer(Cluster()).line(request)
    assert line.isprintable()
    assert r"\x1b[2Jevil\nkce: all is well-0 leader 0" in line


# whatever the bytes


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


@settings(max_examples=400, deadline=None)
@given(events, st.sampled_from([None, 0, 1]))
def test_nonsense_never_raises(happened, client):
    connection = Connection(1, ((b"aaaa", 1), (b"bbbb", 2)), 0)
    connection.client = client
    conversation = Conversation(connection)
    for event in (*happened, End()):
        for message in conversation.receive(event):
            assert message is not None
    assert not conversation.quality.requests or conversation.quality.connections == 1


@settings(max_examples=60, deadline=None)
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
                told([m])[0],
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
