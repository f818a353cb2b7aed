"""ACLs in ZooKeeper for the authorizer: reads, conditional writes, and news of other brokers (rules B9.27 to B9.29)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.zookeeper.notifications import ChangeNotifications
from kce.zookeeper import security_nodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import (
    NO_VERSION,
    RESOURCE_TYPES,
    AccessControlEntry,
    PatternType,
    ResourcePattern,
    VersionedAcls,
    decode_acl_change,
    decode_acls,
)
from kce.zookeeper.store import NodeData, SessionState
from kce.zookeeper.znodes import BadZNode

log = logging.getLogger(__name__)


#: resources; meanwhile no ACL changes
_LOADED_AT_ONCE: Final = 500


class ZkAclStore:
    def __init__(self, zk: KafkaZkClient) -> None:
        self._zk = zk

    async def read(self, resource: ResourcePattern) -> VersionedAcls:
        """Raises BadZNode, StoreError, SessionExpired."""
        return await security_nodes.get_acls(self._zk, resource)

    async def read_all(self, resources: Sequence[ResourcePattern]) -> dict[ResourcePattern, VersionedAcls]:
        """Malformed ACLs are logged, and left out. Raises SessionExpired."""
        found = {}
        paths = [resource.path for resource in resources]
        for resource, path, data in zip(resources, paths, await self._zk.get_data(paths), strict=True):
            if isinstance(data, NodeData):
                try:
                    found[resource] = VersionedAcls(decode_acls(path, data.data), data.stat.version)
                except BadZNode as e:
                    log.error("ignoring ACLs: %s", e)
        return found

    async def write(self, resource: ResourcePattern, acls: frozenset[AccessControlEntry], expected: int) -> int | None:
        """Raises StoreError, SessionExpired."""
        if acls:
            return await security_nodes.set_acls(self._zk, resource, acls, expected)
        if expected == NO_VERSION:
            return NO_VERSION
        if await security_nodes.delete_acls(self._zk, resource, expected):
            return NO_VERSION
        is_gone = (await self._zk.get_one(resource.path)) is None
        return NO_VERSION if is_gone else None

    async def notify(self, resource: ResourcePattern) -> None:
        await security_nodes.notify_acl_change(self._zk, resource)


class AclChanges:
    """Keeps an authorizer up to date. Its owner reports the session's states, and runs ``run``."""

    def __init__(self, zk: KafkaZkClient, authorizer: AclAuthorizer) -> None:
        self._zk = zk
        self._authorizer = authorizer
        self._notifications = [
            ChangeNotifications(zk, PatternType.LITERAL.changes, self._literal_changed),
            ChangeNotifications(zk, PatternType.PREFIXED.changes, self._prefixed_changed),
        ]

    def session_changed(self, state: SessionState) -> None:
        for notifications in self._notifications:
            notifications.session_changed(state)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports started when all ACLs are loaded. Raises StoreError, SessionExpired before. Until cancelled."""
        await security_nodes.create_acl_paths(self._zk)
        async with trio.open_nursery() as nursery:
            for notifications in self._notifications:  # watched before the load, so that nothing is missed
                await nursery.start(notifications.run)
            await self._load()
            task_status.started()

    async def _load(self) -> None:
        for pattern in PatternType:
            found = await security_nodes.get_resources(self._zk, pattern)
            for unknown in {resource.type for resource in found}.difference(RESOURCE_TYPES):
                log.warning("ignoring ACLs of unknown resource type %s", unknown)
            known = [resource for resource in found if resource.type in RESOURCE_TYPES]
            for i in range(0, len(known), _LOADED_AT_ONCE):
                await self._authorizer.load(known[i : i + _LOADED_AT_ONCE])

    async def _literal_changed(self, data: bytes) -> None:
        await self._authorizer.reload(decode_acl_change(PatternType.LITERAL, data))

    async def _prefixed_changed(self, data: bytes) -> None:
        await self._authorizer.reload(decode_acl_change(PatternType.PREFIXED, data))
