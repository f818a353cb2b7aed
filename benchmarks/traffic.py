"""A capture of any size, with its truth: producers on some connections, one after another's turn, and a controller.

    python -m benchmarks.traffic big.pcap --bytes 200000000 [--connections 8] [--segment 1448] [--request 16000]
        [--acknowledge] [--again-every 1000]

Every producer sends Produce requests that are answered; every hundredth turn the controller sends an UpdateMetadata.
With ``--acknowledge`` clients acknowledge each response with a packet of its own, as TCP does on a connection that is
then silent; with ``--again-every`` each so-manieth packet with data is sent twice.
The truth goes to stdout as JSON: packets, connections, and requests by API. The bytes are written here by hand, but for
the bodies, which ``wire`` encodes.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kce import wire

BROKER = (b"\x0a\x00\x00\x01", 9092)
CONTROL_PORT = 9093
START_US = 1_795_229_115_000_000
_TURNS_PER_CONTROL = 100


class Connection:
    """One TCP connection from ``port`` of another host to the broker's ``server_port``."""

    def __init__(self, out: Writer, port: int, server_port: int) -> None:
        self._out = out
        self._ports = port, server_port
        self._next = [1000, 5000]
        self.correlation_id = 0
        self._packet(0, 0x02, b"")
        self._next[0] += 1
        self._packet(1, 0x12, b"")
        self._next[1] += 1
        self._packet(0, 0x10, b"")

    def exchange(self, request: bytes, response: bytes) -> None:
        """Frames whose correlation ids are put in here: a request's at 4, a response's at 0."""
        self.correlation_id += 1
        number = struct.pack(">i", self.correlation_id)
        self._send(0, struct.pack(">i", len(request)) + request[:4] + number + request[8:])
        self._send(1, struct.pack(">i", len(response)) + number + response[4:])
        if self._out.acknowledge:
            self._packet(0, 0x10, b"")

    def _send(self, side: int, data: bytes) -> None:
        for at in range(0, len(data), self._out.segment):
            piece = data[at : at + self._out.segment]
            self._packet(side, 0x18, piece)
            if self._out.again_every and not self._out.packets % self._out.again_every:
                self._packet(side, 0x18, piece)
            self._next[side] = (self._next[side] + len(piece)) & 0xFFFFFFFF

    def _packet(self, side: int, flags: int, payload: bytes) -> None:
        client = struct.pack(">I", 0x0A000100 + self._ports[0] % 250), self._ports[0]
        ends = (client, (BROKER[0], self._ports[1]))
        (source, source_port), (destination, destination_port) = ends[side], ends[1 - side]
        acknowledgement = self._next[1 - side] if flags & 0x10 else 0
        tcp = struct.pack(
            ">HHIIBBHHH", source_port, destination_port, self._next[side], acknowledgement, 0x50, flags, 65535, 0, 0
        )
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(payload), 7, 0, 64, 6, 0) + source + destination
        self._out.packet(bytes(12) + b"\x08\x00" + ip + tcp + payload)


class Writer:
    """A pcap; ``segment`` is how many bytes a packet carries at most."""

    def __init__(self, file: BinaryIO, segment: int, *, acknowledge: bool = False, again_every: int = 0) -> None:
        self.segment = segment
        self.acknowledge = acknowledge
        self.again_every = again_every
        self.bytes = 24
        self.packets = 0
        self._file = file
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))

    def packet(self, data: bytes) -> None:
        seconds, micros = divmod(START_US + self.packets * 10, 1_000_000)
        self._file.write(struct.pack("<IIII", seconds, micros, len(data), len(data)) + data)
        self.packets += 1
        self.bytes += 16 + len(data)


def generate(
    path: Path,
    size: int,
    *,
    connections: int = 8,
    segment: int = 1448,
    request: int = 16_000,
    acknowledge: bool = False,
    again_every: int = 0,
) -> dict[str, Any]:
    """Write ``size`` bytes, or a little more; the truth of them."""
    requests: Counter[str] = Counter()
    produce = _produce(request)
    with path.open("wb", buffering=1 << 20) as file:
        out = Writer(file, segment, acknowledge=acknowledge, again_every=again_every)
        producers = [Connection(out, 40_000 + number, BROKER[1]) for number in range(connections)]
        controller = Connection(out, 39_999, CONTROL_PORT)
        metadata = _metadata()
        turn = 0
        while out.bytes < size:
            if turn % _TURNS_PER_CONTROL == 0:
                controller.exchange(*next(metadata))
                requests["UpdateMetadata 6"] += 1
            producers[turn % connections].exchange(*produce)
            requests["Produce 8"] += 1
            turn += 1
        return {"packets": out.packets, "connections": connections + 1, "requests": dict(requests), "bytes": out.bytes}


def _produce(size: int) -> tuple[bytes, bytes]:
    records = wire.PartitionProduceData(index=0, records=bytes(61) + bytes(range(256)) * (size // 256))
    body = wire.ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=(wire.TopicProduceData(name="orders", partition_data=(records,)),)
    )
    request = wire.encode_request(body, api_version=8, correlation_id=0, client_id="producer")
    partition = wire.PartitionProduceResponse(index=0, error_code=0, base_offset=7)
    answer = wire.ProduceResponse(
        responses=(wire.TopicProduceResponse(name="orders", partition_responses=(partition,)),)
    )
    return bytes(request), bytes(wire.encode_response(answer, api_version=8, correlation_id=0))


def _metadata() -> Iterator[tuple[bytes, bytes]]:
    answer = bytes(wire.encode_response(wire.UpdateMetadataResponse(), api_version=6, correlation_id=0))
    leader_epoch = 0
    while True:
        state = wire.UpdateMetadataPartitionState(
            partition_index=0, controller_epoch=1, leader=leader_epoch % 3, leader_epoch=leader_epoch, isr=(0, 1, 2),
            zk_version=leader_epoch, replicas=(0, 1, 2),
        )  # fmt: skip
        body = wire.UpdateMetadataRequest(
            controller_id=1, controller_epoch=1, broker_epoch=7,
            topic_states=(wire.UpdateMetadataTopicState(topic_name="orders", partition_states=(state,)),),
        )  # fmt: skip
        yield bytes(wire.encode_request(body, api_version=6, correlation_id=0, client_id="1")), answer
        leader_epoch += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes", type=int, default=200_000_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--segment", type=int, default=1448)
    parser.add_argument("--request", type=int, default=16_000)
    parser.add_argument("--acknowledge", action="store_true")
    parser.add_argument("--again-every", type=int, default=0)
    given = parser.parse_args()
    truth = generate(
        given.file, given.bytes, connections=given.connections, segment=given.segment, request=given.request,
        acknowledge=given.acknowledge, again_every=given.again_every,
    )  # fmt: skip
    print(json.dumps(truth))


if __name__ == "__main__":
    main()
