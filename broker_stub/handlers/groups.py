"""Shared by the handlers of groups."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Services
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion

_STATIC_MEMBERS_SINCE: Final = MetadataVersion.parse("2.3-IV0")


def instance_id_error(instance_id: str | None, services: Services) -> ErrorCode | None:
    """Rule G1.17."""
    if instance_id is None or services.config.inter_broker_protocol_version >= _STATIC_MEMBERS_SINCE:
        return None
    return ErrorCode.UNSUPPORTED_VERSION
