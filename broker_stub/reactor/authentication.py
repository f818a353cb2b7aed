"""What a connection of a secured listener does before its first request: TLS, then SASL; and later SASL again.

A failure closes this connection only. Nobody waits for a slow client: it occupies its own task, until it is idle for
longer than `connections.max.idle.ms`.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import trio

from kce import wire
from kce.broker_stub.errors import Refused
from kce.broker_stub.ports import Link
from kce.broker_stub.reactor.memory_pool import MemoryPool
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request import Apis, ConnectionContext, Request, RequestContext, Requester
from kce.broker_stub.security import ANONYMOUS, KafkaPrincipal
from kce.broker_stub.security.config import ListenerSecurity, SaslConfig
from kce.broker_stub.security.sasl_authenticator import (
    AuthenticationFailed,
    BadExchange,
    SaslServerAuthenticator,
    SaslServices,
    Session,
)
from kce.broker_stub.security.ssl_principal import subject_of
from kce.wire import ErrorCode, SaslHandshakeRequest
from kce.wire.primitives import UNLIMITED

log = logging.getLogger(__name__)

#: rule B9.24
MIN_REAUTHENTICATION_SECONDS: Final = 1.0
_HANDSHAKE: Final = SaslHandshakeRequest.__api_key__.to_bytes(2, "big")


class NotAuthenticated(Exception):
    """The connection is to be closed; the text says why."""


class Owner(Protocol):
    """The processor of the connection."""

    metrics: RequestMetrics
    memory: MemoryPool | None
    apis: Apis
    security: ListenerSecurity
    sasl: SaslServices | None


class _Frames:
    """Answers of the broker's APIs, taken from them instead of being sent (security.sasl_authenticator.KafkaFrames)."""

    def __init__(self, apis: Apis, connection: Requester) -> None:
        self._apis = apis
        self._connection = connection
        self._answered: Request | None = None

    def send_response(self, request: Request) -> None:
        self._answered = request

    def api_versions(self, frame: bytes) -> tuple[bytes, bool]:
        request = self._request(frame)
        waits = self._apis.handle(request)
        assert waits is None
        return self._answer(), request.error_codes.keys() == {ErrorCode.NONE}

    def refuse(self, frame: bytes, code: ErrorCode) -> bytes | None:
        request = self._request(frame)
        message = self._apis.error_response(request, Refused(code))
        if message is None:
            return None
        request.respond(message)
        return self._answer()

    def _answer(self) -> bytes:
        assert self._answered is not None, "it is answered at once"
        assert isinstance(self._answered.payload, bytes), "it has no records"
        return self._answered.payload

    def _request(self, frame: bytes) -> Request:
        header, message = self._apis.decode(frame, UNLIMITED)
        context = RequestContext(header, self._connection.context)
        now = trio.current_time()
        return Request(context, message, connection=self._connection, responder=self, apis=self._apis, now=now)


class Authentication:
    """Of one connection of a listener that is not PLAINTEXT."""

    def __init__(self, link: Link, owner: Owner, connection: Requester) -> None:
        self._link = link
        self._owner = owner
        self._connection = connection
        self._session: Session | None = None
        #: trio.current_time()
        self._expires_at: float | None = None
        self._last_reauthentication = 0.0

    @property
    def ends(self) -> bool:
        """Whether the session has an end, so that ``is_reauthentication`` and ``has_expired`` matter."""
        return self._expires_at is not None

    async def run(self, context: ConnectionContext) -> ConnectionContext:
        """Secure and authenticate the connection; returns the context with its principal.

        Raises NotAuthenticated, trio.BrokenResourceError, wire.LimitExceeded.
        """
        security, metrics = self._owner.security, self._owner.metrics
        principal = ANONYMOUS
        if security.tls is not None:
            try:
                certificate = await self._link.secure()
            except trio.BrokenResourceError as e:  # rule B9.3
                metrics.failed_authentications += 1
                raise NotAuthenticated(f"the TLS handshake failed: {e.__cause__ or e}") from None
            if certificate is not None and security.sasl is None:
                principal = self._principal_of(certificate)
        if security.sasl is None:
            metrics.successful_authentications += 1
            return context._replace(principal=principal)
        try:
            session = await self._exchange(security.sasl)
        except NotAuthenticated:
            metrics.failed_authentications += 1
            raise
        metrics.successful_authentications += 1
        return context._replace(principal=session.principal, token_authenticated=session.token_authenticated)

    def _principal_of(self, certificate: bytes) -> KafkaPrincipal:
        tls = self._owner.security.tls
        assert tls is not None
        try:
            return KafkaPrincipal("User", tls.principal_mapper.name(subject_of(certificate)))
        except ValueError as e:
            raise NotAuthenticated(f"the client's certificate: {e}") from None

    def has_expired(self, now: float) -> bool:
        """Rule B9.25."""
        return self._expires_at is not None and now >= self._expires_at

    def is_reauthentication(self, frame: bytes, now: float) -> bool:
        """Rule B9.24."""
        if not frame.startswith(_HANDSHAKE) or not self.ends:
            return False
        if self._last_reauthentication and now - self._last_reauthentication < MIN_REAUTHENTICATION_SECONDS:
            return False
        self._last_reauthentication = now
        return True

    async def again(self, handshake: bytes) -> None:
        """Prolong the session; the principal stays. Raises like ``run``."""
        metrics, sasl = self._owner.metrics, self._owner.security.sasl
        assert sasl is not None
        try:
            await self._exchange(sasl, handshake)
        except NotAuthenticated:
            metrics.failed_reauthentications += 1
            raise
        metrics.successful_reauthentications += 1

    async def _exchange(self, config: SaslConfig, frame: bytes | None = None) -> Session:
        """From the first frame, which may be there already, to the end."""
        services = self._owner.sasl
        assert services is not None, "a server with SASL has its services"
        frames = _Frames(self._owner.apis, self._connection)
        authenticator = SaslServerAuthenticator(config, services, frames, self._session)
        limit = self._link.limit_frames(config.max_receive_size)  # rule B9.11
        try:
            while True:
                response = authenticator.receive(await self._next() if frame is None else frame)
                frame = None
                session = authenticator.session
                if session is not None:  # before the client can know it
                    self._begin(session)
                if response is not None:
                    await self._link.send(response)
                if session is not None:
                    break
        except AuthenticationFailed as e:
            await self._fail(config, e.response)
            raise NotAuthenticated(str(e)) from None
        except wire.LimitExceeded as e:
            await self._fail(config, None)
            raise NotAuthenticated(str(e)) from None
        except BadExchange as e:
            raise NotAuthenticated(str(e)) from None
        self._link.limit_frames(limit)
        return session

    def _begin(self, session: Session) -> None:
        self._session = session
        lifetime_ms = session.lifetime_ms
        self._expires_at = None if lifetime_ms is None else trio.current_time() + lifetime_ms / 1000

    async def _next(self) -> bytes:
        frame = await self._link.receive()
        if frame is None:
            raise NotAuthenticated("the client closed the connection before it was authenticated")
        if self._owner.memory is not None:  # what is this small is not counted
            self._owner.memory.give_back(len(frame))
        return frame

    async def _fail(self, config: SaslConfig, response: bytes | None) -> None:
        """Rule B1.54."""
        await trio.sleep(config.failed_authentication_delay_ms / 1000)
        if response is not None:
            await self._link.send(response)
