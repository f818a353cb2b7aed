"""What a client of yours has committed is what it finds again, though the coordinator dies: a history of its commits.

    pytest examples/test_commits.py

A commit is a write, and asking for it a read. A write without an answer may have happened or not; of the others the
last one must be read, as Jepsen checks a register. The client is librdkafka's; replace it with yours.
"""

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import kce
from kce.wire import vocabulary

GROUP, TOPIC, RECORDS = "readers", "orders", 20
ORDERS = vocabulary.TopicPartition(TOPIC, 0)


def produce(bootstrap_servers: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(60) == 0


class Reader:
    """Reads a record, commits, and asks what is committed."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.violations: list[str] = []
        self.history = kce.CommitHistory(lambda invariant, subject, text: self.violations.append(text))
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False}
        )
        self.consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def read_and_commit(self, records: int) -> None:
        for _ in range(records):
            message = self.consumer.poll(60)
            assert message is not None
            assert message.error() is None
            self.history.read(ORDERS, message.offset())
            self.commit(message.offset() + 1)
            self.look()

    def commit(self, offset: int) -> None:
        commit = self.history.begin(ORDERS, offset)
        try:
            self.consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        except KafkaException:
            return  # nobody knows
        self.history.accepted(ORDERS, commit)

    def look(self) -> None:
        before = self.history.now()
        (found,) = self.consumer.committed([TopicPartition(TOPIC, 0)], timeout=60)
        self.history.fetched(ORDERS, max(found.offset, -1), before)


@pytest.mark.kafka_cluster(properties={"offsets.topic.num.partitions": "1"})
async def test_commits_outlive_their_coordinator(kafka_cluster):
    await kafka_cluster.create_topic(TOPIC, replication_factor=3)
    bootstrap_servers = kafka_cluster.bootstrap_servers()
    await trio.to_thread.run_sync(produce, bootstrap_servers)
    reader = Reader(bootstrap_servers)
    await trio.to_thread.run_sync(reader.read_and_commit, RECORDS // 2)
    (offsets,) = await kafka_cluster.describe_topics(["__consumer_offsets"])
    await kafka_cluster.kill(offsets.partitions[0].state.leader)
    await trio.to_thread.run_sync(reader.read_and_commit, RECORDS // 2)
    reader.consumer.close()
    assert reader.history.acknowledged > RECORDS // 2
    assert reader.violations == []
