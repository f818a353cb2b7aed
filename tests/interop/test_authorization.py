"""Kafka's own tool for ACLs, its clients, and a real broker with the same authorizer, beside ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kce.broker_stub.security.authorizer import CLASS_NAME
from kce.harness import Cluster
from kce.harness.sync_cluster import SyncCluster
from tests.certificates import scram_login
from tests.harness.test_security import USERS, of_client, secured
from tests.interop.real_kafka import real_brokers
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

ACLS = "kafka.admin.AclCommand"
PRODUCER = "kafka.tools.ConsoleProducer"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
PROTOCOL, MECHANISM = "SASL_PLAINTEXT", "SCRAM-SHA-256"
GUARDED = secured(PROTOCOL, MECHANISM) | {"authorizer.class.name": CLASS_NAME, "super.users": "User:admin"}
OURS, THEIRS = 1, 2


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    with Tools() as running:
        yield running


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The administrator's, for Kafka's tools."""
    file = tmp_path / "admin.properties"
    file.write_text(
        f"security.protocol={PROTOCOL}\nsasl.mechanism={MECHANISM}\n"
        f"sasl.jaas.config={scram_login('admin', USERS['admin'])}\n"
    )
    return str(file)


def alice(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, **of_client(PROTOCOL, MECHANISM, "alice", USERS["alice"])}


def produced(client: dict[str, Any], topic: str, partition: int = 0) -> KafkaError | None:
    """The error of one record."""
    errors: list[KafkaError | None] = []
    producer = Producer({**client, "acks": "all", "message.timeout.ms": 20000})
    producer.produce(topic, b"v", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors[0]


def consumed(client: dict[str, Any], topic: str, partition: int = 0) -> bytes | KafkaError:
    """The first record, or the error."""
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        return message.value() or b"" if error is None else error
    finally:
        consumer.close()


def is_read(client: dict[str, Any], topic: str) -> bool:
    """Whether there is the record. librdkafka's errors cannot be compared with bytes: a TypeError is raised later."""
    found = consumed(client, topic)
    return isinstance(found, bytes) and found == b"v"


DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


def code(answer: bytes | KafkaError | None) -> int:
    return answer.code() if isinstance(answer, KafkaError) else KafkaError.NO_ERROR


@pytest.mark.parametrize("through", ["broker", "zookeeper"])
def test_kafkas_tool_for_acls(tools: Tools, config: str, through: str) -> None:
    with SyncCluster(2, properties=GUARDED, users=USERS) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=2)
        client = alice(cluster.bootstrap_servers())
        door = ["--bootstrap-server", cluster.bootstrap_servers(), "--command-config", config]
        if through == "zookeeper":
            door = ["--authorizer", CLASS_NAME, "--authorizer-properties", f"zookeeper.connect={cluster.zookeeper}"]

        def listed(*what: str) -> str:
            return tools.run(ACLS, *door, "--list", *what)

        assert code(produced(client, "orders")) == DENIED
        who = ["--allow-principal", "User:alice"]
        tools.run(ACLS, *door, "--add", *who, "--producer", "--topic", "ord", "--resource-pattern-type", "prefixed")
        wait_for(lambda: code(produced(client, "orders")) == KafkaError.NO_ERROR)
        assert code(consumed(client, "orders")) in (DENIED, KafkaError.GROUP_AUTHORIZATION_FAILED)
        tools.run(ACLS, *door, "--add", *who, "--consumer", "--topic", "orders", "--group", "*")
        wait_for(lambda: is_read(client, "orders"))
        assert "ResourcePattern(resourceType=TOPIC, name=ord, patternType=PREFIXED)" in listed(
            "--topic", "orders", "--resource-pattern-type", "match"
        )
        assert "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)" in listed()
        tools.run(ACLS, *door, "--add", "--deny-principal", "User:alice", "--operation", "Read", "--topic", "*")
        wait_for(lambda: code(consumed(client, "orders")) == DENIED)
        tools.run(ACLS, *door, "--remove", "--force", "--topic", "*")
        wait_for(lambda: is_read(client, "orders"))
        tools.run(ACLS, *door, "--remove", "--force", "--topic", "ord", "--resource-pattern-type", "prefixed")
        wait_for(lambda: code(produced(client, "orders")) == DENIED)
        assert "name=ord," not in listed()


