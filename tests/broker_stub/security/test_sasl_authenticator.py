"""The exchange without I/O, with cases of SaslServerAuthenticatorTest and PlainSaslServerTest (rules B9.5-B9.14).

Covers: broker_stub/security/sasl_servers.py.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from kce import wire
from kce.broker_stub.security import KafkaPrincipal
from kce.broker_stub.security.config import SaslConfig, login_module
from kce.broker_stub.security.credentials import CredentialCache
from kce.broker_stub.security.oauthbearer import InitialResponse, unsecured_token
from kce.broker_stub.security.sasl_authenticator import (
    AuthenticationFailed,
    BadExchange,
    SaslServerAuthenticator,
    SaslServices,
    Session,
    State,
)
from kce.broker_stub.security.sasl_servers import PlainServer, SaslAuthenticationFailure
from kce.wire import ErrorCode
from tests.certificates import plain_users

OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
NOW_MS: Final = 1_000_000
ALICE: Final = KafkaPrincipal("User", "alice")


class Frames:
    """What the broker's APIs would answer."""

    def __init__(self) -> None:
        self.refused: list[ErrorCode] = []

    def api_versions(self, frame: bytes) -> tuple[bytes, bool]:
        return b"versions", wire.decode_request_header(frame).api_version <= 4

    def refuse(self, frame: bytes, code: ErrorCode) -> bytes | None:
        self.refused.append(code)
        return b"refused"


def authenticator(previous: Session | None = None, *, max_reauth_ms: int = 0) -> SaslServerAuthenticator:
    jaas = {
        "PLAIN": login_module("PLAIN", plain_users(alice="secret", bob="b")),
        "OAUTHBEARER": login_module("OAUTHBEARER", OAUTH),
    }
    config = SaslConfig(
        enabled_mechanisms=tuple(jaas),
        jaas=jaas,
        inter_broker_mechanism="PLAIN",
        max_receive_size=100,
        max_reauth_ms=dict.fromkeys(jaas, max_reauth_ms),
        failed_authentication_delay_ms=100,
    )
    services = SaslServices(credentials=CredentialCache(), random=Random(1), now_ms=lambda: NOW_MS)
    return SaslServerAuthenticator(config, services, Frames(), previous)


def request(message: wire.Message, version: int) -> bytes:
    return wire.encode_request(message, api_version=version, correlation_id=7, client_id="c")


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    return request(wire.SaslHandshakeRequest(mechanism=mechanism), version)


def token(data: bytes, version: int = 2) -> bytes:
    return request(wire.SaslAuthenticateRequest(auth_bytes=data), version)


def response(frame: bytes | None, api_key: int = 36, version: int = 2) -> Any:
    assert frame is not None
    header, message = wire.decode_response(frame, api_key=api_key, api_version=version)
    assert header.correlation_id == 7
    return message


def bearer(expires_in_s: float, **claims: Any) -> bytes:
    return InitialResponse(unsecured_token({"sub": "alice", "exp": NOW_MS / 1000 + expires_in_s, **claims})).encode()


# -- ports ------------------------------------------------------------------------------------------------------------


@pytest.mark.kafka("SAU-2")
@pytest.mark.parametrize("after_versions", [False, True])
def test_unexpected_request_type(after_versions: bool) -> None:  # rule B9.6
    exchange = authenticator()
    if after_versions:
        exchange.receive(request(wire.ApiVersionsRequest(), 0))
    header_only = request(wire.MetadataRequest(topics=None), 1)[:-4]  # the body is not parsed
    with pytest.raises(AuthenticationFailed, match="unexpected request Metadata during the SASL handshake") as caught:
        exchange.receive(header_only)
    assert caught.value.response is None


@pytest.mark.parametrize(
    ("expires_in_s", "max_reauth_ms", "lifetime_ms"),
    [
        pytest.param(1, 0, 1000, marks=pytest.mark.kafka("SAU-5"), id="at token expiry despite no reauth is set"),
        pytest.param(1, 100, 100, marks=pytest.mark.kafka("SAU-6"), id="at max reauth time"),
        pytest.param(2, 4000, 2000, marks=pytest.mark.kafka("SAU-7"), id="at token expiry"),
    ],
)
def test_session_expires(expires_in_s: float, max_reauth_ms: int, lifetime_ms: int) -> None:  # rule B9.23
    exchange = authenticator(max_reauth_ms=max_reauth_ms)
    exchange.receive(handshake("OAUTHBEARER"))
    answer = response(exchange.receive(token(bearer(expires_in_s))))
    assert answer.session_lifetime_ms == lifetime_ms
    assert exchange.session == Session(ALICE, "OAUTHBEARER", lifetime_ms, False)


