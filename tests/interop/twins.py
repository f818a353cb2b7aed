"""A real broker and ours are asked the same, request by request, and have to answer the same.

    python -m tests.interop.twins [--damaged] --seed 5 --steps 1000

What is compared: ``twin.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final, TypeAlias, TypeVar

import trio
from kazoo.client import KazooClient

from kce import Cluster, wire
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.wire import ErrorCode
from tests.interop.damage import random_damage
from tests.interop.random_requests import (
    ADMINS,
    CLIENTS,
    CONTROLLERS,
    GROUPS,
    RESTRICTED,
    TOPICS,
    TRANSACTIONS,
    Requests,
    text_of,
)
from tests.interop.real_kafka import RealBroker, real_brokers
from tests.interop.twin import Twin, compare

#: of the requests of a run with damaged ones
_DAMAGED_PART: Final = 0.8
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
#: what others than these may do with resources that have ACLs
AUTHORIZER: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "allow.everyone.if.no.acl.found": "true",
}  # fmt: skip
#: the twins' client is one
SUPER_USERS: Final = {**AUTHORIZER, "super.users": "User:ANONYMOUS"}
_ATTEMPTS: Final = 4
_EFFECT_S: Final = 0.25
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
#: shuts both down if that is to be clean, else kills them, and waits until they are ready again
Restart: TypeAlias = Callable[[bool], Awaitable[None]]
#: of a coordinator that is not there, or is being loaded
_NOT_YET: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
)  # fmt: skip
T = TypeVar("T", bound=Twin)


@asynccontextmanager
async def clusters(folder: Path, properties: Mapping[str, str]) -> AsyncIterator[tuple[RealBroker, str, Cluster]]:
    """Kafka's broker, its place in ZooKeeper, and our cluster, with the same settings, each with its own {folder}."""
    theirs, ours = (
        {name: value.replace("{folder}", str(folder / own)) for name, value in {**SETTINGS, **properties}.items()}
        for own in ("kafka", "ours")
    )
    settings = {name.replace(".", "_"): value for name, value in theirs.items()}
    async with (
        embedded_zookeeper(folder) as zookeeper,
        real_brokers([1], f"{zookeeper}/kafka", folder / "kafka", **settings) as brokers,
        Cluster(1, processes=True, data=folder / "ours", log_level="ERROR", properties=ours) as cluster,
    ):
        await cluster.wait_for_controller()
        yield brokers[1], f"{zookeeper}/kafka", cluster


@asynccontextmanager
async def twins(
    folder: Path, *, restricted: bool = False, properties: Mapping[str, str] | None = None, kind: type[T] = Twin
) -> AsyncIterator[tuple[T, T]]:
    """``restartable_twins`` that are not restarted."""
    async with restartable_twins(folder, restricted=restricted, properties=properties, kind=kind) as (both, _):
        yield both


@asynccontextmanager
async def restartable_twins(
    folder: Path, *, restricted: bool = False, properties: Mapping[str, str] | None = None, kind: type[T] = Twin
) -> AsyncIterator[tuple[tuple[T, T], Restart]]:
    """Real Kafka and ours, alone in clusters with the same settings, topics and internal topics.

    ``restricted``: with an authorizer, and ``ACLS``. ``properties``: other settings.
    """
    settings = {**(properties or {}), **(AUTHORIZER if restricted else {})}
    async with clusters(folder, settings) as (kafka, zookeeper, cluster):
        bootstrap = cluster.bootstrap_servers()
        both = (
            kind("Kafka", kafka.address, str(kafka.folder / "data"), await broker_epoch(zookeeper)),
            kind("ours", bootstrap, await directory(bootstrap), await broker_epoch(cluster.zookeeper)),
        )

        try:
            for twin in both:
                await prepare(twin)
                if restricted:
                    await _restrict(twin)
            yield both, restarting(both, kafka, zookeeper, cluster, _ready)
        finally:
            for twin in both:
                await twin.disconnect()


def restarting(
    both: tuple[T, T], kafka: RealBroker, zookeeper: str, cluster: Cluster, ready: Callable[[T], Awaitable[None]]
) -> Restart:
    """Restarts them; each is ``ready`` afterwards."""

    async def restart_both(clean: bool) -> None:
        for twin in both:
            await twin.disconnect()
        await restart(kafka, zookeeper, cluster, clean=clean)
        for twin in both:
            await ready(twin)

    return restart_both


