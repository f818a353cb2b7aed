"""How a node logs in to another, and what it does not believe: the server's nonce, iterations and signature."""

from __future__ import annotations

import base64
from collections.abc import Callable
from random import Random
from typing import Any

import orjson
import pytest

from kce import wire
from kce.broker_stub.security import scram
from kce.broker_stub.security.config import PLAINTEXT, ListenerSecurity, SaslConfig, login_module
from kce.broker_stub.security.credentials import CredentialCache, TokenCredential
from kce.broker_stub.security.jaas import LoginModule
from kce.broker_stub.security.oauthbearer import CONTROL_A, UnsecuredValidator
from kce.broker_stub.security.sasl_client import (
    SaslClient,
    ServerNotAuthenticated,
    inter_broker_clients,
    login_problem,
)
from kce.broker_stub.security.sasl_servers import (
    OAuthBearerServer,
    PlainServer,
    SaslAuthenticationFailure,
    SaslServer,
    ScramServer,
)
from kce.broker_stub.security.scram import ScramCredential, ScramMechanism, ServerFinal, ServerFirst
from kce.wire import ErrorCode
from kce.wire.configuration import ConfigError
from kce.wire.transport import AuthenticationRefused, ConnectionLost
from tests.certificates import plain_users, scram_login

SHA_256 = ScramMechanism.SHA_256
NOW_MS = 1_000_000
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


class Server:
    """A connection to a server whose answers to tokens ``change`` may alter."""

    def __init__(self, sasl: SaslServer, change: Callable[[int, bytes], bytes] = lambda _, answer: answer) -> None:
        self.sasl = sasl
        self.change = change
        self.handshake_error = ErrorCode.NONE
        self.last_version = 2
        self.error: ErrorCode = ErrorCode.NONE
        #: API and version of what was asked
        self.asked: list[tuple[str, int]] = []
        self.tokens: list[bytes] = []
        self._response = b""

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        header, message = wire.decode_request(payload)
        self.asked.append((type(message).__name__, header.api_version))
        response = self._answer(message)
        self._response = wire.encode_response(
            response, api_version=header.api_version, correlation_id=header.correlation_id
        )

    def _answer(self, message: wire.Message) -> wire.Message:
        if isinstance(message, wire.ApiVersionsRequest):
            known = wire.ApiVersion(
                api_key=wire.SaslAuthenticateRequest.__api_key__, min_version=0, max_version=self.last_version
            )
            return wire.ApiVersionsResponse(api_keys=(known,))
        if isinstance(message, wire.SaslHandshakeRequest):
            return wire.SaslHandshakeResponse(error_code=self.handshake_error, mechanisms=("PLAIN", "X"))
        assert isinstance(message, wire.SaslAuthenticateRequest)
        self.tokens.append(message.auth_bytes)
        if self.error is not ErrorCode.NONE:
            return wire.SaslAuthenticateResponse(error_code=self.error, error_message="no")
        answer = self.change(len(self.tokens), self.sasl.evaluate(message.auth_bytes))
        return wire.SaslAuthenticateResponse(error_message=None, auth_bytes=answer)

    async def receive_frame(self) -> bytes:
        return self._response

    async def aclose(self) -> None: ...


def client(mechanism: str, jaas: str) -> SaslClient:
    return SaslClient(
        mechanism=mechanism,
        module=login_module(mechanism, jaas),
        client_id="node",
        random=Random(3),
        now_ms=lambda: NOW_MS,
    )


def scram_server(
    change: Callable[[int, bytes], bytes] = lambda _, answer: answer, iterations: int = 4096, user: str = "alice"
) -> Server:
    credentials = CredentialCache()
    known = ScramCredential.of_password(SHA_256, "secret", iterations, b"salt" * 4)
    credentials.config_changed(user, {SHA_256.mechanism_name: str(known)})
    return Server(ScramServer(SHA_256, credentials, Random(5)), change)


def scram_client(password: str = "secret", user: str = "alice") -> SaslClient:
    return client("SCRAM-SHA-256", scram_login(user, password))


async def test_plain() -> None:
    server = Server(PlainServer(login_module("PLAIN", plain_users(alice="secret")).options))
    await client("PLAIN", plain_users(alice="secret")).authenticate(server)
    assert server.tokens == [b"\0alice\0secret"]
    assert server.sasl.complete


@pytest.mark.parametrize("last", [0, 1, 2, 9])
async def test_the_last_version_that_both_know(last: int) -> None:
    server = scram_server()
    server.last_version = last
    await scram_client().authenticate(server)
    assert server.sasl.complete
    asked = ("SaslHandshakeRequest", 1), *[("SaslAuthenticateRequest", min(last, 2))] * 2
    assert server.asked[1:] == list(asked)


