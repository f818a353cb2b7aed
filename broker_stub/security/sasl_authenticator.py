"""The server's side of the SASL exchange of a connection, without I/O: a frame in, a frame out (rules B9.5-B9.13)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol

from kce import wire
from kce.broker_stub.security.config import SaslConfig
from kce.broker_stub.security.credentials import CredentialCache
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.broker_stub.security.sasl_servers import (
    BrokenToken,
    SaslAuthenticationFailure,
    SaslFailure,
    SaslServer,
    sasl_server,
)
from kce.wire import (
    ApiVersionsRequest,
    ErrorCode,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kce.wire.steps import finish

log = logging.getLogger(__name__)

_API_VERSIONS: Final = ApiVersionsRequest.__api_key__
_HANDSHAKE: Final = SaslHandshakeRequest.__api_key__
_AUTHENTICATE: Final = SaslAuthenticateRequest.__api_key__.to_bytes(2)
#: since this version the response says how long the session lasts
_LIFETIME_SINCE: Final = 1


class AuthenticationFailed(Exception):
    """The connection is closed after `connection.failed.authentication.delay.ms`. ``response`` is sent before that."""

    def __init__(self, reason: str, response: bytes | None = None) -> None:
        super().__init__(reason)
        self.response = response


class BadExchange(Exception):
    """The connection is closed at once: the client does not follow the protocol."""


class State(enum.Enum):
    """Rule B9.5."""

    INITIAL = enum.auto()
    HANDSHAKE_OR_VERSIONS = enum.auto()
    HANDSHAKE = enum.auto()
    REAUTHENTICATION_HANDSHAKE = enum.auto()
    REAUTHENTICATION_BAD_MECHANISM = enum.auto()
    AUTHENTICATE = enum.auto()
    COMPLETE = enum.auto()


class KafkaFrames(Protocol):
    """Requests that the broker's APIs answer before a client is authenticated. Both raise wire.DecodeError."""

    def api_versions(self, frame: bytes) -> tuple[bytes, bool]:
        """The response, and whether it is one without an error."""

    def refuse(self, frame: bytes, code: ErrorCode) -> bytes | None:
        """The error response in the form of the request's API, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslServices:
    """What all exchanges of a broker share. ``random`` makes nonces; ``now_ms`` is since 1970."""

    credentials: CredentialCache
    random: Random
    now_ms: Callable[[], int]


class Session(NamedTuple):
    """An authenticated client. ``lifetime_ms``: None if the session does not end (rules B9.23, B9.25)."""

    principal: KafkaPrincipal
    mechanism: str
    lifetime_ms: int | None
    token_authenticated: bool


class SaslServerAuthenticator:
    """One exchange. ``session`` is there when it is over; ``previous`` is that which a re-authentication prolongs."""

    def __init__(
        self, config: SaslConfig, services: SaslServices, frames: KafkaFrames, previous: Session | None = None
    ) -> None:
        self.state = State.INITIAL if previous is None else State.REAUTHENTICATION_HANDSHAKE
        self.session: Session | None = None
        self._config = config
        self._services = services
        self._frames = frames
        self._previous = previous
        self._wraps_tokens = False
        self._mechanism = ""
        self._server: SaslServer
        self._lifetime_ms: int | None = None

    def receive(self, frame: bytes) -> bytes | None:
        """The response to the client's next frame, if it gets one. Raises AuthenticationFailed, BadExchange."""
        try:
            if self.state is State.AUTHENTICATE:
                return self._wrapped_token(frame) if self._wraps_tokens else self._bare_token(frame)
            if self.state is State.REAUTHENTICATION_BAD_MECHANISM:
                assert self._previous is not None
                raise AuthenticationFailed(
                    f"the SASL mechanism changed during re-authentication from {self._previous.mechanism}"
                )
            return self._kafka_request(frame)
        except (wire.DecodeError, BrokenToken) as e:
            raise BadExchange(str(e)) from None

    def _kafka_request(self, frame: bytes) -> bytes:
        try:
            header = wire.decode_request_header(frame, like_kafka=True)
        except wire.DecodeError as e:
            if self.state is not State.INITIAL:
                raise
            # Kafka takes it for a token of GSSAPI, which is not enabled
            raise AuthenticationFailed(f"the first packet is not a Kafka request: {e}") from None
        if self.state is State.INITIAL:
            self.state = State.HANDSHAKE_OR_VERSIONS
        if header.api_key == _API_VERSIONS:
            return self._api_versions(frame)
        if header.api_key == _HANDSHAKE:
            return self._handshake(frame)
        name = wire.api(header.api_key).name  # rule B9.6
        raise AuthenticationFailed(f"unexpected request {name} during the SASL handshake")

    def _api_versions(self, frame: bytes) -> bytes:
        """Rule B9.12."""
        if self.state is not State.HANDSHAKE_OR_VERSIONS:
            raise BadExchange("unexpected ApiVersions request during the SASL handshake")
        response, is_answered = self._frames.api_versions(frame)
        if is_answered:
            self.state = State.HANDSHAKE
        return response

    def _handshake(self, frame: bytes) -> bytes:
        """Rules B9.7, B9.8."""
        header, request = _decoded(frame)
        assert isinstance(request, SaslHandshakeRequest)
        mechanism, enabled = request.mechanism, self._config.enabled_mechanisms
        self._wraps_tokens = header.api_version >= 1
        if mechanism not in enabled:
            why = f"the SASL mechanism {mechanism!r} is not enabled"
            if self._previous is not None:  # Kafka's answer is lost as it closes
                raise BadExchange(why)
            refusal = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled)
            raise AuthenticationFailed(why, _response(refusal, header))
        if self._previous is not None and self._previous.mechanism != mechanism:  # rule B9.24
            self.state = State.REAUTHENTICATION_BAD_MECHANISM
        else:
            services, self._mechanism = self._services, mechanism
            self._server = sasl_server(
                mechanism, self._config.jaas[mechanism], services.credentials, services.random, services.now_ms
            )
            self.state = State.AUTHENTICATE
        return _response(SaslHandshakeResponse(mechanisms=enabled), header)

    def _bare_token(self, token: bytes) -> bytes:
        """After a handshake of version 0; a failure has no answer (rule B9.10)."""
        try:
            answer = self._server.evaluate(token)
            self._complete()
        except SaslAuthenticationFailure as e:
            raise AuthenticationFailed(str(e)) from None
        except SaslFailure as e:  # Kafka waits before it closes only for those that it would tell
            raise BadExchange(str(e)) from None
        return answer

    def _wrapped_token(self, frame: bytes) -> bytes:
        if not frame.startswith(_AUTHENTICATE):  # rule B9.9
            name = wire.api(wire.decode_request_header(frame, like_kafka=True).api_key).name
            refusal = self._frames.refuse(frame, ErrorCode.ILLEGAL_SASL_STATE)
            raise AuthenticationFailed(f"unexpected request {name} during SASL authentication", refusal)
        header, request = _decoded(frame)
        assert isinstance(request, SaslAuthenticateRequest)
        try:
            answer = self._server.evaluate(request.auth_bytes)
            self._complete()
        except SaslFailure as e:
            text = str(e)
            if not isinstance(e, SaslAuthenticationFailure):  # rule B9.10: nothing about the user
                what = "authentication" if self._previous is None else "re-authentication"
                text = (
                    f"Authentication failed during {what} due to invalid credentials with SASL mechanism "
                    f"{self._mechanism}"
                )
            failed = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text)
            raise AuthenticationFailed(str(e), _response(failed, header)) from None
        lifetime_ms = (self._lifetime_ms or 0) if header.api_version >= _LIFETIME_SINCE else 0
        return _response(SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms), header)

    def _complete(self) -> None:
        """Make the session, if the exchange is over. Raises SaslAuthenticationFailure."""
        server = self._server
        if not server.complete:
            return
        principal = KafkaPrincipal("User", server.authorization_id)
        before = principal if self._previous is None else self._previous.principal
        if principal != before:  # rule B9.24
            raise SaslAuthenticationFailure(
                "Cannot change principals during re-authentication "
                f"from {before.principal_type}.{before.name}: {principal.principal_type}.{principal.name}"
            )
        self._lifetime_ms = self._lifetime(server.expires_at_ms)
        self.session = Session(principal, self._mechanism, self._lifetime_ms, server.token_authenticated)
        self.state = State.COMPLETE

    def _lifetime(self, expires_at_ms: int | None) -> int | None:
        """Rule B9.23: the smaller of both, in ms."""
        most = self._config.max_reauth_ms[self._mechanism] or None
        rest = None if expires_at_ms is None else expires_at_ms - self._services.now_ms()
        bounds = [bound for bound in (most, rest) if bound is not None]
        return max(0, min(bounds)) if bounds else None


def _decoded(frame: bytes) -> tuple[wire.Header, wire.Message]:
    """Raises wire.DecodeError."""
    try:
        return wire.decode_request(frame)
    except wire.DecodeError as e:
        return finish(wire.decode_like_kafka(frame, e))


def _response(message: wire.Message, header: wire.Header) -> bytes:
    return wire.encode_response(message, api_version=header.api_version, correlation_id=header.correlation_id)
