"""Key and trust stores of listeners that are replaced while a node runs (B10, rule B9.38)."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from kce import wire
from kce.broker_stub import BrokerConfig
from kce.broker_stub.security.config import TlsConfig
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.node import Node
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.harness.world.listeners_tls import ListenersTls
from kce.harness.world.tls import Tls
from kce.wire import ErrorCode
from kce.wire.configuration import ConfigError
from tests.certificates import authority, chain, private_key
from tests.clusters import node

NAMES = ("127.0.0.1", "localhost")
FAILED = "Validation of dynamic config update of SSLFactory failed: "
REFUSED = f"{FAILED}org.apache.kafka.common.config.ConfigException: "


def certificate(*names: str, subject: str = "node", ca: trustme.CA | None = None) -> trustme.LeafCert:
    """With always the same subject, unless it is given."""
    return (ca or authority().ca).issue_cert(
        *(names or NAMES), common_name=subject, organization_name="kce", organization_unit_name="tests"
    )


def shown(of: Tls) -> bytes:
    assert of.stores.own is not None
    return of.stores.own.certificate


def der(of: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(of.cert_chain_pems[0].bytes().decode())


class Stores:
    """The files of a listener's stores, and settings with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trust = folder / "trust.pem"
        self.trust.write_text(authority().trusted)
        self.first = certificate()
        self.key = self.write("key.pem", self.first)

    def write(self, name: str, of: trustme.LeafCert) -> Path:
        path = self.folder / name
        path.write_text(private_key(of) + chain(of))
        return path

    def settings(self, listener: str = "data", **more: str) -> dict[str, str]:
        """Underscores become dots."""
        given = {
            "keystore_type": "PEM", "keystore_location": str(self.key), "truststore_type": "PEM",
            "truststore_location": str(self.trust), **more,
        }  # fmt: skip
        return {f"listener.name.{listener}.ssl.{name.replace('_', '.')}": text for name, text in given.items() if text}

    def config(self, **more: str) -> BrokerConfig:
        """Of a broker with a listener DATA with TLS, and a PLAINTEXT listener, which is the inter-broker one."""
        return BrokerConfig.from_properties({
            "listeners": "DATA://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "listener.security.protocol.map": "DATA:SSL,PLAINTEXT:PLAINTEXT,NEW:SSL",
            **self.settings(**more),
        })  # fmt: skip


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def listeners_of(config: BrokerConfig, inter_broker: str = "PLAINTEXT") -> ListenersTls:
    return ListenersTls(config.security, inter_broker)


def test_a_changed_file_is_read_again(stores: Stores) -> None:
    listeners = listeners_of(stores.config())
    before = listeners.current["DATA"]
    listeners.reload()
    assert listeners.current["DATA"] is before
    second = certificate()
    stores.write("key.pem", second)
    assert shown(listeners.current["DATA"]) == der(stores.first)
    listeners.reload()
    assert shown(listeners.current["DATA"]) == der(second)
    stores.trust.write_text(authority().trusted + trustme.CA().cert_pem.bytes().decode())
    listeners.reload()
    assert len(listeners.current["DATA"].server_context().get_ca_certs()) == 2
    stores.key.unlink()
    kept = listeners.current["DATA"]
    listeners.reload()  # somebody is about to put another there
    assert listeners.current["DATA"] is kept


@pytest.mark.parametrize("text", ["", "no PEM", "a key alone"])
def test_a_file_that_cannot_be_used_changes_nothing(stores: Stores, text: str) -> None:
    listeners = listeners_of(stores.config())
    before = listeners.current["DATA"]
    stores.key.write_text(private_key(stores.first) if text == "a key alone" else text)
    with pytest.raises(ConfigError, match=f"^{FAILED}.*its certificates cannot be used"):
        listeners.reload()
    with pytest.raises(ConfigError, match=f"^{FAILED}.* ssl\\.keystore\\.\\*: /nowhere: No such file or directory$"):
        listeners.use(stores.config(keystore_location="/nowhere").security)
    assert listeners.current["DATA"] is before
    before.server_context()


