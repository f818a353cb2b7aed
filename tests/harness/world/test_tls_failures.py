"""What both ends of a TLS connection say when it fails, in plain words."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import pytest
import trio
import trustme
from trio.testing import memory_stream_pair

from kce.broker_stub.security.config import TlsConfig
from kce.harness.world.tls import Tls, handshake
from kce.harness.world.tls_failures import tls_failure
from tests.certificates import Authority, authority

HOST: Final = "127.0.0.1"
STRANGER: Final = Authority()
EXPIRED: Final = "the peer's certificate, or that of its authority, has expired: it must be renewed"
DEMANDS: Final = {"ssl.client.auth": "required"}


def certificate(*names: str, year: int | None = None) -> trustme.LeafCert:
    """For one year, or valid now."""
    if year is None:
        return authority().ca.issue_cert(*(names or (HOST,)))
    first, last = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    return authority().ca.issue_cert(*(names or (HOST,)), not_before=first, not_after=last)


def settings(shown: trustme.LeafCert | None = None, trusted: Authority | None = None) -> dict[str, str]:
    own = {} if shown is None else authority().key(shown)
    return own | (trusted or authority()).trust()


async def failures(server: Mapping[str, str], client: Mapping[str, str]) -> tuple[str | None, str | None]:
    """What the client and the server say; a client of TLS 1.3 learns of the server's refusal as it reads."""
    near, far = memory_stream_pair()
    found: dict[str, str | None] = {"client": None, "server": None}

    async def secure(name: str, settings: Mapping[str, str], stream: trio.abc.Stream) -> None:
        tls = Tls(TlsConfig.of_client(settings))
        secured = tls.connecting(stream, HOST) if name == "client" else tls.accepting(stream)
        try:
            await handshake(secured)
        except trio.BrokenResourceError as e:
            found[name] = str(e)
        else:
            if name == "client":
                try:
                    await secured.receive_some()
                except trio.BrokenResourceError as e:
                    found[name] = tls_failure(e)
        await stream.aclose()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(secure, "client", client, near)
            nursery.start_soon(secure, "server", server, far)
    return found["client"], found["server"]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("server", "client", "says", "hears"),
    [
        (
            settings(certificate()), settings(trusted=STRANGER),
            "the peer's certificate is not trusted: ssl.truststore.* must have that of its authority",
            "the peer does not trust our certificate: its trust store lacks our authority",
        ),
        (
            settings(certificate(year=2020)), settings(), EXPIRED,
            "the peer says that our certificate has expired: it must be renewed",
        ),
        (
            settings(certificate(year=2040)), settings(),
            "the peer's certificate, or that of its authority, is not valid yet: compare the clocks",
            "the peer does not accept our certificate, or misses one (ssl.keystore.*)",
        ),
        (
            settings(certificate("example.com")), settings(),
            "IP address mismatch, certificate is not valid for '127.0.0.1': it must name that, or "
            "ssl.endpoint.identification.algorithm must be empty",
            "the peer does not accept our certificate, or misses one (ssl.keystore.*)",
        ),
    ],
    ids=["untrusted", "expired", "of the future", "of another host"],
)  # fmt: skip
async def test_a_servers_certificate(
    server: dict[str, str], client: dict[str, str], says: str, hears: str, version: str
) -> None:
    chosen = {"ssl.enabled.protocols": version}
    assert await failures(server | chosen, client | chosen) == (says, hears)


@pytest.mark.parametrize(
    ("shown", "says", "hears"),
    [
        (
            None, "the peer demands a certificate: set ssl.keystore.*",
            "the peer has shown no certificate, which ssl.client.auth=required demands",
        ),
        (certificate(year=2020), "the peer says that our certificate has expired: it must be renewed", EXPIRED),
    ],
    ids=["missing", "expired"],
)  # fmt: skip
async def test_a_clients_certificate(shown: trustme.LeafCert | None, says: str, hears: str) -> None:
    assert await failures(settings(certificate()) | DEMANDS, settings(shown)) == (says, hears)


def test_what_is_not_of_tls() -> None:
    assert tls_failure(trio.BrokenResourceError("gone")) is None
    assert tls_failure(None) is None
    assert tls_failure(ssl.SSLError(1, "[SSL: OTHER] something else (_ssl.c:992)")) == "something else"
