"""RPC and DEL, what of them needs records: Kafka's own ReassignPartitionsCommand, and real brokers under our
controller (section 14 of docs/controller-semantics.md; rules of sections 10f and 11a). The rest is in
tests/controller/conformance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kce.zookeeper.znodes import topic_path
from tests.background import InBackground
from tests.interop.operations import Peers, as_tool_wants, peers
from tests.interop.tools import REASSIGN, TOPICS

pytestmark = pytest.mark.slow

#: bytes a second; a replica that is limited to the first does not catch up while a test lasts
SLOW, MEDIUM, FAST = 1000, 100_000_000, 1_000_000_000
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
#: set for a topic, or dynamically for a broker
_OWN = (1, 2)
_CLEANED = "*/cleaner-offset-checkpoint"
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class Kafka:
    """Three real brokers with two log directories each under our controller, and what the tests ask of them."""

    def __init__(self, running: InBackground[Peers]) -> None:
        self._running = running
        self._peers = running.value
        self._admin = AdminClient({"bootstrap.servers": self._peers.bootstrap, "log_level": 0})

    def tool(self, main_class: str, *arguments: str) -> str:
        return self._running.call(self._peers.tool, main_class, *arguments)

    def create(self, topic: str, replicas: tuple[int, ...], **configs: str) -> None:
        more = [word for key, text in configs.items() for word in ("--config", f"{key.replace('_', '.')}={text}")]
        self.tool(TOPICS, "--create", "--topic", topic, "--replica-assignment", as_tool_wants({0: replicas}), *more)
        self.until(topic, replicas)

    def delete(self, topic: str) -> None:
        """Its znode, its folders, and what the nodes know of it."""
        self.tool(TOPICS, "--delete", "--topic", topic)

        async def gone() -> bool:
            return not await self._peers.cluster.exists(topic_path(topic)) and not self.folders(topic)

        self._running.call(self._peers.cluster.wait_until, gone, f"topic {topic} to be deleted")
        self._running.call(self._peers.until_known, topic)

    def until_compacted(self, topic: str, broker: int, offset: int) -> None:
        """The broker's log cleaner has been there, up to that offset."""

        async def noted() -> bool:
            checkpoints = [path.read_text() for path in self._peers.brokers[broker].folder.glob(_CLEANED)]
            found = [line.split() for text in checkpoints for line in text.splitlines()]
            return any(line[:2] == [topic, "0"] and int(line[2]) >= offset for line in found)

        self._running.call(self._peers.cluster.wait_until, noted, f"{topic} to be compacted")

    def folders(self, topic: str, *brokers: int) -> list[Path]:
        """The folders of the only partition, on all brokers if none are named."""
        chosen = [self._peers.brokers[i] for i in brokers or self._peers.brokers]
        return sorted(path for broker in chosen for path in broker.folder.glob(f"*/{topic}-0"))

    def until(self, topic: str, replicas: tuple[int, ...]) -> None:
        """Replicas and ISR are these and no more, and the first leads."""

        def holds(now: tuple[int, ...], leader: int, isr: frozenset[int]) -> bool:
            return now == replicas and leader == replicas[0] and isr == set(replicas)

        self._running.call(self._peers.until, f"{topic} on {replicas}", holds, topic)
        self._running.call(self._peers.until_known, topic)

    def state(self, topic: str) -> tuple[tuple[int, ...], int, frozenset[int]]:
        return self._running.call(self._peers.states, topic)[0]

    def in_progress(self, topic: str) -> bool:
        return f"{topic}-0" in self.tool(REASSIGN, "--list")

    def produce(self, topic: str, count: int, size: int = 10) -> None:
        """Acknowledged by the whole ISR."""
        failed: list[str] = []
        producer = Producer({"bootstrap.servers": self._peers.bootstrap, "acks": "all", "log_level": 0})
        for number in range(count):
            producer.produce(
                topic, key=str(number % 2), value=b"%d" % number + b"." * size,
                on_delivery=lambda error, _: failed.append(error.str()) if error else None,
            )  # fmt: skip
            producer.poll(0)
        assert producer.flush(30) == 0
        assert failed == []

    def consume(self, topic: str) -> tuple[int, list[int]]:
        """The leader's high watermark, and the numbers of the records up to it."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._peers.bootstrap,
                "group.id": "reassignment",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        last = -1
        while last < end - 1:  # the newest record outlives any compaction
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(int(message.value().partition(b".")[0]))
            last = message.offset()
        consumer.close()
        return end, found

    def configs(self, kind: ResourceType, name: str | int, keys: Sequence[str]) -> dict[str, str]:
        """The configurations among ``keys`` that are set on the resource itself."""
        (future,) = self._admin.describe_configs([ConfigResource(kind, str(name))], request_timeout=30).values()
        entries = future.result()
        return {k: entries[k].value for k in keys if k in entries and entries[k].source in _OWN}

    def until_rates(self, rate: int | None, keys: Sequence[str] = RATES, brokers: Sequence[int] = (1, 2, 3)) -> None:
        """Brokers learn of their settings from ZooKeeper, in their own time."""
        wanted = {} if rate is None else dict.fromkeys(keys, str(rate))
        found: list[dict[str, str]] = []

        async def known() -> bool:
            found[:] = [
                await trio.to_thread.run_sync(self.configs, ResourceType.BROKER, broker, keys) for broker in brokers
            ]
            return found == [wanted] * len(brokers)

        self._running.call(self._peers.cluster.wait_until, known, f"rates of {rate} on {brokers}")


@pytest.fixture(scope="module")
def kafka(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("reassign")

    def more(broker_id: int) -> Mapping[str, str]:
        base = folder / f"kafka-{broker_id}"
        return {"log.dirs": f"{base / 'a'},{base / 'b'}", "log.cleaner.backoff.ms": "100"}

    with InBackground(lambda: peers(f"{zookeeper}/reassign", folder, ours=True, more=more)) as running:
        yield Kafka(running)


def plan(folder: Path, topic: str, replicas: Sequence[int], log_dirs: Sequence[str] | None = None) -> list[str]:
    """The option that names the file with it."""
    partition: dict[str, object] = {"topic": topic, "partition": 0, "replicas": list(replicas)}
    if log_dirs is not None:
        partition["log_dirs"] = list(log_dirs)
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    return ["--reassignment-json-file", str(path)]


@pytest.mark.kafka("RPC-4")
def test_high_watermark_after_a_move(kafka: Kafka, tmp_path: Path) -> None:  # rules 11.6, 11.7
    kafka.create("watermark", (1, 2))
    kafka.produce("watermark", 3)
    kafka.tool(REASSIGN, "--execute", *(file := plan(tmp_path, "watermark", (3, 2))))
    kafka.until("watermark", (3, 2))
    assert "is completed" in kafka.tool(REASSIGN, "--verify", *file)
    assert kafka.consume("watermark") == (3, [0, 1, 2])
    kafka.produce("watermark", 2)
    assert kafka.consume("watermark")[0] == 5
    assert [path.parent.parent.name for path in kafka.folders("watermark")] == ["kafka-2", "kafka-3"]


def begin_slowly(kafka: Kafka, topic: str, folder: Path) -> list[str]:
    """A move from (1, 2) to (1, 3) that its throttle holds up; the option with its plan."""
    kafka.create(topic, (1, 2))
    kafka.produce(topic, 6, 900_000)
    file = plan(folder, topic, (1, 3))
    kafka.tool(REASSIGN, "--execute", "--throttle", str(SLOW), *file)
    return file


@pytest.mark.kafka("RPC-5")
def test_a_throttle_is_altered(kafka: Kafka, tmp_path: Path) -> None:  # rule 11.18
    file = begin_slowly(kafka, "altered", tmp_path)
    kafka.until_rates(SLOW)
    moving = {REPLICAS[0]: {"0:1", "0:2"}, REPLICAS[1]: {"0:3"}}
    throttled = kafka.configs(ResourceType.TOPIC, "altered", REPLICAS)
    assert {key: set(text.split(",")) for key, text in throttled.items()} == moving
    assert "still in progress" in kafka.tool(REASSIGN, "--verify", *file)
    kafka.until_rates(SLOW)  # as long as the move is under way
    assert kafka.in_progress("altered")
    kafka.tool(REASSIGN, "--execute", "--additional", "--throttle", str(FAST), *file)
    kafka.until_rates(FAST)
    kafka.until("altered", (1, 3))
    assert "is completed" in kafka.tool(REASSIGN, "--verify", *file)
    kafka.until_rates(None)
    assert kafka.configs(ResourceType.TOPIC, "altered", REPLICAS) == {}


@pytest.mark.kafka("RPC-6")
def test_a_throttled_move(kafka: Kafka, tmp_path: Path) -> None:  # rules 11.5, 11.6
    kafka.create("throttled", (1, 2))
    kafka.produce("throttled", 20)
    assert not kafka.in_progress("throttled")
    kafka.until_rates(None)
    file = plan(tmp_path, "throttled", (3, 2))
    kafka.tool(REASSIGN, "--execute", "--throttle", str(MEDIUM), *file)
    kafka.until("throttled", (3, 2))
    kafka.until_rates(MEDIUM)
    assert "is completed" in kafka.tool(REASSIGN, "--verify", "--preserve-throttles", *file)
    kafka.until_rates(MEDIUM)
    assert "Clearing broker-level throttles on brokers 1,2,3" in kafka.tool(REASSIGN, "--verify", *file)
    kafka.until_rates(None)
    assert kafka.consume("throttled") == (20, list(range(20)))


@pytest.mark.kafka("RPC-7")
def test_records_during_a_move(kafka: Kafka, tmp_path: Path) -> None:  # rules 11.5, 11.14
    file = begin_slowly(kafka, "traffic", tmp_path)
    kafka.produce("traffic", 50)
    assert kafka.in_progress("traffic")
    assert kafka.state("traffic") == ((1, 3, 2), 1, frozenset({1, 2}))
    during = [*range(6), *range(50)]
    assert kafka.consume("traffic") == (56, during)
    kafka.tool(REASSIGN, "--execute", "--additional", "--throttle", str(FAST), *file)
    kafka.until("traffic", (1, 3))
    kafka.produce("traffic", 4)
    assert kafka.consume("traffic") == (60, [*during, *range(4)])
    kafka.tool(REASSIGN, "--verify", *file)


def other_folder(kafka: Kafka, topic: str) -> Path:
    """The one of broker 1's two log directories that lacks the partition."""
    (now,) = kafka.folders(topic, 1)
    return now.parent.with_name({"a": "b", "b": "a"}[now.parent.name])