def test_other_settings_are_other_stores(stores: Stores) -> None:
    listeners = listeners_of(stores.config())
    second = certificate(*NAMES, "more.example")
    then = stores.config(keystore_location=str(stores.write("second.pem", second)), client_auth="required")
    listeners.check(then.security)
    assert shown(listeners.current["DATA"]) == der(stores.first)
    listeners.use(then.security)
    assert shown(listeners.current["DATA"]) == der(second)
    assert listeners.current["DATA"].config.client_auth == "none"  # of a listener that is there, only stores change


@pytest.mark.parametrize(
    ("second", "allowing", "words"),
    [
        (certificate(subject="another"), "allow_dn_changes", f"{REFUSED}Keystore DistinguishedName does not match: "),
        (certificate("127.0.0.1"), "allow_san_changes", f"{REFUSED}Keystore SubjectAltNames do not match: "),
    ],
)
def test_a_key_store_keeps_its_subject_and_names(
    stores: Stores, second: trustme.LeafCert, allowing: str, words: str
) -> None:
    path = str(stores.write("second.pem", second))
    listeners = listeners_of(stores.config())
    with pytest.raises(ConfigError) as refused:
        listeners.check(stores.config(keystore_location=path).security)
    assert refused.value.words.startswith(words)
    lenient = listeners_of(stores.config(**{allowing: "true"}))
    lenient.use(stores.config(keystore_location=path, **{allowing: "true"}).security)
    assert shown(lenient.current["DATA"]) == der(second)


def test_a_trust_store_is_not_added(stores: Stores) -> None:
    without = {"truststore_location": "", "truststore_type": ""}
    listeners = listeners_of(stores.config(**without))
    with pytest.raises(ConfigError, match="Cannot add SSL truststore to an existing listener"):
        listeners.check(stores.config().security)
    listeners_of(stores.config()).check(stores.config(**without).security)


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_brokers_must_still_understand_each_other(stores: Stores, client_auth: str) -> None:
    stranger = certificate(ca=trustme.CA())
    then = stores.config(keystore_location=str(stores.write("second.pem", stranger)), client_auth=client_auth)
    listeners_of(stores.config(client_auth=client_auth)).check(then.security)  # clients may trust it
    between = listeners_of(stores.config(client_auth=client_auth), "DATA")
    with pytest.raises(
        ConfigError, match=rf"^{FAILED}javax\.net\.ssl.SSLHandshakeException: the peer's certificate is not trusted"
    ):
        between.check(then.security)
    between.check(
        stores.config(keystore_location=str(stores.write("third.pem", certificate())), client_auth=client_auth).security
    )


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_brokers_must_understand_each_other_from_the_start(stores: Stores, client_auth: str) -> None:
    for name, of in (
        ("stranger", certificate(ca=trustme.CA())),
        ("old", authority().ca.issue_cert(*NAMES, common_name="node", not_after=datetime(2020, 1, 1, tzinfo=UTC))),
    ):
        config = stores.config(keystore_location=str(stores.write(f"{name}.pem", of)), client_auth=client_auth)
        listeners_of(config)  # clients may trust it
        with pytest.raises(ConfigError, match=r"^listener DATA: brokers cannot connect to each other .*VERIFY_FAILED"):
            listeners_of(config, "DATA")
    with pytest.raises(ConfigError, match="cannot connect to each other"):
        listeners_of(stores.config(truststore_location="", truststore_type=""), "DATA")
    listeners_of(stores.config(client_auth=client_auth), "DATA")