@pytest.mark.parametrize("user", ["alice", "a=b,c"])
async def test_scram(user: str) -> None:
    credentials = CredentialCache()
    known = ScramCredential.of_password(SHA_256, "secret", 4096, b"salt" * 4)
    credentials._credentials[SHA_256][user] = known
    server = Server(ScramServer(SHA_256, credentials, Random(5)))
    await scram_client(user=user).authenticate(server)
    assert server.sasl.complete
    assert server.sasl.authorization_id == user


async def test_scram_with_a_delegation_token() -> None:  # rule B9.22
    credentials = CredentialCache()
    known = ScramCredential.of_password(SHA_256, "hmac", 4096, b"salt" * 4)
    credentials.token_lookup = lambda name, _: TokenCredential("bob", known, 5) if name == "id" else None
    jaas = scram_login("id", "hmac").rstrip(";")
    server = Server(ScramServer(SHA_256, credentials, Random(5)))
    await client("SCRAM-SHA-256", f'{jaas} tokenauth="True";').authenticate(server)
    assert (server.sasl.authorization_id, server.sasl.token_authenticated) == ("bob", True)


def first(**changed: Any) -> Callable[[int, bytes], bytes]:
    """The server's first message with other fields."""

    def change(number: int, answer: bytes) -> bytes:
        if number != 1:
            return answer
        parsed = ServerFirst.parse(answer)
        fields = {"nonce": parsed.nonce, "salt": parsed.salt, "iterations": parsed.iterations, **changed}
        return ServerFirst(**fields).encode()

    return change


def last(message: ServerFinal) -> Callable[[int, bytes], bytes]:
    return lambda number, answer: message.encode() if number == 2 else answer


@pytest.mark.parametrize(
    ("change", "why", "tokens"),
    [
        (first(nonce="another"), "nonce", 1),
        (first(iterations=4095), "only 4095 iterations", 1),
        (first(iterations=1), "only 1 iterations", 1),
        (first(iterations=100_001), "wants 100001 iterations", 1),
        (last(ServerFinal(None, b"x" * 32)), "signature is wrong", 2),
        (last(ServerFinal("other-error", None)), "refuses: other-error", 2),
    ],
)
async def test_a_server_that_does_not_know_the_password(
    change: Callable[[int, bytes], bytes], why: str, tokens: int
) -> None:
    server = scram_server(change)
    with pytest.raises(ServerNotAuthenticated, match=why):
        await scram_client().authenticate(server)
    assert len(server.tokens) == tokens  # a proof is only given to a server that may know the password


async def test_the_bounds_of_iterations() -> None:
    for iterations in (4096, 100_000):
        server = scram_server(iterations=iterations)
        await scram_client().authenticate(server)
        assert server.sasl.complete


@pytest.mark.parametrize("number", [1, 2])
async def test_what_is_no_message_of_scram(number: int) -> None:
    server = scram_server(lambda at, answer: b"nonsense" if at == number else answer)
    with pytest.raises(ConnectionLost):
        await scram_client().authenticate(server)
    assert len(server.tokens) == number


async def test_a_mechanism_that_is_not_enabled() -> None:
    server = scram_server()
    server.handshake_error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    with pytest.raises(AuthenticationRefused, match="SCRAM-SHA-256 is not one of PLAIN, X"):
        await scram_client().authenticate(server)
    assert server.tokens == []


async def test_credentials_that_are_refused() -> None:
    server = scram_server()
    server.error = ErrorCode.SASL_AUTHENTICATION_FAILED
    with pytest.raises(AuthenticationRefused, match="SASL_AUTHENTICATION_FAILED: no"):
        await scram_client().authenticate(server)
    assert len(server.tokens) == 1


def claims(message: bytes) -> dict[str, Any]:
    part = message.partition(b"Bearer ")[2].split(b".")[1]
    found: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"sub": "node", "iat": 1000.0, "exp": 4600.0}),
        ('unsecuredLoginLifetimeSeconds="60"', {"sub": "node", "iat": 1000.0, "exp": 1060.0}),
        (
            'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginListClaim_none="|" unsecuredLoginStringClaim_="x"',
            {"sub": "node", "scope": ["a", "b"], "none": [], "iat": 1000.0, "exp": 4600.0},
        ),
        (
            'unsecuredLoginStringClaim_scope="a b" unsecuredLoginNumberClaim_n="7"',
            {"sub": "node", "scope": "a b", "n": 7.0, "iat": 1000.0, "exp": 4600.0},
        ),
    ],
)
async def test_claims_of_an_unsecured_token(options: str, expected: dict[str, Any]) -> None:
    server = Server(OAuthBearerServer(UnsecuredValidator.of({}), lambda: NOW_MS))
    await client("OAUTHBEARER", f'{OAUTH} unsecuredLoginStringClaim_sub="node" {options};').authenticate(server)
    (token,) = server.tokens
    assert claims(token) == expected
    assert server.sasl.authorization_id == "node"


