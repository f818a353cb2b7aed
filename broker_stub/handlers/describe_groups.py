"""DescribeGroups (key 15), versions 0-5 (rules G7.34, G7.35)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.handlers.metadata import GROUP_OPERATIONS
from kce.broker_stub.reactor import RequestContext
from kce.wire import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ErrorCode,
)


def respond(message: DescribeGroupsRequest, context: RequestContext, services: Services) -> DescribeGroupsResponse:
    groups = tuple(map(services.groups.describe, message.groups))
    if message.include_authorized_operations:
        groups = tuple(
            replace(group, authorized_operations=GROUP_OPERATIONS) if group.error_code == ErrorCode.NONE else group
            for group in groups
        )
    return DescribeGroupsResponse(groups=groups)


def error_response(message: DescribeGroupsRequest, context: RequestContext, error: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=tuple(
            DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error) for group_id in message.groups
        )
    )


HANDLER: Final = Handler(DescribeGroupsRequest, answering(respond), error_response)
