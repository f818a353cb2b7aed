"""A node's authorizer and delegation tokens, which follow ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import trio

from kce.broker_stub import BrokerConfig
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.broker_stub.zookeeper.acl_store import AclChanges, ZkAclStore
from kce.broker_stub.zookeeper.token_store import TokenChanges, ZkTokenStore
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import SessionState

#: since then there are ACLs of prefixed resources
_IBP_2_0_IV1 = MetadataVersion.parse("2.0-IV1")


class NodeSecurity:
    """Each is None if it is not configured."""

    def __init__(
        self,
        config: BrokerConfig,
        zk: KafkaZkClient,
        *,
        is_controller: Callable[[], bool],
        jitter: Callable[[], float],
        new_uuid: Callable[[], UUID],
    ) -> None:
        self.authorizer: AclAuthorizer | None = None
        self.tokens: DelegationTokenManager | None = None
        self._changes: list[AclChanges | TokenChanges] = []
        if config.authorizer is not None:
            has_prefixed = config.inter_broker_protocol_version >= _IBP_2_0_IV1
            self.authorizer = AclAuthorizer(config.authorizer, ZkAclStore(zk), jitter=jitter, has_prefixed=has_prefixed)
            self._changes.append(AclChanges(zk, self.authorizer))
        if config.tokens is not None:
            self.tokens = DelegationTokenManager(config.tokens, ZkTokenStore(zk), now_ms=zk.now_ms, new_uuid=new_uuid)
            self._changes.append(TokenChanges(zk, self.tokens, is_controller))

    def session_changed(self, state: SessionState) -> None:
        for changes in self._changes:
            changes.session_changed(state)

    async def start(self, nursery: trio.Nursery) -> None:
        """Returns when ACLs and tokens are loaded. Raises StoreError, SessionExpired."""
        for changes in self._changes:
            await nursery.start(changes.run)