async def restart(kafka: RealBroker, zookeeper: str, cluster: Cluster, *, clean: bool) -> None:
    """Both, shut down or killed. They start when real Kafka's session has ended."""
    if clean:
        await kafka.shut_down()
        await cluster.stop(1)
    else:
        kafka.kill()
        await cluster.kill(1)

    def is_registered() -> bool:
        client = KazooClient(zookeeper)
        client.start()
        try:
            return bool(client.exists("/brokers/ids/1"))
        finally:
            client.stop()
            client.close()

    with trio.fail_after(_START_S):
        while True:
            if not await trio.to_thread.run_sync(is_registered):
                break
            await trio.sleep(0.1)
    await kafka.start()
    await cluster.start(1)


async def broker_epoch(zookeeper: str) -> int:
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


async def prepare(twin: Twin) -> None:
    """Topics, and coordinators."""
    topics = tuple(
        wire.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in TOPICS.items()
    )
    created = await twin.ask(wire.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 7)
    assert isinstance(created, wire.CreateTopicsResponse)
    assert not any(topic.error_code for topic in created.topics)
    await _ready(twin)


async def _ready(twin: Twin) -> None:
    """Wait until the broker leads all partitions, and for a coordinator of each kind for every key."""
    listed = tuple(
        wire.ListOffsetsTopic(
            name=name,
            partitions=tuple(wire.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(count)),
        )
        for name, count in TOPICS.items()
    )
    with trio.fail_after(_START_S):
        while True:
            offsets = await twin.ask(wire.ListOffsetsRequest(topics=listed), 7)
            assert isinstance(offsets, wire.ListOffsetsResponse)
            if not any(part.error_code for topic in offsets.topics for part in topic.partitions):
                break
            await trio.sleep(0.05)
        for kind in (0, 1):  # makes the internal topic
            await twin.ask(wire.FindCoordinatorRequest(key="key", key_type=kind), 2)
        probes: list[wire.Message] = [wire.HeartbeatRequest(group_id=key) for key in GROUPS if key]
        probes.append(wire.InitProducerIdRequest(transactional_id=None))  # the first takes a block of ids
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


async def versions(both: Sequence[Twin]) -> Mapping[int, tuple[int, int]]:
    """Of the APIs, the same of both."""
    known = []
    for twin in both:
        answer = await twin.ask(wire.ApiVersionsRequest(), 0)
        assert isinstance(answer, wire.ApiVersionsResponse)
        known.append({api.api_key: (api.min_version, api.max_version) for api in answer.api_keys})
    assert known[0] == known[1]
    return known[0]


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
    properties = SUPER_USERS if weights is ADMINS else {}
    async with twins(folder, restricted=restricted, properties=properties) as both:
        requests = Requests(Random(seed), await versions(both), weights, int(time.time() * 1000))
        for step in range(steps):
            request = requests.next()
            is_damaged = damaged and request.api not in _UNDAMAGED and random.random() < _DAMAGED_PART
            damage = random_damage(random) if is_damaged else None
            for twin in both:
                twin.damage = damage
            found = await compare(both, request)
            for _ in range(_ATTEMPTS):  # what was changed takes effect some time later
                if not found or weights is not ADMINS or not request.api.startswith("Describe"):
                    break
                await trio.sleep(_EFFECT_S)
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


def main_with_restarts(prog: str, description: str | None, run: Callable[..., Awaitable[list[str]]]) -> int:
    """The exit code of a comparison by ``run``, during which the brokers may be restarted."""
    parser = command(prog, description)
    parser.add_argument("--restarts", type=int, default=0, help="how often the brokers end and start (default: 0)")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "steps": arguments.steps, "restarts": arguments.restarts}
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), **options))
    return finish(reports, arguments.steps)


def finish(reports: Sequence[str], steps: int) -> int:
    print("\n".join(reports) or f"{steps} requests were answered alike")
    return bool(reports)


def main() -> int:
    parser = command("python -m tests.interop.twins", __doc__)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--controller", action="store_true", help="requests of controllers, not of all clients")
    parser.add_argument("--damaged", action="store_true", help="damage most requests on their way")
    kind.add_argument("--admin", action="store_true", help="requests of administrators, whose changes are made")
    kind.add_argument("--restricted", action="store_true", help="with an authorizer, and ACLs that allow some of it")
    arguments = parser.parse_args()
    weights = (
        CONTROLLERS
        if arguments.controller
        else ADMINS
        if arguments.admin
        else RESTRICTED
        if arguments.restricted
        else CLIENTS
    )
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
