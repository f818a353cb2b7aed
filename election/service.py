"""Election as a service, for any driver: issues session ids, takes confirmations, calls contenders.

Many components share one driver, and so one latch and one session id for each win (rule E4.2). A service for a single
component has a driver of its own. Drivers only report; one task calls the contenders (E3.18), so a slow contender
delays neither ZooKeeper nor the repair of leader nodes (E5.10).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import trio

from kce.election.api import (
    LeaderContender,
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderElectionService,
)
from kce.election.errors import IllegalElectionState, LeaderElectionException, LeadershipLost, raise_first
from kce.election.information import EMPTY, LeaderInformation, LeaderInformationRegister
from kce.election.serial_calls import SerialCalls, start_unless_over

log = logging.getLogger(__name__)

ErrorHandler = Callable[[Exception], None]


def _log_error(error: Exception) -> None:
    log.debug("no contender handles %r", error)


@dataclass(slots=True, eq=False)
class _Registration:
    """A contender, the session id that it was granted, and what it has confirmed."""

    component_id: str
    contender: LeaderContender[UUID]
    granted: UUID | None = None
    confirmed: LeaderInformation = EMPTY
    #: of the write under way
    writing: trio.CancelScope = field(default_factory=trio.CancelScope)
    correction_is_due: bool = False
    #: work that waits for its turn
    waiting: list[trio.Event] = field(default_factory=list)


class MultipleComponentLeaderElectionService:
    """Elections of many components through one driver, created for the first contender (rule E3.12).

    Its tasks run in ``nursery`` and end by themselves. Driver errors go to ``fallback_error_handler`` while there are
    no contenders.
    """

    def __init__(
        self,
        driver_factory: LeaderElectionDriverFactory,
        nursery: trio.Nursery,
        *,
        fallback_error_handler: ErrorHandler = _log_error,
    ) -> None:
        self._driver_factory = driver_factory
        self._nursery = nursery
        self._fallback_error_handler = fallback_error_handler
        self._contenders: dict[str, _Registration] = {}
        self._calls = SerialCalls(nursery)
        self._writes = trio.Lock()
        self._driver: LeaderElectionDriver | None = None
        self._reports: _Reports | None = None
        #: the driver's last report, and what the contenders were granted
        self._won: UUID | None = None
        self._issued: UUID | None = None
        self._closed = False

    def create_leader_election(self, component_id: str) -> DefaultLeaderElectionService:
        """An election for one contender; it does nothing until it starts.

        Raises IllegalElectionState if closed, and for a component that has a contender (rule E3.11).
        """
        self._check_free(component_id)
        return DefaultLeaderElectionService(self, component_id)

    async def aclose(self) -> None:
        """Raises IllegalElectionState while there is a contender (rule E3.13)."""
        if self._contenders:
            raise IllegalElectionState(f"these contenders are not stopped: {', '.join(sorted(self._contenders))}")
        self._closed = True
        self._calls.clear()

    async def terminate(self) -> None:
        """Close, and revoke every contender, whether it leads or not (rule E9.12)."""
        self._closed = True
        async with self._calls.turn():
            errors = [e for r in list(self._contenders.values()) for e in await self._remove(r, revoke=True)]
            self._calls.clear()
        raise_first(errors)

    # called by the services of single components

    async def register(self, component_id: str, contender: LeaderContender[UUID]) -> _Registration:
        """Raises IllegalElectionState if closed, and for a component that has a contender, which stays (E3.11)."""
        async with self._calls.turn():
            self._check_free(component_id)
            registration = self._contenders[component_id] = _Registration(component_id, contender)
            try:
                if self._driver is None:
                    self._reports = _Reports(self)
                    self._driver = await self._driver_factory(self._reports)
                self._driver.watch(component_id)
            except BaseException:
                del self._contenders[component_id]
                if not self._contenders:
                    await self._close_driver()
                raise
            if self._issued is not None:  # E4.3
                self._calls.post(partial(self._grant_one, registration, self._issued))
            log.info("%s: %s contends", component_id, contender.description)
            return registration

    def _check_free(self, component_id: str) -> None:
        if self._closed:
            raise IllegalElectionState(f"the election service is closed: no election of {component_id}")
        if component_id in self._contenders:
            raise IllegalElectionState(f"component {component_id} has a contender already")

    async def remove(self, registration: _Registration) -> None:
        """Rule E6.6. Raises the first error, with the others attached."""
        async with self._calls.turn():
            errors = await self._remove(registration, revoke=registration.granted is not None)
        raise_first(errors)

    async def _remove(self, registration: _Registration, *, revoke: bool) -> list[Exception]:
        if not self._is_registered(registration):
            return []
        del self._contenders[registration.component_id]
        errors: list[Exception] = []
        leads = registration.granted is not None
        registration.granted, registration.confirmed = None, EMPTY
        registration.writing.cancel()
        for waiting in registration.waiting:
            waiting.set()
        steps: list[Callable[[], Awaitable[None]]] = [registration.contender.revoke_leadership] if revoke else []
        if leads and self._driver is not None and self._driver.has_leadership:
            steps.append(partial(self._delete_information, self._driver, registration.component_id))
        if not self._contenders:
            steps.append(self._close_driver)
        for step in steps:
            try:
                await step()
            except Exception as e:  # noqa: BLE001 - run the other steps, then raise the first error
                errors.append(e)
        log.info("%s: %s has left", registration.component_id, registration.contender.description)
        return errors

    async def _delete_information(self, driver: LeaderElectionDriver, component_id: str) -> None:
        async with self._writes:
            await driver.delete_leader_information(component_id)

    async def _close_driver(self) -> None:
        driver, self._driver, self._reports = self._driver, None, None
        self._won = self._issued = None
        if driver is not None:
            await driver.aclose()

    def _is_registered(self, registration: _Registration) -> bool:
        return self._contenders.get(registration.component_id) is registration

    def has_leadership(self, registration: _Registration, session_id: UUID) -> bool:
        """False before the contender was granted leadership, and as soon as the driver has lost it (rule E4.5)."""
        return (
            self._is_registered(registration)
            and self._driver is not None
            and self._driver.has_leadership
            and registration.granted == session_id == self._won
        )

    async def confirm(self, registration: _Registration, session_id: UUID, address: str) -> bool:
        name = registration.component_id
        if not self.has_leadership(registration, session_id):
            if registration.granted is None or registration.granted == session_id:
                log.warning("%s: confirmation of %s is refused: it does not lead", name, session_id)
            else:
                log.info(
                    "%s: confirmation of %s is refused: %s was issued since", name, session_id, registration.granted
                )
            return False
        if not registration.confirmed.is_empty:
            raise IllegalElectionState(
                f"{name}: {session_id} is confirmed already, at {registration.confirmed.address}"
            )
        registration.confirmed = LeaderInformation(session_id, address)
        await self._publish(registration)
        return True

    async def run_if_leader(
        self, registration: _Registration, session_id: UUID, work: Callable[[], Awaitable[None]]
    ) -> None:
        if self._calls.is_mine:
            await self._work(registration, session_id, work)
            return
        done = trio.Event()
        registration.waiting.append(done)
        failures: list[Exception] = []

        async def call() -> None:
            try:
                await self._work(registration, session_id, work)
            except Exception as e:  # noqa: BLE001 - raised in the caller
                failures.append(e)
            done.set()

        try:
            if self._is_registered(registration):
                self._calls.post(call)
                await done.wait()
        finally:
            registration.waiting.remove(done)
        raise_first(failures)

    async def _work(self, registration: _Registration, session_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        if not self._is_registered(registration):
            return
        if not self.has_leadership(registration, session_id):
            raise LeadershipLost(f"{registration.component_id} does not lead under {session_id}")
        await work()

    # what the driver reports

    def _granted(self, session_id: UUID) -> None:
        self._won = session_id
        self._calls.post(partial(self._grant, session_id, self._reports))

    def _revoked(self) -> None:
        self._won = None
        self._calls.post(partial(self._revoke, self._reports))

    def _information_changed(self, component_id: str, information: LeaderInformation) -> None:
        """Restore confirmed information; never erase anything (rules E5.1-E5.5)."""
        registration = self._contenders.get(component_id)
        if registration is None or registration.confirmed.is_empty or registration.confirmed == information:
            return
        if self.has_leadership(registration, registration.confirmed.session_id or UUID(int=0)):
            log.warning("%s: correcting the leader information, which is %s", component_id, information)
            if not registration.correction_is_due:
                registration.correction_is_due = True
                start_unless_over(self._nursery, self._correct, registration)

    def _all_information_changed(self, register: LeaderInformationRegister) -> None:
        for component_id in self._contenders:
            self._information_changed(component_id, register.for_component_id(component_id))

    def _failed(self, error: Exception) -> None:
        self._calls.post(partial(self._notify_error, error))

    # in turn

    async def _grant(self, session_id: UUID, reports: _Reports | None) -> None:
        if reports is not self._reports:
            return
        if self._issued is not None:
            await self._notify_error(IllegalElectionState(f"{session_id} is won while {self._issued} is issued"))
            return
        self._issued = session_id
        for registration in list(self._contenders.values()):
            await self._grant_one(registration, session_id)

    async def _grant_one(self, registration: _Registration, session_id: UUID) -> None:
        if not self._is_registered(registration) or self._issued != session_id or registration.granted == session_id:
            return
        registration.granted, registration.confirmed = session_id, EMPTY
        log.info("%s: leadership is granted as %s", registration.component_id, session_id)
        await self._call(registration, partial(registration.contender.grant_leadership, session_id))

    async def _revoke(self, reports: _Reports | None) -> None:
        if reports is not self._reports:
            return
        if self._issued is None:
            await self._notify_error(IllegalElectionState("leadership is lost that was not issued"))
            return
        self._issued = None
        for registration in list(self._contenders.values()):
            if not self._is_registered(registration) or registration.granted is None:
                continue
            registration.granted, registration.confirmed = None, EMPTY
            log.info("%s: leadership is revoked", registration.component_id)
            await self._call(registration, registration.contender.revoke_leadership)

    async def _call(self, registration: _Registration, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception as e:  # noqa: BLE001 - the contenders handle it (E3.16)
            log.error("%s failed: %r", registration.contender.description, e)
            await self._notify_error(e)

    async def _notify_error(self, error: Exception) -> None:
        """Rule E3.14."""
        contenders = list(self._contenders.values())
        if not contenders:
            self._fallback_error_handler(error)
        if not isinstance(error, LeaderElectionException):
            wrapped = LeaderElectionException(f"leader election failed: {error}")
            wrapped.__cause__ = error
            error = wrapped
        for registration in contenders:
            try:
                await registration.contender.handle_error(error)
            except Exception:
                log.exception("the error handler of %s failed on %r", registration.contender.description, error)

    # leader information

    async def _correct(self, registration: _Registration) -> None:
        registration.correction_is_due = False
        await self._publish(registration)

    async def _publish(self, registration: _Registration) -> None:
        """Write the current confirmation; one write at a time (rule E4.13)."""
        async with self._writes:
            if registration.confirmed.is_empty or self._driver is None:
                return
            registration.writing = trio.CancelScope()
            with registration.writing:
                try:
                    await self._driver.publish_leader_information(registration.component_id, registration.confirmed)
                except Exception as e:  # noqa: BLE001 - E4.11: leadership is kept, the contender decides
                    log.error("%s: its leader information could not be written: %r", registration.component_id, e)
                    self._failed(e)


class _Reports(LeaderElectionListener):
    """Takes the reports of one driver, until another driver or none replaces it (rule E3.8)."""

    def __init__(self, service: MultipleComponentLeaderElectionService) -> None:
        self._service = service

    @property
    def _is_current(self) -> bool:
        return self._service._reports is self

    def on_grant_leadership(self, session_id: UUID) -> None:
        if self._is_current:
            self._service._granted(session_id)

    def on_revoke_leadership(self) -> None:
        if self._is_current:
            self._service._revoked()

    def on_leader_information_change(self, component_id: str, information: LeaderInformation) -> None:
        if self._is_current:
            self._service._information_changed(component_id, information)

    def on_all_leader_information_change(self, register: LeaderInformationRegister) -> None:
        if self._is_current:
            self._service._all_information_changed(register)

    def on_error(self, error: Exception) -> None:
        self._service._failed(error)


class DefaultLeaderElectionService(LeaderElectionService):
    """One component's part in a MultipleComponentLeaderElectionService."""

    def __init__(self, service: MultipleComponentLeaderElectionService, component_id: str) -> None:
        self.component_id = component_id
        self._service = service
        self._registration: _Registration | None = None

    async def start(self, contender: LeaderContender[UUID]) -> None:
        if contender is None:
            raise ValueError("a leader election needs a contender")
        if self._registration is not None:  # also after it was stopped
            raise IllegalElectionState(f"the election of {self.component_id} was started before")
        self._registration = await self._service.register(self.component_id, contender)

    async def stop(self) -> None:
        if self._registration is not None:
            await self._service.remove(self._registration)

    async def confirm_leadership(self, session_id: UUID, address: str) -> bool:
        if session_id is None or address is None:
            raise ValueError(f"{self.component_id}: a confirmation needs a session id and an address")
        if self._registration is None:
            log.warning("%s: confirmation of %s is refused: not started", self.component_id, session_id)
            return False
        return await self._service.confirm(self._registration, session_id, address)

    def has_leadership(self, session_id: UUID) -> bool:
        if session_id is None:
            raise ValueError(f"{self.component_id}: there is no leadership without a session id")
        return self._registration is not None and self._service.has_leadership(self._registration, session_id)

    async def run_if_leader(self, session_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        if self._registration is not None:
            await self._service.run_if_leader(self._registration, session_id, work)
