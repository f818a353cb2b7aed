"""Commands as clients of secured listeners: `--command-config` of `kce proxy` and `kce replay`."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kce import wire
from kce.broker_stub import BrokerConfig
from kce.captures.record.recorder import Recorder
from kce.harness.client_security import ClientSecurity
from kce.harness.errors import HarnessError
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.proxy import Proxy
from kce.harness.world import RealWorld
from kce.harness.world.tls import listeners_tls
from kce.wire.configuration import ConfigError
from kce.wire.transport import ConnectionLost
from tests.broker_stub.security.test_secured_listeners import properties
from tests.broker_stub.support import running_broker
from tests.certificates import authority, plain_users
from tests.clusters import request
from tests.harness.cli.support import KCE

VERSIONS = wire.ApiVersionsRequest(client_software_name="test", client_software_version="1")


def client(protocol: str, **passwords: str) -> dict[str, str]:
    given = {"security.protocol": protocol}
    if protocol.startswith("SASL"):
        jaas = plain_users(**(passwords or {"alice": "alice's"}))
        given |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    return given | (authority().trust() if protocol.endswith("SSL") else {})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_proxy_before_secured_brokers(protocol: str) -> None:
    config = BrokerConfig.from_properties(properties(protocol))
    links = NodeLinks(RealWorld(), Links(), 1, tls=listeners_tls(config.security))
    async with running_broker(config, bind=links.bind) as broker:
        (endpoint,) = broker.endpoints
        security = ClientSecurity.of(client(protocol))
        async with Proxy(f"{endpoint.host}:{endpoint.port}", security=security) as proxy:
            answer = await request(proxy.bootstrap_servers, VERSIONS, 3)
            assert isinstance(answer, wire.ApiVersionsResponse)
            assert answer.api_keys


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_secured_stream(protocol: str) -> None:
    config = BrokerConfig.from_properties(properties(protocol))
    links = NodeLinks(RealWorld(), Links(), 1, tls=listeners_tls(config.security))
    async with running_broker(config, bind=links.bind) as broker:
        (endpoint,) = broker.endpoints
        connected = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        async with connected, await ClientSecurity.of(client(protocol)).secured(connected, endpoint.host) as stream:
            frame = wire.encode_request(wire.ApiVersionsRequest(), api_version=0, correlation_id=1, client_id="c")
            await stream.send_all(wire.frame(frame))
            assert await stream.receive_some()
        if protocol.startswith("SASL"):
            wrong = ClientSecurity.of(client(protocol, alice="wrong"))
            async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as connected:
                with pytest.raises(ConnectionLost, match="SASL_AUTHENTICATION_FAILED"):
                    await wrong.secured(connected, endpoint.host)
        if protocol.endswith("SSL"):
            untrusting = ClientSecurity.of({"security.protocol": "SSL"})
            async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as connected:
                with pytest.raises(ConnectionLost, match="TLS handshake failed"):
                    await untrusting.secured(connected, endpoint.host)


async def test_a_replay_logs_in_itself_and_leaves_recorded_logins_out(tmp_path: Path) -> None:
    """With another user's password, and with what answered an old challenge, the connection would be closed."""
    capture, settings = tmp_path / "client.pcapng", tmp_path / "client.properties"
    recorder = Recorder(capture)
    tap = recorder.connection(("127.0.0.1", 40001), ("127.0.0.1", 9092))
    login = wire.SaslHandshakeRequest(mechanism="PLAIN"), wire.SaslAuthenticateRequest(auth_bytes=b"\0bob\0bob's")
    answers = wire.SaslHandshakeResponse(mechanisms=("PLAIN",)), wire.SaslAuthenticateResponse()
    apis = wire.DescribeUserScramCredentialsRequest(users=()), wire.DescribeUserScramCredentialsResponse()
    for number, (asked, answered, version) in enumerate([
        (login[0], answers[0], 1), (login[1], answers[1], 2), (*apis, 0),
    ]):  # fmt: skip
        frame = wire.encode_request(asked, api_version=version, correlation_id=number, client_id="c")
        tap.sent("client", wire.frame(frame))
        tap.sent("server", wire.frame(wire.encode_response(answered, api_version=version, correlation_id=number)))
    recorder.close()
    protocol = "SASL_PLAINTEXT"
    settings.write_text("".join(f"{name}={value}\n" for name, value in client(protocol).items()))
    config = BrokerConfig.from_properties(properties(protocol))
    links = NodeLinks(RealWorld(), Links(), 1, tls=listeners_tls(config.security))
    async with running_broker(config, bind=links.bind) as broker:
        (endpoint,) = broker.endpoints
        command = [*KCE, "replay", str(capture), "--as", "client", "--to", f"{endpoint.host}:{endpoint.port}",
                   "--command-config", str(settings), "--no-wait"]  # fmt: skip
        run = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert run.stdout.decode() == "1 requests replayed: 1 same\n", run.stderr
    assert run.stderr.decode() == "kce: 2 requests of recorded logins are left out: --command-config logs in\n"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: must be one of PLAINTEXT"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: must be one of PLAIN"),
        ({"sasl.jaas.config": "x"}, "sasl.jaas.config: after x one of"),
        ({"sasl.jaas.config": plain_users(a="").replace('username="a"', "")}, "sasl.jaas.config: username is missing"),
        (
            {"ssl.truststore.certificates": "x"},
            "its certificates cannot be used: ssl.truststore.*: there is no PEM block in it",
        ),
    ],
)
def test_what_is_refused(changed: dict[str, str], why: str, tmp_path: Path) -> None:
    given = client("SASL_SSL") | changed
    with pytest.raises(ConfigError) as caught:
        ClientSecurity.of(given)
    assert why in str(caught.value)


def test_a_file_of_client_properties(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    with pytest.raises(HarnessError, match=r"client\.properties"):
        ClientSecurity.of_file(path)
    path.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    with pytest.raises(HarnessError, match=r"client\.properties: sasl\.mechanism=PLAIN needs sasl\.jaas\.config"):
        ClientSecurity.of_file(path)
    path.write_text("security.protocol=PLAINTEXT\n")
    assert ClientSecurity.of_file(path) == ClientSecurity.of_file(None) == ClientSecurity()
