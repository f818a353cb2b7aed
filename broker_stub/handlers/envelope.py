"""Envelope (key 58), version 0: listed, and the end of the connection, because nothing is forwarded (rule B1.44)."""

from __future__ import annotations

import logging
from typing import Final

from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.reactor import Request, RequestContext
from kce.wire import EnvelopeRequest, EnvelopeResponse, ErrorCode

log = logging.getLogger(__name__)


def handle(request: Request, message: EnvelopeRequest, services: Services) -> None:
    log.info("closing connection %s: it has sent an Envelope", request.context.connection.connection_id)
    request.close_connection()


def error_response(message: EnvelopeRequest, context: RequestContext, error: ErrorCode) -> EnvelopeResponse:
    return EnvelopeResponse(error_code=error)


HANDLER: Final = Handler(EnvelopeRequest, handle, error_response)
