"""Finalized feature levels: /feature (rules 4.22-4.25, 11.83, KIP-584).

Brokers in ZooKeeper mode support no features, and none is finalized, unless `supported_features` is configured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kce.controller.errors import SUCCESS, OperationResult
from kce.controller.runtime import ControllerRuntime
from kce.pauses import Paced
from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, node_json, znodes
from kce.zookeeper.model import FeatureUpdate, RegisteredBroker, UpgradeType
from kce.zookeeper.store import SessionExpired

log = logging.getLogger(__name__)

NOT_APPLIED = "Could not apply finalized feature update because"
WITHOUT_SAFE = "without setting the SAFE downgradeType in the request."


class Features:
    """``finalized``: feature -> level, as last read from or written to /feature.

    After each write it waits until this node's broker has read the new version (rules 4.22, 11.83).
    """

    def __init__(self, runtime: ControllerRuntime) -> None:
        self._runtime = runtime
        self._ibp = runtime.config.inter_broker_protocol_version
        self.finalized: dict[str, int] = {}

    async def set_up(self) -> None:
        """Initialize /feature at failover, before any watch is set."""
        found = await self._runtime.zk.get_feature()
        enabled = self._ibp.supports_feature_versioning
        self.finalized = {}
        if enabled and found is None:
            self.finalized = {name: high for name, (_, high) in self._runtime.config.supported_features.items()}
        elif enabled and found is not None:
            try:
                was_enabled, known = cluster_nodes.decode_feature(found.data)
                self.finalized = known if was_enabled else {}
            except znodes.BadZNode as e:  # Kafka fails, and with it every failover
                log.error("finalizing no features: %s", e)
        version = await self._write(self.finalized, enabled=enabled)
        if enabled and version is not None:
            await self._runtime.wait_for_features(version, self._runtime.config.zookeeper_connection_timeout_ms / 1000)

    async def _write(self, features: Mapping[str, int], *, enabled: bool) -> int | None:
        """Write /feature; returns the new version, or None if the content was the same."""
        wanted = cluster_nodes.encode_feature(self._ibp.feature_znode_version, enabled=enabled, features=features)
        found = await self._runtime.zk.get_feature()
        if found is None or not node_json.is_same_json(found.data, wanted):
            return await self._runtime.zk.put_feature(wanted, create=found is None)
        return None

    def are_compatible(self, broker: RegisteredBroker) -> bool:
        """Whether the broker supports every finalized level (rules 4.5, 11.53)."""
        unsupported = {name: level for name, level in self.finalized.items() if not _supports(broker, name, level)}
        if unsupported:
            log.warning("broker %d is excluded: it does not support the features %s", broker.id, unsupported)
        return not unsupported

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> dict[str, OperationResult]:
        """Write the valid updates together (rule 11.83). If the write fails, all of them have failed."""
        wanted = dict(self.finalized)
        results: dict[str, OperationResult] = {}
        async for update in Paced(updates):
            error = self._validation_error(update)
            results[update.feature] = OperationResult(ErrorCode.INVALID_REQUEST, error) if error else SUCCESS
            if error is None and _is_deletion(update):
                del wanted[update.feature]
            elif error is None:
                wanted[update.feature] = update.max_version_level
        try:
            if wanted != self.finalized and not validate_only:
                version = await self._write(wanted, enabled=True)
                self.finalized = wanted
                if version is not None:
                    await self._runtime.wait_for_features(version, self._runtime.config.request_timeout_ms / 1000)
        except SessionExpired:
            raise
        except Exception as e:
            log.exception("writing %s failed", znodes.FEATURE)
            for feature, result in results.items():
                if result.code is ErrorCode.NONE:
                    results[feature] = OperationResult(ErrorCode.FEATURE_UPDATE_FAILED, str(e))
        return results

    def _validation_error(self, update: FeatureUpdate) -> str | None:
        """Why the update is refused, in Kafka's words, which its tools print (KC:2018-2080)."""
        feature, level, upgrade_type = update.feature, update.max_version_level, update.upgrade_type
        if not feature:
            return "Feature name can not be empty."
        if upgrade_type is UpgradeType.UNKNOWN:
            return "Received unknown upgrade type."
        existing = self.finalized.get(feature)
        if _is_deletion(update):
            return None if existing is not None else "Can not delete non-existing finalized feature."
        if level < 1:
            return f"Can not provide versionLevel: {level} less than 1 {WITHOUT_SAFE}"
        if existing is not None:
            if level == existing:
                return (
                    f"Can not {'downgrade' if upgrade_type is UpgradeType.SAFE_DOWNGRADE else 'upgrade'} a finalized "
                    f"feature from existing versionLevel:{existing} to the same value."
                )
            if level < existing and upgrade_type is not UpgradeType.SAFE_DOWNGRADE:
                return (
                    f"Can not downgrade finalized feature from existing versionLevel:{existing} to provided "
                    f"versionLevel:{level} without setting the downgradeType to SAFE in the request."
                )
            if level > existing and upgrade_type is not UpgradeType.UPGRADE:
                return (
                    f"When the downgradeType is set to SAFE in the request, the provided versionLevel:{level} can not "
                    f"be greater than existing versionLevel:{existing}."
                )
        return self._support_error(feature, level)

    def _support_error(self, feature: str, level: int) -> str | None:
        supported = self._runtime.config.supported_features.get(feature)
        if supported is None:
            return f"{NOT_APPLIED} the provided feature is not supported."
        low, high = supported
        if not low <= level <= high:
            return f"{NOT_APPLIED} the controller supports versionLevel {low} to {high}, not {level}."
        brokers = self._runtime.context.live_or_shutting_down_brokers
        if unable := sorted(b.id for b in brokers if not _supports(b, feature, level)):
            return (
                f"{NOT_APPLIED} brokers were found to have incompatible versions for the feature: {unable} do not "
                f"support versionLevel {level}."
            )
        return None


def _is_deletion(update: FeatureUpdate) -> bool:
    return update.max_version_level < 1 and update.upgrade_type is UpgradeType.SAFE_DOWNGRADE


def _supports(broker: RegisteredBroker, feature: str, level: int) -> bool:
    low, high = broker.features.get(feature, (0, 0))
    return low <= level <= high