PASSWORDS: Final = {"user_a": "pa", "user_b": "pb"}


@pytest.mark.kafka("PLN-1")
def test_no_authorization_id_specified() -> None:
    assert PlainServer(PASSWORDS).evaluate(b"\0a\0pa") == b""


@pytest.mark.kafka("PLN-2")
def test_authorization_id_equals_authentication_id() -> None:
    assert PlainServer(PASSWORDS).evaluate(b"a\0a\0pa") == b""


@pytest.mark.kafka("PLN-3")
def test_authorization_id_not_equals_authentication_id() -> None:
    with pytest.raises(SaslAuthenticationFailure):
        PlainServer(PASSWORDS).evaluate(b"b\0a\0pa")


@pytest.mark.kafka("PLN-4")
@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"\0\0", "Authentication failed: username not specified"),
        (b"\0\0p", "Authentication failed: username not specified"),
        (b"\0u\0", "Authentication failed: password not specified"),
        (b"a\0\0", "Authentication failed: username not specified"),
        (b"a\0\0p", "Authentication failed: username not specified"),
        (b"a\0u\0", "Authentication failed: password not specified"),
        (b"a\0u\0p\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0u", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
    ],
)
def test_empty_tokens(message: bytes, error: str) -> None:
    with pytest.raises(SaslAuthenticationFailure, match=f"^{error}$"):
        PlainServer(PASSWORDS).evaluate(message)


# -- ours -------------------------------------------------------------------------------------------------------------


def test_versions_are_asked_for_once_and_before_the_handshake() -> None:  # rules B9.6, B9.12
    exchange = authenticator()
    unsupported = wire.ApiVersionsRequest.__api_key__.to_bytes(2, "big") + (99).to_bytes(2, "big") + bytes(7)
    assert exchange.receive(unsupported) == b"versions"
    assert exchange.state is State.HANDSHAKE_OR_VERSIONS
    versions = request(wire.ApiVersionsRequest(), 0)
    assert exchange.receive(versions) == b"versions"
    with pytest.raises(BadExchange):
        exchange.receive(versions)


@pytest.mark.parametrize(("version", "lifetime_ms"), [(0, 0), (1, 50), (2, 50)])
def test_tokens_in_requests(version: int, lifetime_ms: int) -> None:  # rules B9.7, B9.8
    exchange = authenticator(max_reauth_ms=50)
    answer = response(exchange.receive(handshake()), 17, 1)
    assert answer == wire.SaslHandshakeResponse(mechanisms=("PLAIN", "OAUTHBEARER"))
    answer = response(exchange.receive(token(b"\0alice\0secret", version)), version=version)
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", lifetime_ms)
    assert exchange.session is not None
    assert exchange.session.principal == ALICE


def test_bare_tokens_after_the_first_version_of_the_handshake() -> None:  # rules B9.8, B9.10
    exchange = authenticator()
    exchange.receive(handshake(version=0))
    assert exchange.receive(b"\0alice\0secret") == b""
    assert exchange.session == Session(ALICE, "PLAIN", None, False)
    exchange = authenticator()
    exchange.receive(handshake(version=0))
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.receive(b"\0alice\0wrong")
    assert caught.value.response is None


def test_after_the_first_version_of_the_handshake_only_what_would_be_told_is_refused_late() -> None:  # rule B9.10
    exchange = authenticator()
    exchange.receive(handshake("OAUTHBEARER", version=0))
    with pytest.raises(BadExchange, match="invalid first message"):
        exchange.receive(b"nonsense")


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_bytes_after_a_request_are_ignored(mechanism: str) -> None:
    exchange = authenticator()
    exchange.receive(handshake(mechanism) + b"\0more")
    exchange.receive(token(b"\0alice\0secret" if mechanism == "PLAIN" else bearer(1)) + b"\0")
    assert exchange.session is not None
    assert exchange.session.principal == ALICE


def test_another_request_instead_of_a_token_gets_its_own_error() -> None:  # rule B9.9
    exchange = authenticator()
    exchange.receive(handshake())
    with pytest.raises(AuthenticationFailed, match="unexpected request Metadata during SASL auth") as caught:
        exchange.receive(request(wire.MetadataRequest(topics=None), 1))
    assert caught.value.response == b"refused"


