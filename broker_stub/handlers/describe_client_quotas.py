"""DescribeClientQuotas (key 48), versions 0-1: any broker reads the quotas that match a filter (rule B8.16)."""

from __future__ import annotations

from typing import Final

import trio

from kce.broker_stub.errors import ApiException
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.quotas.administration import Component, Filter, check_match, entity_of, quotas_in
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    ErrorCode,
    ValueData,
)

#: components; of more than there are types the filter refuses the first that repeats one
_MOST: Final = 8


async def respond(
    message: DescribeClientQuotasRequest, context: RequestContext, services: Services
) -> DescribeClientQuotasResponse:
    """Raises ValueError for a quota that is no number."""
    components = []
    try:
        async for each in context.paced(message.components):
            components.append(Component(each.entity_type, each.match_type, each.match))
            check_match(components[-1])
        wanted = Filter(components[:_MOST], strict=message.strict)
    except ApiException as e:
        text = None if e.code == ErrorCode.UNKNOWN_SERVER_ERROR else str(e)
        return DescribeClientQuotasResponse(error_code=e.code, error_message=text, entries=None)
    entries = []
    for kind in wanted.kinds:
        for name, config in (await services.admin.client_configs(kind)).items():
            await trio.lowlevel.checkpoint()
            entity, quotas = entity_of(kind, name), quotas_in(kind, config)
            if quotas and wanted.matches(entity):
                entries.append(
                    DescribeClientQuotasResponseEntryData(
                        entity=tuple(
                            DescribeClientQuotasResponseEntityData(entity_type=entity_type, entity_name=entity_name)
                            for entity_type, entity_name in entity.items()
                        ),
                        values=tuple(ValueData(key=key, value=value) for key, value in quotas.items()),
                    )
                )
    return DescribeClientQuotasResponse(entries=tuple(entries))


def error_response(
    message: DescribeClientQuotasRequest, context: RequestContext, error: ErrorCode
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error, error_message=None, entries=None)


HANDLER: Final = Handler(
    DescribeClientQuotasRequest, answering_later(respond), error_response, needs=Operation.DESCRIBE_CONFIGS
)
