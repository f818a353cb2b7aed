"""A real broker and ours are asked the same, request by request, and have to answer the same.

    python -m tests.interop.twins [--damaged] --seed 5 --steps 1000

Answers are compared field by field: what is different for good (addresses, ids, times, texts of errors) is left out,
names replace ids, and arrays have no order, which in Kafka is often that of a hash table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from kazoo.client import KazooClient

from kce import Cluster, wire
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.wire import ErrorCode
from kce.wire.batch_header import read_headers
from tests.interop.damage import Damage, random_damage
from tests.interop.random_requests import (
    BAD_TEXT,
    CLIENTS,
    CONTROLLERS,
    GROUPS,
    RESTRICTED,
    TOPICS,
    TRANSACTIONS,
    UNKNOWN_ID,
    Asked,
    Given,
    Node,
    Requests,
    text_of,
)
from tests.interop.real_kafka import RealBroker, real_brokers

#: the second has so much longer to answer, if the first has answered
PATIENCE_S: Final = 20.0
#: after that an answer of neither is none: a member that waits for others
_WAITING_S: Final = 3.0
_NO_ANSWER: Final = "no answer"
#: of the requests of a run with damaged ones
_DAMAGED_PART: Final = 0.8
#: in damaged requests in the place of what brokers gave: both get the same bytes
_STRANGE: Final[Mapping[str, Any]] = {
    "member": f"twin-{UNKNOWN_ID}", "producer": 77, "epoch": 0, "session": 77, "directory": "/nowhere",
    "broker epoch": -1,
}  # fmt: skip
#: with another timeout, or not only to validate, each obeys at a time of its own; and Kafka hangs on some members
_UNDAMAGED: Final = frozenset(
    {"CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs", "AlterClientQuotas"}
    | {"JoinGroup", "SyncGroup"}
)
_START_S: Final = 60.0
SETTINGS: Final = {
    "offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "3", "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1", "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false", "auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "60000",
}  # fmt: skip
_LEFT_OUT: Final = frozenset(
    {"throttle_time_ms", "host", "port", "cluster_id", "session_id", "usable_bytes", "total_bytes", "client_host"}
    | {"client_id", "batch_index_error_message", "documentation"}
)
_PARTITIONS: Final = ("partitions", "results_by_partition", "partition_responses", "partition_result")
#: only their sign is compared
_SIGNS: Final = frozenset(
    {"log_append_time_ms", "last_timestamp", "transaction_start_time_ms", "timestamp", "finalized_features_epoch"}
)
#: tell the elements of an array apart
_NAMES: Final = (
    "name", "topic", "topic_name", "topic_id", "resource_type", "resource_name", "index", "partition_index",
    "partition_id", "partition", "group_id", "transactional_id", "producer_id", "key", "api_key", "log_dir", "user",
)  # fmt: skip
#: what others than these may do with resources that have ACLs
AUTHORIZER: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "allow.everyone.if.no.acl.found": "true",
}  # fmt: skip
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = 2, 3, 4, 5
_READ, _WRITE, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALL = 3, 4, 8, 9, 10, 2
_ALLOW, _LITERAL = 3, 3
#: of the twins' client, which is nobody, like the broker itself: resource type, name, and operations; the cluster last,
#: because then nobody may change them any more. Some resources belong to Alice
ACLS: Final[Sequence[tuple[int, str, str, Sequence[int]]]] = (
    (_TOPIC, "t2", "alice", (_ALL,)),
    (_TOPIC, "c1", "ANONYMOUS", (_READ,)),
    (_TOPIC, "t1", "ANONYMOUS", (_WRITE, _DESCRIBE_CONFIGS)),
    (_GROUP, "g1", "ANONYMOUS", (_READ,)),
    (_GROUP, "g2", "alice", (_ALL,)),
    (_TRANSACTIONAL_ID, "tx1", "ANONYMOUS", (_WRITE,)),
    (_TRANSACTIONAL_ID, "tx2", "alice", (_ALL,)),
    (_CLUSTER, "kafka-cluster", "ANONYMOUS", (_CLUSTER_ACTION, _DESCRIBE)),
)
#: of a coordinator that is not there, or is being loaded
_NOT_YET: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
)  # fmt: skip
#: Kafka's requests that are never answered
_UNANSWERED: Final = {
    "WriteTxnMarkers": "markers without partitions that are here come after others",
}
_NO_ID: Final = uuid.UUID(int=0)
#: two texts to Java, the second of them a surrogate cut off
_NOT_UTF_8: Final = b"\xff\xed\xa0"
#: the version of ids that brokers make; both are asked about the same others
_RANDOM_ID: Final = 4
_UNKNOWN_SERVER_ERROR: Final = re.compile(r"error_code': -1\b")
_MEMBER: Final = re.compile(r"(twin|i[12])?-[0-9a-f-]{36}")


class Twin:
    """One of the two brokers, a client's connection to it, and what it has given."""

    def __init__(self, name: str, address: str, directory: str, broker_epoch: int = -1) -> None:
        self.name = name
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)
        self._stream: trio.SocketStream | None = None
        self._given: dict[Given, Any] = {Given("directory"): directory} | {
            Given("broker epoch", text): broker_epoch + int(text or 0) for text in ("", "-1", "+1")
        }
        self._names: dict[uuid.UUID, str] = {_NO_ID: "no id", UNKNOWN_ID: "an unknown id"}
        #: done to what is asked
        self.damage: Damage | None = None

    async def ask(self, message: wire.Message, version: int, *, limit_s: float = PATIENCE_S) -> wire.Message | str:
        """The answer; or "closed", or "no answer" after ``limit_s``, and then the next request has a new connection."""
        if self._stream is None:
            self._stream = await trio.open_tcp_stream(*self._address)
        request = self.encoded(message, version)
        answer = _NO_ANSWER
        with trio.move_on_after(limit_s):
            try:
                await self._stream.send_all(wire.frame(request))
                frame = await self._frame(self._stream)
            except trio.BrokenResourceError:
                frame = None
            if frame is not None:
                made = wire.decode_response(frame, api_key=message.__api_key__, api_version=version)[1]
                if self.damage is None:
                    self._learn(message, made)
                return made
            answer = "closed"
        await self.disconnect()
        return answer

    def encoded(self, message: wire.Message, version: int) -> bytes:
        """As it is sent."""
        request = wire.encode_request(message, api_version=version, correlation_id=1, client_id="twin")
        request = request.replace(BAD_TEXT.encode(), _NOT_UTF_8)
        return request if self.damage is None else self.damage(request)

    async def disconnect(self) -> None:
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
        self._stream = None

    async def _frame(self, stream: trio.SocketStream) -> bytes | None:
        frames = wire.FrameBuffer(max_frame_bytes=1 << 30)
        while (frame := frames.next_frame()) is None:
            data = await stream.receive_some(1 << 20)
            if not data:
                return None
            frames.receive_data(data)
        return frame

    def _learn(self, message: wire.Message, answer: wire.Message) -> None:
        match answer:
            case wire.MetadataResponse() | wire.CreateTopicsResponse():
                for topic in answer.topics:
                    if not topic.error_code and topic.topic_id.version == _RANDOM_ID:
                        self._names[topic.topic_id] = topic.name or ""
                        self._given[Given("topic", topic.name or "")] = topic.topic_id
            case wire.JoinGroupResponse() if answer.member_id:
                assert isinstance(message, wire.JoinGroupRequest)
                self._given[Given("member", message.group_id)] = answer.member_id
            case wire.InitProducerIdResponse() if not answer.error_code:
                assert isinstance(message, wire.InitProducerIdRequest)
                self._given[Given("producer", message.transactional_id or "")] = answer.producer_id
                self._given[Given("epoch", message.transactional_id or "")] = answer.producer_epoch
            case wire.FetchResponse() if answer.session_id:
                self._given[Given("session")] = answer.session_id

    def made(self, value: Any) -> Any:
        """A message of a node."""
        match value:
            case Given() if self.damage is not None:
                return uuid.uuid5(UNKNOWN_ID, value.of) if value.kind == "topic" else _STRANGE[value.kind]
            case Given():
                nothing = {"topic": _NO_ID, "member": "none", "producer": 77, "epoch": 0, "session": 0}
                return self._given.get(value, nothing.get(value.kind))
            case Node():
                return value.cls(**{name: self.made(of) for name, of in value.values.items()})
            case list():
                return tuple(map(self.made, value))
        return value

    def comparable(self, value: Any, name: str = "") -> Any:
        """What both must answer, of an answer or a part of it."""
        if name == "error_message":  # an empty one is shown; without one clients have their own
            return value == ""
        match value:
            case uuid.UUID():
                return self._names.get(value, "an id" if value.version == _RANDOM_ID else str(value))
            case str():
                directory = self._given[Given("directory")]
                return _MEMBER.sub("a member", value.replace(directory, "the directory"))
            case tuple():
                found = (self.comparable(one, name) for one in value)
                return sorted((one for one in found if self.damage is None or not _has_no_partitions(one)), key=_order)
            case bytes() | bytearray() | memoryview():
                return (_without_times(value) if name == "records" else bytes(value)).hex()
            case int() if name in _SIGNS:
                return (value > 0) - (value < 0)
        if hasattr(value, "__fields__"):
            fields = (field.name for field in value.__fields__ if field.name not in _LEFT_OUT)
            return {field: self.comparable(getattr(value, field), field) for field in fields}
        return value


