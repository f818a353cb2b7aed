"""Captures made message by message, and what is then decoded of them."""

from __future__ import annotations

import io
import itertools
import struct

from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.pcapng_writer import PcapngWriter
from kce.captures.record.recorder import Recorder
from kce.captures.tcp.segments import Place

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
        self.tap.sent("client", wire.frame(frame))

    def answer(self, message, version, correlation_id):
        frame = wire.encode_response(message, api_version=version, correlation_id=correlation_id)
        self.tap.sent("server", wire.frame(frame))

    def decode(self, keep=lambda number: True, snap=None):
        """(messages, quality) of the packets that ``keep`` keeps, the first ``snap`` bytes of each."""
        packets = list(CaptureFile(io.BytesIO(self.target.getvalue())))
        kept = io.BytesIO()
        writer = PcapngWriter(kept)
        for packet in packets:
            if keep(packet.number):
                writer.packet(packet.time_ns, packet.link_type, packet.data[:snap], packet.wire_bytes)
        decoder = Decoder(CaptureFile(io.BytesIO(kept.getvalue()), "x"))
        return list(decoder.messages()), decoder.quality


def outline(messages):
    """Requests as (api, correlation id), responses as ("<-", correlation id of the request)."""
    return [
        (m.api_name, m.correlation_id) if isinstance(m, Request) else ("<-", m.request.correlation_id) for m in messages
    ]


def header(key, version, correlation_id, client_id="client", flexible=False):
    text = client_id.encode()
    return struct.pack(">hhih", key, version, correlation_id, len(text)) + text + (b"\x00" if flexible else b"")


def produce(version, acks, correlation_id, client_id="client", records=bytes(100)):
    """The frame of a Produce request; tests ignore what its records hold."""
    partition = wire.PartitionProduceData(records=records)
    message = wire.ProduceRequest(
        acks=acks, timeout_ms=1500, topic_data=(wire.TopicProduceData(name="orders", partition_data=(partition,)),)
    )
    return wire.frame(
        wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=client_id)
    )


METADATA = wire.MetadataRequest(topics=())


UPDATE = wire.UpdateMetadataRequest(controller_id=1, controller_epoch=3)


def place(number):
    return Place(number, number, number, "x")
