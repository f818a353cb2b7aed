"""Chaos in front of a cluster, from a seed: nothing that was acknowledged may be lost, doubled or reordered.

    pytest examples/test_chaos.py
    KAFKA=broker-1:9092 SEED=4711 RECORDS=100000 pytest examples/test_chaos.py      with a real cluster of yours

Random faults come and go in a proxy while an idempotent producer writes; afterwards a consumer reads everything
without the proxy, and its history is checked as Jepsen does. The clients are librdkafka's; replace them with yours.
"""

import os
from collections import Counter
from random import Random

import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kce
from kce.wire import ErrorCode

SEED, RECORDS = int(os.environ.get("SEED", "1")), int(os.environ.get("RECORDS", "120"))
TOPIC = f"kce-chaos-{os.getpid()}"


def a_fault(random: Random) -> kce.Rule:
    """Each lasts for a moment only, so that the producer gets on."""
    api, seed = random.choice(("Produce", "Metadata", None)), random.randrange(1 << 30)
    return random.choice(
        (
            kce.Rule(api=api, reset=True, probability=0.3, seed=seed),
            kce.Rule(api=api, is_request=False, drop=True, reset=True, probability=0.3, seed=seed),
            kce.Rule(api=api, delay=0.02, jitter=0.05, probability=0.5, seed=seed),
            kce.Rule(api="Produce", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, probability=0.5, seed=seed),
            kce.Rule(api="Produce", segments=7, probability=0.5, seed=seed),
        )
    )


async def chaos(proxy: kce.Proxy, random: Random) -> None:
    """Until it is cancelled."""
    while True:
        async with proxy.faults(a_fault(random), must_fire=False):
            await trio.sleep(0.05 + 0.1 * random.random())
        await trio.sleep(0.05)


def create_topic(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.list_topics(timeout=30)
    admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result(30)


def produce(bootstrap_servers: str) -> list[list[bytes]]:
    """The acknowledged records of each partition, in the order in which they were sent."""
    settings = {
        "bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "batch.num.messages": 10,
        # the proxy answers single requests with errors: of several in flight, later ones would come first
        "max.in.flight": 1,
    }  # fmt: skip
    producer, acknowledged = Producer(settings), set()
    sent = [[b"%d" % number for number in range(partition, RECORDS, 2)] for partition in (0, 1)]
    for number in range(RECORDS):
        value = b"%d" % number

        def delivered(error, message, value=value):
            if error is None:
                acknowledged.add(value)

        producer.produce(TOPIC, value, partition=number % 2, on_delivery=delivered)
    producer.flush(120)
    return [[value for value in values if value in acknowledged] for values in sent]


def consume(bootstrap_servers: str, partition: int) -> list[bytes]:
    settings = {
        "bootstrap.servers": bootstrap_servers, "group.id": "none", "enable.auto.commit": False,
        "enable.partition.eof": True,
    }  # fmt: skip
    consumer, found = Consumer(settings), []
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    return found


async def test_nothing_acknowledged_is_lost(kafka_cluster):
    await kafka_cluster.wait_until_settled()
    to = os.environ.get("KAFKA") or kafka_cluster.bootstrap_servers()
    async with kce.Proxy(*to.split(",")) as proxy, trio.open_nursery() as nursery:
        await trio.to_thread.run_sync(create_topic, to)
        nursery.start_soon(chaos, proxy, Random(SEED))
        acknowledged = await trio.to_thread.run_sync(produce, proxy.bootstrap_servers)
        nursery.cancel_scope.cancel()
    assert sum(map(len, acknowledged)) == RECORDS
    for partition, expected in enumerate(acknowledged):
        found = await trio.to_thread.run_sync(consume, to, partition)
        assert not set(expected) - set(found), "lost"
        assert [value for value, times in Counter(found).items() if times > 1] == [], "doubled"
        assert [value for value in found if value in set(expected)] == expected, "reordered"
