"""What a test against this cluster looks like: leaders move on command, and a client's view is checked each time.

    pytest examples/test_failover.py

`kafka_cluster` is a real ZooKeeper and three nodes, new for every test. The client here is librdkafka's admin client;
put yours in its place.
"""

import trio
from confluent_kafka.admin import AdminClient


def leaders_seen_by_a_client(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Leader by partition, as the client is told."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    metadata = admin.list_topics(topic, timeout=10)
    return {p.id: p.leader for p in metadata.topics[topic].partitions.values()}


async def test_a_client_follows_the_leaders_after_a_controller_failover(kafka_cluster):
    await kafka_cluster.create_topic("orders", assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
    old = await kafka_cluster.wait_for_controller()

    await kafka_cluster.kill(old.id)
    new = await kafka_cluster.wait_for_controller(other_than=old)
    assert new.epoch == old.epoch + 1

    async def client_has_caught_up():
        survivors = kafka_cluster.bootstrap_servers()
        seen = await trio.to_thread.run_sync(leaders_seen_by_a_client, survivors, "orders")
        return set(seen) == {0, 1, 2} and old.id not in seen.values() and -1 not in seen.values()

    await kafka_cluster.wait_until(client_has_caught_up, "the client to see only live leaders")
