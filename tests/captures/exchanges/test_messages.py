"""What is decoded of requests and responses, and what is shown of them.

Covers: kce.captures.exchanges.render, kce.captures.exchanges.errors
"""

from __future__ import annotations

import io
import struct
import uuid

import pytest

from kce import wire
from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.errors import nested_errors
from kce.captures.exchanges.render import JsonRenderer, Renderer
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.pcapng_writer import PcapngWriter
from kce.captures.tables.rows import EXCHANGES
from kce.captures.tables.tabulate import exchange_row
from tests.captures.exchanges.dialogue import METADATA, UPDATE, Talk, header, outline, produce


def test_apis_without_a_body_here_have_their_header_decoded():
    talk = Talk()
    talk.tap.sent("client", wire.frame(header(74, 0, 7, "me", flexible=True) + b"whatever"))
    talk.tap.sent("server", wire.frame(struct.pack(">i", 7) + b"whatever"))
    (request, response), quality = talk.decode()
    assert (request.api_name, request.version, request.client_id, request.body, request.error) == (
        "ListClientMetricsResources", 0, "me", None, None,
    )  # fmt: skip
    assert (response.body, response.error, response.latency_ns) == (None, None, 1_000_000)
    assert quality.undecodable == 0


def test_bytes_left_over_behind_a_body_are_reported_and_no_failure():
    """librdkafka ends its Metadata 12 in one byte too many; Kafka takes no offence."""
    talk = Talk()
    frame = wire.encode_request(METADATA, api_version=12, correlation_id=1, client_id="rdkafka")
    talk.tap.sent("client", wire.frame(frame + b"\0"))
    answer = wire.encode_response(wire.MetadataResponse(controller_id=4), api_version=12, correlation_id=1)
    talk.tap.sent("server", wire.frame(answer + b"???"))
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
    talk.tap.sent("client", wire.frame(good[:-2] + b"\x02\x02\x02"))
    (request,), quality = talk.decode()
    assert (request.body, request.left_over, quality.undecodable) == (None, 0, 1)
    assert "1 bytes left over in tagged field 0" in request.error


def test_neither_records_nor_credentials_are_shown():
    secret = b"s3cret-payload"
    talk = Talk()
    talk.tap.sent("client", produce(9, 1, 1, records=secret))
    talk.ask(wire.SaslAuthenticateRequest(auth_bytes=secret), 2, 2)
    talk.ask(wire.RenewDelegationTokenRequest(hmac=secret), 2, 3)
    upsert = wire.ScramCredentialUpsertion(name="alice", salt=secret, salted_password=secret)
    talk.ask(wire.AlterUserScramCredentialsRequest(upsertions=(upsert,)), 0, 4)
    talk.ask(wire.EnvelopeRequest(request_data=secret), 0, 5)
    messages, _ = talk.decode()
    assert [m.error for m in messages] == [None] * 5
    for message in messages:
        for text in (JsonRenderer(Cluster()).line(message), Renderer(Cluster()).line(message)):
            assert secret.hex() not in text
            assert secret.decode() not in text
        assert '{"bytes":14' in JsonRenderer(Cluster()).line(message)


def test_unknown_apis_and_versions_are_reported_and_keep_their_place():
    talk = Talk()
    talk.ask(METADATA, 9, 1)
    talk.tap.sent("client", wire.frame(header(999, 1, 2)))
    talk.tap.sent("client", wire.frame(header(4, 42, 3, flexible=True) + b"future"))
    talk.answer(wire.MetadataResponse(), 9, 1)
    talk.tap.sent("server", wire.frame(struct.pack(">i", 2)))
    talk.tap.sent("server", wire.frame(struct.pack(">i", 3) + b"\x00future"))
    messages, quality = talk.decode()
    assert outline(messages) == [
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
    talk.tap.sent("client", wire.frame(header(18, 9, 1, flexible=True) + b"\x05kcat\x02"))
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
    talk.tap.sent("client", wire.frame(spoil(good)))
    talk.tap.sent("server", wire.frame(struct.pack(">i", 1) + b"\x00"))
    (request, response), quality = talk.decode()
    assert request.body is None
    assert "UpdateMetadataRequest 0" in request.error
    assert response.body is None
    assert "UpdateMetadataResponse 0" in response.error
    assert (request.client_id, quality.undecodable) == ("1", 2)


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


@pytest.mark.parametrize("kept", [200, 120, 60])
def test_a_control_request_that_the_snap_length_cut_still_names_its_sender(kept):
    talk = Talk()
    topics = tuple(
        wire.UpdateMetadataTopicState(topic_name=f"t{i}", partition_states=(wire.UpdateMetadataPartitionState(),))
        for i in range(50)
    )
    message = wire.UpdateMetadataRequest(controller_id=2, controller_epoch=7, broker_epoch=99, topic_states=topics)
    talk.ask(message, 6, 1)
    talk.answer(wire.UpdateMetadataResponse(error_code=11), 6, 1)
    packets = list(CaptureFile(io.BytesIO(talk.target.getvalue())))
    cut = io.BytesIO()
    writer = PcapngWriter(cut)
    for packet in packets:
        writer.packet(packet.time_ns, packet.link_type, packet.data[:kept], packet.wire_bytes)
    decoder = Decoder(CaptureFile(io.BytesIO(cut.getvalue()), "x"))
    request, response = decoder.messages()
    assert request.body is None
    assert response.error_code == 11
    expected = (2, 7, None, 99) if kept > 60 else None
    assert request.head == expected
    row = dict(zip((c.name for c in EXCHANGES.columns), exchange_row(request, response), strict=True))
    assert row["controller_epoch"] == (7 if expected else None)
    assert decoder.quality.incomplete == {"UpdateMetadata request": 1}
    assert decoder.quality.truncated
    assert not decoder.quality.sound
    assert ", 1 incomplete, 0 not decoded" in decoder.quality.summary()


def test_errors_below_the_top_level():
    partition = wire.PartitionProduceResponse(index=3, error_code=6)
    fine = wire.PartitionProduceResponse(index=4)
    body = wire.ProduceResponse(responses=(wire.TopicProduceResponse(name="t", partition_responses=(partition, fine)),))
    assert list(nested_errors(body, 8)) == [("t", 3, 6)]
    topic_id = uuid.UUID(int=5)
    data = wire.FetchResponsePartitionData(partition_index=1, error_code=100)
    fetch = wire.FetchResponse(responses=(wire.FetchableTopicResponse(topic_id=topic_id, partitions=(data,)),))
    assert list(nested_errors(fetch, 13)) == [(str(topic_id), 1, 100)]
    assert list(
        nested_errors(wire.MetadataResponse(topics=(wire.MetadataResponseTopic(error_code=3, name="x"),)), 9)
    ) == [("x", None, 3)]
    assert list(nested_errors(wire.UpdateMetadataResponse(error_code=11), 6)) == []  # that is the top level