def test_listeners_come_and_go(stores: Stores) -> None:
    listeners = listeners_of(stores.config())
    held = listeners.current
    both = {"listeners": "DATA://127.0.0.1:0,PLAINTEXT://127.0.0.1:0,NEW://127.0.0.1:0"}
    then = stores.config().changed({**both, **stores.settings("new")})
    listeners.use(then.security)
    assert held.keys() == {"DATA", "NEW"}
    with pytest.raises(ConfigError, match=r"^listener NEW: its certificates cannot be used"):
        listeners_of(stores.config()).check(
            stores.config().changed({**both, **stores.settings("new", keystore_location="/nowhere")}).security
        )
    listeners.use(stores.config().security)
    assert held.keys() == {"DATA"}


# a running cluster


async def alter(at: Node, client: NodeLinks, changes: dict[str, str]) -> tuple[ErrorCode, str]:
    """Change settings of a node over its listener DATA."""
    host, _, port = at.addresses()["DATA"].rpartition(":")
    link = await client.dial(host, int(port), to=-1, listener="DATA")
    configs = tuple(
        wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)
        for name, value in changes.items()
    )
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=4, resource_name=str(at.id), configs=configs
    )
    message = wire.IncrementalAlterConfigsRequest(resources=(resource,))
    await link.send_frame(wire.encode_request(message, api_version=1, correlation_id=1, client_id="c"))
    answer: Any = wire.decode_response(await link.receive_frame(), api_key=message.__api_key__, api_version=1)[1]
    await link.aclose()
    return ErrorCode(answer.responses[0].error_code), answer.responses[0].error_message


async def seen(at: Node, client: NodeLinks) -> bytes | None:
    """The certificate that a new connection is shown."""
    host, _, port = at.addresses()["DATA"].rpartition(":")
    link = await client.dial(host, int(port), to=-1, listener="DATA")
    assert link._secured is not None
    found = link._secured.getpeercert(binary_form=True)
    await link.aclose()
    assert isinstance(found, bytes)
    return found


async def test_new_connections_of_a_running_node_get_the_new_certificate(stores: Stores) -> None:
    properties = {"listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:SSL", **stores.settings()}
    location = "listener.name.data.ssl.keystore.location"
    async with Cluster(2, world=memory(seed=5), properties=properties) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("t", assignment={0: [1, 2]})
        running = node(cluster, 1)
        client = NodeLinks(running.world, Links(), -1, tls={"DATA": Tls(TlsConfig.of_client(authority().trust()))})
        host, _, port = running.addresses()["DATA"].rpartition(":")
        old = await client.dial(host, int(port), to=-1, listener="DATA")
        assert await seen(running, client) == der(stores.first)

        second = certificate()  # in another file
        changed = await alter(running, client, {location: str(stores.write("second.pem", second))})
        assert changed == (ErrorCode.NONE, None)

        async def shows_second() -> bool:
            return await seen(running, client) == der(second)

        await cluster.wait_until(shows_second, "the second certificate")

        third = certificate()  # in the same file: at once, and not by way of ZooKeeper
        path = str(stores.write("second.pem", third))
        assert await alter(running, client, {location: path}) == (ErrorCode.NONE, None)
        assert await seen(running, client) == der(third)
        stores.write("second.pem", certificate(subject="another"))
        code, words = await alter(running, client, {"num.io.threads": "7"})  # whatever is changed
        assert code is ErrorCode.INVALID_CONFIG
        assert words.startswith(
            f"Invalid config value for resource ConfigResource(type=BROKER, name='1'): {REFUSED}Keystore Dist"
        )
        code, words = await alter(running, client, {location: str(stores.folder / "none.pem")})
        assert code is ErrorCode.INVALID_REQUEST
        assert words.startswith(f"Invalid value org.apache.kafka.common.config.ConfigException: {FAILED}")
        assert await seen(running, client) == der(third)
        assert await seen(node(cluster, 2), client) == der(stores.first)

        message = wire.ApiVersionsRequest(client_software_name="t", client_software_version="1")
        await old.send_frame(wire.encode_request(message, api_version=3, correlation_id=1, client_id="c"))
        await old.receive_frame()  # connections keep the certificate that they began with
        await old.aclose()
