"""Random quotas of users and client ids, and requests of those that have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from kce import wire
from tests.broker_stub.log.support import batch

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_USERS: Final = ("alice", "bob", "ü *", "<default>", "a/b")
_CLIENTS: Final = ("c1", "c2", "ü *", "<default>", "a/b", "")
ADMIN: Final = "admin"
_BYTES: Final = (0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 1e9)
#: of requests; one that is exceeded by each of them, or never
_PERCENTAGES: Final = (1e-9, 1e-9, 1e-9, 1e9, 0.0, math.inf)
#: a bucket of 7200 s
_MUTATIONS: Final = (0.0, 0.0003, 0.001, 0.001, 0.002, 1e9)
QUOTAS: Final[Mapping[str, Sequence[float]]] = {
    "producer_byte_rate": _BYTES, "consumer_byte_rate": _BYTES, "request_percentage": _PERCENTAGES,
    "controller_mutation_rate": _MUTATIONS,
}  # fmt: skip
_UNLIMITED: Final = dict.fromkeys(QUOTAS, 1e9)
_ODD_VALUES: Final = (1.5, -1.0, math.nan, math.inf, -math.inf, 1e300, 1.0000001, 2.9999999, 2.0**63, 1e-300, -0.0)
_ODD_KEYS: Final = ("", "bogus", "connection_creation_rate", "SCRAM-SHA-256", "PRODUCER_BYTE_RATE")
_ODD_TYPES: Final = ("", "group", "User", IP)
_ODD_NAMES: Final = ("", ".", "..", "x" * 300, "a\nb", "%", "%41", "clients")
TOPIC: Final = "used"
_MUTE_PART: Final = 0.15
_MOST_PARTITIONS: Final = 300
MUTATIONS: Final = (wire.CreateTopicsRequest, wire.CreatePartitionsRequest, wire.DeleteTopicsRequest)

Entity = Mapping[str, str | None]


class Step(NamedTuple):
    """A request of a client. ``checks_mute``: it sends another one at once."""

    user: str
    client_id: str | None
    version: int
    message: wire.Message
    checks_mute: bool = False


def alteration(quotas: Sequence[tuple[Entity, Mapping[str, float | None]]]) -> wire.AlterClientQuotasRequest:
    """None removes."""
    return wire.AlterClientQuotasRequest(entries=tuple(_entry(entity, list(ops.items())) for entity, ops in quotas))


def _entry(entity: Entity, ops: Sequence[tuple[str, float | None]]) -> wire.AlterClientQuotasRequestEntryData:
    return wire.AlterClientQuotasRequestEntryData(
        entity=tuple(
            wire.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ),
        ops=tuple(wire.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops),
    )


class Script:
    """Random steps. ``levels``: what quotas are set for, from the beginning (a kind is measured from then on)."""

    def __init__(self, random: Random, now_ms: int) -> None:
        self._random = random
        self._now_ms = now_ms
        levels: list[tuple[str, ...]] = [(USER, CLIENT_ID), (USER,), (CLIENT_ID,)]
        self.levels = [level for level in levels if random.random() < 0.7] or levels
        #: partitions by topic
        self.topics: dict[str, int] = {}
        self._made = 0
        self._partitions = 0

    def first(self) -> wire.AlterClientQuotasRequest:
        """The administrator is never throttled."""
        entities: list[Entity] = [dict.fromkeys(self.levels[0], ADMIN)]
        entities += [dict.fromkeys(level, "nobody") for level in self.levels]
        return alteration([(entity, _UNLIMITED) for entity in entities])

    def next(self) -> Step:
        kinds: dict[Callable[[], Step], float] = {
            self._alter: 5, self._describe: 2, self._produce: 6, self._fetch: 5, self._other: 4, self._mutate: 5,
        }  # fmt: skip
        return self._random.choices(list(kinds), list(kinds.values()))[0]()

    def _entity(self) -> Entity:
        random = self._random
        names = {USER: _USERS, CLIENT_ID: _CLIENTS[:-1]}
        level = random.choice(self.levels)
        return {kind: random.choice([None, *names[kind][:2], *names[kind]]) for kind in level}

    def _alter(self) -> Step:
        random = self._random
        entries = []
        for _ in range(random.choice([1, 1, 1, 2, 3])):
            keys = random.sample(list(QUOTAS), random.choice([1, 1, 2, 4]))
            ops: list[tuple[str, float | None]] = [
                (key, None if random.random() < 0.35 else random.choice(QUOTAS[key])) for key in keys
            ]
            entries.append(self._oddly(self._entity(), ops) if random.random() < 0.15 else _entry(self._entity(), ops))
        request = wire.AlterClientQuotasRequest(entries=tuple(entries), validate_only=random.random() < 0.1)
        return Step(ADMIN, ADMIN, random.choice([0, 1]), request)

    def _oddly(self, entity: Entity, ops: list[tuple[str, float | None]]) -> wire.AlterClientQuotasRequestEntryData:
        random, odd = self._random, dict(entity)
        match random.choice(["key", "value", "type", "name", "nobody", "nothing", "twice"]):
            case "key":
                ops.insert(random.randrange(len(ops) + 1), (random.choice(_ODD_KEYS), random.choice([1.0, None])))
            case "value":
                key = ops[0][0]
                ops[0] = key, random.choice([value for value in _ODD_VALUES if "byte" in key or not value < 0])
            case "type":
                odd[random.choice(_ODD_TYPES)] = random.choice([None, "127.0.0.9", "x"])
                if random.random() < 0.4:
                    odd = dict(list(odd.items())[-1:])
            case "name":
                odd[random.choice(list(odd))] = random.choice(_ODD_NAMES)
            case "nobody":
                odd = {}
            case "nothing":
                ops = []
            case "twice":
                ops.append((ops[0][0], random.choice([None, 7.0])))
        return _entry(odd, ops)

    def _describe(self) -> Step:
        random = self._random
        components = []
        for _ in range(random.choice([0, 1, 1, 2, 2, 3])):
            kind = random.choice([USER, USER, CLIENT_ID, CLIENT_ID, IP, *_ODD_TYPES]) if random.random() < 0.9 else "x"
            match_type = random.choice([0, 0, 1, 2, 2, 3 if random.random() < 0.1 else 2])
            names = (*_USERS, *_CLIENTS, *(_ODD_NAMES if random.random() < 0.1 else ()))
            has_name = random.random() < (0.95 if match_type == 0 else 0.1)
            name = random.choice(names) if has_name else None
            components.append(wire.ComponentData(entity_type=kind, match_type=match_type, match=name))
        request = wire.DescribeClientQuotasRequest(components=tuple(components), strict=random.random() < 0.5)
        return Step(ADMIN, ADMIN, random.choice([0, 1]), request)

    def _step(self, version: int, message: wire.Message) -> Step:
        random = self._random
        user = random.choice([*_USERS[:2], *_USERS])
        client = random.choice([*_CLIENTS[:2], *_CLIENTS, None])
        return Step(user, client, version, message, random.random() < _MUTE_PART)

    def _produce(self) -> Step:
        random = self._random
        size = random.choice([1, 500, 2000, 6000, 30_000])
        topic = TOPIC if random.random() < 0.9 else "missing"
        data = wire.PartitionProduceData(
            index=random.choice([0, 1]), records=batch(b"x" * size, timestamp=self._now_ms)
        )
        topics = (wire.TopicProduceData(name=topic, partition_data=(data,)),)
        acks = random.choice([-1, 1, 1, 0, 2 if random.random() < 0.2 else 1])
        step = self._step(random.randint(3, 11), wire.ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics))
        return step._replace(checks_mute=True) if not acks and topic == TOPIC else step

    def _fetch(self) -> Step:
        random = self._random
        partitions = tuple(
            wire.FetchPartition(
                partition=number, fetch_offset=random.choice([0, 0, 1, 5]),
                partition_max_bytes=random.choice([100, 3000, 50_000]),
            )
            for number in range(random.choice([1, 2]))
        )  # fmt: skip
        topics = (wire.FetchTopic(topic=TOPIC if random.random() < 0.9 else "missing", partitions=partitions),)
        return self._step(
            random.randint(4, 12),
            wire.FetchRequest(
                max_wait_ms=random.choice([0, 0, 30]), min_bytes=random.choice([0, 1, 10**6]),
                max_bytes=random.choice([10**7, 4000]), topics=topics,
            ),
        )  # fmt: skip

    def _other(self) -> Step:
        random = self._random
        names = (wire.MetadataRequestTopic(name=TOPIC),)
        listed = wire.ListOffsetsPartition(partition_index=0, timestamp=-1)
        resource = wire.DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=("x",))
        version, message = random.choice(
            [
                (random.randint(3, 12), wire.MetadataRequest(topics=names)),
                (random.randint(1, 3), wire.ApiVersionsRequest(client_software_name="x", client_software_version="1")),
                (4, wire.ApiVersionsRequest(client_software_name="", client_software_version="")),
                (random.randint(2, 7), wire.ListOffsetsRequest(
                    topics=(wire.ListOffsetsTopic(name=TOPIC, partitions=(listed,)),))),
                (random.randint(1, 3), wire.DescribeConfigsRequest(resources=(resource,))),
                (3, wire.ListGroupsRequest()), (3, wire.DescribeGroupsRequest(groups=("g",))),
                (4, wire.FindCoordinatorRequest(coordinator_keys=("x",), key_type=2)), (1, wire.InitProducerIdRequest(
                    transactional_id="", transaction_timeout_ms=1000)),
                (2, wire.DeleteGroupsRequest(groups_names=("g",))), (3, wire.HeartbeatRequest(group_id="")),
                (0, wire.ListPartitionReassignmentsRequest(topics=())),
                (1, wire.DescribeClientQuotasRequest(components=(), strict=True)),
                (1, wire.AlterClientQuotasRequest(entries=(), validate_only=True)),
                (1, wire.CreateDelegationTokenRequest()),
            ]
        )  # fmt: skip
        return self._step(version, message)

    def _mutate(self) -> Step:
        random = self._random
        known = [*self.topics, "missing"]
        kinds = ["create", "validate", "several", "more", "delete", "invalid"]
        kind = random.choice(kinds if self._partitions < _MOST_PARTITIONS else ["validate", "delete", "several"])
        count = random.choice([1, 1, 2, 3, 6, 9])
        if kind == "delete":
            return self._step(
                random.randint(1, 5),
                wire.DeleteTopicsRequest(topic_names=(random.choice(known),), timeout_ms=20_000),
            )
        if kind == "more":
            name = random.choice(known)
            total = self.topics.get(name, 1) + random.choice([0, 1, 1, 3, 8])
            topic = wire.CreatePartitionsTopic(name=name, count=total, assignments=None)
            is_tried = random.random() < 0.2
            request = wire.CreatePartitionsRequest(topics=(topic,), timeout_ms=20_000, validate_only=is_tried)
            return self._step(random.randint(0, 3), request)
        names = []
        for _ in range(random.choice([2, 3]) if kind == "several" else 1):
            self._made += 1
            names.append(f"q{self._made}")
        replicas = 2 if kind == "invalid" else 1
        topics = tuple(
            wire.CreatableTopic(name=name, num_partitions=count, replication_factor=replicas) for name in names
        )
        is_tried = kind in ("several", "validate")
        create = wire.CreateTopicsRequest(topics=topics, timeout_ms=20_000, validate_only=is_tried)
        return self._step(random.randint(2, 7), create)

    def learn(self, step: Step, answer: Any) -> None:
        """What is there now."""
        match step.message:
            case wire.CreateTopicsRequest(validate_only=False) if not answer["topics"][0]["error_code"]:
                topic = step.message.topics[0]
                self.topics[topic.name] = topic.num_partitions
                self._partitions += topic.num_partitions
            case wire.CreatePartitionsRequest(validate_only=False) if not answer["results"][0]["error_code"]:
                more = step.message.topics[0]
                self._partitions += more.count - self.topics[more.name]
                self.topics[more.name] = more.count
            case wire.DeleteTopicsRequest() if not answer["responses"][0]["error_code"]:
                del self.topics[step.message.topic_names[0]]
