"""Feature levels that the cluster has agreed on: /feature (rules 4.22-4.25, 11.83, KIP-584).

A broker in ZooKeeper mode supports no features of its own, and nothing is finalized, unless the configuration says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from controller import zk_data
from controller.core import Core
from controller.errors import NO_ERROR, ApiError
from controller.events import UpdateFeaturesReceived
from controller.model import Broker, FeatureUpdate, UpgradeType
from controller.store import SessionExpired
from wire import ErrorCode

log = logging.getLogger(__name__)


class Features:
    """``finalized``: feature -> its level, as /feature had it when it was last read or written here.

    Whatever is written is waited for: the broker of this node is to know of it (rules 4.22, 11.83).
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ibp = core.config.inter_broker_protocol_version
        self.finalized: dict[str, int] = {}

    async def set_up(self) -> None:
        """At failover, before anything is watched."""
        found = await self._core.zk.get_feature()
        enabled = self._ibp.supports_feature_versioning
        self.finalized = {}
        if enabled and found is None:
            self.finalized = {name: high for name, (_, high) in self._core.config.supported_features.items()}
        elif enabled and found is not None:
            was_enabled, known = zk_data.decode_feature(found.data)
            self.finalized = known if was_enabled else {}
        version = await self._write(self.finalized, enabled=enabled)
        if enabled and version is not None:
            await self._core.wait_for_features(version, self._core.config.zookeeper_connection_timeout_ms / 1000)

    async def _write(self, features: Mapping[str, int], *, enabled: bool) -> int | None:
        """The version that was written; None if it stood there already."""
        wanted = zk_data.encode_feature(self._ibp.feature_znode_version, enabled=enabled, features=features)
        found = await self._core.zk.get_feature()
        if found is None or not zk_data.is_same_json(found.data, wanted):
            return await self._core.zk.put_feature(wanted, create=found is None)
        return None

    def are_compatible(self, broker: Broker) -> bool:
        """Whether the broker supports every finalized level (rules 4.5, 11.53)."""
        unsupported = {name: level for name, level in self.finalized.items() if not _supports(broker, name, level)}
        if unsupported:
            log.warning("broker %d is left out: it does not support the features %s", broker.id, unsupported)
        return not unsupported

    async def update(self, event: UpdateFeaturesReceived) -> None:
        """Rule 11.83: the valid ones together; if they cannot be written, they have failed."""
        wanted = dict(self.finalized)
        results: dict[str, ApiError] = {}
        for update in event.updates:
            why_not = self._why_not(update)
            results[update.feature] = ApiError(ErrorCode.INVALID_REQUEST, why_not) if why_not else NO_ERROR
            if why_not is None and _is_deletion(update):
                del wanted[update.feature]
            elif why_not is None:
                wanted[update.feature] = update.max_version_level
        try:
            if wanted != self.finalized and not event.validate_only:
                version = await self._write(wanted, enabled=True)
                self.finalized = wanted
                if version is not None:
                    await self._core.wait_for_features(version, self._core.config.request_timeout_ms / 1000)
        except SessionExpired:
            raise
        except Exception as e:
            log.exception("%s could not be written", zk_data.FEATURE)
            for feature, result in results.items():
                if result.code is ErrorCode.NONE:
                    results[feature] = ApiError(ErrorCode.FEATURE_UPDATE_FAILED, str(e))
        event.reply(results)

    def _why_not(self, update: FeatureUpdate) -> str | None:
        feature, level, upgrade_type = update.feature, update.max_version_level, update.upgrade_type
        if not feature:
            return "The name of a feature cannot be empty."
        if upgrade_type is UpgradeType.UNKNOWN:
            return "The upgrade type is unknown."
        existing = self.finalized.get(feature)
        if _is_deletion(update):
            return None if existing is not None else "A feature that is not finalized cannot be deleted."
        if level < 1:
            return f"Level {level} is less than 1, which takes a safe downgrade."
        if existing is not None:
            if level == existing:
                return f"The feature is finalized at level {existing} already."
            if level < existing and upgrade_type is not UpgradeType.SAFE_DOWNGRADE:
                return f"Level {level} is below the finalized level {existing}, which takes a safe downgrade."
            if level > existing and upgrade_type is not UpgradeType.UPGRADE:
                return f"Level {level} is above the finalized level {existing}, which is no downgrade."
        return self._why_unsupported(feature, level)

    def _why_unsupported(self, feature: str, level: int) -> str | None:
        supported = self._core.config.supported_features.get(feature)
        if supported is None:
            return "The controller does not support the feature."
        low, high = supported
        if not low <= level <= high:
            return f"The controller supports levels {low} to {high} of the feature, not {level}."
        brokers = self._core.context.live_or_shutting_down_brokers
        if unable := sorted(b.id for b in brokers if not _supports(b, feature, level)):
            return f"Brokers {unable} do not support level {level} of the feature."
        return None


def _is_deletion(update: FeatureUpdate) -> bool:
    return update.max_version_level < 1 and update.upgrade_type is UpgradeType.SAFE_DOWNGRADE


def _supports(broker: Broker, feature: str, level: int) -> bool:
    low, high = broker.features.get(feature, (0, 0))
    return low <= level <= high
