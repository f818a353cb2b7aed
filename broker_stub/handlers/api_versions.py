"""ApiVersions (key 18), versions 0-4; other versions get an error in version 0 (rules B1.37-B1.40)."""

from __future__ import annotations

import re
from typing import Final

from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.reactor import Request, RequestContext
from kce.wire import ApiVersionsRequest, ApiVersionsResponse, ErrorCode

#: a valid software name or version of a client (rule B1.38)
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE: Final = 3

_NO_ERROR: Final[dict[int, int]] = {ErrorCode.NONE: 1}


def handle(request: Request, message: ApiVersionsRequest, services: Services) -> None:
    version = request.context.api_version
    if not message.__versions__.first <= version <= message.__versions__.last:
        request.respond(services.served_apis.unsupported_version_response())
        return
    if version >= _FIRST_VERSION_WITH_SOFTWARE:
        connection = request.connection
        software = message.client_software_name, message.client_software_version
        if software != (connection.client_software_name, connection.client_software_version):
            if not all(_SOFTWARE.fullmatch(text) for text in software):
                request.respond(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
                return
            connection.client_software_name, connection.client_software_version = software
    if request.charge():
        request.respond(services.served_apis.response())
        return
    request.respond_encoded(services.served_apis.encoded_response(version), _NO_ERROR)


def error_response(message: ApiVersionsRequest, context: RequestContext, error: ErrorCode) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error)


HANDLER: Final = Handler(ApiVersionsRequest, handle, error_response)
