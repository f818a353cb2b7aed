"""The requests of members of groups, which build on what a coordinator has answered them: see ``group_twins.py``."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final, NamedTuple

from kce import wire
from kce.wire import ErrorCode
from kce.wire.registry import BY_KEY
from tests.interop.random_requests import Asked, Given, Node, asked, text_of

GROUPS: Final = ("g1", "g2", "g3")
_PLACES: Final = 5
_TOPICS: Final = ("t1", "t2", "c1")
#: of sessions and of rebalances, in ms
_PATIENT: Final = ((60_000,), (60_000, 120_000))
_HASTY: Final = ((2900, 60_000), (1600, 4500))
_SUBSCRIPTIONS: Final = (("t1",), ("t1",), ("t2",), ("t1", "t2"), ())
_PROTOCOLS: Final = (("range",), ("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",), ())
_ODD_MEMBERS: Final = ("", "unknown")
_OUT: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION)


class Place(NamedTuple):
    """Of a member, in a group."""

    group: str
    number: int

    @property
    def instance(self) -> str | None:
        """The last ones are static members, two of them the same."""
        return {2: "i1", 3: "i2", 4: "i1"}.get(self.number)

    @property
    def member(self) -> Given:
        return Given("member", f"{self.group}/{self.number}")


class Member:
    """What the script knows of a place, by Kafka's answers."""

    def __init__(self) -> None:
        self.generation = -1
        #: out, pending, joined or synced
        self.state = "out"
        self.must_rejoin = False


def text(request: Asked) -> str:
    return f"{request.api} {request.version} {text_of(request.body)}"


