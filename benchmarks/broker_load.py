"""Clients of `benchmarks.broker`, each in a process of its own. They count bytes, so that the server is measured."""

from __future__ import annotations

import math
import multiprocessing
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any

import confluent_kafka

from kce import wire
from kce.wire.codegen import write_uvarint

Address = tuple[str, int]
TOPIC = "wide"
#: of PRODUCE and FETCH; `produce_and_consume` uses the first few
PARTITION = 100

API_VERSIONS = wire.frame(
    wire.encode_request(
        wire.ApiVersionsRequest(client_software_name="benchmark", client_software_version="1"),
        api_version=3, correlation_id=1, client_id="benchmark",
    )
)  # fmt: skip
METADATA = wire.frame(
    wire.encode_request(
        wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name=TOPIC),)),
        api_version=12, correlation_id=1, client_id="benchmark",
    )
)  # fmt: skip
#: changes nothing, and is fenced like any other; broker 1 is the controller, in its first epoch
LEADER_AND_ISR = wire.frame(
    wire.encode_request(
        wire.LeaderAndIsrRequest(controller_id=1, controller_epoch=1, broker_epoch=-1),
        api_version=7, correlation_id=1, client_id="1",
    )
)  # fmt: skip


def _produce() -> bytes:
    """A Produce request: acks=all, a batch of ten records of 100 bytes."""
    now_ms = time.time_ns() // 1_000_000  # what is old is deleted
    records = (wire.Record(offset=i, timestamp=now_ms, key=None, value=bytes(100)) for i in range(10))
    data = wire.PartitionProduceData(index=PARTITION, records=wire.write_records(wire.RecordBatch.of(*records)))
    topic = wire.TopicProduceData(name=TOPIC, partition_data=(data,))
    message = wire.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))
    return wire.frame(wire.encode_request(message, api_version=9, correlation_id=1, client_id="benchmark"))


def _fetch() -> bytes:
    """A Fetch request without a session: 16 kB from the beginning of the partition."""
    partition = wire.FetchPartition(partition=PARTITION, fetch_offset=0, partition_max_bytes=1 << 14)
    topic = wire.FetchTopic(topic=TOPIC, partitions=(partition,))
    message = wire.FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=(topic,))
    return wire.frame(wire.encode_request(message, api_version=12, correlation_id=1, client_id="benchmark"))


PRODUCE, FETCH = _produce(), _fetch()


def ask(connection: socket.socket, request: bytes) -> bytes:
    """The frame that answers ``request``. Raises ConnectionError."""
    connection.sendall(request)
    return receive(connection)


def receive(connection: socket.socket) -> bytes:
    """The next frame. Raises ConnectionError."""
    (length,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, length)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        data = connection.recv(min(1 << 20, count - len(received)))
        if not data:
            raise ConnectionError("the server closed the connection")
        received += data
    return bytes(received)


def request(address: Address, message: wire.Message, version: int) -> wire.Message:
    encoded = wire.encode_request(message, api_version=version, correlation_id=1, client_id="benchmark")
    with socket.create_connection(address) as connection:
        answer = ask(connection, wire.frame(encoded))
    return wire.decode_response(answer, api_key=message.__api_key__, api_version=version)[1]


