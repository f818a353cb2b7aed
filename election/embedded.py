"""Election within one process: the first contender in the queue leads, and listeners get its address (E9.5-E9.13)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import trio

from kce.election.api import (
    LeaderContender,
    LeaderElectionDriver,
    LeaderElectionListener,
    LeaderElectionService,
    LeaderRetrievalDriver,
    LeaderRetrievalEventHandler,
    LeaderRetrievalListener,
    LeaderRetrievalService,
)
from kce.election.errors import IllegalElectionState, raise_first
from kce.election.information import EMPTY, LeaderInformation
from kce.election.retrieval import DefaultLeaderRetrievalService
from kce.election.service import DefaultLeaderElectionService, MultipleComponentLeaderElectionService

log = logging.getLogger(__name__)


class EmbeddedLeaderService:
    """Elects the leader of one component of this process: first come, first served. Services are independent."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._queue: list[_Driver] = []
        self._leader: _Driver | None = None
        self._confirmed = EMPTY
        self._listeners: list[LeaderRetrievalEventHandler] = []
        self._running: list[MultipleComponentLeaderElectionService] = []
        self._is_shut_down = False

    def create_leader_election_service(self) -> LeaderElectionService:
        self._check_running()
        return _ElectionService(self, self._nursery)

    def create_leader_retrieval_service(self) -> LeaderRetrievalService:
        self._check_running()
        return _RetrievalService(self, self._nursery)

    async def shutdown(self) -> None:
        """Revoke every contender once, and drop the listeners without notifying them. May be called again."""
        self._is_shut_down = True
        self._listeners.clear()
        errors = []
        for service in self._running:
            try:
                await service.terminate()
            except Exception as e:  # noqa: BLE001 - revoke the others, then raise the first error
                errors.append(e)
        self._running.clear()
        raise_first(errors)

    # for tests of contenders (E9.11)

    def revoke_leadership(self) -> None:
        """Revoke the leader. Nobody leads until ``grant_leadership``, or until a contender joins or leaves."""
        self._check_running()
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.listener.on_revoke_leadership()
            self._notify(EMPTY)

    def grant_leadership(self) -> None:
        """Elect the first contender in the queue, if nobody leads."""
        self._check_running()
        self._elect()

    # for drivers

    def _check_running(self) -> None:
        if self._is_shut_down:
            raise IllegalElectionState("the embedded leader service is shut down")

    def _elect(self) -> None:
        if self._leader is None and self._queue:
            self._leader = self._queue[0]
            self._leader.listener.on_grant_leadership(uuid4())

    def _join(self, driver: _Driver) -> None:
        self._queue.append(driver)
        self._elect()

    def _leave(self, driver: _Driver) -> None:
        self._queue.remove(driver)
        led = self._leader is driver
        if led:
            self._leader, self._confirmed = None, EMPTY
        if self._queue:
            self._elect()
        elif led:
            self._notify(EMPTY)

    def _confirm(self, driver: _Driver, information: LeaderInformation) -> None:
        if self._leader is driver:
            self._notify(information)

    def _notify(self, information: LeaderInformation) -> None:
        self._confirmed = information
        for listener in list(self._listeners):
            listener.on_leader_information(information)

    def _listen(self, listener: LeaderRetrievalEventHandler) -> None:
        self._listeners.append(listener)
        if not self._confirmed.is_empty:
            listener.on_leader_information(self._confirmed)

    def _unlisten(self, listener: LeaderRetrievalEventHandler) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _is_leader(self, driver: _Driver) -> bool:
        return self._leader is driver


class _Driver(LeaderElectionDriver):
    """One contender's place in the queue."""

    def __init__(self, service: EmbeddedLeaderService, listener: LeaderElectionListener) -> None:
        self.listener = listener
        self._service = service
        service._join(self)

    @property
    def has_leadership(self) -> bool:
        return self._service._is_leader(self)

    def watch(self, component_id: str) -> None:
        """Does nothing: only the leader changes its own information."""

    async def publish_leader_information(self, component_id: str, information: LeaderInformation) -> None:
        await trio.lowlevel.checkpoint()
        self._service._confirm(self, information)

    async def delete_leader_information(self, component_id: str) -> None:
        """Do nothing: the information goes with the leader, and listeners learn of its successor (rule E9.10)."""

    async def aclose(self) -> None:
        self._service._leave(self)


class _RetrievalDriver(LeaderRetrievalDriver):
    def __init__(self, service: EmbeddedLeaderService, handler: LeaderRetrievalEventHandler) -> None:
        self._service = service
        self._handler = handler
        service._listen(handler)

    async def aclose(self) -> None:
        self._service._unlisten(self._handler)


class _ElectionService(LeaderElectionService):
    """May be started again after it was stopped (rule E9.13): each time it is another place in the queue."""

    def __init__(self, service: EmbeddedLeaderService, nursery: trio.Nursery) -> None:
        self._service = service
        self._nursery = nursery
        self._election: DefaultLeaderElectionService | None = None
        self._components: MultipleComponentLeaderElectionService | None = None

    async def start(self, contender: LeaderContender[UUID]) -> None:
        self._service._check_running()
        if contender is None:
            raise ValueError("a leader election needs a contender")
        if self._election is not None:
            raise IllegalElectionState("the embedded election was started before")

        async def join(listener: LeaderElectionListener) -> LeaderElectionDriver:
            return _Driver(self._service, listener)

        self._components = MultipleComponentLeaderElectionService(join, self._nursery)
        self._election = self._components.create_leader_election("embedded")
        self._service._running.append(self._components)
        await self._election.start(contender)

    async def stop(self) -> None:
        election, self._election = self._election, None
        if self._components in self._service._running:
            self._service._running.remove(self._components)
        if election is not None:
            await election.stop()

    async def confirm_leadership(self, session_id: UUID, address: str) -> bool:
        """Confirm leadership as other elections do, but ignore a second confirmation (rule E9.7)."""
        if self._election is None:
            log.warning("confirmation of %s is refused: not started", session_id)
            return False
        try:
            return await self._election.confirm_leadership(session_id, address)
        except IllegalElectionState as e:
            log.warning("confirmation is ignored: %s", e)
            return False

    def has_leadership(self, session_id: UUID) -> bool:
        if session_id is None:
            raise ValueError("there is no leadership without a session id")
        return self._election is not None and self._election.has_leadership(session_id)

    async def run_if_leader(self, session_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        if self._election is not None:
            await self._election.run_if_leader(session_id, work)


class _RetrievalService(LeaderRetrievalService):
    """Notifies of every confirmation, repeated ones included (rule E9.9)."""

    def __init__(self, service: EmbeddedLeaderService, nursery: trio.Nursery) -> None:
        self._service = service
        self._nursery = nursery
        self._retrieval: DefaultLeaderRetrievalService | None = None

    async def start(self, listener: LeaderRetrievalListener) -> None:
        self._service._check_running()
        if self._retrieval is not None:
            raise IllegalElectionState("the embedded retrieval was started before")

        async def listen(handler: LeaderRetrievalEventHandler) -> LeaderRetrievalDriver:
            return _RetrievalDriver(self._service, handler)

        retrieval = DefaultLeaderRetrievalService(listen, self._nursery, only_changes=False)
        await retrieval.start(listener)
        self._retrieval = retrieval

    async def stop(self) -> None:
        retrieval, self._retrieval = self._retrieval, None
        if retrieval is not None:
            await retrieval.stop()
