"""The interfaces of an election: contenders and listeners on one side, services on the other, drivers below.

A token identifies one win of one contender: a random UUID in Flink (rule E4.1), the controller's epoch in Kafka (rule
2.9). Contenders and listeners are called one at a time, in the order of events (rule E3.6).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from kce.election.information import LeaderInformation, LeaderInformationRegister

TokenT = TypeVar("TokenT")


class LeaderContender(ABC, Generic[TokenT]):
    """Contends for leadership. Its methods should return soon: a revocation waits for them."""

    @abstractmethod
    async def grant_leadership(self, session_id: TokenT) -> None:
        """The election is won. The contender confirms when it can be reached, from here or later."""

    @abstractmethod
    async def revoke_leadership(self) -> None:
        """The last granted leadership is over, confirmed or not. Another contender may lead already."""

    @abstractmethod
    async def handle_error(self, error: Exception) -> None:
        """The service failed and cannot recover by itself. Leadership does not change."""

    @property
    def description(self) -> str:
        """The description for logs (rule E3.1)."""
        return f"LeaderContender: {type(self).__name__}"


class LeaderElectionService(ABC):
    """One contender's part in one election (section 3 of docs/election-semantics.md)."""

    @abstractmethod
    async def start(self, contender: LeaderContender[UUID]) -> None:
        """Contend. Raises ValueError without a contender, IllegalElectionState if called again, even after stop."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop contending. Revokes a leader before it returns (rule E11.13), and calls the contender never again."""

    @abstractmethod
    async def confirm_leadership(self, session_id: UUID, address: str) -> bool:
        """Publish the leader's address. Returns whether the confirmation was accepted.

        Any id but the last issued one is refused and logged, and so is a contender without leadership (rule E4.7).
        Returns after the write; the contender's ``handle_error`` gets its failure (E4.11). May be called from within
        ``grant_leadership``. Raises IllegalElectionState for an id that was confirmed before (E4.8).
        """

    @abstractmethod
    def has_leadership(self, session_id: UUID) -> bool:
        """Whether the contender leads under this id. Raises ValueError without an id (rule E4.4)."""

    @abstractmethod
    async def run_if_leader(self, session_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` if the contender leads under that id when its turn comes (rule E3.17).

        The contender is not revoked meanwhile. Raises LeadershipLost if it does not lead under that id, and what
        ``work`` raises. Returns without running it if the service was stopped.
        """


class LeaderRetrievalListener(ABC):
    """Is notified of the leader."""

    @abstractmethod
    async def notify_leader_address(self, address: str | None, session_id: UUID | None) -> None:
        """The leader changed; (None, None) means that no leader is known (rule E8.2)."""

    @abstractmethod
    async def handle_error(self, error: Exception) -> None:
        """The leader information is malformed or could not be read. The last notified leader stays."""


class LeaderRetrievalService(ABC):
    """Notifies one listener of the leader (section 8)."""

    @abstractmethod
    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Raises ValueError without a listener, IllegalElectionState when called again."""

    @abstractmethod
    async def stop(self) -> None:
        """The listener is not called after this has returned."""


# drivers, and what they report to


class LeaderElectionListener(Protocol):
    """Called by a driver. No method waits; grants and revocations alternate (rule E6.8)."""

    def on_grant_leadership(self, session_id: UUID) -> None: ...

    def on_revoke_leadership(self) -> None: ...

    def on_leader_information_change(self, component_id: str, information: LeaderInformation) -> None: ...

    def on_all_leader_information_change(self, register: LeaderInformationRegister) -> None: ...

    def on_error(self, error: Exception) -> None: ...


class LeaderElectionDriver(Protocol):
    """One participant in a backend's election (rule E9.15). It may report during its creation, not after its end."""

    @property
    def has_leadership(self) -> bool: ...

    def watch(self, component_id: str) -> None:
        """Start to report changes of this component's information."""
        ...

    async def publish_leader_information(self, component_id: str, information: LeaderInformation) -> None:
        """Does nothing without leadership. Raises IllegalElectionState once closed (rule E4.14)."""
        ...

    async def delete_leader_information(self, component_id: str) -> None:
        """Does nothing without leadership (rule E11.14)."""
        ...

    async def aclose(self) -> None: ...


LeaderElectionDriverFactory = Callable[[LeaderElectionListener], Awaitable[LeaderElectionDriver]]


class LeaderRetrievalEventHandler(Protocol):
    """Called by a driver. No method waits."""

    def on_leader_information(self, information: LeaderInformation) -> None: ...

    def on_error(self, error: Exception) -> None: ...


class LeaderRetrievalDriver(Protocol):
    async def aclose(self) -> None: ...


LeaderRetrievalDriverFactory = Callable[[LeaderRetrievalEventHandler], Awaitable[LeaderRetrievalDriver]]
