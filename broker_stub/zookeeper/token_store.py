"""Delegation tokens in ZooKeeper, and news of other brokers (rule 1.45)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.broker_stub.zookeeper.notifications import ChangeNotifications
from kce.zookeeper import security_nodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import TokenInformation
from kce.zookeeper.store import SessionState
from kce.zookeeper.znodes import BadZNode

log = logging.getLogger(__name__)


class ZkTokenStore:
    """Every method raises StoreError and SessionExpired."""

    def __init__(self, zk: KafkaZkClient) -> None:
        self._zk = zk

    async def read(self, token_id: str) -> TokenInformation | None:
        """Raises BadZNode."""
        return await security_nodes.get_token(self._zk, token_id)

    async def write(self, token: TokenInformation) -> None:
        await security_nodes.set_or_create_token(self._zk, token)
        await security_nodes.notify_token_change(self._zk, token.token_id)

    async def delete(self, token_id: str) -> None:
        await security_nodes.delete_token(self._zk, token_id)
        await security_nodes.notify_token_change(self._zk, token_id)


class TokenChanges:
    """Keeps a manager of tokens up to date. Its owner reports the session's states, and runs ``run``."""

    def __init__(self, zk: KafkaZkClient, manager: DelegationTokenManager, is_controller: Callable[[], bool]) -> None:
        """``is_controller``: whether this node removes expired tokens."""
        self._is_controller = is_controller
        self._zk = zk
        self._manager = manager
        self._notifications = ChangeNotifications(zk, security_nodes.TOKEN_CHANGES, self._changed)

    def session_changed(self, state: SessionState) -> None:
        self._notifications.session_changed(state)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports started when all tokens are loaded; then expires them. Raises StoreError, SessionExpired before."""
        await security_nodes.create_token_paths(self._zk)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._notifications.run)
            for token_id in await self._zk.get_children(security_nodes.TOKENS):
                try:
                    await self._manager.reload(token_id)
                except BadZNode as e:
                    log.error("ignoring a delegation token: %s", e)
            task_status.started()
            nursery.start_soon(self._manager.run, self._is_controller)

    async def _changed(self, data: bytes) -> None:
        await self._manager.reload(data.decode())
