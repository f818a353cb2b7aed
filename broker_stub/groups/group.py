"""A group as a state machine: states, members, generations, protocol choice (sections 2 and 3e). Pure."""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from kce.broker_stub.groups.member import JoinResult, Member, OnJoin, Protocols, SyncResult
from kce.broker_stub.groups.offsets import GroupOffsets
from kce.wire import DecodeError, ErrorCode, JoinGroupResponseMember
from kce.wire.consumer_protocol import decode_subscription_topics
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: the protocol type of consumers; others are Kafka Connect's, for example
CONSUMER: Final = "consumer"


class GroupState(enum.Enum):
    """The values are the names on the wire (rule G2.1)."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    __hash__ = object.__hash__  # Enum's is Python code


#: to read a member of an enum's class takes ten times as long in Python 3.11
EMPTY: Final = GroupState.EMPTY
PREPARING_REBALANCE: Final = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE
DEAD: Final = GroupState.DEAD

#: rule G2.3: state -> from which others it may be entered
_PREVIOUS: Final = {
    EMPTY: {PREPARING_REBALANCE},
    PREPARING_REBALANCE: {EMPTY, COMPLETING_REBALANCE, STABLE},
    COMPLETING_REBALANCE: {PREPARING_REBALANCE},
    STABLE: {COMPLETING_REBALANCE},
    DEAD: set(GroupState),
}


class IllegalState(Exception):
    """The group must never come here; the request fails with UNKNOWN_SERVER_ERROR."""


class Group:
    """``state_since_ms`` is None if a record of old did not say (rule G8.3)."""

    __slots__ = (
        "_now_ms", "_offers", "_subscriptions", "_topics", "awaiting_join", "generation", "group_id", "is_member_added",
        "leader", "members", "offsets", "pending_members", "pending_syncs", "protocol_name", "protocol_type", "state",
        "state_since_ms", "static_members",
    )  # fmt: skip

    def __init__(self, group_id: str, now_ms: Callable[[], int], state: GroupState = EMPTY) -> None:
        self.group_id = group_id
        self.state = state
        self.state_since_ms: int | None = now_ms()
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        #: instance id -> member id
        self.static_members: dict[str, str] = {}
        #: ids that were handed out, and have not joined yet (rule G3.11)
        self.pending_members: set[str] = set()
        #: members of this generation that have not sent SyncGroup
        self.pending_syncs: set[str] = set()
        self.offsets = GroupOffsets()
        #: of the members of this generation, until somebody asks what they mean
        self._subscriptions: tuple[bytes, ...] | None = None
        self._topics: frozenset[str] | None = None
        #: a member came while the first rebalance was delayed (rule G3.35)
        self.is_member_added = False
        #: how many members are parked in JoinGroup
        self.awaiting_join = 0
        self._now_ms = now_ms
        #: protocol -> how many members offer it
        self._offers: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<group {self.group_id}, {self.state.value}, generation {self.generation}, {len(self.members)} members>"

    # state

    def move_to(self, state: GroupState) -> None:
        """Raises IllegalState (rules G2.2, G2.3)."""
        if self.state not in _PREVIOUS[state]:
            raise IllegalState(f"{self!r} cannot become {state.value}")
        self.state = state
        self.state_since_ms = self._now_ms()

    @property
    def can_rebalance(self) -> bool:
        """Rule G2.4."""
        return self.state in _PREVIOUS[PREPARING_REBALANCE]

    @property
    def is_dead(self) -> bool:
        return self.state is DEAD

    # members

    def add(self, member: Member, on_join: OnJoin | None = None) -> None:
        """Rule G3.15. Raises IllegalState if its instance id is in use, or its protocols do not fit."""
        if member.instance_id is not None and member.instance_id in self.static_members:
            raise IllegalState(f"{self!r} has a member with instance id {member.instance_id} already")
        if not self.members:
            self.protocol_type = member.protocol_type
        if not self.supports(member.protocol_type, member.protocols):
            raise IllegalState(f"the protocols of {member.member_id} do not fit to {self!r}")
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count_offers(member, 1)
        member.on_join = on_join
        self.awaiting_join += on_join is not None
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """A member or a pending id; nothing happens if it is neither (rule G3.39)."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_offers(member, -1)
            self.awaiting_join -= member.on_join is not None
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace_static_member(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """Rule G3.25. Raises IllegalState if there is no such member."""
        member = self.members.get(old_id)
        if member is None:
            raise IllegalState(f"{self!r} has no member {old_id} to replace")
        self.answer_join(member, JoinResult(member_id=old_id, error=ErrorCode.FENCED_INSTANCE_ID))
        self.answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        del self.members[old_id]
        member.member_id = new_id
        self.members[new_id] = member
        if self.leader == old_id:
            self.leader = new_id
        self.static_members[instance_id] = new_id
        return member

    def update(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        on_join: OnJoin | None,
    ) -> None:
        """What a rejoin replaces (rules G3.23, G3.24)."""
        self._count_offers(member, -1)
        member.protocols = protocols
        self._count_offers(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_join += (on_join is not None) - (member.on_join is not None)
        member.on_join = on_join

    def add_pending_member(self, member_id: str) -> None:
        """Raises IllegalState for a member."""
        if member_id in self.members:
            raise IllegalState(f"{member_id} is a member of {self!r} already")
        self.pending_members.add(member_id)

    def add_pending_sync(self, member_id: str) -> None:
        """Raises IllegalState for one that is no member."""
        self._check_member(member_id)
        self.pending_syncs.add(member_id)

    def remove_pending_sync(self, member_id: str) -> None:
        """Raises IllegalState for one that is no member."""
        self._check_member(member_id)
        self.pending_syncs.discard(member_id)

    def _check_member(self, member_id: str) -> None:
        if member_id not in self.members:
            raise IllegalState(f"{member_id} is no member of {self!r}")

    @property
    def not_rejoined(self) -> list[Member]:
        if self.awaiting_join == len(self.members):
            return []
        return [member for member in self.members.values() if member.on_join is None]

    @property
    def has_all_joined(self) -> bool:
        """Rule G3.37."""
        return self.awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of its members."""
        longest = 0
        for member in self.members.values():
            if member.rebalance_timeout_ms > longest:
                longest = member.rebalance_timeout_ms
        return longest

    def elect_joined_leader(self) -> bool:
        """Let a member lead that has rejoined; whether there is one (rules G3.39, G3.40)."""
        if self.leader is None:
            return False
        if self.members[self.leader].on_join is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.on_join is not None), None)
        if joined is None:
            return False
        log.info("%r: %s leads, because %s has not rejoined", self, joined, self.leader)
        self.leader = joined
        return True

    # protocols

    def _count_offers(self, member: Member, count: int) -> None:
        for name, _ in member.protocols:
            self._offers[name] = self._offers.get(name, 0) + count

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member that offers these may join (rules G3.7, G3.8)."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        offers, count = self._offers, len(self.members)
        return protocol_type == self.protocol_type and any(offers.get(name, 0) == count for name, _ in protocols)

    def select_protocol(self) -> str:
        """Rule G3.42. Raises IllegalState without members."""
        if not self.members:
            raise IllegalState(f"{self!r} has nobody who selects a protocol")
        candidates = [name for name, count in self._offers.items() if count == len(self.members)]
        if len(candidates) == 1:
            return candidates[0]
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=lambda name: votes[name])

    def next_generation(self) -> None:
        """The end of a join phase (rules G2.9, G2.10)."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.note_subscriptions()
        self.move_to(COMPLETING_REBALANCE if self.members else EMPTY)
        self.pending_syncs.clear()

    def note_subscriptions(self) -> None:
        """Those of the present members count until the next generation (rule G3.45)."""
        name = self.protocol_name
        if self.protocol_type != CONSUMER or (self.members and name is None):
            self.subscribe(None)
        else:
            self.subscribe(tuple([member.metadata(name or "") for member in self.members.values()]))

    def subscribe(self, subscriptions: tuple[bytes, ...] | None) -> None:
        """None: they are unknown."""
        self._subscriptions, self._topics = subscriptions, None

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """What its consumers subscribe to; None: unknown (rule G3.45)."""
        if self._subscriptions is not None:
            try:
                self._topics = frozenset().union(*map(decode_subscription_topics, self._subscriptions))
            except DecodeError as e:
                log.warning("%r: the subscriptions are unknown: %s", self, e)
            self._subscriptions = None
        return self._topics

    def is_subscribed_to(self, topic: str) -> bool:
        """An unknown subscription is one to everything (rule G7.32)."""
        topics = self.subscribed_topics
        return topics is None or topic in topics

    def member_list(self) -> tuple[JoinGroupResponseMember, ...]:
        """What the leader gets (rule G3.43). Raises IllegalState while there is none."""
        if self.protocol_name is None or self.state in (DEAD, PREPARING_REBALANCE):
            raise IllegalState(f"{self!r} has no list of members")
        return tuple(
            [
                JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata(self.protocol_name),
                )
                for member in self.members.values()
            ]
        )

    # parked requests

    def answer_join(self, member: Member, result: JoinResult) -> None:
        """Answer its parked JoinGroup, if there is one."""
        on_join, member.on_join = member.on_join, None
        if on_join is not None:
            self.awaiting_join -= 1
            try:
                on_join(result)
            except Exception:  # rule G12.13
                log.exception("%r: JoinGroup of %s could not be answered", self, member.member_id)
                on_join(JoinResult(member_id=member.member_id, error=ErrorCode.UNKNOWN_SERVER_ERROR))

    def answer_sync(self, member: Member, result: SyncResult) -> bool:
        """Answer its parked SyncGroup; whether there was one."""
        on_sync, member.on_sync = member.on_sync, None
        if on_sync is None:
            return False
        try:
            on_sync(result)
        except Exception:  # rule G12.13
            log.exception("%r: SyncGroup of %s could not be answered", self, member.member_id)
            on_sync(SyncResult(ErrorCode.UNKNOWN_SERVER_ERROR))
        return True

    # offsets

    def expire_offsets(self, now_ms: int, retention_ms: int) -> Collection[TopicPartition]:
        """Forget what has expired (rules G8.2 to G8.6)."""
        if self.protocol_type is None:
            return self.offsets.expire(now_ms, retention_ms, lambda committed: committed.commit_timestamp)
        if self.state is EMPTY:
            since = self.state_since_ms
            return self.offsets.expire(
                now_ms, retention_ms, lambda committed: committed.commit_timestamp if since is None else since
            )
        if self.protocol_type == CONSUMER and self.state is STABLE:
            topics = self.subscribed_topics
            if topics is not None:
                return self.offsets.expire(now_ms, retention_ms, lambda committed: committed.commit_timestamp, topics)
        return ()