@pytest.mark.kafka("RPC-10")
def test_a_move_between_log_directories(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create("directories", (1, 2))
    kafka.produce("directories", 10)
    target = other_folder(kafka, "directories")
    # broker 2 leaves, 3 comes, and 1 moves its replica
    file = plan(tmp_path, "directories", (1, 3), [str(target), "any"])
    kafka.tool(REASSIGN, "--execute", *file)
    kafka.until("directories", (1, 3))
    until_verified(kafka, file)
    assert kafka.folders("directories", 1) == [target / "directories-0"]
    assert kafka.folders("directories", 2) == []
    assert kafka.consume("directories") == (10, list(range(10)))


def until_verified(kafka: Kafka, file: list[str]) -> None:
    """Repeat the command: it queries the brokers, and nothing announces their completion."""
    for _ in range(500):
        printed = kafka.tool(REASSIGN, "--verify", *file)
        if "in progress" not in printed:
            break
    assert "in progress" not in printed, printed
    assert "completed" in printed


@pytest.mark.kafka("RPC-11")
def test_the_throttle_between_log_directories_is_altered(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create("slowly", (1,))
    kafka.produce("slowly", 6, 900_000)
    target = other_folder(kafka, "slowly")
    file = plan(tmp_path, "slowly", (1,), [str(target)])
    slowly = ["--replica-alter-log-dirs-throttle", str(SLOW)]
    kafka.tool(REASSIGN, "--execute", *slowly, *file)
    kafka.until_rates(SLOW, [LOG_DIR_RATE], [1])
    assert "is still in progress" in kafka.tool(REASSIGN, "--verify", *file)
    fast = ["--replica-alter-log-dirs-throttle", str(FAST)]
    kafka.tool(REASSIGN, "--execute", "--additional", *fast, *file)
    kafka.until_rates(FAST, [LOG_DIR_RATE], [1])
    until_verified(kafka, file)
    kafka.until_rates(None, [LOG_DIR_RATE], [1])
    assert kafka.folders("slowly", 1) == [target / "slowly-0"]


@pytest.mark.kafka("DEL-10")
def test_a_topic_that_is_compacted_can_be_deleted(kafka: Kafka) -> None:  # rules 10.42, 10.48
    kafka.create("compacted", (1, 2), cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0.01")
    for _ in range(3):
        kafka.produce("compacted", 20)
    kafka.until_compacted("compacted", 1, 20)  # the leader, which the consumer asks
    end, left = kafka.consume("compacted")
    assert end == 60
    assert 2 <= len(left) < 60
    assert left[-2:] == [18, 19]
    kafka.delete("compacted")
    kafka.create("compacted", (2, 1))
    assert kafka.consume("compacted") == (0, [])
