"""How a node connects to ZooKeeper: settings, TLS, and to whom its nodes belong (rule 1.5)."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.harness.node import Node
from kce.zookeeper import znodes
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import OPEN_ACL, READ_ACL, Acl, Create, NoAuth, StoreUnavailable, value
from kce.zookeeper.store.kazoo import KazooStore
from tests.background import InBackground
from tests.broker_stub.support import until
from tests.tools import require

NETTY, NIO = "org.apache.zookeeper.ClientCnxnSocketNetty", "org.apache.zookeeper.ClientCnxnSocketNIO"
SSL = "zookeeper.ssl"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate in one file, as Kafka's PEM stores are; it is trusted by itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = [folder / "key", folder / "certificate"]
    names = ["-keyout", made[0], "-out", made[1], "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [require("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    subprocess.run(command, check=True, capture_output=True)
    pem = folder / "both.pem"
    pem.write_text(made[0].read_text() + made[1].read_text())
    return pem


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[tuple[str, str]]:
    """(plaintext, TLS) of one ZooKeeper; the latter is by Netty, and asks for a certificate."""
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    for store in ("keyStore", "trustStore"):
        settings |= {f"ssl.{store}.location": str(certificate), f"ssl.{store}.type": "PEM"}
    with InBackground(lambda: embedded_zookeeper(tmp_path_factory.mktemp("zookeeper"), settings=settings)) as running:
        yield running.value, f"127.0.0.1:{port}"


def properties(address: str, certificate: Path, **more: str) -> dict[str, str]:
    return {
        "zookeeper.connect": address,
        "zookeeper.connection.timeout.ms": "10000",
        "zookeeper.clientCnxnSocket": NETTY,
        f"{SSL}.client.enable": "true",
        f"{SSL}.keystore.location": str(certificate),
        f"{SSL}.truststore.location": str(certificate),
        **more,
    }


async def connect(given: dict[str, str]) -> KazooStore:
    return await ZooKeeperClientConfig.from_properties(given).connect()


@pytest.mark.slow
@pytest.mark.kafka("ZCT-4")
async def test_nettys_transport(addresses: tuple[str, str], certificate: Path) -> None:
    given = properties(f"{addresses[1]}/transport", certificate)
    store = await connect(given)
    large = {f"/n{i}": bytes([65 + i]) * 90_000 for i in range(20)}  # many TLS records at once, both ways
    assert await store.write([Create(path, data) for path, data in large.items()]) == list(large)
    found = await store.get_data(list(large))
    assert [value(answer).data for answer in found] == list(large.values())
    await store.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["truststore", "keystore"])
async def test_certificates_that_do_not_fit(addresses: tuple[str, str], certificate: Path, missing: str) -> None:
    """We do not know the server, or it does not know us."""
    given = properties(addresses[1], certificate, **{"zookeeper.connection.timeout.ms": "300"})
    with pytest.raises(StoreUnavailable, match="do the certificates fit"):
        await connect({key: text for key, text in given.items() if missing not in key})


@pytest.mark.slow
@pytest.mark.kafka("ZKCT-1")
async def test_kafkas_nodes_by_nettys_transport(addresses: tuple[str, str], certificate: Path) -> None:
    plaintext, encrypted = addresses
    ours = await connect(properties(f"{encrypted}/nodes", certificate))
    zk = KafkaZkClient(ours, now_ms=lambda: 0, new_uuid=uuid.uuid4)
    await zk.create_top_level_paths()
    cluster_id = await zk.get_or_create_cluster_id()
    theirs = await connect({"zookeeper.connect": f"{plaintext}/nodes"})
    other = KafkaZkClient(theirs, now_ms=lambda: 0, new_uuid=uuid.uuid4)
    assert await other.get_or_create_cluster_id() == cluster_id
    assert None not in await other.exists(znodes.TOP_LEVEL)
    await ours.aclose()
    await theirs.aclose()


@pytest.mark.slow
async def test_what_a_node_writes_is_its_own(addresses: tuple[str, str], certificate: Path, tmp_path: Path) -> None:
    plaintext, encrypted = addresses
    given = properties(f"{encrypted}/acls", certificate, **{"zookeeper.set.acl": "true", "broker.id": "1"})
    listener = {"listeners": "DATA://127.0.0.1:0", "listener.security.protocol.map": "DATA:PLAINTEXT"}
    names = {"inter.broker.listener.name": "DATA", "log.dirs": str(tmp_path)}
    node = Node(given | listener | names)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await until(lambda: node.status().controller_epoch == 1)
        anyone = await connect({"zookeeper.connect": f"{plaintext}/acls"})
        mine = (Acl(31, "x509", "CN=node"),)
        public = ["/brokers/ids/1", "/brokers/topics", "/cluster/id", "/controller", "/config/topics"]
        secret = ["/config/users", "/config/brokers"]
        assert node.store is not None
        assert await node.store.get_acl(public) == [mine + READ_ACL] * len(public)
        assert await node.store.get_acl([*secret, "/consumers"]) == [mine, mine, OPEN_ACL]
        assert value((await anyone.get_data(["/brokers/ids/1"]))[0]).data != b""
        refused = await anyone.write([Create("/brokers/ids/2"), Create("/consumers/c")])
        assert [type(answer) for answer in refused] == [NoAuth, str]
        assert [type(answer) for answer in await anyone.get_children(secret)] == [NoAuth, NoAuth]
        await anyone.aclose()
        await node.shutdown()


KEY = f"{SSL}.keystore.location"
TLS = {f"{SSL}.client.enable": "true"}


@pytest.mark.parametrize(
    (("given", "error")),
    [
        ({"zookeeper.set.acl": "maybe"}, "zookeeper.set.acl=maybe: must be true or false"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl=true needs an identity"),
        (TLS | {"zookeeper.set.acl": "true"}, "zookeeper.set.acl=true needs an identity"),
        ({"zookeeper.clientCnxnSocket": "Carrier"}, "zookeeper.clientCnxnSocket=Carrier: must be one of"),
        (TLS | {"zookeeper.clientCnxnSocket": NIO}, f"{SSL}.client.enable=true needs zookeeper.clientCnxnSocket"),
        (TLS | {f"{SSL}.crl.enable": "true"}, f"{SSL}.crl.enable=true: not supported here"),
        (TLS | {f"{SSL}.cipher.suites": "A"}, f"{SSL}.cipher.suites=A: not supported here"),
        (TLS | {f"{SSL}.endpoint.identification.algorithm": "DNS"}, f"{SSL}.endpoint.identification.algorithm=DNS"),
        (TLS | {KEY: "/nowhere/store.jks"}, f"{KEY}=/nowhere/store.jks: its type is 'jks', but only PEM"),
        (TLS | {KEY: "/nowhere/store", f"{SSL}.keystore.type": "PEM"}, f"{KEY}=/nowhere/store: there is no such file"),
        (TLS | {KEY: __file__, f"{SSL}.keystore.type": "PEM"}, f"{SSL}.*: the certificates cannot be used"),
    ],
)
def test_refusals(given: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared
        ZooKeeperClientConfig.from_properties({"zookeeper.connect": "127.0.0.1:1", **given})
    assert str(caught.value).startswith(error)


def test_defaults() -> None:  # rule 1.7
    assert ZooKeeperClientConfig.from_properties({"zookeeper.connect": "a:1"}) == ZooKeeperClientConfig(
        "a:1", 18_000, 18_000
    )
    off = {"zookeeper.connect": "a:1", "zookeeper.set.acl": "FALSE", f"{SSL}.client.enable": "False", KEY: "/nowhere"}
    made = ZooKeeperClientConfig.from_properties(off | {"zookeeper.session.timeout.ms": "7"})
    assert (made.connection_timeout_ms, made.set_acl, made.tls) == (7, False, None)


def test_a_host_name_is_not_always_checked(certificate: Path) -> None:
    given = properties("a:1", certificate)
    for algorithm, checked in ((None, True), ("https", True), ("", False)):
        more = {} if algorithm is None else {f"{SSL}.endpoint.identification.algorithm": algorithm}
        tls = ZooKeeperClientConfig.from_properties(given | more).tls
        assert tls is not None
        assert tls.check_hostname is checked
