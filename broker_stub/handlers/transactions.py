"""Shared by the handlers of transactions."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.base import Services
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion

_TRANSACTIONS_SINCE: Final = MetadataVersion.parse("0.11.0-IV0")


def check_supported(services: Services) -> None:
    """Raises Refused (rule T14.2)."""
    if services.config.inter_broker_protocol_version < _TRANSACTIONS_SINCE:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION)


def known_to(code: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before that version (rules T4.17, T5.4)."""
    is_old = api_version < fenced_since
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old and code is ErrorCode.PRODUCER_FENCED else code
