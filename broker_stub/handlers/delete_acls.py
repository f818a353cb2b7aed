"""DeleteAcls (key 31), versions 0-3 (rule B9.28)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.errors import error_code
from kce.broker_stub.handlers.acls import (
    authorizer_of,
    binding_filter,
    entry_codes,
    filter_is_unknown,
    resource_codes,
    text_of,
)
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.authorizer import DeletedAcl
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    ErrorCode,
)


async def _respond(message: DeleteAclsRequest, context: RequestContext, services: Services) -> DeleteAclsResponse:
    """Raises Refused."""
    filters = [binding_filter(one) async for one in context.paced(message.filters)]
    deleted = await authorizer_of(services).delete_acls(filters)
    results = [
        DeleteAclsFilterResult(error_message=None, matching_acls=tuple(map(_matching, of_filter)))
        async for of_filter in context.paced(deleted)
    ]
    return DeleteAclsResponse(filter_results=tuple(results))


def _matching(deleted: DeletedAcl) -> DeleteAclsMatchingAcl:
    kind, name, pattern = resource_codes(deleted.binding.pattern)
    principal, host, operation, permission = entry_codes(deleted.binding.entry)
    error = deleted.error
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE if error is None else error_code(error),
        error_message=None if error is None else str(error),
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


_answer: Final = answering_later(_respond)


def handle(request: Request, message: DeleteAclsRequest, services: Services) -> None:
    """Closes the connection if a filter has codes of unknown elements, like Kafka."""
    if any(map(filter_is_unknown, message.filters)):
        request.close_connection()
    else:
        _answer(request, message, services)


def error_response(message: DeleteAclsRequest, context: RequestContext, error: ErrorCode) -> DeleteAclsResponse:
    result = DeleteAclsFilterResult(error_code=error, error_message=text_of(error))
    return DeleteAclsResponse(filter_results=(result,) * len(message.filters))


HANDLER: Final = Handler(DeleteAclsRequest, handle, error_response, needs=Operation.ALTER)
