"""Faults in front of a cluster that is not ours: a client meets errors, resets and delays, and must cope.

    pytest examples/test_faults_before_a_cluster.py
    KAFKA=broker-1:9092 pytest examples/test_faults_before_a_cluster.py      with a cluster of yours

The client is librdkafka's producer; replace `produce` with yours. Without KAFKA the cluster is the fixture's.
"""

import os

import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import kce
from kce.wire import ErrorCode

TOPIC = "kce-example"
RECORDS = 300


def create_topic(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    if TOPIC not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result(30)


def produce(bootstrap_servers: str) -> int:
    """How many of the records are acknowledged; each is a request of its own."""
    settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "batch.num.messages": 1}
    producer, acknowledged = Producer(settings), []
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number), on_delivery=lambda error, message: error or acknowledged.append(message))
    assert producer.flush(60) == 0
    return len(acknowledged)


async def test_a_producer_survives_errors_and_resets(kafka_cluster):
    to = os.environ.get("KAFKA") or kafka_cluster.bootstrap_servers()
    async with kce.Proxy(*to.split(",")) as proxy:
        await trio.to_thread.run_sync(create_topic, proxy.bootstrap_servers)
        rules = (
            kce.Rule(api="Produce", topic=TOPIC, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, every=20),
            kce.Rule(api="Produce", is_request=False, drop=True, nth=10, reset=True),
            kce.Rule(api="Produce", delay=0.01, probability=0.1, seed=7),
        )
        async with proxy.faults(*rules):
            assert await trio.to_thread.run_sync(produce, proxy.bootstrap_servers) == RECORDS
        assert rules[0].fired > 5  # the proxy's history has all that was asked and answered
        assert len(proxy.history.events(api="Produce")) > RECORDS
