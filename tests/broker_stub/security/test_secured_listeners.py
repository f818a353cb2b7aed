"""Listeners with TLS and SASL on real sockets (rules B1.43, B1.54, B9.2-B9.25).

Covers: broker_stub/reactor/authentication.py, harness/world/tls.py.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)
from cryptography.x509 import load_pem_x509_certificate

from kce import wire
from kce.broker_stub import BrokerConfig
from kce.broker_stub.broker import Broker
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor import Request, SocketServer
from kce.broker_stub.security import KafkaPrincipal
from kce.broker_stub.security.config import TlsConfig, login_module
from kce.broker_stub.security.credentials import CredentialCache
from kce.broker_stub.security.sasl_authenticator import SaslServices
from kce.broker_stub.security.sasl_client import SaslClient
from kce.broker_stub.security.scram import ScramCredential, ScramMechanism
from kce.harness.connections import Link
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import RealWorld
from kce.harness.world.tls import Tls, listeners_tls
from kce.wire import ErrorCode
from kce.wire.configuration import ConfigError
from kce.wire.transport import ConnectionLost
from tests.broker_stub.support import ScriptedApis, running_broker
from tests.certificates import authority, plain_users, scram_login

VERSIONS = wire.ApiVersionsRequest(client_software_name="test", client_software_version="1")
PLAIN_JAAS = "listener.name.data.plain.sasl.jaas.config"
SCRAM_JAAS = "listener.name.data.scram-sha-256.sasl.jaas.config"
USERS = plain_users(admin="admin-secret", alice="alice's")


def properties(protocol: str, **more: str) -> dict[str, str]:
    """Of one listener DATA. Underscores become dots."""
    given = {
        "broker.id": "1",
        "listeners": "DATA://127.0.0.1:0",
        "listener.security.protocol.map": f"DATA:{protocol}",
        "inter.broker.listener.name": "DATA",
        "connection.failed.authentication.delay.ms": "1",
    }
    if protocol.endswith("SSL"):
        given |= authority().of_node()
    if protocol.startswith("SASL"):
        given |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol": "PLAIN",
            PLAIN_JAAS: USERS, SCRAM_JAAS: scram_login("admin", "admin-secret"),
        }  # fmt: skip
    return given | {key.replace("_", "."): value for key, value in more.items()}


class Secured:
    """A server whose requests are answered by a function of the test, and clients of it."""

    def __init__(self, server: SocketServer, config: BrokerConfig) -> None:
        self.server = server
        self.config = config
        self.principals: list[KafkaPrincipal] = []
        self.metrics = server.metrics

    async def connect(self, **client: str) -> Link:
        """A connection, after the TLS handshake if the listener has TLS. Underscores become dots."""
        tls = None
        if self.config.security["DATA"].tls is not None:
            given = authority().trust() | {key.replace("_", "."): value for key, value in client.items()}
            tls = Tls(TlsConfig.of_client(given))
        return await self.link(tls)

    async def link(self, tls: Tls | None) -> Link:
        (endpoint,) = self.server.bound_listeners()
        node = NodeLinks(RealWorld(), Links(), -1, tls={} if tls is None else {"DATA": tls})
        return await node.dial(endpoint.host, endpoint.port, to=1, listener="DATA")


@asynccontextmanager
async def secured(given: dict[str, str], credentials: CredentialCache | None = None) -> AsyncIterator[Secured]:
    config = BrokerConfig.from_properties(given)

    def handle(request: Request) -> None:
        if isinstance(request.message, wire.SaslHandshakeRequest):
            request.respond(wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
            return
        running.principals.append(request.context.principal)
        request.respond(wire.ApiVersionsResponse())

    sasl = SaslServices(credentials=credentials or CredentialCache(), random=Random(1), now_ms=lambda: 0)
    links = NodeLinks(RealWorld(), Links(), 1, tls=listeners_tls(config.security))
    server = SocketServer(config, ScriptedApis(handle), links.bind, sasl)
    running = Secured(server, config)
    await server.bind()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        server.enable_request_processing()
        with trio.fail_after(60):
            yield running
        nursery.cancel_scope.cancel()


async def ask(link: Link, message: wire.Message, version: int = 0, correlation_id: int = 1) -> Any:
    frame = wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id="c")
    await link.send_frame(frame)
    answer = await link.receive_frame()
    return wire.decode_response(answer, api_key=message.__api_key__, api_version=version)[1]


def client(mechanism: str, user: str, password: str) -> SaslClient:
    name = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    text = f'org.apache.kafka.common.security.{name}LoginModule required username="{user}" password="{password}";'
    return SaslClient(
        mechanism=mechanism, module=login_module(mechanism, text), client_id="c", random=Random(2), now_ms=lambda: 0
    )


def stored(**users: str) -> CredentialCache:
    cache = CredentialCache()
    sha256 = ScramMechanism.SHA_256
    for user, password in users.items():
        credential = ScramCredential.of_password(sha256, password, 4096, user.encode())
        cache.config_changed(user, {"SCRAM-SHA-256": str(credential)})
    return cache


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.kafka("SS-25")
async def test_a_request_over_tls() -> None:  # rule B9.2
    async with secured(properties("SSL")) as running:
        link = await running.connect()
        assert await ask(link, VERSIONS, 3) == wire.ApiVersionsResponse()
        assert running.principals == [KafkaPrincipal("User", "ANONYMOUS")]
        await link.aclose()


@pytest.mark.parametrize("wanted", ["requested", "required"])
async def test_a_certificate_names_its_client(wanted: str) -> None:  # rules B9.2, B9.3
    rules = "RULE:^CN=(.*?),.*$/$1-of-tests/U,DEFAULT"
    async with secured(properties("SSL", ssl_client_auth=wanted, ssl_principal_mapping_rules=rules)) as running:
        key = authority().key(authority().client("alice"))
        link = await running.connect(**{name.replace(".", "_"): text for name, text in key.items()})
        await ask(link, VERSIONS)
        assert running.principals == [KafkaPrincipal("User", "ALICE-OF-TESTS")]
        await link.aclose()


async def test_who_has_no_certificate_is_anonymous_if_it_is_only_requested() -> None:
    async with secured(properties("SSL", ssl_client_auth="requested")) as running:
        link = await running.connect()
        await ask(link, VERSIONS)
        assert running.principals == [KafkaPrincipal("User", "ANONYMOUS")]
        await link.aclose()


async def test_a_failed_handshake_closes_only_its_connection() -> None:  # rule B9.3
    async with secured(properties("SSL", ssl_client_auth="required")) as running:
        key = {name.replace(".", "_"): text for name, text in authority().key(authority().client("bob")).items()}
        good = await running.connect(**key)
        bad = await running.connect()
        with pytest.raises(ConnectionLost, match=r"the peer demands a certificate: set ssl\.keystore\.\*$"):
            await bad.receive_frame()  # a client of TLS 1.3 has ended the handshake before
        plaintext = await running.link(None)
        with pytest.raises(wire.LimitExceeded, match="frame length 352518912 "):
            await ask(plaintext, VERSIONS)
        await ask(good, VERSIONS)
        for link in (good, bad, plaintext):
            await link.aclose()
        assert (running.metrics.failed_authentications, running.metrics.successful_authentications) == (2, 1)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_client_is_told_why_its_handshake_failed(version: str) -> None:  # rule B9.3
    """One of Kafka's gives up then; it tries again where a connection just ends."""
    async with secured(properties("SSL", ssl_client_auth="required")) as running:
        (endpoint,) = running.server.bound_listeners()
        without_key = Tls(TlsConfig.of_client(authority().trust() | {"ssl.enabled.protocols": version}))
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as transport:
            stream = without_key.connecting(transport, endpoint.host)
            with pytest.raises(trio.BrokenResourceError) as failed:
                await stream.receive_some()
            assert isinstance(failed.value.__cause__, ssl.SSLError)
            assert "ALERT" in (failed.value.__cause__.reason or "")


