"""Leader information: an address and the id of the leader's session; and a register of them by component.

Source: rules E9.1, E9.16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

#: of standalone services, which need no fencing (rule E9.1)
DEFAULT_LEADER_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class LeaderInformation:
    """Has both parts, or neither: no leader is known."""

    session_id: UUID | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if (self.session_id is None) is not (self.address is None):
            raise ValueError(f"leader information has both a session id and an address, or neither: {self}")

    @property
    def is_empty(self) -> bool:
        return self.session_id is None

    def __str__(self) -> str:
        return "no leader" if self.is_empty else f"{self.address} ({self.session_id})"


EMPTY = LeaderInformation()


class LeaderInformationRegister(Mapping[str, LeaderInformation]):
    """Component id -> known information. Immutable, without empty entries (rule E9.16)."""

    __slots__ = ("_known",)

    def __init__(self, information: Mapping[str, LeaderInformation] | None = None) -> None:
        self._known = {c: i for c, i in (information or {}).items() if not i.is_empty}

    def __getitem__(self, component_id: str) -> LeaderInformation:
        return self._known[component_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"LeaderInformationRegister({self._known})"

    def for_component_id(self, component_id: str) -> LeaderInformation:
        """The component's information, empty if unknown."""
        return self._known.get(component_id, EMPTY)

    def merge(self, component_id: str, information: LeaderInformation) -> LeaderInformationRegister:
        """A register with this entry, or without the component if the information is empty."""
        return LeaderInformationRegister({**self._known, component_id: information})

    def clear(self, component_id: str) -> LeaderInformationRegister:
        return self.merge(component_id, EMPTY)
