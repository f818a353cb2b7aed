"""UpdateFeatures (key 57), versions 0-1: handed to this node's controller (rule 11.83)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker_stub.handlers.base import Handler, Services, replying
from broker_stub.ports import Outcome
from broker_stub.reactor import Request, RequestContext
from wire import (
    ErrorCode,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from wire.vocabulary import FeatureUpdate, UpgradeType


async def handle(request: Request, message: UpdateFeaturesRequest, services: Services) -> None:
    reply = replying(request)
    if not services.config.inter_broker_protocol_version.supports_feature_versioning:
        why = "features are not versioned under this inter.broker.protocol.version"
        reply(UpdateFeaturesResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=why))
        return

    def answer(result: Mapping[str, Outcome] | Outcome) -> None:
        if isinstance(result, tuple):
            code, why = result
            reply(UpdateFeaturesResponse(error_code=code, error_message=why or None))
        else:
            reply(_response(result))

    updates = [_update(key, request.context.api_version) for key in message.feature_updates]
    services.controller.update_features(updates, answer, validate_only=message.validate_only)


def _update(key: FeatureUpdateKey, version: int) -> FeatureUpdate:
    if version == 0:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if key.allow_downgrade else UpgradeType.UPGRADE
    else:
        known = {kind.value for kind in UpgradeType}
        upgrade_type = UpgradeType(key.upgrade_type) if key.upgrade_type in known else UpgradeType.UNKNOWN
    return FeatureUpdate(key.feature, key.max_version_level, upgrade_type)


def _response(outcomes: Mapping[str, Outcome]) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_message=None,
        results=tuple(
            UpdatableFeatureResult(feature=feature, error_code=code, error_message=why or None)
            for feature, (code, why) in outcomes.items()
        ),
    )


def error_response(message: UpdateFeaturesRequest, context: RequestContext, error: ErrorCode) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error, error_message=None)


HANDLER: Final = Handler(UpdateFeaturesRequest, handle, error_response)
