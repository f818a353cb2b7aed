"""UpdateFeatures (key 57), versions 0-1: forwarded to this node's controller (rule 11.83)."""

from __future__ import annotations

import dataclasses
from typing import Final

from kce.broker_stub.handlers.base import Services
from kce.broker_stub.handlers.forwarded import forwarded, with_message
from kce.broker_stub.reactor import Request
from kce.broker_stub.security.operations import Operation
from kce.wire import ErrorCode, UpdateFeaturesRequest, UpdateFeaturesResponse

_FORWARDED: Final = forwarded(UpdateFeaturesRequest, with_message(UpdateFeaturesResponse), Operation.ALTER)


def handle(request: Request, message: UpdateFeaturesRequest, services: Services) -> None:
    if services.config.inter_broker_protocol_version.supports_feature_versioning:
        _FORWARDED.handle(request, message, services)
    else:
        why = "features are not versioned under this inter.broker.protocol.version"
        request.respond(UpdateFeaturesResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=why))


HANDLER: Final = dataclasses.replace(_FORWARDED, handle=handle)
