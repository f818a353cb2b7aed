"""Random sequences about the same logs, which both twins must answer alike, also after a restart.

    python -m tests.interop.sequences --seed 5 --steps 1000

Unlike the requests of twins.py these build on each other: producers that count, skip, repeat, go back and are fenced,
transactions whose ends are written straight to the logs, batches of all formats and codecs with odd headers, sessions
of fetches. In the middle both brokers are killed or shut down, and all that is in the logs is asked again.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from crc32c import crc32c

from kce import wire
from kce.wire import Codec
from kce.wire.records import spans
from tests.broker_stub.log.support import batch
from tests.interop.random_requests import Asked, Given, Node, asked, text_of
from tests.interop.twin import Twin, compare
from tests.interop.twins import clusters, command, directory, finish, restart

#: logs are compared as the requests left them
SETTINGS: Final[Mapping[str, str]] = {
    "log.cleaner.enable": "false",
    "transaction.partition.verification.enable": "false",
}
#: topics of two partitions, and their settings
LOGS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {"segment.bytes": "1500", "index.interval.bytes": "200"},
    "compacted": {"cleanup.policy": "compact", "segment.bytes": "2000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "lz4": {"compression.type": "lz4"},
    "limited": {
        "max.message.bytes": "400", "message.timestamp.before.max.ms": "3600000",
        "message.timestamp.after.max.ms": "3600000",
    },
    "gzip": {"cleanup.policy": "compact,delete", "compression.type": "gzip", "segment.bytes": "1000"},
}  # fmt: skip
_PARTITIONS: Final = (0, 1)
_PRODUCERS: Final = (1001, 1002, 1003)
_ALL_BYTES: Final = 2**30
_READY_S: Final = 60.0
_SEQUENCES: Final = 2**31
_CRC_AT, _ATTRIBUTES_AT, _PRODUCER_AT, _EPOCH_AT = 17, 21, 43, 51
#: behind the real time, which stamps the ends of transactions
_EARLIER_MS: Final = 1_800_000


class LogTwin(Twin):
    """Compares record sets by what is in them: the bytes of what a broker compresses depend on its libraries."""

    def comparable(self, value: Any, name: str = "") -> Any:
        is_log = name == "records" and value is not None
        return list(_shown(bytes(value))) if is_log else super().comparable(value, name)


def _shown(data: bytes) -> Iterator[str]:
    """Each batch that is there as a whole, without times that brokers gave."""
    for span in spans(data):
        for found in wire.read_records(data[span.start : span.end]).batches:
            is_given = found.is_control or found.timestamp_type is wire.TimestampType.LOG_APPEND_TIME
            producer = (found.producer_id, found.producer_epoch, found.base_sequence, found.is_transactional)
            records = [(r.offset, 0 if is_given else r.timestamp, r.key, r.value) for r in found.records]
            yield f"{span.offset} {found.magic} {found.codec.name} {found.partition_leader_epoch} {producer} {records}"


def _node(cls: type[Any], **values: Any) -> Node:
    return Node(cls, values)


def _sealed(data: bytes, at: int, form: str, *values: int) -> bytes:
    """A batch of magic 2 with changed bytes, and the right checksum."""
    made = bytearray(data)
    struct.pack_into(form, made, at, *values)
    struct.pack_into(">I", made, _CRC_AT, crc32c(bytes(made[_ATTRIBUTES_AT:])))
    return bytes(made)


class Sequence:
    """Makes requests that build on those before."""

    def __init__(self, random: Random, now_ms: int) -> None:
        self._random = random
        self._now_ms = now_ms - _EARLIER_MS
        self._epochs = dict.fromkeys(_PRODUCERS, 0)
        self._sequences: dict[tuple[int, str, int], int] = {}
        self._sent: list[tuple[str, int, bytes]] = []
        self._coordinator_epoch = 0
        self._session_epoch = 0

    def next(self) -> Asked:
        kinds = (self._produce, self._end, self._fetch, self._list_offsets, self._delete_records)
        return self._random.choices(kinds, (12, 3, 5, 3, 0.4))[0]()

    def all(self) -> Iterator[Asked]:
        """What shows everything that is in the logs."""
        topics = [_node(wire.TopicRequest, name=name, partition_indexes=list(_PARTITIONS)) for name in LOGS]
        yield asked("DescribeProducers", 0, _node(wire.DescribeProducersRequest, topics=topics))
        for isolation in (0, 1):
            for offset in (0, 7, 40):
                parts = {(name, i): (offset, _ALL_BYTES) for name in LOGS for i in _PARTITIONS}
                yield self._fetch_of(11, parts, isolation_level=isolation)
            for timestamp in (-1, -2, -3, -4, -5, self._now_ms, self._now_ms - 1000, self._now_ms - 5000):
                yield self._offsets_of(9, list(LOGS), isolation, [timestamp])
        for epoch in (0, 1, 2, 9):
            partitions = [
                _node(wire.OffsetForLeaderPartition, partition=i, current_leader_epoch=-1, leader_epoch=epoch)
                for i in _PARTITIONS
            ]
            found = [_node(wire.OffsetForLeaderTopic, topic=name, partitions=partitions) for name in LOGS]
            yield asked("OffsetForLeaderEpoch", 4, _node(wire.OffsetForLeaderEpochRequest, replica_id=-1, topics=found))

    def _where(self) -> tuple[str, int]:
        return self._random.choice(["plain"] * 4 + list(LOGS)), self._random.choice([0, 0, 0, 1])

    # produce

    def _produce(self) -> Asked:
        random, (topic, partition) = self._random, self._where()
        self._now_ms += random.choice([0, 0, 1, 10, 500, -100, -2000])
        kind = random.choices(("new", "old format", "again"), (15, 1.5, 3 if self._sent else 0))[0]
        if kind == "again":
            earlier, number, data = random.choice(self._sent[-12:])
            if random.random() < 0.85:
                topic, partition = earlier, number
            version = random.choice([3, 7, 9, 11])
        elif kind == "old format":
            magic = random.choice([0, 1])
            data = self._batch(topic, magic=magic, codec=random.choice(list(Codec)[:4]))
            version = random.choice([0, 1, 2, 2, 3, 8])
        else:
            data = self._of_producer(topic, partition)
            version = random.randint(3, 11)
            self._sent.append((topic, partition, data))
        records = _node(wire.PartitionProduceData, index=partition, records=data)
        body = _node(
            wire.ProduceRequest,
            transactional_id="tx1",
            acks=random.choice([-1, 1]),
            timeout_ms=5000,
            topic_data=[_node(wire.TopicProduceData, name=topic, partition_data=[records])],
        )
        return asked("Produce", version, body)

    def _of_producer(self, topic: str, partition: int) -> bytes:
        random, producer = self._random, self._random.choice(_PRODUCERS)
        codec = random.choice([Codec.NONE] * 4 + list(Codec))
        is_transactional = random.random() < 0.4
        if random.random() < 0.2:
            return self._odd(self._batch(topic, codec=codec))
        where = producer, topic, partition
        epoch, sequence = self._epochs[producer], self._sequences.get(where, random.choice([0, 0, 0, 5]))
        match random.choices(("next", "new epoch", "odd epoch", "old epoch", "gap", "back", "wrap"), (20, *[1] * 6))[0]:
            case "new epoch":
                epoch, sequence = epoch + 1, 0
            case "odd epoch":
                epoch, sequence = epoch + 1, random.choice([sequence, 1])
            case "old epoch":
                epoch = max(epoch - 1, 0)
            case "gap":
                sequence = (sequence + random.choice([1, 2, 10])) % _SEQUENCES
            case "back":
                sequence = max(sequence - random.choice([1, 2, 3]), 0)
            case "wrap":
                sequence = _SEQUENCES - random.choice([1, 2, 3])
        self._epochs[producer] = max(epoch, self._epochs[producer])
        count = random.choice([1, 1, 2, 3, 8])
        self._sequences[where] = (sequence + count) % _SEQUENCES
        return self._odd(
            self._batch(
                topic, count, codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
                is_transactional=is_transactional,
            )
        )  # fmt: skip

    def _batch(self, topic: str, count: int = 2, **more: Any) -> bytes:
        random, now = self._random, self._now_ms
        keys = [b"k", b"a", b""] if "compact" in LOGS[topic].get("cleanup.policy", "") else [None, b"k"]
        return batch(
            *(random.choice([b"v", b"", b"w" * random.randint(1, 80)]) for _ in range(count)),
            key=random.choice([*keys, None]),
            timestamp=random.choice([*[now] * 12, -1, 0, now - 7_200_000, now + 4_000_000, 10**15]),
            **more,
        )

    def _odd(self, data: bytes) -> bytes:
        """Mostly as it is; or with a header that no client writes."""
        match self._random.choices(("", "attributes", "producer", "epoch", "twice"), (30, 1, 1, 1, 0.5))[0]:
            case "attributes":
                (old,) = struct.unpack_from(">H", data, _ATTRIBUTES_AT)
                return _sealed(
                    data, _ATTRIBUTES_AT, ">H", old | self._random.choice([0x08, 0x10, 0x20, 0x40, 0x80, 0x100])
                )
            case "producer":
                return _sealed(data, _PRODUCER_AT, ">q", self._random.choice([-1, -2]))
            case "epoch":
                return _sealed(data, _EPOCH_AT, ">h", self._random.choice([-1, -2]))
            case "twice":
                return data * 2
        return data

    def _end(self) -> Asked:
        """Of a transaction."""
        random, producer, (topic, _) = self._random, self._random.choice(_PRODUCERS), self._where()
        epoch = max(self._epochs[producer] + random.choices((0, 1, -1), (8, 1, 1))[0], 0)
        self._epochs[producer] = max(epoch, self._epochs[producer])
        self._coordinator_epoch += random.random() < 0.1
        marker = _node(
            wire.WritableTxnMarker,
            producer_id=producer,
            producer_epoch=epoch,
            transaction_result=random.random() < 0.5,
            topics=[
                _node(wire.WritableTxnMarkerTopic, name=topic, partition_indexes=random.choice([[0], [1], [0, 1]]))
            ],
            coordinator_epoch=self._coordinator_epoch + random.choices((0, -1, 1), (8, 1, 1))[0],
        )
        return asked("WriteTxnMarkers", 1, _node(wire.WriteTxnMarkersRequest, markers=[marker]))

    def _delete_records(self) -> Asked:
        topic, partition = self._where()
        offset = self._random.choice([1, 3, 5, 10, -1, 1000, -5])
        found = _node(wire.DeleteRecordsPartition, partition_index=partition, offset=offset)
        topics = [_node(wire.DeleteRecordsTopic, name=topic, partitions=[found])]
        return asked("DeleteRecords", 2, _node(wire.DeleteRecordsRequest, topics=topics, timeout_ms=5000))

    # ask

    def _fetch(self) -> Asked:
        random = self._random
        parts = {
            self._where(): (
                random.choice([0, 1, 3, 5, 8, 20, 100, -1]),
                random.choice([0, 1, 100, 1000, _ALL_BYTES]),
            )
            for _ in range(random.choice([0, 1, 1, 2, 3]))
        }
        session: tuple[Any, int] = (0, -1)
        match random.choices(("none", "new", "next", "wrong epoch", "wrong id", "close"), (3, 2, 6, 1, 0.5, 0.5))[0]:
            case "new":
                session, self._session_epoch = (0, 0), 0
            case "next":
                self._session_epoch += 1
                session = (Given("session"), self._session_epoch)
            case "wrong epoch":
                session = (Given("session"), self._session_epoch + random.choice([2, -1, 100, 0]))
            case "wrong id":
                session = (77, 1)
            case "close":
                session = (Given("session"), -1)
        return self._fetch_of(
            random.randint(7, 17), parts, session, isolation_level=random.choice([0, 1]),
            max_wait_ms=random.choice([0, 0, 50, -1]), min_bytes=random.choice([0, 1, 1, 10**6, -1, 2**31 - 1]),
            forgotten=[self._where()] if random.random() < 0.2 else [],
        )  # fmt: skip

    def _fetch_of(
        self,
        version: int,
        parts: Mapping[tuple[str, int], tuple[int, int]],
        session: tuple[Any, int] = (0, -1),
        forgotten: list[tuple[str, int]] | None = None,
        **more: int,
    ) -> Asked:
        """``parts``: offset and most bytes, by topic and partition."""
        topics: dict[str, list[Node]] = {}
        for (topic, partition), (offset, most) in sorted(parts.items()):
            topics.setdefault(topic, []).append(
                _node(
                    wire.FetchPartition, partition=partition, current_leader_epoch=-1, fetch_offset=offset,
                    log_start_offset=-1, partition_max_bytes=most,
                )
            )  # fmt: skip
        body = _node(
            wire.FetchRequest,
            replica_id=-1,
            max_bytes=_ALL_BYTES,
            session_id=session[0],
            session_epoch=session[1],
            topics=[
                _node(wire.FetchTopic, topic=name, topic_id=Given("topic", name), partitions=partitions)
                for name, partitions in topics.items()
            ],
            forgotten_topics_data=[
                _node(wire.ForgottenTopic, topic=name, topic_id=Given("topic", name), partitions=[partition])
                for name, partition in forgotten or []
            ],
            **{"max_wait_ms": 0, "min_bytes": 0, **more},
        )
        return asked("Fetch", version, body)

    def _list_offsets(self) -> Asked:
        random, now = self._random, self._now_ms
        timestamps = [-1, -2, -3, -4, -5, 0, now, now - 50, now - 1000, now + 500, now + 10**7]
        return self._offsets_of(random.randint(2, 9), [self._where()[0]], random.choice([0, 1]), timestamps)

    def _offsets_of(self, version: int, topics: list[str], isolation: int, timestamps: list[int]) -> Asked:
        partitions = [
            _node(
                wire.ListOffsetsPartition, partition_index=i, current_leader_epoch=-1,
                timestamp=self._random.choice(timestamps),
            )
            for i in _PARTITIONS
        ]  # fmt: skip
        found = [_node(wire.ListOffsetsTopic, name=name, partitions=partitions) for name in topics]
        body = _node(wire.ListOffsetsRequest, replica_id=-1, isolation_level=isolation, topics=found)
        return asked("ListOffsets", version, body)


async def _create(twin: Twin) -> None:
    topics = tuple(
        wire.CreatableTopic(
            name=name, num_partitions=len(_PARTITIONS), replication_factor=1,
            configs=tuple(wire.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()),
        )
        for name, settings in LOGS.items()
    )  # fmt: skip
    created = await twin.ask(wire.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 7)
    assert isinstance(created, wire.CreateTopicsResponse)
    assert not any(topic.error_code for topic in created.topics)


async def _ready(twin: Twin) -> None:
    """Wait until the broker leads all partitions."""
    partitions = tuple(wire.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in _PARTITIONS)
    topics = tuple(wire.ListOffsetsTopic(name=name, partitions=partitions) for name in LOGS)
    with trio.fail_after(_READY_S):
        while True:
            answer = await twin.ask(wire.ListOffsetsRequest(topics=topics), 7)
            metadata = await twin.ask(wire.MetadataRequest(topics=None), 12)
            assert isinstance(answer, wire.ListOffsetsResponse)
            assert isinstance(metadata, wire.MetadataResponse)
            is_known = len(metadata.topics) == len(LOGS)
            if is_known and not any(part.error_code for topic in answer.topics for part in topic.partitions):
                return
            await trio.sleep(0.05)


async def run(folder: Path, *, seed: int, steps: int, clean: bool) -> list[str]:
    """A report on each request whose answers differ. ``clean``: whether the brokers are shut down, not killed."""
    reports = []
    async with clusters(folder, SETTINGS) as (kafka, zookeeper, cluster):
        bootstrap = cluster.bootstrap_servers()
        both = (
            LogTwin("Kafka", kafka.address, str(kafka.folder / "data")),
            LogTwin("ours", bootstrap, await directory(bootstrap)),
        )
        sequence = Sequence(Random(seed), int(time.time() * 1000))

        async def ask(request: Asked, where: str) -> None:
            if found := await compare(both, request):
                lines = "\n    ".join(found)
                reports.append(
                    f"seed {seed}, {where}: {request.api} {request.version} {text_of(request.body)}\n    {lines}"
                )

        try:
            for twin in both:
                await _create(twin)
            for half in (0, 1):
                for twin in both:
                    await _ready(twin)
                if half:
                    for request in sequence.all():
                        await ask(request, "after the restart")
                for step in range(half * steps // 2, (half + 1) * steps // 2):
                    await ask(sequence.next(), f"step {step}")
                for request in sequence.all():
                    await ask(request, f"after step {step}")
                for twin in both:
                    await twin.disconnect()
                if not half:
                    await restart(kafka, zookeeper, cluster, clean=clean)
        finally:
            for twin in both:
                await twin.disconnect()
    return reports


def main() -> int:
    parser = command("python -m tests.interop.sequences", __doc__)
    parser.add_argument("--kill", action="store_true", help="kill the brokers in the middle; else they are shut down")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "steps": arguments.steps, "clean": not arguments.kill}
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), **options))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
