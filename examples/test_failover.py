"""A test against a cluster: move leaders on command, and check what a client sees.

    pytest examples/test_failover.py

The fixture `kafka_cluster` is a real ZooKeeper and three nodes, new for every test. This test uses librdkafka's admin
client; replace it with yours.
"""

import trio
from confluent_kafka.admin import AdminClient


def leaders_of(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Leader by partition, from the client's metadata."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    metadata = admin.list_topics(topic, timeout=10)
    return {p.id: p.leader for p in metadata.topics[topic].partitions.values()}


async def test_a_client_follows_the_leaders_after_a_controller_failover(kafka_cluster):
    await kafka_cluster.create_topic("orders", assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
    old = await kafka_cluster.wait_for_controller()

    await kafka_cluster.kill(old.id)
    new = await kafka_cluster.wait_for_controller(other_than=old)
    assert new.epoch == old.epoch + 1

    async def client_sees_live_leaders():
        survivors = kafka_cluster.bootstrap_servers()
        leaders = await trio.to_thread.run_sync(leaders_of, survivors, "orders")
        return set(leaders) == {0, 1, 2} and old.id not in leaders.values() and -1 not in leaders.values()

    await kafka_cluster.wait_until(client_sees_live_leaders, "the client to see only live leaders")