def _has_no_partitions(value: Any) -> bool:
    """Of a topic of which nothing was asked Kafka answers something or nothing, by API and error."""
    return isinstance(value, dict) and any(value.get(name) == [] for name in _PARTITIONS)


def _without_times(records: bytes | bytearray | memoryview) -> bytes:
    """Of batches of magic 2, also of one that is cut off, without times and checksums: those of markers differ."""
    blank = bytearray(records)
    begins = [0, *(at + header.size for at, header in read_headers(bytes(records)))]
    for begin, end in ((at + begin, at + end) for at in begins for begin, end in ((17, 21), (27, 43))):
        blank[begin:end] = bytes(len(blank[begin:end]))
    return bytes(blank)


def _order(value: Any) -> str:
    if isinstance(value, dict) and (names := [value[name] for name in _NAMES if name in value]):
        value = names
    return json.dumps(value, default=str)


def differences(kafkas: Any, ours: Any, where: str = "") -> Iterator[str]:
    """One line for each."""
    if isinstance(kafkas, dict) and isinstance(ours, dict):
        for name, value in kafkas.items():
            yield from differences(value, ours[name], f"{where}.{name}")
    elif isinstance(kafkas, list) and isinstance(ours, list) and len(kafkas) == len(ours):
        for i, (one, other) in enumerate(zip(kafkas, ours, strict=True)):
            yield from differences(one, other, f"{where}[{i}]")
    elif kafkas != ours:
        yield f"{where or 'answer'}: Kafka's {str(kafkas)[:300]}, ours {str(ours)[:300]}"