@pytest.mark.parametrize("said", [wire.frame(b"\0\x12\0\0\0\0\0\1\0\4test"), b"GET / HTTP/1.0\r\n\r\n"])
async def test_a_client_that_does_not_speak_tls_gets_the_alert_of_java(said: bytes) -> None:  # rule B9.3
    async with secured(properties("SSL")) as running:
        (endpoint,) = running.server.bound_listeners()
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as client_of_plaintext:
            await client_of_plaintext.send_all(said)
            assert b"".join([data async for data in client_of_plaintext]) == b"\x15\3\3\0\2\2\x50"


async def test_a_slow_handshake_delays_nobody_and_is_ended_when_it_is_idle() -> None:
    given = properties("SSL", connections_max_idle_ms="1000", num_network_threads="1")
    async with secured(given) as running:
        (endpoint,) = running.server.bound_listeners()
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as silent:
            link = await running.connect()
            await ask(link, VERSIONS)
            await link.aclose()
            assert await silent.receive_some() == b""
        assert running.metrics.connections_expired == 1


async def test_a_handshake_is_acknowledged_before_the_first_request() -> None:
    """A client with Nagle's algorithm sends nothing more until then, or for 40 ms."""
    context = ssl.create_default_context(cadata=authority().trusted)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    async with secured(properties("SSL")) as running:
        (endpoint,) = running.server.bound_listeners()
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
            to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
            end = context.wrap_bio(to_client, to_server, server_hostname="localhost")
            is_done = False
            while not is_done:
                try:
                    end.do_handshake()
                    is_done = True
                except ssl.SSLWantReadError:
                    await stream.send_all(to_server.read())
                    to_client.write(await stream.receive_some())
            await stream.send_all(to_server.read())
            with trio.fail_after(5):
                assert await stream.receive_some()