class Script:
    """Makes requests, and learns from Kafka's answers."""

    def __init__(self, random: Random, versions: Mapping[str, tuple[int, int]], *, hasty: bool) -> None:
        self._random = random
        self._timeouts = _HASTY if hasty else _PATIENT
        self._versions = versions
        self._members = {Place(group, i): Member() for group in GROUPS for i in range(_PLACES)}
        self._producers: set[str] = set()
        self.waiting: dict[int, tuple[Place, Asked]] = {}

    def next(self) -> tuple[Place, Asked]:
        random = self._random
        group = random.choices(GROUPS, (4, 2, 1))[0]
        places = [place for place in self._members if place.group == group]
        parked = {place for place, _ in self.waiting.values()}
        place = random.choice([one for one in places if one not in parked] or places)
        chance = random.random()
        if chance < 0.2:
            return place, self._about(place)
        if chance < 0.28:
            return place, self._txn_commit(place)
        if chance < 0.38:
            odd = random.choice((self._join, self._sync, self._heartbeat, self._leave, self._commit, self._txn_commit))
            return random.choice(places), odd(place, is_odd=True)
        if any(one.group == group and request.api == "JoinGroup" for one, request in self.waiting.values()):
            awaited = [one for one in places if one not in parked and self._members[one].state != "out"]
            if awaited and chance < 0.9:
                place = random.choice(awaited)
                return place, (self._join if random.random() < 0.8 else self._leave)(place)
        member = self._members[place]
        if member.must_rejoin or member.state in ("out", "pending"):
            return place, self._join(place)
        if member.state == "joined":
            return place, self._sync(place)
        kinds = (self._heartbeat, self._commit, self._txn_commit, self._join, self._leave)
        return place, random.choices(kinds, (4, 3, 2, 2, 1))[0](place)

    def answered(self, place: Place, request: Asked, answer: Any) -> None:
        member = self._members[place]
        if not isinstance(answer, dict):
            return
        code = answer.get("error_code", 0)
        if request.api == "InitProducerId" and not code:
            self._producers.add(request.body.values["transactional_id"])
        if request.api == "JoinGroup" and code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            member.state = "joined" if code == 0 else "pending"
            member.generation, member.must_rejoin = answer["generation_id"], False
        elif request.api == "SyncGroup" and not code:
            member.state = "synced"
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            member.must_rejoin = True
        elif code in _OUT or (request.api == "LeaveGroup" and not code):
            member.state, member.must_rejoin = "out", False

    def waiting_text(self) -> str:
        return "".join(f"\n  waits {lane}: {place} {text(asked)}" for lane, (place, asked) in self.waiting.items())

    # requests

    def _ask(self, cls: type[Any], version: int | None = None, **values: Any) -> Asked:
        api = BY_KEY[cls.__api_key__].name
        least, most = self._versions[api]
        chosen = self._random.randint(least, most) if version is None else max(least, min(version, most))
        return asked(api, chosen, Node(cls, values))

    def _member(self, place: Place, *, is_odd: bool) -> tuple[Any, str | None, int]:
        """Its id, its instance and its generation."""
        random, generation = self._random, self._members[place].generation
        if not is_odd:
            return place.member, place.instance, generation
        other = Place(place.group, random.randrange(_PLACES))
        earlier = Given("an earlier member", random.choice([place, other]).member.of)
        return (
            random.choice([place.member, place.member, other.member, earlier, *_ODD_MEMBERS]),
            random.choice([place.instance, place.instance, None, other.instance, "i9"]),
            generation + random.choice([0, 0, 0, 1, -1, -100]),
        )

    def _join(self, place: Place, *, is_odd: bool = False) -> Asked:
        random = self._random
        member_id, instance, _ = self._member(place, is_odd=is_odd)
        if not is_odd and self._members[place].state == "out":
            member_id = ""
        names = random.choice(_PROTOCOLS if is_odd else _PROTOCOLS[:3])
        topics = random.choice(_SUBSCRIPTIONS)
        version = None if random.random() < 0.1 else random.randint(5, 9)
        return self._ask(
            wire.JoinGroupRequest,
            version,
            group_id=place.group,
            session_timeout_ms=random.choice(self._timeouts[0]),
            rebalance_timeout_ms=random.choice(self._timeouts[1]),
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer" if random.random() < 0.98 else random.choice(["connect", ""]),
            protocols=[
                Node(wire.JoinGroupRequestProtocol, {"name": name, "metadata": _subscription(topics)}) for name in names
            ],
            reason=random.choice([None, "it is so", ""]),
        )

    def _sync(self, place: Place, *, is_odd: bool = False) -> Asked:
        random = self._random
        member_id, instance, generation = self._member(place, is_odd=is_odd)
        of = random.choice([place.group, place.group, place.group, f"{place.group}/1", "nobody", "g"])
        return self._ask(
            wire.SyncGroupRequest,
            None if random.random() < 0.3 else random.randint(3, 5),
            group_id=place.group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=random.choice([None, "connect", "consumer"]) if is_odd else None,
            protocol_name=random.choice([None, "sticky", "range"]) if is_odd else None,
            assignments=Given("assignments", of),
        )

    def _heartbeat(self, place: Place, *, is_odd: bool = False) -> Asked:
        member_id, instance, generation = self._member(place, is_odd=is_odd)
        return self._ask(
            wire.HeartbeatRequest,
            group_id=place.group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )

    def _leave(self, place: Place, *, is_odd: bool = False) -> Asked:
        random = self._random
        places = [place, *(Place(place.group, random.randrange(_PLACES)) for _ in range(random.choice([0, 0, 1, 2])))]
        found = [self._member(one, is_odd=is_odd)[:2] for one in places]
        members = [
            Node(
                wire.MemberIdentity,
                {
                    "member_id": member_id if random.random() < 0.8 else "",
                    "group_instance_id": instance,
                    "reason": random.choice([None, "tired"]),
                },
            )
            for member_id, instance in found
        ]
        return self._ask(wire.LeaveGroupRequest, group_id=place.group, member_id=found[0][0], members=members)

    def _commit(self, place: Place, *, is_odd: bool = False) -> Asked:
        member_id, instance, generation = self._member(place, is_odd=is_odd)
        topics = self._offsets(wire.OffsetCommitRequestTopic, wire.OffsetCommitRequestPartition)
        return self._ask(
            wire.OffsetCommitRequest, group_id=place.group, generation_id_or_member_epoch=generation,
            member_id=member_id, group_instance_id=instance, topics=topics,
        )  # fmt: skip

    def _txn_commit(self, place: Place, *, is_odd: bool = False) -> Asked:
        """Or what makes it possible, or ends it."""
        random = self._random
        kind, name = random.choices(("init", "add", "commit", "end"), (1, 4, 6, 3))[0], random.choice(["tx1", "tx2"])
        if name not in self._producers:
            kind = "init"
        producer = {
            "transactional_id": name, "producer_id": Given("producer", name), "producer_epoch": Given("epoch", name),
        }  # fmt: skip
        if kind == "init":
            return self._ask(wire.InitProducerIdRequest, 2, transactional_id=name, transaction_timeout_ms=60_000)
        if kind == "add":
            return self._ask(wire.AddOffsetsToTxnRequest, **producer, group_id=place.group)
        if kind == "end":
            return self._ask(wire.EndTxnRequest, **producer, committed=random.random() < 0.6)
        member_id, instance, generation = self._member(place, is_odd=is_odd)
        if random.random() < 0.3:
            member_id, instance, generation = "", None, -1
        topics = self._offsets(wire.TxnOffsetCommitRequestTopic, wire.TxnOffsetCommitRequestPartition)
        return self._ask(
            wire.TxnOffsetCommitRequest, **producer, group_id=place.group, generation_id=generation,
            member_id=member_id, group_instance_id=instance, topics=topics,
        )  # fmt: skip

    def _offsets(self, topic: type[Any], partition: type[Any]) -> list[Node]:
        random = self._random
        names = random.sample(_TOPICS if random.random() < 0.9 else ["t1", "missing"], random.choice([1, 1, 2]))
        return [
            Node(
                topic,
                {
                    "name": name,
                    "partitions": [
                        Node(
                            partition,
                            {
                                "partition_index": 0 if random.random() < 0.9 else 9,
                                "committed_offset": random.randrange(100),
                                "committed_leader_epoch": random.choice([-1, 0]),
                                "commit_timestamp": -1,
                                "committed_metadata": random.choice(["", None, "m"]),
                            },
                        )
                    ],
                },
            )
            for name in names
        ]

    def _about(self, place: Place) -> Asked:
        """Of nobody in the group."""
        random, group = self._random, place.group
        kind = random.choices(("describe", "list", "fetch", "commit", "offsets", "delete"), (6, 3, 4, 2, 3, 1))[0]
        match kind:
            case "describe":
                return self._ask(wire.DescribeGroupsRequest, groups=list(GROUPS), include_authorized_operations=False)
            case "list":
                states = random.choice([[], [], ["Stable"], ["Empty", "PREPARINGREBALANCE"], ["completingrebalance"]])
                return self._ask(
                    wire.ListGroupsRequest, states_filter=states, types_filter=random.choice([[], [], ["Classic"]])
                )
            case "fetch":
                return self._ask(
                    wire.OffsetFetchRequest,
                    random.randint(8, 9),
                    groups=[
                        Node(wire.OffsetFetchRequestGroup, {"group_id": group, "member_id": None, "topics": topics})
                        for topics in [random.choice([None, self._fetched()])]
                    ],
                    require_stable=random.random() < 0.4,
                )
            case "commit":
                topics = self._offsets(wire.OffsetCommitRequestTopic, wire.OffsetCommitRequestPartition)
                return self._ask(
                    wire.OffsetCommitRequest, group_id=group, member_id=random.choice(["", "", "unknown"]),
                    generation_id_or_member_epoch=random.choice([-1, -1, 0, 3]), topics=topics,
                    group_instance_id=random.choice([None, None, "i1"]),
                )  # fmt: skip
            case "offsets":
                partition = Node(wire.OffsetDeleteRequestPartition, {"partition_index": random.choice([0, 0, 1, 9])})
                names = random.sample([*_TOPICS, "missing"], random.choice([1, 2]))
                topics = [Node(wire.OffsetDeleteRequestTopic, {"name": n, "partitions": [partition]}) for n in names]
                return self._ask(wire.OffsetDeleteRequest, group_id=group, topics=topics)
        return self._ask(wire.DeleteGroupsRequest, groups_names=random.sample(GROUPS, random.choice([1, 2])))

    def _fetched(self) -> list[Node]:
        return [
            Node(wire.OffsetFetchRequestTopics, {"name": name, "partition_indexes": [0, 1]})
            for name in [*_TOPICS, "missing"]
        ]


def _subscription(topics: tuple[str, ...]) -> bytes:
    """Version 0 of the consumer protocol."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"
