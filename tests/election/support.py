"""Recording contenders and listeners, a driver under the test's control, and backends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import trio

from kce.election.api import (
    LeaderContender,
    LeaderElectionDriver,
    LeaderElectionListener,
    LeaderElectionService,
    LeaderRetrievalListener,
)
from kce.election.errors import IllegalElectionState
from kce.election.information import EMPTY, LeaderInformation, LeaderInformationRegister
from kce.election.latch import LeaderLatch
from kce.election.paths import ElectionPaths
from kce.election.retrieval import DefaultLeaderRetrievalService
from kce.election.service import MultipleComponentLeaderElectionService
from kce.election.session import ElectionSession
from kce.election.zookeeper import election_driver_factory, retrieval_driver_factory

PATHS = ElectionPaths()
COMPONENT = "dispatcher"
PATIENCE_S = 60


class Changing:
    """A test can wait for its changes."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def changed(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._event.wait()


class Contender(Changing, LeaderContender[UUID]):
    """Records calls. With ``service`` and ``address``, it confirms as soon as it is granted leadership."""

    def __init__(self, service: LeaderElectionService | None = None, address: str = "") -> None:
        super().__init__()
        self.service = service
        self.address = address
        self.calls: list[str] = []
        self.granted: list[UUID] = []
        self.errors: list[Exception] = []
        self.session_id: UUID | None = None
        #: grants wait for it
        self.gate = trio.Event()
        self.gate.set()
        self.entered = trio.Event()

    async def grant_leadership(self, session_id: UUID) -> None:
        self.entered.set()
        await self.gate.wait()
        self.calls.append("grant")
        self.granted.append(session_id)
        self.session_id = session_id
        if self.service is not None and self.address:
            await self.service.confirm_leadership(session_id, self.address)
        self.changed()

    async def revoke_leadership(self) -> None:
        self.calls.append("revoke")
        self.session_id = None
        self.changed()

    async def handle_error(self, error: Exception) -> None:
        self.errors.append(error)
        self.changed()

    @property
    def leads(self) -> bool:
        return self.session_id is not None

    async def lead(self) -> UUID:
        await self.until(lambda: self.leads)
        assert self.session_id is not None
        return self.session_id


class Listener(Changing, LeaderRetrievalListener):
    def __init__(self) -> None:
        super().__init__()
        self.reports: list[tuple[str | None, UUID | None]] = []
        self.errors: list[Exception] = []

    async def notify_leader_address(self, address: str | None, session_id: UUID | None) -> None:
        self.reports.append((address, session_id))
        self.changed()

    async def handle_error(self, error: Exception) -> None:
        self.errors.append(error)
        self.changed()

    @property
    def leader(self) -> tuple[str | None, UUID | None]:
        return self.reports[-1] if self.reports else (None, None)


class ManualDriver(LeaderElectionDriver):
    """A driver without a backend: the test grants and revokes leadership, ``stored`` has the information."""

    def __init__(self, listener: LeaderElectionListener) -> None:
        self.listener = listener
        self.leads = False
        self.stored = LeaderInformationRegister()
        self.published: list[str] = []
        self.deleted: list[str] = []
        self.watched: list[str] = []
        self.closed = False
        self.failure: Exception | None = None

    @property
    def has_leadership(self) -> bool:
        return self.leads

    def watch(self, component_id: str) -> None:
        self.watched.append(component_id)

    async def publish_leader_information(self, component_id: str, information: LeaderInformation) -> None:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise IllegalElectionState("closed")
        if self.failure is not None:
            raise self.failure
        self.published.append(component_id)
        self.stored = self.stored.merge(component_id, information)

    async def delete_leader_information(self, component_id: str) -> None:
        self.deleted.append(component_id)
        self.stored = self.stored.clear(component_id)

    async def aclose(self) -> None:
        assert not self.closed
        self.closed = True

    def grant(self, session_id: UUID) -> None:
        self.leads = True
        self.listener.on_grant_leadership(session_id)

    def revoke(self) -> None:
        self.leads = False
        self.listener.on_revoke_leadership()

    def change(self, component_id: str, information: LeaderInformation) -> None:
        self.stored = self.stored.merge(component_id, information)
        self.listener.on_leader_information_change(component_id, information)


@dataclass
class ManualBackend:
    """Creates drivers, and keeps them."""

    drivers: list[ManualDriver] = field(default_factory=list)
    while_making: Callable[[LeaderElectionListener], None] = lambda listener: None

    async def __call__(self, listener: LeaderElectionListener) -> ManualDriver:
        self.while_making(listener)
        self.drivers.append(ManualDriver(listener))
        return self.drivers[-1]

    @property
    def driver(self) -> ManualDriver:
        return self.drivers[-1]


class Reported(Changing, LeaderElectionListener):
    """Records a driver's reports."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[object] = []
        self.information: dict[str, LeaderInformation] = {}

    def _add(self, event: object) -> None:
        self.events.append(event)
        self.changed()

    def on_grant_leadership(self, session_id: UUID) -> None:
        self._add("grant")

    def on_revoke_leadership(self) -> None:
        self._add("revoke")

    def on_leader_information_change(self, component_id: str, information: LeaderInformation) -> None:
        self.information[component_id] = information
        self._add((component_id, information))

    def on_all_leader_information_change(self, register: LeaderInformationRegister) -> None:
        self._add(register)

    def on_error(self, error: Exception) -> None:
        self._add(error)


class Retrieved(Changing):
    """Records a retrieval driver's reports."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[LeaderInformation | Exception] = []

    def on_leader_information(self, information: LeaderInformation) -> None:
        self.events.append(information)
        self.changed()

    def on_error(self, error: Exception) -> None:
        self.events.append(error)
        self.changed()


def election(
    session: ElectionSession,
    nursery: trio.Nursery,
    component_id: str = COMPONENT,
    *,
    paths: ElectionPaths = PATHS,
    tolerate: bool = False,
) -> LeaderElectionService:
    factory = election_driver_factory(
        session, paths, component_id, tolerate_suspended_connections=tolerate, retry_wait_s=0.2
    )
    return MultipleComponentLeaderElectionService(factory, nursery).create_leader_election(component_id)


async def contend(
    session: ElectionSession,
    nursery: trio.Nursery,
    address: str,
    *,
    paths: ElectionPaths = PATHS,
    tolerate: bool = False,
) -> Contender:
    """A started contender that confirms ``address``."""
    service = election(session, nursery, paths=paths, tolerate=tolerate)
    contender = Contender(service, address)
    await service.start(contender)
    return contender


def retrieval(
    session: ElectionSession, nursery: trio.Nursery, *, path: str | None = None, tolerate: bool = False
) -> DefaultLeaderRetrievalService:
    factory = retrieval_driver_factory(
        session, path or PATHS.leader_path(COMPONENT), tolerate_suspended_connections=tolerate, retry_wait_s=0.2
    )
    return DefaultLeaderRetrievalService(factory, nursery)


async def listen(session: ElectionSession, nursery: trio.Nursery, *, tolerate: bool = False) -> Listener:
    listener = Listener()
    await retrieval(session, nursery, tolerate=tolerate).start(listener)
    return listener


def latch_of(contender: Contender) -> LeaderLatch:
    driver = contender.service._service._driver  # type: ignore[union-attr]
    return driver.latch  # type: ignore[no-any-return]


def pair(information: LeaderInformation = EMPTY) -> tuple[str | None, UUID | None]:
    return information.address, information.session_id


Work = Callable[[], Awaitable[None]]