async def test_a_server_that_is_not_trusted_is_refused() -> None:
    async with secured(properties("SSL")) as running:
        for tls in ({}, authority().trust() | {"ssl.endpoint.identification.algorithm": ""}):
            chosen = Tls(TlsConfig.of_client(tls))
            if tls:
                await (await running.link(chosen)).aclose()
            else:
                with pytest.raises(ConnectionLost, match="TLS handshake failed"):
                    await running.link(chosen)


async def test_only_enabled_protocols_are_spoken() -> None:
    async with secured(properties("SSL", ssl_enabled_protocols="TLSv1.3")) as running:
        with pytest.raises(ConnectionLost):
            await running.connect(ssl_enabled_protocols="TLSv1.2")
        link = await running.connect(ssl_enabled_protocols="TLSv1.2,TLSv1.3")
        await ask(link, VERSIONS)
        await link.aclose()


# -- SASL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_who_has_authenticated_is_known(protocol: str, mechanism: str) -> None:  # rules B9.2, B9.13
    async with secured(properties(protocol), stored(alice="alice's")) as running:
        link = await running.connect()
        await client(mechanism, "alice", "alice's").authenticate(link)
        assert running.principals == [KafkaPrincipal("User", "ANONYMOUS")]  # of ApiVersions
        await ask(link, VERSIONS)
        assert running.principals[1:] == [KafkaPrincipal("User", "alice")]
        await link.aclose()
        assert running.metrics.successful_authentications == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("user", ["alice", "nobody"])
async def test_a_wrong_password_is_answered_late_and_closes(mechanism: str, user: str) -> None:
    """Rules B1.54, B9.10."""
    given = properties("SASL_PLAINTEXT", connection_failed_authentication_delay_ms="150")
    async with secured(given, stored(alice="alice's")) as running:
        link = await running.connect()
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match="SASL_AUTHENTICATION_FAILED: Authentication failed"):
            await client(mechanism, user, "wrong").authenticate(link)
        assert trio.current_time() - began >= 0.15
        assert await link.receive() is None
        assert running.metrics.failed_authentications == 1
        await link.aclose()


async def test_a_mechanism_that_is_not_enabled() -> None:  # rule B9.7
    async with secured(properties("SASL_PLAINTEXT")) as running:
        link = await running.connect()
        answer = await ask(link, wire.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
        assert answer == wire.SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=("PLAIN", "SCRAM-SHA-256")
        )
        assert await link.receive() is None
        await link.aclose()


async def log_in(link: Link, version: int = 1, password: str = "admin-secret") -> Any:
    """By PLAIN; version 0 sends the token as it is. Returns the last answer."""
    await ask(link, wire.SaslHandshakeRequest(mechanism="PLAIN"), version)
    token = f"\0admin\0{password}".encode()
    if version:
        return await ask(link, wire.SaslAuthenticateRequest(auth_bytes=token), 2)
    await link.send_frame(token)
    return await link.receive_frame()


