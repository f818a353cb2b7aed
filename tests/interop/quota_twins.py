"""Random quotas of users and client ids, which both twins must apply alike.

    python -m tests.interop.quota_twins --seed 5 --steps 1000

Quotas of all kinds are set for users, client ids, both and their defaults, are removed, described, and asked for in
ways that are refused; clients write, read, create and delete partitions, and ask for other things. Samples last an
hour, so nothing that was used is forgotten, and a throttle time tells which quota applies, and who shares it.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import trio

from kce import wire
from kce.wire import ErrorCode
from tests.broker_stub.log.support import batch
from tests.certificates import plain_users
from tests.interop.twin import PATIENCE_S, Twin, differences
from tests.interop.twins import clusters, command, finish

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SETTINGS: Final = {
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.data.plain.sasl.jaas.config": plain_users(broker="secret"),
    "listener.name.data.oauthbearer.sasl.jaas.config": f'{_OAUTH} unsecuredLoginStringClaim_sub="broker";',
    "quota.window.num": "2", "quota.window.size.seconds": "3600",
    "controller.quota.window.num": "2", "controller.quota.window.size.seconds": "3600",
}  # fmt: skip
USER, CLIENT_ID, IP = "user", "client-id", "ip"
_USERS: Final = ("alice", "bob", "ü *", "<default>", "a/b")
_CLIENTS: Final = ("c1", "c2", "ü *", "<default>", "a/b", "")
_ADMIN: Final = "admin"
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
_TOPIC: Final = "used"
#: what has passed between the twins' answers
_TOLERANCE_MS: Final = 20_000
#: an answer comes within that, or the connection is muted
_MUTED_S: Final = 0.2
_MUTE_PART: Final = 0.15
_EFFECT: Final = "leader.replication.throttled.rate"
_BROKER: Final = 4
_MOST_PARTITIONS: Final = 300
_ENOUGH: Final = 5
_CONCERNED: Final = (wire.CreateTopicsRequest, wire.CreatePartitionsRequest, wire.DeleteTopicsRequest)
_TOLD: Final = (*_CONCERNED, wire.AlterClientQuotasRequest, wire.DescribeClientQuotasRequest)

Entity = Mapping[str, str | None]


class Step(NamedTuple):
    """A request of a client. ``checks_mute``: it sends another one at once."""

    user: str
    client_id: str | None
    version: int
    message: wire.Message
    checks_mute: bool = False


class QuotaTwin(Twin):
    """A connection of a client."""

    client_id: str | None = _ADMIN
    user = _ADMIN
    #: of errors
    compares_texts = False

    def of(self, user: str, client_id: str | None) -> QuotaTwin:
        """A connection of its own."""
        made = self.another()
        made.user, made.client_id = user, client_id
        return made

    def encoded(self, message: wire.Message, version: int) -> bytes:
        return wire.encode_request(message, api_version=version, correlation_id=1, client_id=self.client_id)

    def comparable(self, value: Any, name: str = "") -> Any:
        if (name == "error_message" and self.compares_texts) or isinstance(value, float):
            return str(value)
        return super().comparable(value, name)

    async def log_in(self) -> None:
        """With a token that is not signed: users may have any name."""
        claims = {"sub": self.user, "iat": 1, "exp": 99_999_999_999}
        header, payload = (
            base64.urlsafe_b64encode(json.dumps(of, separators=(",", ":")).encode()).rstrip(b"=").decode()
            for of in ({"alg": "none"}, claims)
        )
        token = f"n,,\x01auth=Bearer {header}.{payload}.\x01\x01".encode()
        await self.ask(wire.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        answer = await self.ask(wire.SaslAuthenticateRequest(auth_bytes=token), 2)
        assert isinstance(answer, wire.SaslAuthenticateResponse), answer
        assert not answer.error_code and not answer.auth_bytes, answer

    async def send(self, message: wire.Message, version: int) -> None:
        assert self._stream is not None
        await self._stream.send_all(wire.frame(self.encoded(message, version)))

    async def has_answer(self) -> bool:
        assert self._stream is not None
        try:
            return await self._frame(self._stream) is not None
        except trio.BrokenResourceError:
            return False

    async def alter(self, request: wire.AlterClientQuotasRequest, version: int, number: int) -> Any:
        """Wait until what was changed is known."""
        answer = await self.ask(request, version)
        await until_known(self, number)
        return answer


async def until_known(twin: Twin, number: int) -> None:
    """Until the broker knows of all changes of configurations so far: they become known in their order.

    ``number`` has not been used before.
    """
    change = wire.IncrementalAlterConfigsRequestAlterableConfig(name=_EFFECT, config_operation=0, value=str(number))
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=_BROKER, resource_name="1", configs=(change,)
    )
    await twin.ask(wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
    wanted = wire.DescribeConfigsResource(resource_type=_BROKER, resource_name="1", configuration_keys=(_EFFECT,))
    with trio.fail_after(PATIENCE_S):
        while True:
            found = await twin.ask(wire.DescribeConfigsRequest(resources=(wanted,)), 4)
            assert isinstance(found, wire.DescribeConfigsResponse), found
            if [each.value for each in found.results[0].configs] == [str(number)]:
                return
            await trio.sleep(0.005)


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
        entities: list[Entity] = [dict.fromkeys(self.levels[0], _ADMIN)]
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
        return Step(_ADMIN, _ADMIN, random.choice([0, 1]), request)

    def _oddly(self, entity: Entity, ops: list[tuple[str, float | None]]) -> wire.AlterClientQuotasRequestEntryData:
        random, odd = self._random, dict(entity)
        match random.choice(["key", "value", "type", "name", "nobody", "nothing", "twice"]):
            case "key":
                ops.insert(random.randrange(len(ops) + 1), (random.choice(_ODD_KEYS), random.choice([1.0, None])))
            case "value":
                key = ops[0][0]
                ops[0] = key, random.choice([1.5] if key == "controller_mutation_rate" else _ODD_VALUES)
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
        return Step(_ADMIN, _ADMIN, random.choice([0, 1]), request)

    def _step(self, version: int, message: wire.Message) -> Step:
        random = self._random
        user = random.choice([*_USERS[:2], *_USERS])
        client = random.choice([*_CLIENTS[:2], *_CLIENTS, None])
        return Step(user, client, version, message, random.random() < _MUTE_PART)

    def _produce(self) -> Step:
        random = self._random
        size = random.choice([1, 500, 2000, 6000, 30_000])
        topic = _TOPIC if random.random() < 0.9 else "missing"
        data = wire.PartitionProduceData(
            index=random.choice([0, 1]), records=batch(b"x" * size, timestamp=self._now_ms)
        )
        topics = (wire.TopicProduceData(name=topic, partition_data=(data,)),)
        acks = random.choice([-1, 1, 1, 0, 2 if random.random() < 0.2 else 1])
        step = self._step(random.randint(3, 11), wire.ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics))
        return step._replace(checks_mute=True) if not acks and topic == _TOPIC else step

    def _fetch(self) -> Step:
        random = self._random
        partitions = tuple(
            wire.FetchPartition(
                partition=number, fetch_offset=random.choice([0, 0, 1, 5]),
                partition_max_bytes=random.choice([100, 3000, 50_000]),
            )
            for number in range(random.choice([1, 2]))
        )  # fmt: skip
        topics = (wire.FetchTopic(topic=_TOPIC if random.random() < 0.9 else "missing", partitions=partitions),)
        return self._step(
            random.randint(4, 12),
            wire.FetchRequest(
                max_wait_ms=random.choice([0, 0, 30]), min_bytes=random.choice([0, 1, 10**6]),
                max_bytes=random.choice([10**7, 4000]), topics=topics,
            ),
        )  # fmt: skip

    def _other(self) -> Step:
        random = self._random
        names = (wire.MetadataRequestTopic(name=_TOPIC),)
        listed = wire.ListOffsetsPartition(partition_index=0, timestamp=-1)
        resource = wire.DescribeConfigsResource(resource_type=2, resource_name=_TOPIC, configuration_keys=("x",))
        version, message = random.choice(
            [
                (random.randint(3, 12), wire.MetadataRequest(topics=names)),
                (random.randint(1, 3), wire.ApiVersionsRequest(client_software_name="x", client_software_version="1")),
                (4, wire.ApiVersionsRequest(client_software_name="", client_software_version="")),
                (random.randint(2, 7), wire.ListOffsetsRequest(
                    topics=(wire.ListOffsetsTopic(name=_TOPIC, partitions=(listed,)),))),
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


async def _answers(both: Sequence[QuotaTwin], step: Step, number: int) -> list[Any]:
    """What is compared, with the throttle time."""
    is_silent = isinstance(step.message, wire.ProduceRequest) and step.message.acks == 0
    found: list[Any] = []
    clients = [twin.of(step.user, step.client_id) for twin in both]
    try:
        for client in clients:
            await client.log_in()
            if is_silent:
                await client.send(step.message, step.version)
                found.append({})
                continue
            if isinstance(step.message, wire.AlterClientQuotasRequest) and step.user == _ADMIN:
                answer = await client.alter(step.message, step.version, number)
            else:
                answer = await client.ask(step.message, step.version)
            client.compares_texts = isinstance(step.message, _TOLD)
            shown = client.comparable(answer)
            if isinstance(shown, dict):
                if len(names := getattr(step.message, "topics", None) or ()) > 1 and isinstance(
                    step.message, _CONCERNED
                ):
                    shown = {"codes": sorted(each["error_code"] for each in shown["topics"]), "of": len(names)}
                shown["throttle"] = getattr(answer, "throttle_time_ms", None)
            found.append(shown)
        if step.checks_mute and all(isinstance(each, dict) for each in found):
            for client in clients:
                await client.send(wire.ApiVersionsRequest(), 0)
            for each, is_answered in zip(found, await _are_answered(clients), strict=True):
                each["answers another"] = is_answered
    finally:
        for client in clients:
            await client.disconnect()
    return found


async def _are_answered(clients: Sequence[QuotaTwin]) -> list[bool]:
    """Whether each gets an answer at once; if one does, the other has longer."""
    found = [False] * len(clients)
    async with trio.open_nursery() as nursery:

        async def wait(i: int) -> None:
            found[i] = await clients[i].has_answer()
            if any(found):
                nursery.cancel_scope.deadline = trio.current_time() + (0 if all(found) else PATIENCE_S / 4)

        nursery.cancel_scope.deadline = trio.current_time() + _MUTED_S
        for i in range(len(clients)):
            nursery.start_soon(wait, i)
    return found


def _evened(kafkas: Any, ours: Any) -> None:
    """Throttle times are the same within the tolerance."""
    if isinstance(kafkas, dict) and isinstance(ours, dict):
        times = kafkas.get("throttle"), ours.get("throttle")
        if None not in times and abs(times[0] - times[1]) <= _TOLERANCE_MS:
            ours["throttle"] = times[0]


@asynccontextmanager
async def _twins(folder: Path) -> AsyncIterator[tuple[QuotaTwin, QuotaTwin]]:
    async with clusters(folder, SETTINGS) as (kafka, _, cluster):
        both = (
            QuotaTwin("Kafka", kafka.address, "nowhere"),
            QuotaTwin("ours", cluster.bootstrap_servers(), "nowhere"),
        )
        topic = wire.CreatableTopic(name=_TOPIC, num_partitions=2, replication_factor=1)
        for twin in both:
            await twin.log_in()
            with trio.fail_after(PATIENCE_S):
                while True:
                    answer = await twin.ask(wire.CreateTopicsRequest(topics=(topic,), timeout_ms=20_000), 5)
                    assert isinstance(answer, wire.CreateTopicsResponse), answer
                    if answer.topics[0].error_code != ErrorCode.INVALID_REPLICATION_FACTOR:
                        break
                    await trio.sleep(0.05)
        try:
            yield both
        finally:
            for twin in both:
                await twin.disconnect()


async def run(folder: Path, *, seed: int, steps: int) -> list[str]:
    """A report on each request whose answers differ."""
    reports: list[str] = []
    async with _twins(folder) as both:
        script = Script(Random(seed), int(time.time() * 1000))
        for twin in both:
            await twin.alter(script.first(), 1, 1)
        for number in range(steps):
            step = script.next()
            kafkas, ours = await _answers(both, step, number + 2)
            _evened(kafkas, ours)
            if found := list(differences(kafkas, ours)):
                lines = "\n    ".join(found)
                reports.append(f"seed {seed}, step {number}: {str(step)[:1500]}\n    {lines}")
                if len(reports) == _ENOUGH:
                    break
            if isinstance(step.message, _CONCERNED):
                script.learn(step, kafkas)
    return reports


def main() -> int:
    arguments = command("python -m tests.interop.quota_twins", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), seed=arguments.seed, steps=arguments.steps))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
