"""DescribeAcls (key 29), versions 0-3, from the authorizer's memory."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from kce.broker_stub.handlers.acls import (
    authorizer_of,
    binding_filter,
    entry_codes,
    filter_is_unknown,
    resource_codes,
    text_of,
)
from kce.broker_stub.handlers.base import Answer, Handler, Services, answering_in_steps
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    ErrorCode,
)
from kce.wire.steps import STEP_MASK, Steps
from kce.zookeeper.security_nodes import AccessControlEntry


def _respond(message: DescribeAclsRequest, context: RequestContext, services: Services) -> Steps[Answer]:
    """Raises Refused."""
    cache = authorizer_of(services).cache
    wanted = binding_filter(message)
    found = []
    for i, resource in enumerate(cache.resources()):
        if wanted.matches_pattern(resource):
            entries = sorted(filter(wanted.matches_entry, cache.get(resource).acls))
            if entries:
                kind, name, pattern = resource_codes(resource)
                acls = tuple(map(_description, entries))
                found.append(
                    DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
                )
        if not i & STEP_MASK:
            yield
    return Answer(DescribeAclsResponse(resources=tuple(found), error_message=""))


def _description(entry: AccessControlEntry) -> AclDescription:
    principal, host, operation, permission = entry_codes(entry)
    return AclDescription(principal=principal, host=host, operation=operation, permission_type=permission)


_answer: Final = answering_in_steps(_respond)


def handle(request: Request, message: DescribeAclsRequest, services: Services) -> Awaitable[None] | None:
    """Closes the connection if the filter has codes of unknown elements, like Kafka."""
    if filter_is_unknown(message):
        request.close_connection()
        return None
    return _answer(request, message, services)


def error_response(message: DescribeAclsRequest, context: RequestContext, error: ErrorCode) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error, error_message=text_of(error))


HANDLER: Final = Handler(DescribeAclsRequest, handle, error_response, needs=Operation.DESCRIBE)
