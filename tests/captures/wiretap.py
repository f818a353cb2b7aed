"""Captures of made-up clusters, with the truth about them. Shares no code with ``captures``: it is its judge.

A ``Wiretap`` plays conversations of Kafka's clients and brokers over TCP (segments of every size, several messages in
one, retransmissions, arrivals out of order, wrapped sequence numbers, ports used again), puts the packets into a pcap
as an imperfect observer would (some lost, some swapped, the beginning missed), and says which messages can be
recovered: those all of whose bytes are in the file and, for a response, all of its request's too.

Everything follows from the seed.
"""

from __future__ import annotations

import functools
import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kce import wire

CONTROL = {"LeaderAndIsr", "UpdateMetadata", "StopReplica"}
MODULUS = 1 << 32


class Key(NamedTuple):
    """The identity of a message; ``port`` is its client's."""

    kind: str
    port: int
    api: str
    version: int
    correlation_id: int
    size: int


@dataclass
class Sent:
    """One message and its bytes in one direction. ``about`` is a response's request."""

    key: Key
    talk: Talk
    side: int
    begin: int
    end: int
    frame: bytes
    about: Sent | None = None


class Packet(NamedTuple):
    time: float
    talk: Talk
    side: int
    begin: int  # in the stream of the side, 0 its first byte
    data: bytes
    flags: int


@dataclass
class Talk:
    """One connection."""

    client: tuple[bytes, int]
    server: tuple[bytes, int]
    isn: tuple[int, int]
    mss: int
    streams: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    delivered: list[float] = field(default_factory=lambda: [0.0, 0.0])
    end: float = 0.0