async def test_a_token_with_claims_of_other_names() -> None:
    """Whose principal, and scope, are in them."""
    validator = UnsecuredValidator.of({
        "unsecuredValidatorPrincipalClaimName": "user", "unsecuredValidatorScopeClaimName": "may",
        "unsecuredValidatorRequiredScope": "write",
    })  # fmt: skip
    server = Server(OAuthBearerServer(validator, lambda: NOW_MS))
    options = (
        'unsecuredLoginPrincipalClaimName="user" unsecuredLoginStringClaim_user="node" '
        'unsecuredLoginScopeClaimName="may" unsecuredLoginListClaim_may=",read,write"'
    )
    await client("OAUTHBEARER", f"{OAUTH} {options};").authenticate(server)
    assert server.sasl.authorization_id == "node"


async def test_why_a_token_is_refused_is_asked_for() -> None:
    server = Server(OAuthBearerServer(UnsecuredValidator.of({}), lambda: NOW_MS + 10**9))
    jaas = f'{OAUTH} unsecuredLoginStringClaim_sub="node";'
    with pytest.raises(SaslAuthenticationFailure, match="invalid_token"):
        await client("OAUTHBEARER", jaas).authenticate(server)
    assert server.tokens[1:] == [CONTROL_A]


def test_entries_without_which_nobody_can_log_in() -> None:
    assert login_problem("PLAIN", login_module("PLAIN", plain_users(alice="secret"))) is None
    no_password = login_module("PLAIN", plain_users(alice="secret").replace('password="secret" ', "", 1))
    assert login_problem("PLAIN", no_password) == "password is missing"
    assert login_problem("OAUTHBEARER", login_module("OAUTHBEARER", f"{OAUTH};")) == (
        "unsecuredLoginStringClaim_sub is missing"
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("LifetimeSeconds=x", "unsecuredLoginLifetimeSeconds=x: must be a whole number"),
        ("LifetimeSeconds='1.5'", "unsecuredLoginLifetimeSeconds=1.5: must be a whole number"),
        ("NumberClaim_n=x", "unsecuredLoginNumberClaim_n=x: must be a number"),
        ("NumberClaim_exp='1'", "unsecuredLoginNumberClaim_exp: this claim is always made, and cannot be set"),
        ("PrincipalClaimName=user", "unsecuredLoginStringClaim_user is missing"),
    ],
)
def test_tokens_that_cannot_be_made(options: str, why: str) -> None:
    module = login_module("OAUTHBEARER", f"{OAUTH} unsecuredLoginStringClaim_sub=node unsecuredLogin{options};")
    assert login_problem("OAUTHBEARER", module) == why


def test_nonces_are_those_of_the_given_random() -> None:
    exchanges = [next(scram_client()._exchange()) for _ in range(2)]
    assert exchanges[0] == exchanges[1] == scram.ClientFirst("alice", scram.nonce(Random(3)), "", {}).encode()


def test_who_logs_in_where() -> None:
    jaas = {"PLAIN": LoginModule("m", {"username": "a", "password": "b"}), "SCRAM-SHA-256": LoginModule("n", {})}

    def security(between: str) -> ListenerSecurity:
        sasl = SaslConfig(
            enabled_mechanisms=("PLAIN",), jaas=jaas, inter_broker_mechanism=between, max_receive_size=1,
            max_reauth_ms={}, failed_authentication_delay_ms=1,
        )  # fmt: skip
        return ListenerSecurity(tls=None, sasl=sasl)

    random = Random(1)

    def clients(**of: ListenerSecurity) -> dict[str, SaslClient]:
        return inter_broker_clients(of, client_id="c", random=random, now_ms=now_ms)

    def now_ms() -> int:
        return 5

    assert clients(DATA=security("PLAIN"), OTHER=security("SCRAM-SHA-512"), PLAIN=PLAINTEXT) == {
        "DATA": SaslClient(mechanism="PLAIN", module=jaas["PLAIN"], client_id="c", random=random, now_ms=now_ms)
    }
    expected = r"listener\.name\.data\.scram-sha-256\.sasl\.jaas\.config: username is missing"
    with pytest.raises(ConfigError, match=expected):
        clients(DATA=security("SCRAM-SHA-256"))
