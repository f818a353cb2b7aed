"""One member of a group, and what its JoinGroup and SyncGroup are answered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from kce.broker_stub.purgatory import DelayedOperation
from kce.wire import ErrorCode, JoinGroupResponseMember

NO_MEMBER: Final = ""
NO_GENERATION: Final = -1

#: names and metadata, in order of preference
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]


class JoinResult(NamedTuple):
    """The defaults are those of an error (rule G3.46)."""

    member_id: str
    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    skip_assignment: bool = False
    members: tuple[JoinGroupResponseMember, ...] = ()


class SyncResult(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


OnJoin: TypeAlias = Callable[[JoinResult], None]
OnSync: TypeAlias = Callable[[SyncResult], None]


class Client(NamedTuple):
    """Who sent a JoinGroup. ``host`` begins with a slash (rule G3.17)."""

    client_id: str
    host: str


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """``on_join`` and ``on_sync`` answer its parked requests."""

    member_id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    on_join: OnJoin | None = None
    on_sync: OnSync | None = None
    #: its first JoinGroup is parked (rule G3.16)
    is_new: bool = False
    #: its timer, once it has one
    session: DelayedOperation | None = None
    #: it was heard of since its session timer began
    was_heard: bool = False

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def is_alive(self) -> bool:
        """Whether its session timer has no effect now (rules G5.4, G12.8)."""
        return self.was_heard or (not self.is_new and (self.on_join is not None or self.on_sync is not None))

    def metadata(self, protocol: str) -> bytes:
        """Of the first protocol of that name, as in Kafka. Raises KeyError for one that it does not offer."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise KeyError(protocol)

    def vote(self, candidates: Collection[str]) -> str:
        """The first of its protocols that is a candidate (rule G3.42). Raises KeyError if none is."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KeyError(f"member {self.member_id} offers none of {sorted(candidates)}")
