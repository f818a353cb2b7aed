"""Whole clusters whose nodes authenticate each other, and clients (sections 9a-9d of docs/broker-semantics.md).

Covers: broker_stub/security/sasl_client.py, harness/users.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import kce
from kce.harness.sync_cluster import SyncCluster
from tests.certificates import authority, plain_users, scram_login

PASSWORD = "admin-secret"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
USERS = {"admin": PASSWORD, "alice": "alice's"}


def secured(protocol: str, mechanism: str) -> dict[str, str]:
    """Settings of nodes whose listeners and connections have this protocol and mechanism."""
    given = {
        "listener.security.protocol.map": f"CONTROL:{protocol},DATA:{protocol}",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
    }
    jaas = plain_users(**USERS) if mechanism == "PLAIN" else scram_login("admin", PASSWORD)
    for listener in ("control", "data"):
        given[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = jaas
    return given | (authority().of_node() if protocol.endswith("SSL") else {})


def of_client(protocol: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    """Settings of librdkafka."""
    given = {"security.protocol": protocol}
    if protocol.startswith("SASL"):
        given |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    if protocol.endswith("SSL"):
        given |= {"ssl.ca.pem": authority().trusted}
    return given


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_nodes_in_memory_authenticate_each_other(protocol: str, mechanism: str) -> None:
    properties = secured(protocol, mechanism)
    with SyncCluster(3, world=kce.memory(seed=7), properties=properties, users=USERS) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        old = cluster.wait_for_controller()
        cluster.kill(old.id)
        cluster.wait_for_controller(other_than=old)
        cluster.restart(old.id)
        cluster.wait_until_settled()
        # links see frames in the clear, those of the authentication too
        for api in ("LeaderAndIsr", "SaslHandshake", "SaslAuthenticate", "Fetch"):
            assert cluster.history.events(api=api), api


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_nodes_log_in_again_before_their_sessions_end(mechanism: str) -> None:
    """Rules B9.24, B9.25: nobody closes their connections. A session of OAUTHBEARER ends with its token."""
    properties = secured("SASL_PLAINTEXT", mechanism)
    if mechanism == "PLAIN":
        properties["connections.max.reauth.ms"] = "10000"
    else:
        login = f'{OAUTH} unsecuredLoginStringClaim_sub="node" unsecuredLoginLifetimeSeconds="10";'
        for listener in ("control", "data"):
            properties[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = login
    with SyncCluster(2, world=kce.memory(seed=3), properties=properties) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=2)
        cluster.wait_until_settled()
        dialled = len(cluster.history.events(api="ApiVersions"))
        logins = len(cluster.history.events(api="SaslHandshake"))
        cluster.wait_until(
            lambda: len(cluster.history.events(api="SaslHandshake")) > logins + 20, "logins", timeout_s=120
        )
        cluster.create_topic("late", partitions=2, replication_factor=2)  # on connections whose session is over
        assert len(cluster.history.events(api="ApiVersions")) == dialled


def test_who_cannot_log_in_gets_no_control_requests() -> None:
    properties = secured("SASL_PLAINTEXT", "SCRAM-SHA-256")
    with SyncCluster(2, world=kce.memory(seed=1), properties=properties, users={"alice": "alice's"}) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=1, wait=False)
        cluster.wait_until(lambda: len(cluster.history.events(api="SaslAuthenticate", is_request=False)) > 3, "logins")
        assert not cluster.history.events(api="LeaderAndIsr")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [("SASL_SSL", "SCRAM-SHA-512"), ("SASL_SSL", "SCRAM-SHA-256"), ("SASL_PLAINTEXT", "PLAIN"), ("SSL", "")],
)
def test_librdkafka_produces_and_consumes(protocol: str, mechanism: str) -> None:
    properties = secured(protocol, mechanism or "PLAIN")
    with SyncCluster(3, properties=properties, users=USERS) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=3)
        client = {
            "bootstrap.servers": cluster.bootstrap_servers(), **of_client(protocol, mechanism, "alice", "alice's")
        }  # fmt: skip
        produced = round_trip(client, "orders")
        assert produced == {b"0", b"1", b"2", b"3"}
        if mechanism:
            wrong = client | {"sasl.password": "wrong", "socket.timeout.ms": 2000}
            with pytest.raises(KafkaException):
                AdminClient(wrong).list_topics(timeout=3)


def round_trip(client: Mapping[str, Any], topic: str) -> set[bytes]:
    """Produce four records with acks=all, and consume them."""
    errors: list[Any] = []
    producer = Producer({**client, "acks": "all"})
    for number in range(4):
        producer.produce(
            topic, str(number).encode(), partition=number % 2, callback=lambda e, _: e and errors.append(e)
        )
    assert producer.flush(20) == 0
    assert not errors
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    found = set()
    while len(found) < 4:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.add(message.value())
    consumer.close()
    return found
