"""What the servers of SASL's mechanisms refuse (rules B9.14 to B9.16)."""

from __future__ import annotations

from random import Random

import pytest

from kce.broker_stub.security.config import login_module
from kce.broker_stub.security.credentials import CredentialCache
from kce.broker_stub.security.oauthbearer import CONTROL_A, InitialResponse, UnsecuredValidator, unsecured_token
from kce.broker_stub.security.sasl_servers import (
    BrokenToken,
    OAuthBearerServer,
    PlainServer,
    SaslAuthenticationFailure,
    SaslFailure,
    ScramServer,
)
from kce.broker_stub.security.scram import ScramMechanism
from tests.certificates import plain_users

NOW_MS = 1_000_000
TOKEN = unsecured_token({"sub": "alice", "exp": NOW_MS / 1000 + 60})


def oauth() -> OAuthBearerServer:
    return OAuthBearerServer(UnsecuredValidator.of({}), lambda: NOW_MS)


def test_the_authorization_id_of_a_token_is_its_principal() -> None:
    server = oauth()
    assert server.evaluate(InitialResponse(TOKEN, "alice").encode()) == b""
    assert (server.complete, server.authorization_id) == (True, "alice")
    other = oauth()
    with pytest.raises(SaslAuthenticationFailure, match=r"authorization id \(bob\) .* principal name \(alice\)"):
        other.evaluate(InitialResponse(TOKEN, "bob").encode())
    assert not other.complete


def test_a_value_with_an_equals_sign_in_the_first_message() -> None:
    server = oauth()
    message = InitialResponse(TOKEN).encode().removesuffix(b"\x01") + b"extension=a=b\x01\x01"
    assert server.evaluate(message) == b""
    assert server.complete


@pytest.mark.parametrize("token", [b"\0alice\0\xff", b"\0\xff\xfe\0secret", b"\xff\0alice\0secret"])
def test_what_is_no_utf_8_is_a_wrong_credential(token: bytes) -> None:
    server = PlainServer(login_module("PLAIN", plain_users(alice="secret")).options)
    with pytest.raises(SaslAuthenticationFailure, match="Authentication failed"):
        server.evaluate(token)
    assert not server.complete


def test_nobody_is_known_before_the_exchange() -> None:
    plain = PlainServer(login_module("PLAIN", plain_users(alice="secret")).options)
    scram = ScramServer(ScramMechanism.SHA_256, CredentialCache(), Random(1))
    for server in (plain, scram, oauth()):
        assert (server.complete, server.authorization_id, server.expires_at_ms, server.token_authenticated) == (
            False, "", None, False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (b"", "expected 3 tokens, got 1"), (b"a\0b", "expected 3 tokens, got 2"), (b"\0a\0b\0c", "got 4"),
        (b"\0\0secret", "username not specified"), (b"\0alice\0", "password not specified"),
        (b"\0bob\0secret", "Invalid username or password"), (b"\0alice\0wrong", "Invalid username or password"),
        (b"bob\0alice\0secret", "different from username"), (b"alice\0alice\0secret", None),
        (b"\0alice\0secret", None),
    ],
)  # fmt: skip
def test_what_plain_takes(token: bytes, why: str | None) -> None:  # rule B9.14
    server = PlainServer(login_module("PLAIN", plain_users(alice="secret")).options)
    if why is None:
        assert server.evaluate(token) == b""
        assert (server.complete, server.authorization_id) == (True, "alice")
    else:
        with pytest.raises(SaslAuthenticationFailure, match=why):
            server.evaluate(token)
        assert (server.complete, server.authorization_id) == (False, "")


def test_what_a_client_is_told_of_its_token() -> None:
    validator = UnsecuredValidator.of({"unsecuredValidatorRequiredScope": "a b"})
    expired = unsecured_token({"sub": "alice", "exp": 1})
    for token, error in (
        (expired, b'{"status":"invalid_token"}'), (TOKEN, b'{"status":"insufficient_scope", "scope":"[a, b]"}')
    ):  # fmt: skip
        server = OAuthBearerServer(validator, lambda: NOW_MS)
        assert server.evaluate(InitialResponse(token).encode()) == error
        assert not server.complete
        with pytest.raises(SaslAuthenticationFailure) as told:
            server.evaluate(CONTROL_A)
        assert str(told.value) == error.decode()
    server = oauth()
    server.evaluate(InitialResponse(expired).encode())
    assert server.evaluate(InitialResponse(TOKEN).encode()) == b""
    assert (server.complete, server.expires_at_ms) == (True, NOW_MS + 60_000)
    with pytest.raises(SaslFailure, match="invalid first message"):
        oauth().evaluate(CONTROL_A)


def test_a_token_that_kafka_breaks_at() -> None:
    with pytest.raises(BrokenToken, match="no algorithm"):
        oauth().evaluate(InitialResponse("e30.e30.").encode())  # twice an empty object
    with pytest.raises(BrokenToken, match="not a bearer's"):
        oauth().evaluate(b"n,,\x01auth=Basic a.b.\x01\x01")