def wait_for(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Other brokers learn of a change a moment later; every attempt is a request of its own."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end


def test_a_delegation_token_logs_in(tools: Tools, config: str) -> None:
    """Rule B9.22: it is made by Kafka's tool, and known to both brokers."""
    properties = GUARDED | {"delegation.token.secret.key": "key"}
    with SyncCluster(2, properties=properties, users=USERS) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=1)
        door = ["--bootstrap-server", cluster.bootstrap_servers(), "--command-config", config]
        made = tools.run(TOKENS, *door, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:alice")
        token_id, secret = made.splitlines()[-1].split()[:2]
        with_token = {
            "bootstrap.servers": cluster.bootstrap_servers(), "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM, "sasl.username": token_id, "sasl.password": secret,
        }  # fmt: skip
        assert token_id in tools.run(TOKENS, *door, "--describe", "--owner-principal", "User:admin")
        jaas = scram_login(token_id, secret).rstrip(";") + ' tokenauth="true";'
        file = Path(config).with_name("token.properties")
        file.write_text(f"security.protocol={PROTOCOL}\nsasl.mechanism={MECHANISM}\nsasl.jaas.config={jaas}\n")
        bootstrap = ["--bootstrap-server", cluster.bootstrap_servers(), "--topic", "orders"]
        tools.run(PRODUCER, *bootstrap, "--producer.config", str(file), standard_input="one\ntwo\nthree\n")
        create = "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:alice"
        status, refused = tools.try_run(TOKENS, *door[:2], "--command-config", str(file), *create)
        assert status
        assert "DelegationTokenNotAllowed" in refused or "not allowed" in refused, refused
        with pytest.raises(KafkaException):  # librdkafka does not say that it is a token
            AdminClient(with_token | {"socket.timeout.ms": 2000}).list_topics(timeout=3)
        tools.run(TOKENS, *door, "--expire", "--expiry-time-period", "-1", "--hmac", secret)
        assert token_id not in tools.run(TOKENS, *door, "--describe", "--owner-principal", "User:admin")


async def test_a_real_broker_and_ours_obey_the_same_acls(tools: Tools, tmp_path: Path, config: str) -> None:
    """An ACL that is made at one holds at the other."""
    guarded = GUARDED | {"zookeeper.session.timeout.ms": "4000", "replica.lag.time.max.ms": "3000"}
    async with (
        Cluster(1, data=tmp_path / "data", properties=guarded, users=USERS) as cluster,
        real_brokers([THEIRS], cluster.zookeeper, tmp_path, **guarded) as brokers,
    ):
        await cluster.create_topic("t", assignment={0: (OURS, THEIRS), 1: (THEIRS, OURS)})

        async def all_are_in_sync() -> bool:
            (found,) = await cluster.describe_topics(["t"])
            return all(p.state is not None and set(p.state.isr) == {OURS, THEIRS} for p in found.partitions)

        await cluster.wait_until(all_are_in_sync, "both in every ISR", timeout_s=30)
        addresses = {OURS: cluster.member(OURS).addresses["DATA"], THEIRS: brokers[THEIRS].address}
        client = alice(",".join(addresses.values()))

        def judge() -> None:
            def at_both(wanted: int) -> None:
                for partition in (0, 1):  # led by ours, by theirs
                    wait_for(lambda p=partition: code(produced(client, "t", p)) == wanted)  # type: ignore[misc]

            def change(at: int, *words: str) -> None:
                door = ["--bootstrap-server", addresses[at], "--command-config", config]
                tools.run(ACLS, *door, *words, "--topic", "t", "--force")

            allow = "--allow-principal", "User:alice", "--operation", "Write"
            at_both(DENIED)
            change(OURS, "--add", *allow)
            at_both(KafkaError.NO_ERROR)
            change(THEIRS, "--remove", *allow)
            at_both(DENIED)
            change(THEIRS, "--add", *allow)
            at_both(KafkaError.NO_ERROR)
            change(OURS, "--add", "--deny-principal", "User:alice", "--operation", "All")
            at_both(DENIED)

        await trio.to_thread.run_sync(judge)
