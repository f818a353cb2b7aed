"""Services without an election: the leader is fixed (E9.1-E9.3), or set by hand."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from kce.election.api import LeaderContender, LeaderElectionService, LeaderRetrievalListener, LeaderRetrievalService
from kce.election.errors import IllegalElectionState, LeadershipLost
from kce.election.information import DEFAULT_LEADER_ID, EMPTY, LeaderInformation

log = logging.getLogger(__name__)


class StandaloneLeaderElectionService(LeaderElectionService):
    """Its contender leads at once, under a fixed id. It may be started again after it was stopped."""

    def __init__(self, session_id: UUID = DEFAULT_LEADER_ID) -> None:
        self._session_id = session_id
        self._contender: LeaderContender[UUID] | None = None

    async def start(self, contender: LeaderContender[UUID]) -> None:
        """Grant leadership to the contender, then return."""
        if contender is None:
            raise ValueError("a leader election needs a contender")
        if self._contender is not None:
            raise IllegalElectionState("the standalone election has a contender already")
        self._contender = contender
        try:
            await contender.grant_leadership(self._session_id)
        except Exception as e:  # noqa: BLE001 - the contender handles it, as in every election
            await contender.handle_error(e)

    async def stop(self) -> None:
        contender, self._contender = self._contender, None
        if contender is not None:
            await contender.revoke_leadership()

    async def confirm_leadership(self, session_id: UUID, address: str) -> bool:
        """There is nothing to publish."""
        accepted = self.has_leadership(session_id)
        if not accepted:
            log.warning("confirmation of %s is refused: the leader's id is %s", session_id, self._session_id)
        return accepted

    def has_leadership(self, session_id: UUID) -> bool:
        if session_id is None:
            raise ValueError("there is no leadership without a session id")
        return self._contender is not None and session_id == self._session_id

    async def run_if_leader(self, session_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        if self._contender is None:
            return
        if session_id != self._session_id:
            raise LeadershipLost(f"the leader's id is {self._session_id}, not {session_id}")
        await work()


class SettableLeaderRetrievalService(LeaderRetrievalService):
    """Notifies of the leader that was set, at the start and on each change."""

    def __init__(self, leader: LeaderInformation = EMPTY) -> None:
        self._leader = leader
        self._listener: LeaderRetrievalListener | None = None

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if listener is None:
            raise ValueError("a leader retrieval needs a listener")
        if self._listener is not None:
            raise IllegalElectionState("the leader retrieval was started before")
        self._listener = listener
        if not self._leader.is_empty:
            await listener.notify_leader_address(self._leader.address, self._leader.session_id)

    async def set_leader(self, leader: LeaderInformation) -> None:
        self._leader = leader
        if self._listener is not None:
            await self._listener.notify_leader_address(leader.address, leader.session_id)

    async def stop(self) -> None:
        self._listener = None


class StandaloneLeaderRetrievalService(SettableLeaderRetrievalService):
    """Notifies once of a fixed leader, before ``start`` returns. It may be started again after it was stopped."""

    def __init__(self, address: str, session_id: UUID = DEFAULT_LEADER_ID) -> None:
        super().__init__(LeaderInformation(session_id, address))