@pytest.mark.parametrize(
    "frame", [token(b"\0alice\0secret", 2)[:2] + b"\0\x09" + token(b"")[4:], handshake()[:-1], b"\xff" * 20]
)
def test_what_cannot_be_parsed_ends_the_connection_at_once(frame: bytes) -> None:
    exchange = authenticator()
    exchange.receive(request(wire.ApiVersionsRequest(), 0))
    if frame[1] == 36:
        exchange.receive(handshake())
    with pytest.raises(BadExchange):
        exchange.receive(frame)


def test_a_token_that_kafka_breaks_at_ends_the_connection_at_once() -> None:
    exchange = authenticator()
    exchange.receive(handshake("OAUTHBEARER"))
    with pytest.raises(BadExchange, match="no algorithm"):
        exchange.receive(token(InitialResponse("e30.e30.").encode()))


def test_a_first_packet_that_is_not_kafkas_is_refused_late() -> None:
    """Kafka takes it for GSSAPI's, which is not enabled."""
    with pytest.raises(AuthenticationFailed, match="the first packet"):
        authenticator().receive(b"\x60\x82\x02\x59")


def test_a_first_handshake_of_a_version_that_is_not_served_ends_the_connection_at_once() -> None:  # rule B9.6
    for version in (-1, 2):
        frame = handshake()
        with pytest.raises(BadExchange):
            authenticator().receive(frame[:2] + version.to_bytes(2, signed=True) + frame[4:])


@pytest.mark.parametrize(
    ("mechanism", "data", "text"),
    [
        ("PLAIN", b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (
            "OAUTHBEARER", b"nonsense",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER",
        ),
    ],
)  # fmt: skip
def test_the_answer_to_wrong_credentials(mechanism: str, data: bytes, text: str) -> None:  # rule B9.10
    exchange = authenticator()
    exchange.receive(handshake(mechanism))
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.receive(token(data))
    answer = response(caught.value.response)
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, text)


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"sub": 5}, {"status": "invalid_token"}), ({"exp": "soon"}, {"status": "invalid_token"}),
        ({"exp": NOW_MS / 1000}, {"status": "invalid_token"}), ({"iat": NOW_MS}, {"status": "invalid_token"}),
    ],
)  # fmt: skip
def test_a_token_that_is_not_accepted_is_answered_before_it_fails(claims: dict[str, Any], status: Any) -> None:
    exchange = authenticator()
    exchange.receive(handshake("OAUTHBEARER"))
    answer = response(exchange.receive(token(bearer(1, **claims))))
    assert (answer.error_code, answer.auth_bytes) == (ErrorCode.NONE, b'{"status":"invalid_token"}')
    assert exchange.session is None
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.receive(token(b"\x01"))
    assert response(caught.value.response).error_message == '{"status":"invalid_token"}'


def test_a_session_is_prolonged_by_the_same_mechanism_and_principal() -> None:  # rule B9.24
    before = Session(ALICE, "PLAIN", 100, False)
    again = authenticator(before, max_reauth_ms=100)
    again.receive(handshake())
    again.receive(token(b"\0alice\0secret"))
    assert again.session == before
    other = authenticator(before)
    other.receive(handshake())
    with pytest.raises(AuthenticationFailed, match=r"Cannot change principals .* from User\.alice: User\.bob$"):
        other.receive(token(b"\0bob\0b"))
    other = authenticator(before)
    answer = response(other.receive(handshake("OAUTHBEARER")), 17, 1)
    assert answer.error_code == ErrorCode.NONE
    with pytest.raises(AuthenticationFailed, match="mechanism changed"):
        other.receive(token(bearer(1)))
    with pytest.raises(BadExchange, match="'FOO' is not enabled"):  # without the answer and the delay of the first time
        authenticator(before).receive(handshake("FOO"))
    with pytest.raises(BadExchange):
        authenticator(before).receive(request(wire.ApiVersionsRequest(), 0))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("max_reauth_ms", [0, 5000])
def test_whole_answers(version: int, max_reauth_ms: int) -> None:  # rules B9.8, B9.23
    made = authenticator(max_reauth_ms=max_reauth_ms)
    shaken = response(made.receive(handshake("OAUTHBEARER")), 17, 1)
    assert shaken == wire.SaslHandshakeResponse(mechanisms=("PLAIN", "OAUTHBEARER"))
    made = authenticator(max_reauth_ms=max_reauth_ms)
    made.receive(handshake())
    lifetime = max_reauth_ms if version else 0
    answer = response(made.receive(token(b"\0alice\0secret", version)), 36, version)
    assert answer == wire.SaslAuthenticateResponse(error_message=answer.error_message, session_lifetime_ms=lifetime)
    assert made.session == Session(ALICE, "PLAIN", max_reauth_ms or None, False)