class Wiretap:
    def __init__(self, seed: int, *, talks: int = 12, exchanges: int = 60, retransmits: float = 0.005) -> None:
        self.rng = random.Random(seed)
        self.retransmits = retransmits
        self.sent: list[Sent] = []
        self.packets: list[Packet] = []
        for number in range(talks):
            port = 40_000 + number
            end = self._talk(number, port, self.rng.uniform(0, 2), exchanges)
            if self.rng.random() < 0.3:  # the port is used again
                self._talk(number, port, end + self.rng.uniform(0.01, 2), exchanges)
        # what was acknowledged is not sent again after the end
        self.packets = sorted((p for p in self.packets if p.time <= p.talk.end), key=lambda packet: packet.time)

    # conversations

    def _talk(self, number: int, port: int, start: float, exchanges: int) -> float:
        rng = self.rng
        isn = rng.choice([rng.randrange(MODULUS), MODULUS - rng.randrange(1, 50_000)])
        talk = Talk(
            (bytes([10, 0, 0, 1 + number % 5]), port),
            (bytes([10, 0, 0, 1 + number % 3]), 9092 + number % 2),
            (isn, (isn * 7 + 12345) % MODULUS),
            rng.choice([536, 1448, 1448, 16_000, 60_000]),
        )
        ask = [self._control, self._produce, self._fetch, self._admin][number % 4]
        client_id = ["1", f"producer-{number}", "broker-2-fetcher-0", rng.choice([None, "", "admin"])][number % 4]
        correlation_id = rng.choice([0, rng.randrange(1 << 30)])
        pipelined = 1 if number % 4 == 0 else rng.choice([1, 1, 5])
        acks = rng.choice([-1, 1, 0])
        now = start
        self.packets += [
            Packet(now, talk, 0, -1, b"", 0x02), Packet(now + 1e-5, talk, 1, -1, b"", 0x12),
            Packet(now + 2e-5, talk, 0, 0, b"", 0x10),
        ]  # fmt: skip
        done = 0
        while done < exchanges:
            burst = [ask(acks) for _ in range(min(pipelined, exchanges - done))]
            requests = []
            for version, request, _ in burst:
                requests.append(self._say(talk, 0, request, version, correlation_id, client_id, None))
                correlation_id += 1
            arrived = self._send(talk, 0, requests, now)
            answers = [
                self._say(talk, 1, response, sent.key.version, sent.key.correlation_id, None, sent)
                for sent, (_, _, response) in zip(requests, burst, strict=True)
                if response is not None
            ]
            now = max(self._send(talk, 1, answers, arrived + rng.expovariate(2000)), arrived)
            now += rng.choice([0, rng.expovariate(200), rng.expovariate(10)])
            done += len(burst)
        ends = [(0, 0x11), (1, 0x11), (0, 0x10)] if rng.random() < 0.8 else [(0, 0x14)]
        for side, flags in ends:
            now += 1e-5
            self.packets.append(Packet(now, talk, side, len(talk.streams[side]), b"", flags))
        talk.end = now
        return now

    def _say(
        self, talk: Talk, side: int, message: Any, version: int, correlation_id: int, client_id: str | None,
        about: Sent | None,
    ) -> Sent:  # fmt: skip
        if about is None:
            frame = _request(message, version, correlation_id, client_id)
        else:
            frame = wire.encode_response(message, api_version=version, correlation_id=correlation_id)
        name = type(message).__name__.removesuffix("Request").removesuffix("Response")
        key = Key("response" if about else "request", talk.client[1], name, version, correlation_id, len(frame))
        begin = len(talk.streams[side])
        talk.streams[side].extend(struct.pack(">i", len(frame)) + frame)
        sent = Sent(key, talk, side, begin, begin + 4 + len(frame), frame, about)
        self.sent.append(sent)
        return sent

    def _send(self, talk: Talk, side: int, messages: list[Sent], now: float) -> float:
        """Put ``messages`` into segments, several in one or one in several; when the last byte has arrived."""
        rng = self.rng
        if not messages:
            return now
        groups = [messages] if rng.random() < 0.5 else [[message] for message in messages]
        for group in groups:
            at, end = group[0].begin, group[-1].end
            while at < end:
                size = talk.mss if rng.random() < 0.95 else rng.randrange(1, talk.mss)
                data = bytes(talk.streams[side][at : min(at + size, end)])
                now += rng.expovariate(100_000)
                seen = now
                if rng.random() < self.retransmits:
                    again = now + rng.choice([0.001, 0.21, 0.3])
                    # together with what was sent before it, but for what must have been acknowledged: it was answered
                    begin = at if rng.random() < 0.7 else max(messages[0].begin, at - rng.randrange(1, 2000))
                    longer = bytes(talk.streams[side][begin : at + len(data)])
                    self.packets.append(Packet(again, talk, side, begin, longer, 0x18))
                    if rng.random() < 0.5:
                        seen = again  # the first one was lost on its way to the observer, and to the receiver
                if seen == now:
                    self.packets.append(Packet(now, talk, side, at, data, 0x18))
                talk.delivered[side] = max(talk.delivered[side], seen)
                at += len(data)
        return talk.delivered[side]

    # exchanges: (version, request, response or None)

    def _control(self, _acks: int) -> tuple[int, Any, Any]:
        return _control_request(self.rng.randrange(3), self.rng.choice([1, 1, 2, 2, 50, 200]))

    def _records(self, most: int) -> bytes:
        """Records may hold anything: among other things, Kafka's own requests."""
        rng = self.rng
        size = int(rng.paretovariate(0.7) * 80) % most
        match rng.randrange(4):
            case 0:
                return rng.randbytes(size)
            case 1:
                return bytes(size)
            case 2:
                return (b'{"key": "value", "number": 42}\n' * (size // 30 + 1))[:size]
            case _:
                carried = b""
                for correlation_id in range(rng.randrange(1, 4)):
                    version, request, _ = self._control(0)
                    frame = _request(request, version, 1000 + correlation_id, "7")
                    carried += struct.pack(">i", len(frame)) + frame
                return rng.randbytes(size % 100) + carried + rng.randbytes(size % 50)

    def _produce(self, acks: int) -> tuple[int, Any, Any]:
        data = wire.PartitionProduceData(index=3, records=self._records(120_000))
        topic = wire.TopicProduceData(name="orders", partition_data=(data,))
        request = wire.ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(topic,))
        return 8, request, None if acks == 0 else wire.ProduceResponse()

    def _fetch(self, _acks: int) -> tuple[int, Any, Any]:
        partition = wire.FetchPartition(partition=1, fetch_offset=self.rng.randrange(1 << 40))
        request = wire.FetchRequest(replica_id=2, topics=(wire.FetchTopic(topic="orders", partitions=(partition,)),))
        records = wire.FetchResponsePartitionData(partition_index=1, records=self._records(200_000))
        topic = wire.FetchableTopicResponse(topic="orders", partitions=(records,))
        return 11, request, wire.FetchResponse(responses=(topic,))

    def _admin(self, _acks: int) -> tuple[int, Any, Any]:
        match self.rng.randrange(4):
            case 0:
                return 9, wire.MetadataRequest(topics=()), wire.MetadataResponse()
            case 1:
                return 4, wire.HeartbeatRequest(group_id="g", member_id="m" * 36), wire.HeartbeatResponse()
            case 2:
                return 1, wire.FindCoordinatorRequest(key="group"), wire.FindCoordinatorResponse(host="h", port=1)
            case _:
                return 3, wire.ApiVersionsRequest(client_software_name="x"), wire.ApiVersionsResponse()


@functools.cache
def _control_request(kind: int, count: int) -> tuple[int, Any, Any]:
    common = {"controller_id": 1, "controller_epoch": count, "broker_epoch": 25}
    match kind:
        case 0:
            led = tuple(
                wire.LeaderAndIsrPartitionState(
                    topic_name="", partition_index=i, controller_epoch=3, leader=1, leader_epoch=i,
                    isr=(1, 2, 3), partition_epoch=i, replicas=(1, 2, 3), is_new=bool(i % 2),
                )
                for i in range(count)
            )  # fmt: skip
            state = wire.LeaderAndIsrTopicState(topic_name=f"topic-{count}", partition_states=led)
            return 4, wire.LeaderAndIsrRequest(topic_states=(state,), **common), wire.LeaderAndIsrResponse()
        case 1:
            states = tuple(
                wire.UpdateMetadataPartitionState(
                    topic_name="", partition_index=i, controller_epoch=3, leader=2, leader_epoch=i,
                    isr=(1, 2, 3), zk_version=i, replicas=(1, 2, 3),
                )
                for i in range(count)
            )  # fmt: skip
            topic = wire.UpdateMetadataTopicState(topic_name=f"topic-{count}", partition_states=states)
            return 6, wire.UpdateMetadataRequest(topic_states=(topic,), **common), wire.UpdateMetadataResponse()
        case _:
            stopped = wire.StopReplicaTopicState(
                topic_name="gone",
                partition_states=tuple(wire.StopReplicaPartitionState(partition_index=i) for i in range(count)),
            )
            return 3, wire.StopReplicaRequest(topic_states=(stopped,), **common), wire.StopReplicaResponse()


def _request(message: Any, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header is put in by hand: control requests are encoded once, for that is what takes time."""
    encoded = _encoded_controls.get(id(message))
    if encoded is None:
        encoded = wire.encode_request(message, api_version=version, correlation_id=0, client_id=None)
        if type(message).__name__.removesuffix("Request") in CONTROL:
            _encoded_controls[id(message)] = encoded
    text = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(text)
    return encoded[:4] + struct.pack(">ih", correlation_id, size) + text + encoded[10:]


#: of the requests of ``_control_request``, which live as long
_encoded_controls: dict[int, bytes] = {}


class Observation(NamedTuple):
    """A pcap, and what can be recovered from it, as keys with their numbers."""

    pcap: bytes
    recoverable: list[Sent]
    lost: int


def observe(
    tap: Wiretap, seed: int, *, loss: float = 0.0, swaps: int = 0, displaced: int = 0,
    joined_after: float | None = None,
) -> Observation:  # fmt: skip
    """Capture packets with loss, swaps, delays by 1,000 to 3,000 places, and a late start."""
    rng = random.Random(seed)
    packets = _acknowledged(tap.packets, rng)
    if joined_after is not None:
        packets = [p for p in packets if p[0].time >= joined_after]
    kept = [p for p in packets if rng.random() >= loss]
    for _ in range(swaps):
        at = rng.randrange(len(kept) - 3)
        kept.insert(at, kept.pop(at + rng.randrange(1, 3)))
    for _ in range(displaced):
        at = rng.randrange(len(kept) - 3000)
        kept.insert(at + rng.randrange(1001, 3000), kept.pop(at))
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for packet, _ in kept:
        if packet.data:
            span = (packet.begin, packet.begin + len(packet.data))
            seen.setdefault((id(packet.talk), packet.side), []).append(span)
    covered = {key: _union(spans) for key, spans in seen.items()}

    def whole(sent: Sent) -> bool:
        spans = covered.get((id(sent.talk), sent.side), [])
        return any(begin <= sent.begin and sent.end <= end for begin, end in spans)

    recoverable = [sent for sent in tap.sent if whole(sent) and (sent.about is None or whole(sent.about))]
    return Observation(_pcap(kept), recoverable, len(packets) - len(kept))


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _acknowledged(packets: list[Packet], rng: random.Random) -> list[tuple[Packet, int]]:
    """Each packet with what its sender has received so far; pure acknowledgements after every few."""
    received: dict[tuple[int, int], tuple[int, list[tuple[int, int]]]] = {}
    sent: dict[tuple[int, int], int] = {}
    result: list[tuple[Packet, int]] = []
    for packet in packets:
        key, other = (id(packet.talk), packet.side), (id(packet.talk), 1 - packet.side)
        result.append((packet, received.get(other, (0, []))[0]))
        sent[key] = max(sent.get(key, 0), packet.begin + len(packet.data))
        if packet.data:
            upto, early = received.get(key, (0, []))
            spans = _union([(0, upto), *early, (packet.begin, packet.begin + len(packet.data))])
            received[key] = spans[0][1], spans[1:]
            if rng.random() < 0.4:
                ack = Packet(packet.time + 1e-6, packet.talk, 1 - packet.side, sent.get(other, 0), b"", 0x10)
                result.append((ack, received[key][0]))
    return result


def _pcap(packets: list[tuple[Packet, int]]) -> bytes:
    out = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 101)]
    for packet, received in packets:
        talk, side = packet.talk, packet.side
        source, destination = (talk.client, talk.server) if side == 0 else (talk.server, talk.client)
        sequence = (talk.isn[side] + 1 + packet.begin) % MODULUS
        acknowledgement = (talk.isn[1 - side] + 1 + received) % MODULUS if packet.flags & 0x10 else 0
        tcp = struct.pack(
            ">HHIIBBHHH", source[1], destination[1], sequence, acknowledgement, 0x50, packet.flags, 65535, 0, 0
        )
        size = 40 + len(packet.data)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0x4000, 64, 6, 0) + source[0] + destination[0]
        seconds = 1_795_229_115 + packet.time
        out.append(struct.pack("<IIII", int(seconds), int(seconds % 1 * 1e9), size, size) + ip + tcp + packet.data)
    return b"".join(out)


def counted(messages: list[Sent]) -> Counter[Key]:
    return Counter(each.key for each in messages)
