"""Which connections are Kafka's, and where a message begins behind a gap."""

from __future__ import annotations

import random
import struct
import uuid

import pytest
from kazoo.protocol import serialization

from kce import wire
from kce.captures.record.recorder import MAX_SEGMENT_BYTES
from tests.captures.exchanges.dialogue import METADATA, UPDATE, Talk, header, outline, produce


@pytest.mark.parametrize("length", [2**31 - 1, -1])
def test_a_connection_that_begins_with_an_impossible_length_is_not_kafka(length):
    talk = Talk()
    talk.tap.sent("client", struct.pack(">i", length) + b"\x00\x05\x00\x01")
    messages, quality = talk.decode()
    assert messages == []
    assert quality.lines() == ["no Kafka traffic was found, but 1 connection of an unknown protocol"]


def zookeeper_conversation():
    """Requests encoded by kazoo, and ZooKeeper's responses."""
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
    assert outline(messages) == [("UpdateMetadata", 1)]
    assert quality.other_connections == {protocol: 1}
    said = "an unknown protocol" if protocol == "unrecognised" else protocol
    assert f"not Kafka: 1 connection of {said}" in quality.lines()


def test_a_startup_message_of_postgresql_is_no_request():
    """Its version reads as Metadata 0, the name of the user as the length of a client id, which has zeros."""
    startup = struct.pack(">hh", 3, 0) + b"user\x00app\x00database\x00orders\x00" + b"options\x00-c x\x00" * 9 + b"\x00"
    talk = Talk()
    talk.tap.sent("client", struct.pack(">i", 4 + len(startup)) + startup)
    talk.tap.sent("server", b"R\x00\x00\x00\x08\x00\x00\x00\x03")
    messages, quality = talk.decode()
    assert (messages, quality.other_connections) == ([], {"unrecognised": 1})


@pytest.mark.parametrize("protocol", OTHERS)
def test_other_protocols_are_left_alone_from_the_middle_on(protocol):
    talk = Talk()
    for side, data in OTHERS[protocol]:
        talk.tap.sent(side, data)
    for first in range(4, 4 + len(OTHERS[protocol])):
        messages, quality = talk.decode(lambda number, first=first: number >= first)
        assert messages == []
        assert quality.requests == 0


def test_a_connection_whose_client_ids_the_snap_length_cuts_is_told():
    """Of replicas, say, whose client ids are long: every header is incomplete."""
    talk = Talk()
    for number in range(4):
        talk.ask(METADATA, 12, number, client_id="a-client-with-a-long-name")
        talk.tap.sent("server", wire.frame(struct.pack(">i", number) + bytes(8)))
    messages, quality = talk.decode(snap=14 + 20 + 20 + 24)
    assert (messages, quality.other_connections) == ([], {"unrecognised, incomplete": 1})
    assert (
        "1 connection perhaps of Kafka: bytes that would tell are missing, as after a short snap length"
        in quality.lines()
    )
    assert not quality.sound
    talk.connect()
    talk.tap.sent("client", wire.frame(header(18, 0, 1, "c")))
    _, quality = talk.decode(snap=14 + 20 + 20 + 24)
    assert (quality.requests, quality.incomplete, quality.sound) == (1, {}, False)
    assert not any("not Kafka" in line for line in quality.lines())


def is_recognised(client_id, lost):
    """In a whole capture, and where packets are lost."""
    talk = Talk()
    for number in range(30):
        talk.ask(METADATA, 12, number, client_id)
        talk.answer(wire.MetadataResponse(), 12, number)
    messages, quality = talk.decode()
    assert (len(messages), quality.other_connections, {m.client_id for m in messages[::2]}) == (60, {}, {client_id})
    messages, quality = talk.decode(lambda number: number not in lost)
    assert (len(messages) > 50, quality.other_connections) == (True, {})


@pytest.mark.parametrize("client_id", ["my\xa0app", "app\u200b1", "evil\u202egnp", "\ue000", "\x85"])
def test_a_client_id_may_have_spaces_and_marks_that_are_not_printable(client_id):
    """Of one copied from a web page, say: a non-breaking space; also of one that hides."""
    is_recognised(client_id, lost=(1, 2, 3, 4, 14, 15, 22))


@pytest.mark.parametrize("client_id", ["my-app\r", "a\nb", "\tapp", "\x00", "x\x7f"])
def test_a_client_id_may_have_control_characters(client_id):
    """Of a file with Windows' line ends, say. Kafka takes any text."""
    is_recognised(client_id, lost=(14, 15, 22))


@pytest.mark.parametrize("client_id", ["my-app\r", "a\nb", "x\x7f"])
def test_a_client_id_with_control_characters_is_recognised_from_the_middle_on(client_id):
    talk = Talk()
    for number in range(30):
        talk.ask(METADATA, 12, number, client_id)
        talk.answer(wire.MetadataResponse(), 12, number)
    messages, quality = talk.decode(lambda number: number > 12)
    assert (len(messages) > 45, quality.other_connections) == (True, {})


