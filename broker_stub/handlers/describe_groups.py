"""DescribeGroups (key 15), versions 0-5 (rules G7.34, G7.35)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ErrorCode,
)


def respond(message: DescribeGroupsRequest, context: RequestContext, services: Services) -> DescribeGroupsResponse:
    denied = services.authorization.denied(context, Operation.DESCRIBE, ResourceType.GROUP, message.groups)
    refused = [_refused(name, ErrorCode.GROUP_AUTHORIZATION_FAILED) for name in message.groups if name in denied]
    described = [_described(name, message, context, services) for name in message.groups if name not in denied]
    return DescribeGroupsResponse(groups=(*refused, *described))


def _described(
    group_id: str, message: DescribeGroupsRequest, context: RequestContext, services: Services
) -> DescribeGroupsResponseDescribedGroup:
    group = services.groups.describe(group_id)
    if message.include_authorized_operations and group.error_code == ErrorCode.NONE:
        operations = services.authorization.operations(context, ResourceType.GROUP, group_id)
        return replace(group, authorized_operations=operations)
    return group


def _refused(group_id: str, error: ErrorCode) -> DescribeGroupsResponseDescribedGroup:
    return DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error)


def error_response(message: DescribeGroupsRequest, context: RequestContext, error: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=tuple(_refused(group_id, error) for group_id in message.groups))


HANDLER: Final = Handler(DescribeGroupsRequest, answering_each(respond, Arrays("groups", "groups")), error_response)
