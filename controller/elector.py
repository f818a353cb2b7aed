"""Kafka's election of the controller: a user of this package's contract where the rules agree.

The same: the claim is an ephemeral node, watched and never polled; what a watch tells is read again; the contender is
granted and revoked, one call at a time, and each win has a token (E12.13). Who only wants to know who leads looks at a
leader node either way (`kce leader`).

Not the same, and so not shared (E12):

- claim: one node, /controller, is claim and address at once; there is no latch, and so neither fairness nor a single
  wake-up: every broker watches the node and tries (E12.1-E12.3). Kafka's order of failover depends on it.
- token: an epoch that rises by one with each win, written together with the claim, and the version of its node, which
  fences every later write (E12.4, E12.5). Flink's is a random id that fences nothing in ZooKeeper.
- phases: creating the node publishes it; there is nothing to confirm (E12.6).
- connection: a suspended connection means nothing here, only expiry does (E12.7), so the four states of `session` and
  its timer are not asked.
- a node deleted or overwritten by hand is believed, not put right (E12.9, E12.10).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from controller import zk_data
from controller.context import ControllerContext
from controller.election.api import LeaderContender
from controller.errors import ControllerMoved
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId, ControllerEpoch, EpochZkVersion
from controller.store import Delete, SessionExpired
from controller.zk_client import ChangeHandler

log = logging.getLogger(__name__)


class ControllerToken(NamedTuple):
    """One win: the epoch, and the version of /controller_epoch that fences what is written under it (rule 2.9)."""

    epoch: ControllerEpoch
    zk_version: EpochZkVersion


class ControllerElector:
    """One broker's part in the election of the controller (section 2 of docs/controller-semantics.md).

    Everything is called in the controller's event loop, which ``on_change`` puts the node's changes into.
    """

    def __init__(
        self,
        zk: KafkaZkClient,
        broker_id: BrokerId,
        context: ControllerContext,
        contender: LeaderContender[ControllerToken],
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
        """Whether this node believes to be the controller: a plain value in memory (rule 2.5)."""
        return self.active_controller_id == self._broker_id

    async def start(self) -> None:
        """Rule 2.4."""
        await self._zk.register_and_check(zk_data.CONTROLLER, self._on_change)
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
        except Exception as e:  # noqa: BLE001 - whatever failed, another may do better (rule 2.13)
            await self._contender.handle_error(e)
            await self.force_move()

    async def maybe_resign(self) -> None:
        """Rule 2.16."""
        was_active = self.has_leadership
        await self._zk.register_and_check(zk_data.CONTROLLER, self._on_change)
        self.active_controller_id = await self._zk.get_controller_id()
        if was_active and not self.has_leadership:
            await self._contender.revoke_leadership()

    async def session_established(self) -> None:
        """Rule 2.31. An event that was under way when the session before ended may have claimed the node in this one,
        which Kafka's client does not allow (2.29); that claim was resigned with the rest, and is given up."""
        found = (await self._zk.exists([zk_data.CONTROLLER]))[0]
        if found is not None and found.ephemeral_owner == self._zk.store.session_id:
            await self._zk.store.write([Delete(zk_data.CONTROLLER, found.version)])
        await self.maybe_resign()
        await self.elect()

    async def moved(self) -> None:
        """Another may be controller (rule 2.17). Where nobody is, the other came and went before we looked, no watch
        will tell, and so we try once more; Kafka would wait for the next controller."""
        await self.maybe_resign()
        if self.active_controller_id is None:
            assert self._on_change.deleted is not None
            self._on_change.deleted()

    async def force_move(self) -> None:
        """Give the role up by deleting /controller, if it is ours (rule 2.19)."""
        if await self._zk.get_controller_id() != self._broker_id:
            log.warning("the controller has moved already")
            return
        zk_version = self._context.epoch_zk_version
        self.active_controller_id = None
        await self._contender.revoke_leadership()
        try:
            await self._zk.delete_controller(zk_version)
        except ControllerMoved:
            log.info("the controller has moved already")

    async def session_expired(self) -> None:
        """Rule 2.30: resign without looking whether there is anything to resign."""
        self.active_controller_id = None
        await self._contender.revoke_leadership()
