"""The client's side of SASL, for a node's connections to other nodes: PLAIN, SCRAM and unsecured OAUTHBEARER.

It does what Kafka's SaslClientAuthenticator does: ApiVersions, SaslHandshake 1, then SaslAuthenticate until both ends
are satisfied.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, TypeAlias

from kce.broker_stub.node_client import NodeClient
from kce.broker_stub.security import scram
from kce.broker_stub.security.config import OAUTHBEARER, PLAIN, ListenerSecurity, SaslConfig
from kce.broker_stub.security.jaas import LoginModule
from kce.broker_stub.security.oauthbearer import CONTROL_A, InitialResponse, UnsecuredLogin
from kce.wire import (
    ErrorCode,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    error_name,
)
from kce.wire.configuration import ConfigError
from kce.wire.transport import AuthenticationRefused, ConnectionLost, FramedConnection

#: tokens out, the server's answers in
Exchange: TypeAlias = Generator[bytes, bytes, None]

_HANDSHAKE_VERSION: Final = 1
_MOST_ITERATIONS: Final = 100_000


class ClientSession(NamedTuple):
    """``version``: of SaslAuthenticate, which both know. ``lifetime_ms``: 0 if the session does not end."""

    version: int
    lifetime_ms: int


class ServerNotAuthenticated(ConnectionLost):
    """The server does not know the password either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslClient:
    """Authenticates connections with one mechanism. ``random`` makes nonces; ``now_ms`` is since 1970."""

    mechanism: str
    module: LoginModule
    client_id: str
    random: Random
    now_ms: Callable[[], int]

    async def authenticate(self, connection: FramedConnection, before: ClientSession | None = None) -> ClientSession:
        """``before``: the session that is to be prolonged; no other request may be in flight (rule B9.24).

        Raises ConnectionLost, AuthenticationRefused, wire.WireError.
        """
        client = NodeClient(connection, self.client_id)
        version = await self._version(client) if before is None else before.version
        handshake = await client.request(SaslHandshakeRequest(mechanism=self.mechanism), _HANDSHAKE_VERSION)
        assert isinstance(handshake, SaslHandshakeResponse)
        if handshake.error_code != ErrorCode.NONE:
            raise AuthenticationRefused(
                handshake.error_code,
                f"{error_name(handshake.error_code)}: {self.mechanism} is not one of "
                f"{', '.join(handshake.mechanisms)}, which the server has enabled",
            )
        exchange = self._exchange()
        token = next(exchange)
        while True:
            answer = await client.request(SaslAuthenticateRequest(auth_bytes=token), version)
            assert isinstance(answer, SaslAuthenticateResponse)
            if answer.error_code != ErrorCode.NONE:
                text = f"{error_name(answer.error_code)}: {answer.error_message}"
                raise AuthenticationRefused(answer.error_code, text)
            try:
                token = exchange.send(answer.auth_bytes)
            except StopIteration:
                return ClientSession(version, answer.session_lifetime_ms)
            except scram.BadScramMessage as e:
                raise ConnectionLost(str(e)) from None

    async def _version(self, client: NodeClient) -> int:
        """Of SaslAuthenticate. Raises ConnectionLost, wire.WireError."""
        versions = await client.api_versions()
        known = SaslAuthenticateRequest.__versions__
        return min(known.last, versions.get(SaslAuthenticateRequest.__api_key__, (0, 0))[1])

    def _exchange(self) -> Exchange:
        options = self.module.options
        if self.mechanism == PLAIN:
            return _plain(options)
        if self.mechanism == OAUTHBEARER:
            return _oauthbearer(UnsecuredLogin.of(options).token(self.now_ms()))
        found = scram.ScramMechanism.of_name(self.mechanism)
        assert found is not None
        return _scram(found, options, scram.nonce(self.random))


def inter_broker_clients(
    security: Mapping[str, ListenerSecurity], *, client_id: str, random: Random, now_ms: Callable[[], int]
) -> dict[str, SaslClient]:
    """By listener, for those of connections between brokers that have SASL. Raises ConfigError."""
    return {
        listener: _client(listener, each.sasl, client_id, random, now_ms)
        for listener, each in security.items()
        if each.sasl is not None and each.sasl.inter_broker_mechanism in each.sasl.jaas
    }


def _client(listener: str, sasl: SaslConfig, client_id: str, random: Random, now_ms: Callable[[], int]) -> SaslClient:
    mechanism = sasl.inter_broker_mechanism
    module = sasl.jaas[mechanism]
    if problem := login_problem(mechanism, module):
        raise ConfigError(f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config: {problem}")
    return SaslClient(mechanism=mechanism, module=module, client_id=client_id, random=random, now_ms=now_ms)


def login_problem(mechanism: str, module: LoginModule) -> str | None:
    """Why nobody can log in with this entry."""
    if mechanism == OAUTHBEARER:
        try:
            UnsecuredLogin.of(module.options)
        except ValueError as e:
            return str(e)
        return None
    missing = [name for name in ("username", "password") if not module.options.get(name)]
    return f"{missing[0]} is missing" if missing else None


def _plain(options: Mapping[str, str]) -> Exchange:
    yield f"\0{options['username']}\0{options['password']}".encode()


def _oauthbearer(token: str) -> Exchange:
    answer = yield InitialResponse(token).encode()
    if answer:
        yield CONTROL_A  # the server then says what is wrong


def _scram(mechanism: scram.ScramMechanism, options: Mapping[str, str], nonce: str) -> Exchange:
    """Raises BadScramMessage, ServerNotAuthenticated."""
    extensions = {"tokenauth": "true"} if options.get("tokenauth", "").lower() == "true" else {}
    first = scram.ClientFirst(scram.sasl_name(options["username"]), nonce, "", extensions)
    answer = scram.ServerFirst.parse((yield first.encode()))
    if not answer.nonce.startswith(nonce):
        raise ServerNotAuthenticated("the server's nonce does not begin with ours")
    if answer.iterations < scram.MIN_ITERATIONS:
        raise ServerNotAuthenticated(f"the server wants only {answer.iterations} iterations")
    if answer.iterations > _MOST_ITERATIONS:  # a peer does not decide how long this node computes
        raise ServerNotAuthenticated(f"the server wants {answer.iterations} iterations")
    salted = scram.salted_password(mechanism, options["password"], answer.salt, answer.iterations)
    unproved = scram.ClientFinal(answer.nonce)
    signed = scram.auth_message(first, answer, unproved)
    proof = scram.client_proof(mechanism, salted, signed)
    final = scram.ServerFinal.parse((yield scram.ClientFinal(answer.nonce, proof=proof).encode()))
    if final.error is not None:
        raise ServerNotAuthenticated(f"the server refuses: {final.error}")
    signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
    if final.signature is None or not hmac.compare_digest(final.signature, signature):
        raise ServerNotAuthenticated("the server's signature is wrong")