@pytest.mark.kafka("SAU-1")
async def test_oversize_request() -> None:  # rule B9.11
    async with secured(properties("SASL_PLAINTEXT", sasl_server_max_receive_size="100")) as running:
        link = await running.connect()
        await log_in(link)
        await ask(link, VERSIONS)
        long = wire.ApiVersionsRequest(client_software_name="x" * 200, client_software_version="1")
        await ask(link, long, 3)  # afterwards the limit is another one
        await link.aclose()
        link = await running.connect()
        await link.send_frame(bytes(101))
        assert await link.receive() is None
        await link.aclose()
        assert running.metrics.failed_authentications == 1


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(1, marks=pytest.mark.kafka("SS-26"), id="with KIP-152"),
        pytest.param(0, marks=pytest.mark.kafka("SS-27"), id="without"),
    ],
)
async def test_a_request_after_the_session_closes_the_connection(version: int, mock_clock: Any) -> None:  # rule B9.25
    async with secured(properties("SASL_PLAINTEXT", connections_max_reauth_ms="1500")) as running:
        link = await running.connect()
        await log_in(link, version)
        await ask(link, VERSIONS)
        assert running.metrics.connections_open == 1
        mock_clock.jump(3)
        request = wire.ProduceRequest(acks=0, timeout_ms=10000)
        await link.send_frame(wire.encode_request(request, api_version=9, correlation_id=-1, client_id=""))
        assert await link.receive() is None
        assert running.metrics.expired_connections_killed == 1
        await link.aclose()