@asynccontextmanager
async def clusters(folder: Path, properties: Mapping[str, str]) -> AsyncIterator[tuple[RealBroker, str, Cluster]]:
    """Kafka's broker, its place in ZooKeeper, and our cluster, with the same settings."""
    properties = {**SETTINGS, **properties}
    settings = {name.replace(".", "_"): value for name, value in properties.items()}
    async with (
        embedded_zookeeper(folder) as zookeeper,
        real_brokers([1], f"{zookeeper}/kafka", folder / "kafka", **settings) as brokers,
        Cluster(1, processes=True, data=folder / "ours", log_level="ERROR", properties=properties) as cluster,
    ):
        await cluster.wait_for_controller()
        yield brokers[1], f"{zookeeper}/kafka", cluster


@asynccontextmanager
async def twins(folder: Path, *, restricted: bool = False) -> AsyncIterator[tuple[Twin, Twin]]:
    """Real Kafka and ours, alone in clusters with the same settings, topics and internal topics.

    ``restricted``: with an authorizer, and ``ACLS``.
    """
    async with clusters(folder, AUTHORIZER if restricted else {}) as (kafka, zookeeper, cluster):
        bootstrap = cluster.bootstrap_servers()
        both = (
            Twin("Kafka", kafka.address, str(kafka.folder / "data"), await _epoch(zookeeper)),
            Twin("ours", bootstrap, await directory(bootstrap), await _epoch(cluster.zookeeper)),
        )
        try:
            for twin in both:
                await _prepare(twin)
                if restricted:
                    await _restrict(twin)
            yield both
        finally:
            for twin in both:
                await twin.disconnect()