def fill_partition(address: Address) -> None:
    """Send PRODUCE until FETCH gets all it asks for: its answers have one size then. Raises ValueError."""
    with socket.create_connection(address) as connection:
        for _ in range(2 * (1 << 14) // len(PRODUCE)):
            answer: Any = wire.decode_response(ask(connection, PRODUCE), api_key=0, api_version=9)[1]
            if error := answer.responses[0].partition_responses[0].error_code:
                raise ValueError(f"Produce was refused: error {error}")
        answer = wire.decode_response(ask(connection, FETCH), api_key=1, api_version=12)[1]
        if len(answer.responses[0].partitions[0].records) != 1 << 14:
            raise ValueError(f"Fetch did not get 16 kB: {answer}")


def hammer(
    address: Address, connections: int, in_flight: int, seconds: float, payload: bytes = API_VERSIONS,
    stopping: Event | None = None,
) -> float:  # fmt: skip
    """Requests a second over that many connections, each with that many requests under way."""
    sockets = [socket.create_connection(address) for _ in range(connections)]
    size = 4 + len(ask(sockets[0], payload))
    if connections == in_flight == 1:
        return _one_at_a_time(sockets[0], size, seconds, payload)
    with selectors.DefaultSelector() as selector:
        for s in sockets:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(s, selectors.EVENT_READ, [0])
            s.sendall(payload * in_flight)
        answered, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds and not (stopping and stopping.is_set()):
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                received = len(key.fileobj.recv(1 << 18))
                if not received:
                    raise ConnectionError(f"{address} closed a connection")
                key.data[0] += received
                whole, key.data[0] = divmod(key.data[0], size)
                answered += whole
                key.fileobj.sendall(payload * whole)
        rate = answered / (time.perf_counter() - begin)
    for s in sockets:
        s.close()
    return rate


def _one_at_a_time(connection: socket.socket, size: int, seconds: float, payload: bytes) -> float:
    """Requests a second, each sent when the one before it is answered, with ``size`` bytes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answered, begin = 0, time.perf_counter()
    with connection:
        while time.perf_counter() - begin < seconds:
            connection.sendall(payload)
            received = 0
            while received < size:
                data = connection.recv(1 << 16)
                if not data:
                    raise ConnectionError("the server closed the connection")
                received += len(data)
            answered += 1
        return answered / (time.perf_counter() - begin)


def produce_and_consume(address: Address, partitions: int, stopping: Event) -> None:
    """Produce records of 100 bytes to ``partitions`` of the topic, acks=all, and fetch them at the same time.

    Raises RuntimeError if none was acknowledged and read.
    """
    acknowledged = consumed = 0

    def delivered(error: object, message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    common = {"bootstrap.servers": "{}:{}".format(*address), "log_level": 0}
    settings = {"acks": -1, "linger.ms": 5, "queue.buffering.max.messages": 50_000, "on_delivery": delivered}
    producer = confluent_kafka.Producer({**common, **settings})
    consumer = confluent_kafka.Consumer({**common, "group.id": "g", "enable.auto.commit": False})
    end = confluent_kafka.OFFSET_END
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, end) for partition in range(partitions)])
    sent, value = 0, bytes(100)
    while not stopping.is_set():
        for _ in range(500):
            try:
                producer.produce(TOPIC, value, partition=sent % partitions)
                sent += 1
            except BufferError:
                producer.poll(0.01)
                break
        producer.poll(0)
        consumed += sum(message.error() is None for message in consumer.consume(5_000, 0))
    producer.flush(10)
    consumer.close()
    if not acknowledged or not consumed:
        raise RuntimeError(f"{acknowledged} records were acknowledged, {consumed} were read")


def open_and_close(address: Address, seconds: float, at_a_time: int = 40) -> float:
    """Connections a second, each opened, used for one request and closed."""
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        sockets = [socket.create_connection(address) for _ in range(at_a_time)]
        for s in sockets:
            s.sendall(API_VERSIONS)
        for s in sockets:
            if not s.recv(1 << 16):
                raise ConnectionError(f"{address} closed a connection")
            s.close()
        done += at_a_time
    return done / (time.perf_counter() - begin)


def hold(address: Address, count: int, ready: Event, stopping: Event) -> None:
    """Keep that many connections open, each used once."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets = []
    for _ in range(count):
        sockets.append(socket.create_connection(address))
        ask(sockets[-1], API_VERSIONS)
    ready.set()
    stopping.wait()


def probe(address: Address, seconds: float, pause: float = 0.001, until: Event | None = None) -> list[float]:
    """Seconds from a LeaderAndIsr to its answer, one after the other, until ``until`` is set or the time is over."""
    found = []
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection, LEADER_AND_ISR)
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end and not (until and until.is_set()):
            answer = ask(connection, LEADER_AND_ISR)
            found.append(time.perf_counter() - begin)
            if answer[5:7] != b"\0\0":
                raise ValueError(f"LeaderAndIsr was refused: {answer.hex()}")
            time.sleep(pause)
    return found


def quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


# requests that are legal and large


def _header(tags: bytes = b"\0") -> bytes:
    return struct.pack(">hhih", wire.MetadataRequest.__api_key__, 12, 1, -1) + tags


_REST_OF_METADATA = b"\1\0\0"  # auto-creation allowed, no operations, no tags


def _topic(name: bytes) -> bytes:
    return bytes(16) + write_uvarint(len(name) + 1) + name + b"\0"


def _unknown_topics(count: int) -> bytes:
    topics = b"".join(_topic(b"unknown-%d" % i) for i in range(count))
    return _header() + write_uvarint(count + 1) + topics + _REST_OF_METADATA


def _empty_names() -> bytes:
    count = 10_000_000 // len(_topic(b""))
    return _header() + write_uvarint(count + 1) + _topic(b"") * count + _REST_OF_METADATA


def _empty_names_of_version_1() -> bytes:
    return struct.pack(">hhihi", wire.MetadataRequest.__api_key__, 1, 1, -1, 5_000_000) + bytes(10_000_000)


def _header_tags(count: int) -> bytes:
    tags = write_uvarint(count) + b"".join(write_uvarint(tag) + b"\0" for tag in range(count))
    return _header(tags) + b"\1" + _REST_OF_METADATA


#: legal Metadata requests that cost a server seconds, by name
HOSTILE: dict[str, Callable[[], bytes]] = {
    "100,000 topics": partial(_unknown_topics, 100_000),
    "1,000,000 topics": partial(_unknown_topics, 1_000_000),
    "10 MB of empty names": _empty_names,
    "10 MB of empty names, version 1": _empty_names_of_version_1,
    "1,000,000 tags in the header": partial(_header_tags, 1_000_000),
}


def send_hostile(address: Address, name: str, sent: Event, answered: Event) -> float:
    """Seconds until it is answered or refused. It is made here: that takes seconds, too."""
    payload = wire.frame(HOSTILE[name]())
    with socket.create_connection(address) as connection:
        begin = time.perf_counter()
        sent.set()
        try:
            ask(connection, payload)
        except ConnectionError:
            pass
        finally:
            answered.set()
        return time.perf_counter() - begin


@contextmanager
def in_background(target: object, *args: object) -> Iterator[Event]:
    """Run ``target(*args, stopping)`` in a process; the event stops it. Raises RuntimeError if it failed."""
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    process = context.Process(target=target, args=(*args, stopping))  # type: ignore[arg-type]
    process.start()
    try:
        yield stopping
    finally:
        stopping.set()
        process.join(20)
        failed = process.exitcode
        process.kill()
    if failed:
        raise RuntimeError(f"{target} ended with {failed}")
