"""Retrieval as a service, for any driver: notifies a listener once of each change (section 8)."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import trio

from kce.election.api import (
    LeaderRetrievalDriver,
    LeaderRetrievalDriverFactory,
    LeaderRetrievalEventHandler,
    LeaderRetrievalListener,
    LeaderRetrievalService,
)
from kce.election.errors import IllegalElectionState, LeaderRetrievalException
from kce.election.information import EMPTY, LeaderInformation
from kce.election.serial_calls import SerialCalls

log = logging.getLogger(__name__)


class DefaultLeaderRetrievalService(LeaderRetrievalService, LeaderRetrievalEventHandler):
    """Notifies of a leader that differs from the last one, at first from no leader (rule E8.3).

    With ``only_changes`` False, it notifies of everything that the driver reports.
    """

    def __init__(
        self, driver_factory: LeaderRetrievalDriverFactory, nursery: trio.Nursery, *, only_changes: bool = True
    ) -> None:
        self._only_changes = only_changes
        self._driver_factory = driver_factory
        self._calls = SerialCalls(nursery)
        self._listener: LeaderRetrievalListener | None = None
        self._driver: LeaderRetrievalDriver | None = None
        self._running = False
        self._notified = EMPTY

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if listener is None:
            raise ValueError("a leader retrieval needs a listener")
        if self._listener is not None:
            raise IllegalElectionState("the leader retrieval was started before")
        self._listener = listener
        self._running = True
        driver = await self._driver_factory(self)
        if self._running:
            self._driver = driver
        else:  # stopped meanwhile
            await driver.aclose()

    async def stop(self) -> None:
        async with self._calls.turn():
            self._running = False
            self._calls.clear()
            driver, self._driver = self._driver, None
        if driver is not None:  # outside the turn (rules E8.11, E11.10)
            await driver.aclose()

    def on_leader_information(self, information: LeaderInformation) -> None:
        if self._running:
            self._calls.post(partial(self._notify, information))

    def on_error(self, error: Exception) -> None:
        if self._running:
            self._calls.post(partial(self._notify_error, error))

    async def _notify(self, information: LeaderInformation) -> None:
        if self._listener is None or (self._only_changes and information == self._notified):
            return
        self._notified = information
        log.debug("the leader is now: %s", information)
        try:
            await self._listener.notify_leader_address(information.address, information.session_id)
        except Exception as e:  # noqa: BLE001 - its own failure goes to its own handler (E9.13)
            await self._notify_error(e)

    async def _notify_error(self, error: Exception) -> None:
        """Rule E8.9."""
        if self._listener is None:
            return
        if not isinstance(error, LeaderRetrievalException):
            wrapped = LeaderRetrievalException(f"leader retrieval failed: {error}")
            wrapped.__cause__ = error
            error = wrapped
        try:
            await self._listener.handle_error(error)
        except Exception:
            log.exception("the error handler of a listener failed on %r", error)


class _Search(LeaderRetrievalListener):
    """Keeps the last leader; ``changed`` is set when it changes."""

    def __init__(self) -> None:
        self.leader = EMPTY
        self.changed = trio.Event()

    async def notify_leader_address(self, address: str | None, session_id: UUID | None) -> None:
        self.leader = LeaderInformation(session_id, address)
        self.changed.set()
        self.changed = trio.Event()

    async def handle_error(self, error: Exception) -> None:
        log.warning("%s", error)


async def wait_for_leader(
    retrieval: LeaderRetrievalService,
    accept: Callable[[LeaderInformation], Awaitable[bool]] | None = None,
) -> LeaderInformation:
    """Wait for the first leader with an address that ``accept`` accepts (rule E8.12).

    Starts the service and stops it. ``accept`` is called for one leader at a time, and always for the last.
    """
    search = _Search()
    await retrieval.start(search)
    try:
        while True:
            leader, changed = search.leader, search.changed
            if leader.address and (accept is None or await accept(leader)):
                return leader
            if leader == search.leader:
                await changed.wait()
    finally:
        with trio.CancelScope(shield=True):
            await retrieval.stop()


async def find_connecting_address(retrieval: LeaderRetrievalService, *, timeout_s: float) -> str:
    """The local address of a connection to the leader, at host:port; after the timeout, this host's own address.

    If a leader cannot be reached, waits for its successor.
    """
    found: list[str] = []

    async def reaches(leader: LeaderInformation) -> bool:
        host, _, port = (leader.address or "").rpartition(":")
        try:
            stream = await trio.open_tcp_stream(host, int(port))
        except (OSError, ValueError) as e:
            log.info("the leader at %s cannot be reached: %s", leader.address, e)
            return False
        async with stream:
            found.append(stream.socket.getsockname()[0])
        return True

    with trio.move_on_after(timeout_s):
        await wait_for_leader(retrieval, reaches)
    if found:
        return found[0]
    try:
        answers = await trio.socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return "127.0.0.1"
    return str(answers[0][4][0])