async def _epoch(zookeeper: str) -> int:
    """The epoch of broker 1."""

    def read() -> int:
        client = KazooClient(zookeeper)
        client.start()
        try:
            return int(client.exists("/brokers/ids/1").czxid)
        finally:
            client.stop()
            client.close()

    return await trio.to_thread.run_sync(read)


async def directory(address: str) -> str:
    twin = Twin("", address, "?")
    answer = await twin.ask(wire.DescribeLogDirsRequest(topics=None), 1)
    await twin.disconnect()
    assert isinstance(answer, wire.DescribeLogDirsResponse)
    return answer.results[0].log_dir


async def _prepare(twin: Twin) -> None:
    """Topics, and a coordinator of each kind for every key."""
    topics = tuple(
        wire.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in TOPICS.items()
    )
    created = await twin.ask(wire.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 7)
    assert isinstance(created, wire.CreateTopicsResponse)
    assert not any(topic.error_code for topic in created.topics)
    with trio.fail_after(_START_S):
        for kind in (0, 1):  # makes the internal topic
            await twin.ask(wire.FindCoordinatorRequest(key="key", key_type=kind), 2)
        probes: list[wire.Message] = [wire.HeartbeatRequest(group_id=key) for key in GROUPS if key]
        probes.append(wire.InitProducerIdRequest())  # the first takes a block of ids
        probes += [wire.EndTxnRequest(transactional_id=key) for key in TRANSACTIONS if key]
        for probe in probes:
            while True:
                answer = await twin.ask(probe, 0)
                assert isinstance(answer, wire.HeartbeatResponse | wire.EndTxnResponse | wire.InitProducerIdResponse)
                if answer.error_code not in _NOT_YET:
                    break
                await trio.sleep(0.05)


async def _restrict(twin: Twin) -> None:
    """Create the ACLs, and wait until the broker obeys the last one."""
    for kind, name, who, operations in ACLS:
        creations = tuple(
            wire.AclCreation(
                resource_type=kind, resource_name=name, resource_pattern_type=_LITERAL, principal=f"User:{who}",
                host="*", operation=operation, permission_type=_ALLOW,
            )
            for operation in operations
        )  # fmt: skip
        created = await twin.ask(wire.CreateAclsRequest(creations=creations), 3)
        assert isinstance(created, wire.CreateAclsResponse)
        assert not any(result.error_code for result in created.results)
    with trio.fail_after(_START_S):
        while True:
            request = wire.DescribeClientQuotasRequest(components=(), strict=False)
            answer = await twin.ask(request, 1)
            assert isinstance(answer, wire.DescribeClientQuotasResponse)
            if answer.error_code:
                return
            await trio.sleep(0.05)