def test_a_client_id_with_control_characters_in_a_request_of_many_segments():
    talk = Talk()
    frame = produce(8, 1, 1, client_id="my-app\r", records=bytes(5000))
    for at in range(0, len(frame), 700):
        talk.tap.sent("client", frame[at : at + 700])
    messages, _ = talk.decode()
    assert [m.client_id for m in messages] == ["my-app\r"]


def test_a_connection_without_data_is_nothing():
    talk = Talk()
    talk.tap.close()
    messages, quality = talk.decode()
    assert (messages, quality.other_connections) == ([], {})


def test_much_data_of_something_else_is_not_kept():
    rng = random.Random(7)
    talk = Talk()
    for _ in range(100):
        talk.tap.sent("client", rng.randbytes(60_000))
    messages, quality = talk.decode(lambda number: number > 3)
    assert (messages, dict(quality.other_connections)) == ([], {"unrecognised": 1})


@pytest.mark.parametrize(
    ("key", "name"), [(62, "BrokerRegistration"), (63, "BrokerHeartbeat"), (52, "Vote"), (59, "FetchSnapshot")]
)
def test_kraft_traffic_is_named(key, name):
    talk = Talk()
    talk.tap.sent("client", wire.frame(header(key, 0, 1, "broker-1", flexible=True) + bytes(20)))
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
    talk.tap.sent("client", wire.frame(body + bytes(40)))
    _, quality = talk.decode()
    assert quality.kraft == ({"Fetch": 1} if quorum else {})


@pytest.mark.parametrize(("client_id", "correlation_id"), [("other", 3), ("client", 1), ("client", 2_000_000)])
def test_a_request_inside_a_record_is_none(client_id, correlation_id):
    """A packet of a Produce request begins with what looks like a request, and the packet before it is missing."""
    nested = wire.frame(wire.encode_request(UPDATE, api_version=5, correlation_id=correlation_id, client_id=client_id))
    talk = Talk()
    talk.ask(METADATA, 9, 1)
    talk.answer(wire.MetadataResponse(), 9, 1)
    head = produce(9, 1, 2, records=b"")
    payload = bytes(MAX_SEGMENT_BYTES - len(head)) + nested + bytes(1000)
    talk.tap.sent("client", wire.frame((head + payload)[4:]))
    talk.ask(METADATA, 9, 3)
    messages, _ = talk.decode(lambda number: number != 6)
    assert outline(messages) == [("Metadata", 1), ("<-", 1), ("Metadata", 3)]


def test_a_response_inside_a_record_is_none():
    """Behind a gap stands what could be the in_flight response, with more behind it up to where a packet ends."""
    talk = Talk()
    talk.ask(wire.FetchRequest(topics=()), 11, 1)
    could_be = struct.pack(">ii", 504, 1) + bytes(500)
    partition = wire.FetchableTopicResponse(
        topic="orders", partitions=(wire.FetchResponsePartitionData(records=bytes(100) + could_be),)
    )
    frame = wire.frame(
        wire.encode_response(wire.FetchResponse(responses=(partition,)), api_version=11, correlation_id=1)
    )
    talk.tap.sent("server", frame[:90])
    talk.tap.sent("server", frame[90:])
    for correlation_id in (2, 3):
        talk.ask(METADATA, 9, correlation_id)
        talk.answer(wire.MetadataResponse(), 9, correlation_id)
    assert outline(talk.decode()[0])[1] == ("<-", 1)
    messages, _ = talk.decode(lambda number: number != 5)
    assert outline(messages) == [("Fetch", 1), ("Metadata", 2), ("<-", 2), ("Metadata", 3), ("<-", 3)]


@pytest.mark.parametrize("end", ["gap", "end of the capture"])
def test_between_what_is_missing_everything_is_recognised(end):
    """Mid-stream, a packet begins with what could be the header of a long request: it is not waited for in vain."""
    talk = Talk()
    fake = struct.pack(">ihhih", 60_000, 6, 5, 9, 2) + b"me"
    first = talk.tap
    first.sent("client", b"joined in the middle of a frame" + bytes(50))
    first.sent("client", fake + bytes(30))
    for correlation_id in (7, 8):
        talk.ask(UPDATE, 5, correlation_id, "1")
    lost = []
    if end == "gap":
        first.sent("client", bytes(100))
        lost.append(11)
        talk.ask(UPDATE, 5, 10, "1")
    messages, _ = talk.decode(lambda number: number > 3 and number not in lost)
    assert [m.correlation_id for m in messages] == ([7, 8, 10] if end == "gap" else [7, 8])
