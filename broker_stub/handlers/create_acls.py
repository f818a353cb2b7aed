"""CreateAcls (key 30), versions 0-3 (rule B9.28)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.errors import InvalidRequest, error_code
from kce.broker_stub.handlers.acls import authorizer_of, binding, has_unknown, text_of
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.filters import AclBinding
from kce.broker_stub.security.operations import CLUSTER_NAME, Operation, ResourceType
from kce.wire import AclCreationResult, CreateAclsRequest, CreateAclsResponse, ErrorCode


async def _respond(message: CreateAclsRequest, context: RequestContext, services: Services) -> CreateAclsResponse:
    """Raises ApiException."""
    authorizer = authorizer_of(services)
    refusals: list[Exception | None] = []
    valid: list[AclBinding] = []
    async for creation in context.paced(message.creations):
        one = binding(creation)
        refusals.append(_refusal(one))
        if one is not None and refusals[-1] is None:
            valid.append(one)
    results = iter(await authorizer.create_acls(valid))
    made = [_result(next(results) if refusal is None else refusal) async for refusal in context.paced(refusals)]
    return CreateAclsResponse(results=tuple(made))


def _refusal(wanted: AclBinding | None) -> Exception | None:
    if wanted is None:
        return InvalidRequest("the ACL has unknown elements")
    resource = wanted.pattern
    if resource.type == ResourceType.CLUSTER.label and resource.name != CLUSTER_NAME:
        return InvalidRequest(f"the only resource of type Cluster is {CLUSTER_NAME}")
    return None if resource.name else InvalidRequest("Invalid empty resource name")


def _result(error: Exception | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult()
    return AclCreationResult(error_code=error_code(error), error_message=str(error))


_answer: Final = answering_later(_respond)


def handle(request: Request, message: CreateAclsRequest, services: Services) -> None:
    """Closes the connection if an ACL has codes of unknown elements, like Kafka."""
    for creation in message.creations:
        if has_unknown(
            creation.resource_pattern_type, creation.resource_type, creation.permission_type, creation.operation
        ):
            request.close_connection()
            return
    _answer(request, message, services)


def error_response(message: CreateAclsRequest, context: RequestContext, error: ErrorCode) -> CreateAclsResponse:
    result = AclCreationResult(error_code=error, error_message=text_of(error))
    return CreateAclsResponse(results=(result,) * len(message.creations))


HANDLER: Final = Handler(CreateAclsRequest, handle, error_response, needs=Operation.ALTER)
