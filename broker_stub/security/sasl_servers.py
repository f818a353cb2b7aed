"""The server's side of each SASL mechanism: a token of the client in, one of the server out (rules B9.14-B9.17)."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol

from kce.broker_stub.security import scram
from kce.broker_stub.security.config import OAUTHBEARER, PLAIN
from kce.broker_stub.security.credentials import CredentialCache
from kce.broker_stub.security.jaas import LoginModule
from kce.broker_stub.security.oauthbearer import (
    CONTROL_A,
    BadToken,
    InitialResponse,
    NoAlgorithm,
    UnknownScheme,
    UnsecuredValidator,
)

_USER_OPTION: Final = "user_"
TOKEN_AUTH: Final = "tokenauth"  # noqa: S105 - an extension's name


class SaslFailure(Exception):
    """The client is not authenticated, for a reason that it is not told."""


class SaslAuthenticationFailure(SaslFailure):
    """The client is not authenticated, and may be told this text."""


class BrokenToken(Exception):
    """A token that Kafka's server does not expect, and breaks at: the client gets no answer."""


class SaslServer(Protocol):
    """One exchange. The last three are there once it is ``complete``."""

    complete: bool
    authorization_id: str
    #: ms since 1970; None: the credential does not expire
    expires_at_ms: int | None
    token_authenticated: bool

    def evaluate(self, token: bytes) -> bytes:
        """The answer to the client's next token. Raises SaslFailure, BrokenToken."""


class PlainServer:
    """Rules B9.14, B9.15."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.complete = False
        self.authorization_id = ""
        self.expires_at_ms: int | None = None
        self.token_authenticated = False
        self._options = options

    def evaluate(self, token: bytes) -> bytes:
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            raise SaslAuthenticationFailure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise SaslAuthenticationFailure("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationFailure("Authentication failed: password not specified")
        expected = self._options.get(_USER_OPTION + user)
        if expected is None or not hmac.compare_digest(expected.encode(), password.encode()):
            raise SaslAuthenticationFailure("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise SaslAuthenticationFailure(_DIFFERENT_ID)
        self.authorization_id, self.complete = user, True
        return b""


_DIFFERENT_ID: Final = "Authentication failed: Client requested an authorization id that is different from username"


class ScramServer:
    """Rules B9.16, B9.17; with extension ``tokenauth`` a delegation token is the user (rule B9.22)."""

    def __init__(self, mechanism: scram.ScramMechanism, credentials: CredentialCache, random: Random) -> None:
        self.complete = False
        self.authorization_id = ""
        self.expires_at_ms: int | None = None
        self.token_authenticated = False
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = scram.nonce(random)
        self._begun: tuple[scram.ClientFirst, scram.ServerFirst, scram.ScramCredential] | None = None
        self._failed = False

    def evaluate(self, token: bytes) -> bytes:
        if self._failed or self.complete:
            raise SaslFailure("the exchange is over")
        self._failed = True
        try:
            answer = self._first(token) if self._begun is None else self._final(token, *self._begun)
        except scram.BadScramMessage as e:
            raise SaslFailure(str(e)) from None
        self._failed = False
        return answer

    def _first(self, token: bytes) -> bytes:
        first = scram.ClientFirst.parse(token)
        user = scram.username(first.sasl_name)
        credential = self._credential(first, user)
        if credential is None:
            raise SaslFailure("there is no such user")
        if first.authorization_id not in ("", user):
            raise SaslAuthenticationFailure(_DIFFERENT_ID)
        if credential.iterations < scram.MIN_ITERATIONS:
            raise SaslFailure(f"the credential has fewer than {scram.MIN_ITERATIONS} iterations")
        answer = scram.ServerFirst(first.nonce + self._nonce, credential.salt, credential.iterations)
        self._begun = first, answer, credential
        return answer.encode()

    def _credential(self, first: scram.ClientFirst, user: str) -> scram.ScramCredential | None:
        if first.extensions.get(TOKEN_AUTH, "").lower() != "true":
            self.authorization_id = user
            return self._credentials.get(self._mechanism, user)
        token = self._credentials.token_lookup(user, self._mechanism)
        if token is None:
            return None
        self.authorization_id, self.expires_at_ms, self.token_authenticated = token.owner, token.expires_at_ms, True
        return token.credential

    def _final(
        self, token: bytes, first: scram.ClientFirst, answer: scram.ServerFirst, credential: scram.ScramCredential
    ) -> bytes:
        final = scram.ClientFinal.parse(token)
        if not final.nonce.endswith(answer.nonce):
            raise SaslFailure("the nonce of the last message is not that of the first")
        signed = scram.auth_message(first, answer, final)
        signature = self._mechanism.hmac(credential.stored_key, signed)
        if len(final.proof) != len(signature):
            raise BrokenToken("the proof has a wrong length")
        client_key = scram.xor(signature, final.proof)
        if not hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key):
            raise SaslFailure("the proof is wrong")
        self._begun, self.complete = None, True
        return scram.ServerFinal(None, self._mechanism.hmac(credential.server_key, signed)).encode()


class OAuthBearerServer:
    """With unsecured tokens, as Kafka's default."""

    def __init__(self, validator: UnsecuredValidator, now_ms: Callable[[], int]) -> None:
        self.complete = False
        self.authorization_id = ""
        self.expires_at_ms: int | None = None
        self.token_authenticated = False
        self._validator = validator
        self._now_ms = now_ms
        self._error = ""

    def evaluate(self, token: bytes) -> bytes:
        if self._error and token == CONTROL_A:
            raise SaslAuthenticationFailure(self._error)
        self._error = ""
        try:
            response = InitialResponse.parse(token)
        except ValueError as e:
            raise SaslFailure(str(e)) from None
        except UnknownScheme as e:
            raise BrokenToken(str(e)) from None
        try:
            found = self._validator.validate(response.token, self._now_ms())
        except NoAlgorithm as e:
            raise BrokenToken(str(e)) from None
        except BadToken as e:
            self._error = '{"status":"invalid_token"}'
            if e.scope is not None:  # as Java prints a list
                scope = ", ".join(e.scope)
                self._error = f'{{"status":"insufficient_scope", "scope":"[{scope}]"}}'
            return self._error.encode()
        if response.authorization_id not in ("", found.principal):
            raise SaslAuthenticationFailure(
                f"Authentication failed: Client requested an authorization id ({response.authorization_id}) that is "
                f"different from the token's principal name ({found.principal})"
            )
        self.authorization_id, self.expires_at_ms, self.complete = found.principal, found.expires_at_ms, True
        return b""


def sasl_server(
    mechanism: str, module: LoginModule, credentials: CredentialCache, random: Random, now_ms: Callable[[], int]
) -> SaslServer:
    """For a mechanism of `security.config.LOGIN_MODULES`."""
    if mechanism == PLAIN:
        return PlainServer(module.options)
    if mechanism == OAUTHBEARER:
        return OAuthBearerServer(UnsecuredValidator.of(module.options), now_ms)
    of_scram = scram.ScramMechanism.of_name(mechanism)
    assert of_scram is not None
    return ScramServer(of_scram, credentials, random)
