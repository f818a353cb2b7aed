"""Kafka's own clients and brokers on secured listeners: TLS, also of clients, and each SASL mechanism."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kce.harness import Cluster
from kce.harness.sync_cluster import SyncCluster
from tests.certificates import authority, chain, plain_users, private_key, scram_login
from tests.harness.test_security import USERS, of_client, round_trip, secured
from tests.interop.real_kafka import real_brokers
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

PRODUCER, CONSUMER = "kafka.tools.ConsoleProducer", "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
OURS, THEIRS = 1, 2


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    with Tools() as running:
        yield running


def jaas(mechanism: str) -> str:
    if mechanism == "OAUTHBEARER":
        return f'{OAUTH} unsecuredLoginStringClaim_sub="alice";'
    return plain_users(alice="alice's") if mechanism == "PLAIN" else scram_login("alice", "alice's")


def nodes(protocol: str, mechanism: str) -> dict[str, str]:
    """Settings of nodes; with OAUTHBEARER they log in to each other with it, too."""
    given = secured(protocol, mechanism)
    if mechanism == "OAUTHBEARER":
        for listener in ("control", "data"):
            given[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = jaas(mechanism)
    return given


@pytest.mark.parametrize(
    ("protocol", "mechanism", "client_auth"),
    [
        ("SSL", "", "none"), ("SSL", "", "required"), ("SASL_PLAINTEXT", "PLAIN", "none"),
        ("SASL_SSL", "SCRAM-SHA-256", "none"), ("SASL_SSL", "SCRAM-SHA-512", "none"),
        ("SASL_PLAINTEXT", "OAUTHBEARER", "none"),
    ],
)  # fmt: skip
def test_kafkas_console_tools(tools: Tools, tmp_path: Path, protocol: str, mechanism: str, client_auth: str) -> None:
    properties = nodes(protocol, mechanism or "PLAIN") | {"ssl.client.auth": client_auth}
    client = {"security.protocol": protocol}
    if mechanism:
        client |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(mechanism)}
    if protocol.endswith("SSL"):
        shown = authority().client("alice") if client_auth == "required" else None
        client |= authority().files(tmp_path, shown)
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={text}\n" for name, text in client.items()))
    with SyncCluster(2, properties=properties, users=USERS) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=2)
        bootstrap = ["--bootstrap-server", cluster.bootstrap_servers(), "--topic", "orders"]
        tools.run(PRODUCER, *bootstrap, "--producer.config", str(config), standard_input="one\ntwo\n")
        consumed = tools.run(
            CONSUMER, *bootstrap, "--consumer.config", str(config), "--from-beginning", "--max-messages", "2",
            "--timeout-ms", "30000",
        )  # fmt: skip
        assert consumed.split()[:2] == ["one", "two"]


def test_kafkas_tool_makes_a_user_who_then_logs_in(tools: Tools, tmp_path: Path) -> None:
    """Rules B9.19, B9.21."""
    protocol, mechanism = "SASL_SSL", "SCRAM-SHA-256"
    config = tmp_path / "admin.properties"
    client = {
        "security.protocol": protocol, "sasl.mechanism": mechanism,
        "sasl.jaas.config": scram_login("admin", USERS["admin"]), **authority().files(tmp_path),
    }  # fmt: skip
    config.write_text("".join(f"{name}={text}\n" for name, text in client.items()))
    with SyncCluster(2, properties=secured(protocol, mechanism), users=USERS) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=2)
        tools.run(
            CONFIGS, "--bootstrap-server", cluster.bootstrap_servers(), "--command-config", str(config), "--alter",
            "--add-config", "SCRAM-SHA-256=[iterations=8192,password=bob's],SCRAM-SHA-512=[password=bob's]",
            "--entity-type", "users", "--entity-name", "bob",
        )  # fmt: skip
        bob = {"bootstrap.servers": cluster.bootstrap_servers(), **of_client(protocol, mechanism, "bob", "bob's")}
        assert round_trip(bob, "orders") == {b"0", b"1", b"2", b"3"}


def allow_alice(admin: dict[str, Any], alice: dict[str, Any]) -> None:
    """To do anything with topic orders and group g. Returns when each broker has heard of it."""
    client = AdminClient(admin)
    client.poll(0)  # with OAUTHBEARER it makes its token here
    bindings = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind, name in ((ResourceType.TOPIC, "orders"), (ResourceType.GROUP, "g"))
    ]
    for created in client.create_acls(bindings, request_timeout=60).values():
        created.result(60)
    for server in alice["bootstrap.servers"].split(","):
        is_allowed = False
        while not is_allowed:
            asking = AdminClient({**alice, "bootstrap.servers": server})
            asking.poll(0)
            is_allowed = asking.list_topics("orders", timeout=60).topics["orders"].error is None


def refusals_of_one_record(client: dict[str, Any]) -> list[KafkaError]:
    """Why it could not be produced within 5 s."""
    errors: list[KafkaError] = []
    producer = Producer({**client, "message.timeout.ms": 5000})
    producer.produce("orders", b"x", partition=0, callback=lambda error, _: error and errors.append(error))
    assert producer.flush(20) == 0
    return errors


GUARDED = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}


def test_librdkafka_shows_a_certificate_whose_name_acls_know() -> None:
    """Rules B9.2, B9.3: the name in the certificate becomes the principal by `ssl.principal.mapping.rules`."""

    def shows(certificate: trustme.LeafCert) -> dict[str, Any]:
        return {
            **of_client("SSL", "", "", ""), "bootstrap.servers": servers, "ssl.key.pem": private_key(certificate),
            "ssl.certificate.pem": chain(certificate),
        }  # fmt: skip

    properties = secured("SSL", "PLAIN") | GUARDED | {
        "ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/L",
        "super.users": "User:node",
    }  # fmt: skip
    with SyncCluster(2, properties=properties) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=2)
        servers = cluster.bootstrap_servers()
        allow_alice(shows(authority().node), shows(authority().client("Alice")))
        assert round_trip(shows(authority().client("Alice")), "orders") == {b"0", b"1", b"2", b"3"}
        (denied,) = refusals_of_one_record(shows(authority().client("bob")))
        assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        (anonymous,) = refusals_of_one_record({**of_client("SSL", "", "", ""), "bootstrap.servers": servers})
        assert anonymous.code() == KafkaError._MSG_TIMED_OUT


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_logs_in_with_unsecured_tokens(protocol: str) -> None:
    """OAUTHBEARER; the token's subject is the principal."""

    def token_of(user: str) -> dict[str, Any]:
        tls = of_client("SSL", "", "", "") if protocol == "SASL_SSL" else {}
        return {
            **tls, "security.protocol": protocol, "bootstrap.servers": servers, "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": f"principal={user}",
        }  # fmt: skip

    properties = nodes(protocol, "OAUTHBEARER") | GUARDED | {"super.users": "User:admin"}
    for listener in ("control", "data"):
        login = f'{OAUTH} unsecuredLoginStringClaim_sub="admin";'
        properties[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = login
    with SyncCluster(2, properties=properties) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=2)
        servers = cluster.bootstrap_servers()
        allow_alice(token_of("admin"), token_of("alice"))
        assert round_trip(token_of("alice"), "orders") == {b"0", b"1", b"2", b"3"}
        (denied,) = refusals_of_one_record(token_of("bob"))
        assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        nameless = {"sasl.oauthbearer.config": "principal=alice principalClaimName=name"}  # "sub" is looked for
        (refused,) = refusals_of_one_record(token_of("alice") | nameless)
        assert refused.code() == KafkaError._MSG_TIMED_OUT


