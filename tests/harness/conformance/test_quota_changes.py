"""DCC, CMT: quotas that change while a broker runs, and the quota of partitions that are created and deleted.

`unit/kafka/server/` DynamicConfigChangeTest (section 14 of docs/controller-semantics.md), ControllerMutationQuotaTest
(section 12 of docs/broker-semantics.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.connection_limits import UNLIMITED
from kce.broker_stub.quotas.client_quota import UNLIMITED as NO_LIMIT
from kce.broker_stub.quotas.entities import Client
from kce.wire import ErrorCode
from tests.harness.conformance.quotas import Entity, Quotas, alteration, results
from tests.harness.conformance.records import Clients, clients

kafka = pytest.mark.kafka
USER = "ANONYMOUS"
NONE, EXCEEDED = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
async def cluster() -> AsyncIterator[Clients]:
    samples = {"controller.quota.window.num": "10", "controller.quota.window.size.seconds": "1"}
    async with clients(1, properties=samples) as c:
        await c.cluster.wait_for_controller()
        yield c


@pytest.mark.parametrize(
    "entity",
    [
        pytest.param({"client-id": "testClient"}, marks=kafka("DCC-4")),
        pytest.param({"user": USER}, marks=kafka("DCC-5")),
        pytest.param({"user": USER, "client-id": "testClient"}, marks=kafka("DCC-6")),
        pytest.param({"client-id": None}, marks=kafka("DCC-7")),
        pytest.param({"user": None}, marks=kafka("DCC-8")),
        pytest.param({"user": None, "client-id": None}, marks=kafka("DCC-9")),
    ],
)
async def test_a_quota_applies_and_is_removed(cluster: Clients, entity: Entity) -> None:
    quotas = cluster.node(1).broker.client_quotas

    async def wait_for(*limits: float) -> None:
        async def apply() -> bool:
            return (quotas.produce.limit_of(USER, "testClient"), quotas.fetch.limit_of(USER, "testClient")) == limits

        await cluster.cluster.wait_until(apply, f"the limits {limits}")

    await Quotas(cluster).alter(entity, producer_byte_rate=1000, consumer_byte_rate=2000)
    await wait_for(1000, 2000)
    await Quotas(cluster).alter(entity, producer_byte_rate=None, consumer_byte_rate=None)
    await wait_for(NO_LIMIT, NO_LIMIT)


@kafka("DCC-12")
async def test_rates_of_addresses_apply_and_are_removed(cluster: Clients) -> None:  # rule B1.50
    limits = cluster.node(1).broker.socket_server.quotas

    async def wait_for(one: float, other: float) -> None:
        async def apply() -> bool:
            return (limits.ip_rate("1.2.3.4"), limits.ip_rate("2.3.4.5")) == (one, other)

        await cluster.cluster.wait_until(apply, f"the rates {one} and {other}")

    request = alteration(
        [({"ip": None}, {"connection_creation_rate": 20}), ({"ip": "1.2.3.4"}, {"connection_creation_rate": 10})]
    )
    assert set(results(await cluster.ask(1, request, 1)).values()) == {(NONE, None)}
    await wait_for(10, 20)
    await Quotas(cluster).alter({"ip": "1.2.3.4"}, connection_creation_rate=None)
    await wait_for(20, 20)
    await Quotas(cluster).alter({"ip": None}, connection_creation_rate=None)
    await wait_for(UNLIMITED, UNLIMITED)


class Mutations:
    """Topics of one client of node 1. The quota of a user is defined with ``limit``."""

    def __init__(self, cluster: Clients) -> None:
        self.cluster = cluster
        self.quota = cluster.node(1).broker.client_quotas.controller_mutation

    async def limit(self, user: str, rate: float | None) -> None:
        await Quotas(self.cluster).alter({"user": user}, controller_mutation_rate=rate)

        async def applies() -> bool:
            return self.quota.limit_of(user, "") == (NO_LIMIT if rate is None else rate)

        await self.cluster.cluster.wait_until(applies, f"a rate of {rate}")

    async def create(self, topics: Mapping[str, int], version: int = 7) -> tuple[int, dict[str, ErrorCode]]:
        """For how many ms the client is throttled; the codes."""
        wanted = tuple(
            wire.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics.items()
        )
        answer = await self.cluster.ask(1, wire.CreateTopicsRequest(topics=wanted, timeout_ms=60_000), version)
        return self._told(answer, answer.topics)

    async def delete(self, topics: Mapping[str, int], version: int = 6) -> tuple[int, dict[str, ErrorCode]]:
        by_name = tuple(wire.DeleteTopicState(name=name) for name in topics) if version >= 6 else ()
        request = wire.DeleteTopicsRequest(topics=by_name, topic_names=tuple(topics), timeout_ms=60_000)
        answer = await self.cluster.ask(1, request, version)
        return self._told(answer, answer.responses)

    async def extend(self, topics: Mapping[str, int], version: int = 3) -> tuple[int, dict[str, ErrorCode]]:
        wanted = tuple(
            wire.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in topics.items()
        )
        answer = await self.cluster.ask(1, wire.CreatePartitionsRequest(topics=wanted, timeout_ms=60_000), version)
        return self._told(answer, answer.results)

    def _told(self, answer: Any, entries: Any) -> tuple[int, dict[str, ErrorCode]]:
        return answer.throttle_time_ms, {entry.name: ErrorCode(entry.error_code) for entry in entries}


@pytest.fixture
async def mutations(cluster: Clients) -> Mutations:
    made = Mutations(cluster)
    await made.limit("ThrottledPrincipal", 2)
    return made


ONE, THIRTY, THIRTY_ONE = ({"topic-1": count, "topic-2": count} for count in (1, 30, 31))
BOTH_DONE = {"topic-1": NONE, "topic-2": NONE}


@kafka("CMT-1")
async def test_a_quota_is_set_and_unset(mutations: Mutations) -> None:
    assert mutations.quota.limit_of("User", "") == NO_LIMIT
    await mutations.limit("User", 1.5)
    await mutations.limit("User", None)


@kafka("CMT-2")
async def test_what_is_measured(mutations: Mutations) -> None:
    await mutations.limit(USER, 2)
    assert Client(USER, "") not in mutations.quota.clients
    assert await mutations.create({"topic": 1}) == (0, {"topic": NONE})
    sensors = mutations.quota.clients[Client(USER, "")]
    assert (sensors.limit, mutations.quota.samples, mutations.quota.window_ms) == (2, 10, 1000)
    await mutations.limit(USER, 4)
    assert mutations.quota.clients[Client(USER, "")].limit == 4


async def refused_then_done(change: Any, topics: Mapping[str, int]) -> None:
    """A strict quota: one topic is done, the other after its throttle time."""
    throttle_ms, codes = await change(topics)
    assert 0 < throttle_ms <= 5000
    assert sorted(codes.values()) == sorted([NONE, EXCEEDED])
    (rejected,) = (name for name, code in codes.items() if code == EXCEEDED)
    await trio.sleep(throttle_ms / 1000)
    assert await change({rejected: topics[rejected]}) == (0, {rejected: NONE})


@kafka("CMT-3")
async def test_creations_beyond_a_strict_quota(mutations: Mutations) -> None:
    await mutations.limit(USER, 2)
    await refused_then_done(mutations.create, THIRTY)


@kafka("CMT-4")
async def test_creations_beyond_a_permissive_quota(mutations: Mutations) -> None:
    await mutations.limit(USER, 2)
    throttle_ms, codes = await mutations.create(THIRTY, 5)
    assert 0 < throttle_ms <= 20_000
    assert codes == BOTH_DONE


@kafka("CMT-5")
async def test_creations_of_another_user(mutations: Mutations) -> None:
    assert await mutations.create(THIRTY) == (0, BOTH_DONE)


@kafka("CMT-6")
async def test_deletions_beyond_a_strict_quota(mutations: Mutations) -> None:
    await mutations.create(THIRTY)
    await mutations.limit(USER, 2)
    await refused_then_done(mutations.delete, THIRTY)


@kafka("CMT-7")
async def test_deletions_beyond_a_permissive_quota(mutations: Mutations) -> None:
    await mutations.create(THIRTY)
    await mutations.limit(USER, 2)
    throttle_ms, codes = await mutations.delete(THIRTY, 4)
    assert 0 < throttle_ms <= 20_000
    assert codes == BOTH_DONE


@kafka("CMT-8")
async def test_deletions_of_another_user(mutations: Mutations) -> None:
    await mutations.create(THIRTY)
    assert await mutations.delete(THIRTY) == (0, BOTH_DONE)


@kafka("CMT-9")
async def test_partitions_beyond_a_strict_quota(mutations: Mutations) -> None:
    await mutations.create(ONE)
    await mutations.limit(USER, 2)
    await refused_then_done(mutations.extend, THIRTY_ONE)


@kafka("CMT-10")
async def test_partitions_beyond_a_permissive_quota(mutations: Mutations) -> None:
    await mutations.create(ONE)
    await mutations.limit(USER, 2)
    throttle_ms, codes = await mutations.extend(THIRTY_ONE, 2)
    assert 0 < throttle_ms <= 20_000
    assert codes == BOTH_DONE


@kafka("CMT-11")
async def test_partitions_of_another_user(mutations: Mutations) -> None:
    await mutations.create(ONE)
    assert await mutations.extend(THIRTY_ONE) == (0, BOTH_DONE)
