"""AlterClientQuotas (key 49), versions 0-1: any broker changes quotas in the metadata store (rule B8.17)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from kce.broker_stub.errors import ApiException
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.quotas.administration import Entity, altered, place_of
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    ErrorCode,
)

log = logging.getLogger(__name__)


async def respond(
    message: AlterClientQuotasRequest, context: RequestContext, services: Services
) -> AlterClientQuotasResponse:
    """An entity that the request names twice is changed twice, and answered once."""
    results: dict[frozenset[tuple[str, str | None]], AlterClientQuotasResponseEntryData] = {}
    async for entry in context.paced(message.entries):
        entity = _entity(entry)
        code, text = ErrorCode.NONE, None
        try:
            await _alter(entity, entry, services, validate_only=message.validate_only)
        except Exception as e:  # the other entities still get their results
            code = e.code if isinstance(e, ApiException) else ErrorCode.UNKNOWN_SERVER_ERROR
            if code == ErrorCode.UNKNOWN_SERVER_ERROR:
                log.exception("could not change the quotas of %r", entity)
            else:
                text = str(e)
        results[frozenset(entity.items())] = _entry(entity.items(), code, text)
    return AlterClientQuotasResponse(entries=tuple(results.values()))


async def _alter(
    entity: Entity, entry: AlterClientQuotasRequestEntryData, services: Services, *, validate_only: bool
) -> None:
    """Raises ApiException, and what the metadata store raises."""
    kind, name = place_of(entity)
    ops = [(op.key, None if op.remove else op.value) for op in entry.ops]
    config = altered(kind, await services.admin.config(kind, name), ops)
    if not validate_only:
        await services.admin.change_client_config(kind, name, config)


def _entity(entry: AlterClientQuotasRequestEntryData) -> dict[str, str | None]:
    return {each.entity_type: each.entity_name for each in entry.entity}


def _entry(
    entity: Iterable[tuple[str, str | None]], code: ErrorCode, text: str | None = None
) -> AlterClientQuotasResponseEntryData:
    return AlterClientQuotasResponseEntryData(
        error_code=code,
        error_message=text,
        entity=tuple(
            AlterClientQuotasResponseEntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity
        ),
    )


def error_response(
    message: AlterClientQuotasRequest, context: RequestContext, error: ErrorCode
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=tuple(
            _entry([(e.entity_type, e.entity_name) for e in entry.entity], error) for entry in message.entries
        )
    )


HANDLER: Final = Handler(
    AlterClientQuotasRequest, answering_later(respond), error_response, needs=Operation.ALTER_CONFIGS
)