async def test_ours_and_theirs_replicate_each_other_with_sasl_ssl(tmp_path: Path) -> None:
    """Our controller drives a real broker; each replicates from the other, authenticated by SCRAM over TLS."""
    protocol, mechanism = "SASL_SSL", "SCRAM-SHA-512"
    ours = secured(protocol, mechanism) | {"zookeeper.session.timeout.ms": "4000", "replica.lag.time.max.ms": "3000"}
    texts = [name for name in ours if name.startswith("ssl.")]
    theirs = {name: text for name, text in ours.items() if name not in texts}
    theirs |= authority().files(tmp_path, authority().node)
    async with (
        Cluster(1, data=tmp_path / "data", properties=ours, users=USERS) as cluster,
        real_brokers([THEIRS], cluster.zookeeper, tmp_path, **theirs) as brokers,
    ):
        await cluster.create_topic("t", assignment={0: (OURS, THEIRS), 1: (THEIRS, OURS)})

        async def all_are_in_sync() -> bool:
            (found,) = await cluster.describe_topics(["t"])
            return all(p.state is not None and set(p.state.isr) == {OURS, THEIRS} for p in found.partitions)

        await cluster.wait_until(all_are_in_sync, "both in every ISR", timeout_s=30)
        client = {
            "bootstrap.servers": f"{cluster.member(OURS).addresses['DATA']},{brokers[THEIRS].address}",
            **of_client(protocol, mechanism, "alice", "alice's"),
        }
        produced = await trio.to_thread.run_sync(round_trip, client, "t")
        assert produced == {b"0", b"1", b"2", b"3"}
        await cluster.stop(OURS)  # a controlled shutdown: the real broker is controller and leads
        only_theirs = {**client, "bootstrap.servers": brokers[THEIRS].address, "acks": "1"}
        producer = Producer(only_theirs)
        producer.produce("t", b"alone", partition=0)
        assert await trio.to_thread.run_sync(producer.flush, 30) == 0
        await cluster.start(OURS)  # under a real controller
        await cluster.wait_until(all_are_in_sync, "both in every ISR again", timeout_s=30)
