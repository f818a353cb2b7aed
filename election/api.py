"""What an election is to those who take part: contender and listener on one side, the services on the other.

A token names one win of one contender: a random UUID with Flink (rule E4.1), the controller's epoch with Kafka (rule
2.9). Contenders and listeners are called one at a time, in the order in which things happened (rule E3.6).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from kce.election.information import LeaderInformation, LeaderInformationRegister

TokenT = TypeVar("TokenT")


class LeaderContender(ABC, Generic[TokenT]):
    """Wants to lead. None of its methods should take long: a loss of leadership waits until they return."""

    @abstractmethod
    async def grant_leadership(self, session_id: TokenT) -> None:
        """The election is won. The contender confirms when others may come to it, from here or later."""

    @abstractmethod
    async def revoke_leadership(self) -> None:
        """The leadership last granted is over, confirmed or not; another may lead already."""

    @abstractmethod
    async def handle_error(self, error: Exception) -> None:
        """Something went wrong that the service cannot mend; the leadership is as it was."""

    @property
    def description(self) -> str:
        """For logs (rule E3.1)."""
        return f"LeaderContender: {type(self).__name__}"


class LeaderElectionService(ABC):
    """Lets one contender take part in one election (section 3 of docs/election-semantics.md)."""

    @abstractmethod
    async def start(self, contender: LeaderContender[UUID]) -> None:
        """Take part. Raises ValueError without a contender, IllegalElectionState when called again, even after stop."""

    @abstractmethod
    async def stop(self) -> None:
        """Leave. A contender that leads is revoked before this returns (rule E11.13); afterwards it is never called."""

    @abstractmethod
    async def confirm_leadership(self, session_id: UUID, address: str) -> bool:
        """Publish that the contender leads at ``address``; whether that was accepted.

        It is refused, and logged, for any id but the one issued last, and without leadership (rule E4.7). Returns
        after the write was attempted; if that fails the contender is told (E4.11). It may be called from within
        ``grant_leadership``. Raises IllegalElectionState for an id that was confirmed before (E4.8).
        """

    @abstractmethod
    def has_leadership(self, session_id: UUID) -> bool:
        """Whether the contender leads, under this very id. Raises ValueError without an id (rule E4.4)."""

    @abstractmethod
    async def run_if_leader(self, session_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` if the contender still leads under that id when its turn comes (rule E3.17).

        No revocation is told while it runs. Raises LeadershipLost if it does not lead under that id, or what ``work``
        raises; returns without having run it if the service was stopped.
        """


class LeaderRetrievalListener(ABC):
    """Wants to know who leads."""

    @abstractmethod
    async def notify_leader_address(self, address: str | None, session_id: UUID | None) -> None:
        """There is another leader, or, with (None, None), none that is known of (rule E8.2)."""

    @abstractmethod
    async def handle_error(self, error: Exception) -> None:
        """What was found is no leader's, or could not be read; the leader told last stays."""


class LeaderRetrievalService(ABC):
    """Tells one listener who leads (section 8)."""

    @abstractmethod
    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Raises ValueError without a listener, IllegalElectionState when called again."""

    @abstractmethod
    async def stop(self) -> None:
        """No call of the listener begins after this has returned."""


# what a driver has to offer, and whom it reports to


class LeaderElectionListener(Protocol):
    """Told by a driver. Nothing here waits; grant and revoke alternate (rule E6.8)."""

    def on_grant_leadership(self, session_id: UUID) -> None: ...

    def on_revoke_leadership(self) -> None: ...

    def on_leader_information_change(self, component_id: str, information: LeaderInformation) -> None: ...

    def on_all_leader_information_change(self, register: LeaderInformationRegister) -> None: ...

    def on_error(self, error: Exception) -> None: ...


class LeaderElectionDriver(Protocol):
    """One participant in some backend's election (rule E9.15). It may report while it is made, and not once closed."""

    @property
    def has_leadership(self) -> bool: ...

    def watch(self, component_id: str) -> None:
        """Report changes of this component's information from now on."""
        ...

    async def publish_leader_information(self, component_id: str, information: LeaderInformation) -> None:
        """Ignored without leadership; raises IllegalElectionState once closed (rule E4.14)."""
        ...

    async def delete_leader_information(self, component_id: str) -> None:
        """Ignored without leadership (rule E11.14)."""
        ...

    async def aclose(self) -> None: ...


LeaderElectionDriverFactory = Callable[[LeaderElectionListener], Awaitable[LeaderElectionDriver]]


class LeaderRetrievalEventHandler(Protocol):
    """Told by a driver; nothing here waits."""

    def on_leader_information(self, information: LeaderInformation) -> None: ...

    def on_error(self, error: Exception) -> None: ...


class LeaderRetrievalDriver(Protocol):
    async def aclose(self) -> None: ...


LeaderRetrievalDriverFactory = Callable[[LeaderRetrievalEventHandler], Awaitable[LeaderRetrievalDriver]]
