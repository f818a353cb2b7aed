"""Kafka's election of the controller. `kce.election` has Flink's.

Both claim leadership with an ephemeral node, watch it without polling, read it again when a watch fires, and grant and
revoke the contender one call at a time, with a token for each win (E12.13).

They differ, and share no code, in this (E12):

- claim: one node, /controller, is both claim and address. Without a latch, every broker watches the node and tries;
  there is no fairness (E12.1-E12.3). Kafka's failover order depends on it.
- token: an epoch that each win increments, written together with the claim, and the version of its node, which fences
  later writes (E12.4, E12.5). Flink's is a random id that fences nothing in ZooKeeper.
- confirmation: creating the node publishes the leader; nothing needs to be confirmed (E12.6).
- connection: only session expiry matters, not a suspended connection (E12.7).
- a node that somebody deletes or overwrites is accepted, not restored (E12.9, E12.10).
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from kce.controller.context import ControllerContext
from kce.zookeeper import znodes
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, ControllerEpoch, EpochZkVersion
from kce.zookeeper.store import Delete, SessionExpired

log = logging.getLogger(__name__)


class ControllerToken(NamedTuple):
    """One won election: the epoch, and the version of /controller_epoch that fences its writes (rule 2.9)."""

    epoch: ControllerEpoch
    zk_version: EpochZkVersion


class ControllerContender(Protocol):
    """Contends for the controller role. Called in the event loop, one call at a time."""

    async def grant_leadership(self, token: ControllerToken) -> None:
        """The election is won."""

    async def revoke_leadership(self) -> None:
        """Leadership is over, if it was granted."""

    async def handle_error(self, error: Exception) -> None:
        """The election or the failover failed."""


class ControllerElector:
    """One broker's part in the election of the controller (section 2 of docs/controller-semantics.md).

    All methods run in the controller's event loop; ``on_change`` puts changes of the node into its queue.
    """

    def __init__(
        self,
        zk: KafkaZkClient,
        broker_id: BrokerId,
        context: ControllerContext,
        contender: ControllerContender,
        on_change: ChangeHandler,
    ) -> None:
        self.active_controller_id: BrokerId | None = None
        self._zk = zk
        self._broker_id = broker_id
        self._context = context
        self._contender = contender
        self._on_change = on_change

    @property
    def has_leadership(self) -> bool:
        """Whether this node believes that it is the controller (rule 2.5)."""
        return self.active_controller_id == self._broker_id

    async def start(self) -> None:
        """Rule 2.4."""
        await self._zk.register_and_check(znodes.CONTROLLER, self._on_change)
        await self.elect()

    async def elect(self) -> None:
        """Rules 2.6-2.14."""
        current = await self._zk.get_controller_id()
        if current is not None:
            self.active_controller_id = current
            log.debug("broker %d is the controller", current)
            return
        try:
            token = ControllerToken(*await self._zk.register_controller(self._broker_id))
            self._context.epoch, self._context.epoch_zk_version = token
            self.active_controller_id = self._broker_id
            log.info("broker %d is elected controller, epoch %d", self._broker_id, token.epoch)
            await self._contender.grant_leadership(token)
        except ControllerMoved as e:
            await self.moved()
            log.info("broker %d was not elected: %s", self._broker_id, e)
        except SessionExpired:
            raise
        except Exception as e:  # noqa: BLE001 - another broker may succeed (rule 2.13)
            await self._contender.handle_error(e)
            await self.force_move()

    async def maybe_resign(self) -> bool:
        """Rule 2.16. Returns whether /controller exists."""
        was_active = self.has_leadership
        exists = await self._zk.register_and_check(znodes.CONTROLLER, self._on_change)
        self.active_controller_id = await self._zk.get_controller_id()
        if was_active and not self.has_leadership:
            await self._contender.revoke_leadership()
        return exists

    async def session_established(self) -> None:
        """Rule 2.31. An event that was running when the previous session expired may have claimed the node in the new
        session, which Kafka's client does not allow (2.29). The controller has resigned since, so the claim is
        deleted."""
        found = (await self._zk.exists([znodes.CONTROLLER]))[0]
        if found is not None and found.ephemeral_owner == self._zk.store.session_id:
            await self._zk.store.write([Delete(znodes.CONTROLLER, found.version)])
        await self.maybe_resign()
        await self.elect()

    async def moved(self) -> None:
        """Another broker may be the controller (rule 2.17). If the node is gone again, no watch will fire, so this
        contends again; Kafka would wait for the next controller."""
        if not await self.maybe_resign():
            assert self._on_change.deleted is not None
            self._on_change.deleted()

    async def force_move(self) -> None:
        """Resign by deleting /controller, if it is ours (rule 2.19)."""
        if await self._zk.get_controller_id() != self._broker_id:
            log.warning("the controller moved already")
            return
        zk_version = self._context.epoch_zk_version
        self.active_controller_id = None
        await self._contender.revoke_leadership()
        try:
            await self._zk.delete_controller(zk_version)
        except ControllerMoved:
            log.info("the controller moved already")

    async def session_expired(self) -> None:
        """Resign unconditionally (rule 2.30)."""
        self.active_controller_id = None
        await self._contender.revoke_leadership()