async def test_a_session_is_prolonged_on_the_same_connection(mock_clock: Any) -> None:  # rule B9.24
    given = properties("SASL_PLAINTEXT", connections_max_reauth_ms="1500")
    given["listener.name.data.plain.connections.max.reauth.ms"] = "2000"
    async with secured(given) as running:
        link = await running.connect()
        answer = await log_in(link)
        assert answer.session_lifetime_ms == 2000
        for _ in range(2):
            mock_clock.jump(1.9)
            answer = await log_in(link)
            assert answer.session_lifetime_ms == 2000
            await ask(link, VERSIONS)
        assert running.principals == [KafkaPrincipal("User", "admin")] * 2
        assert running.metrics.successful_reauthentications == 2
        # not within a second
        answer = await ask(link, wire.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        mock_clock.jump(1.1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, link)
            while not running.metrics.failed_reauthentications:
                await trio.lowlevel.checkpoint()
                mock_clock.jump(0.01)
        await link.aclose()


async def refused(link: Link) -> None:
    answer = await log_in(link, password="wrong")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await link.receive() is None


@asynccontextmanager
async def broker(given: dict[str, str]) -> AsyncIterator[tuple[Broker, Link]]:
    """A broker with its own APIs, and a client's connection."""
    links = NodeLinks(RealWorld(), Links(), 1)
    async with running_broker(BrokerConfig.from_properties(given), bind=links.bind) as running:
        (endpoint,) = running.endpoints
        link = await links.dial(endpoint.host, endpoint.port, to=1, listener="")
        yield running, link
        await link.aclose()


async def handshake(link: Link) -> None:
    answer = await ask(link, wire.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert answer == wire.SaslHandshakeResponse(mechanisms=("PLAIN",))


ONLY_PLAIN = properties("SASL_PLAINTEXT", sasl_enabled_mechanisms="PLAIN")


@pytest.mark.kafka("SAV-1")
async def test_api_versions_request_before_sasl_handshake_request() -> None:  # rule B9.12
    async with broker(ONLY_PLAIN) as (_, link):
        answer = await ask(link, wire.ApiVersionsRequest())
        assert {entry.api_key for entry in answer.api_keys} == {handler.api_key for handler in HANDLERS}
        await handshake(link)


@pytest.mark.kafka("SAV-2")
async def test_api_versions_request_after_sasl_handshake_request() -> None:  # rule B9.9
    async with broker(ONLY_PLAIN) as (_, link):
        await handshake(link)
        assert (await ask(link, wire.ApiVersionsRequest())).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await link.receive() is None


@pytest.mark.kafka("SAV-3")
async def test_api_versions_request_with_unsupported_version() -> None:
    async with broker(ONLY_PLAIN) as (_, link):
        frame = wire.encode_request(VERSIONS, api_version=3, correlation_id=1, client_id="c")
        await link.send_frame(frame[:2] + (99).to_bytes(2, "big") + frame[4:])
        _, answer = wire.decode_response(await link.receive_frame(), api_key=18, api_version=0)
        assert isinstance(answer, wire.ApiVersionsResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        answer = await ask(link, wire.ApiVersionsRequest())
        assert {entry.api_key for entry in answer.api_keys} == {handler.api_key for handler in HANDLERS}
        await handshake(link)


@pytest.mark.parametrize(
    ("version", "software"),
    [
        pytest.param(0, ("unknown", "unknown"), marks=pytest.mark.kafka("SAU-3")),
        pytest.param(4, ("test", "1"), marks=pytest.mark.kafka("SAU-4")),
    ],
)
async def test_what_a_client_says_of_itself_before_it_is_known(version: int, software: tuple[str, str]) -> None:
    async with broker(ONLY_PLAIN) as (running, link):
        await ask(link, VERSIONS, version)
        (connection,) = (
            connection
            for acceptor in running.socket_server.acceptors
            for processor in acceptor.processors
            for connection in processor.connections.values()
        )
        assert (connection.client_software_name, connection.client_software_version) == software


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
async def test_nothing_is_to_be_authenticated(protocol: str) -> None:  # rule B1.43
    given = ONLY_PLAIN | {"listener.security.protocol.map": f"DATA:{protocol}"}
    async with broker(given) as (_, link):
        if protocol != "PLAINTEXT":
            await log_in(link)
        answer = await ask(link, wire.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer == wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        answer = await ask(link, wire.SaslAuthenticateRequest(), 2)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        await ask(link, VERSIONS, 3)  # the connection goes on


# -- certificates -----------------------------------------------------------------------------------------------------


def pkcs12(folder: Path, password: str) -> dict[str, str]:
    """Settings of a node whose stores are of that type."""
    node = authority().node
    key = load_pem_private_key(node.private_key_pem.bytes(), None)
    certificate, *others = [load_pem_x509_certificate(each.bytes()) for each in node.cert_chain_pems]
    trusted = load_pem_x509_certificate(authority().ca.cert_pem.bytes())
    secret = BestAvailableEncryption(password.encode())
    own = serialize_key_and_certificates(b"node", key, certificate, [*others], secret)  # type: ignore[arg-type]
    (folder / "own.p12").write_bytes(own)
    (folder / "trusted.p12").write_bytes(serialize_java_truststore([PKCS12Certificate(trusted, b"ca")], secret))
    return {
        f"ssl.{store}.{name}": text
        for store, file in (("keystore", "own.p12"), ("truststore", "trusted.p12"))
        for name, text in (("type", "PKCS12"), ("location", str(folder / file)), ("password", password))
    }


def without_texts(given: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in given.items() if not key.startswith("ssl.")}


async def test_stores_in_pkcs12(tmp_path: Path) -> None:
    given = without_texts(properties("SSL")) | pkcs12(tmp_path, "changeit") | {"ssl.client.auth": "required"}
    async with secured(given) as running:
        key = authority().key(authority().client("alice"))
        link = await running.connect(**{name.replace(".", "_"): text for name, text in key.items()})
        await ask(link, VERSIONS)
        assert running.principals[0].name.startswith("CN=alice,")
        await link.aclose()


@pytest.mark.parametrize("where", ["files", "one line"])
async def test_stores_in_pem(where: str, tmp_path: Path) -> None:
    given = properties("SSL", ssl_client_auth="required")
    if where == "files":
        given = without_texts(given) | authority().files(tmp_path, authority().node)
    else:  # as a value in a properties file often is
        given |= {name: " ".join(text.split("\n")) for name, text in authority().of_node().items()}
    async with secured(given) as running:
        key = authority().key(authority().client("alice"))
        link = await running.connect(**{name.replace(".", "_"): text for name, text in key.items()})
        await ask(link, VERSIONS)
        await link.aclose()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ssl.keystore.location": "{folder}/missing.pem"}, "No such file"),
        ({"ssl.keystore.location": "{folder}/ca.pem"}, "must hold one private key and its certificates"),
        ({"ssl.truststore.location": "{folder}/empty.pem"}, "there is no PEM block in it"),
        ({"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "x"}, "its certificates cannot be used"),
        ({"ssl.key.password": "x"}, "the key is not encrypted, but has a password"),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "x", "ssl.key.password": "y"},
            "the key's password is not that of the PKCS12 store",
        ),
    ],
)
def test_certificates_that_cannot_be_used(wrong: dict[str, str], why: str, tmp_path: Path) -> None:
    given = without_texts(properties("SSL")) | authority().files(tmp_path, authority().node)
    (tmp_path / "empty.pem").write_text("")
    given |= {name: text.format(folder=tmp_path) for name, text in wrong.items()}
    with pytest.raises(ConfigError, match=f"^listener DATA: .*{why}"):
        listeners_tls(BrokerConfig.from_properties(given).security)