async def versions(both: tuple[Twin, Twin]) -> Mapping[int, tuple[int, int]]:
    """Of the APIs, the same of both."""
    known = []
    for twin in both:
        answer = await twin.ask(wire.ApiVersionsRequest(), 0)
        assert isinstance(answer, wire.ApiVersionsResponse)
        known.append({api.api_key: (api.min_version, api.max_version) for api in answer.api_keys})
    assert known[0] == known[1]
    return known[0]


async def compare(both: tuple[Twin, Twin], request: Asked) -> list[str]:
    """How the answers differ."""
    answers: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def ask(twin: Twin) -> None:
            answer = await twin.ask(twin.made(request.body), request.version)
            while _is_concurrent(answer):  # nothing has changed yet; the end of a transaction is on its way
                await trio.sleep(0.02)
                answer = await twin.ask(twin.made(request.body), request.version)
            answers[twin.name] = twin.comparable(answer)
            done.set()

        for twin in both:
            nursery.start_soon(ask, twin)
        with trio.move_on_after(_WAITING_S):
            await done.wait()
        if not done.is_set():
            nursery.cancel_scope.cancel()
    if not answers:
        for twin in both:
            await twin.disconnect()
    kafkas = answers.get(both[0].name)
    is_damaged = both[0].damage is not None
    if kafkas == _NO_ANSWER and (request.api in _UNANSWERED or is_damaged):  # by records that are null, for example
        return []
    if is_damaged and _UNKNOWN_SERVER_ERROR.search(str(kafkas)):
        return []  # Kafka itself has failed
    return list(differences(*(answers.get(twin.name) for twin in both)))


def _is_concurrent(answer: wire.Message | str) -> bool:
    return not isinstance(answer, str) and ErrorCode.CONCURRENT_TRANSACTIONS in wire.error_counts(answer)


async def run(
    folder: Path,
    *,
    seed: int,
    steps: int,
    weights: Mapping[str, int] = CLIENTS,
    restricted: bool = False,
    damaged: bool = False,
) -> list[str]:
    """A report on each request whose answers differ. ``damaged``: most requests are."""
    reports = []
    random = Random(seed)
    async with twins(folder, restricted=restricted) as both:
        requests = Requests(Random(seed), await versions(both), weights, int(time.time() * 1000))
        for step in range(steps):
            request = requests.next()
            is_damaged = damaged and request.api not in _UNDAMAGED and random.random() < _DAMAGED_PART
            damage = random_damage(random) if is_damaged else None
            for twin in both:
                twin.damage = damage
            found = await compare(both, request)
            if found:
                lines = "\n    ".join(found)
                reports.append(
                    f"seed {seed}, step {step}: {request.api} {request.version} {text_of(request.body)}"
                    f"\n    sent as {both[1].encoded(both[1].made(request.body), request.version).hex()}\n    {lines}"
                )
    return reports


def command(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The options of a comparison; ``finish`` prints its result."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Prints each request whose answers differ, and exits with 1 if there is one.",
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed asks the same requests (default: 1)")
    parser.add_argument("--steps", type=int, default=1000, help="how many requests to ask (default: 1000)")
    return parser


def finish(reports: Sequence[str], steps: int) -> int:
    print("\n".join(reports) or f"{steps} requests were answered alike")
    return bool(reports)


def main() -> int:
    parser = command("python -m tests.interop.twins", __doc__)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--controller", action="store_true", help="requests of controllers, not of all clients")
    parser.add_argument("--damaged", action="store_true", help="damage most requests on their way")
    kind.add_argument("--restricted", action="store_true", help="with an authorizer, and ACLs that allow some of it")
    arguments = parser.parse_args()
    weights = CONTROLLERS if arguments.controller else RESTRICTED if arguments.restricted else CLIENTS
    options = {
        "seed": arguments.seed,
        "steps": arguments.steps,
        "restricted": arguments.restricted,
        "damaged": arguments.damaged,
    }
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), weights=weights, **options))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
