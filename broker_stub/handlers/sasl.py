"""SaslHandshake (key 17) and SaslAuthenticate (key 36) where nothing is to be authenticated (rule B1.43).

On a connection that authenticates itself they do not come here (`reactor.authentication`).
"""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.wire import (
    ErrorCode,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def handshake(message: SaslHandshakeRequest, context: RequestContext, services: Services) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def authenticate(
    message: SaslAuthenticateRequest, context: RequestContext, services: Services
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


def handshake_error(message: SaslHandshakeRequest, context: RequestContext, error: ErrorCode) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error)


def authenticate_error(
    message: SaslAuthenticateRequest, context: RequestContext, error: ErrorCode
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error)


HANDSHAKE: Final = Handler(SaslHandshakeRequest, answering(handshake), handshake_error)
AUTHENTICATE: Final = Handler(SaslAuthenticateRequest, answering(authenticate), authenticate_error)
