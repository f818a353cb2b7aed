"""CQR: `unit/kafka/server/ClientQuotasRequestTest.scala` (section 12 of docs/broker-semantics.md).

Covers: broker_stub/quotas/administration.py.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kce.broker_stub.connection_limits import UNLIMITED
from kce.wire import ErrorCode
from tests.harness.conformance.quotas import Entity, Quotas, alteration, component, key_of, results
from tests.harness.conformance.records import Clients, clients

kafka = pytest.mark.kafka
PRODUCE, CONSUME, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
CONNECTIONS = "connection_creation_rate"
REFUSED = ErrorCode.INVALID_REQUEST


@pytest.fixture
async def cluster() -> AsyncIterator[Clients]:
    async with clients(1) as c:
        await c.cluster.wait_for_controller()
        yield c


@pytest.fixture
def quotas(cluster: Clients) -> Quotas:
    return Quotas(cluster)


@kafka("CQR-1")
async def test_quotas_are_added_updated_and_removed(quotas: Quotas) -> None:
    entity = {"user": "user", "client-id": "client-id"}
    assert await quotas.of(entity) == {}
    for changes, expected in (
        ({PRODUCE: 10000.0, CONSUME: 20000.0}, {PRODUCE: 10000, CONSUME: 20000}),
        ({PRODUCE: 15000.0}, {PRODUCE: 15000, CONSUME: 20000}),
        ({PRODUCE: None}, {CONSUME: 20000}),
        ({TIME: None}, {CONSUME: 20000}),
        ({PRODUCE: 5000.0}, {PRODUCE: 5000, CONSUME: 20000}),
        ({PRODUCE: 20000.0, CONSUME: None, TIME: 12.3}, {PRODUCE: 20000, TIME: 12.3}),
    ):
        await quotas.alter(entity, **changes)  # type: ignore[arg-type]
        assert await quotas.of(entity) == expected


@kafka("CQR-2")
async def test_a_validation_changes_nothing(quotas: Quotas) -> None:
    entity = {"user": "user"}
    before = {PRODUCE: 20000.0, TIME: 23.45}
    await quotas.alter(entity, **before)  # type: ignore[arg-type]
    assert await quotas.of(entity) == before
    for changes in (
        {CONSUME: 50000.0},
        {PRODUCE: 10000.0},
        {TIME: None},
        {PRODUCE: 10000.0, CONSUME: 50000.0, TIME: None},
    ):
        await quotas.alter(entity, validate_only=True, **changes)  # type: ignore[arg-type]
        assert await quotas.of(entity) == before


@kafka("CQR-3")
async def test_a_user_with_a_password(cluster: Clients, quotas: Quotas) -> None:
    credential = {"SCRAM-SHA-256": "salt=YQ==,stored_key=Yg==,server_key=Yw==,iterations=4096"}
    await cluster.cluster.zk.change_config("users", "user", credential)
    entity = {"user": "user"}
    assert await quotas.of(entity) == {}
    await quotas.alter(entity, **{PRODUCE: 10000.0, CONSUME: 20000.0})  # type: ignore[arg-type]
    assert await quotas.of(entity) == {PRODUCE: 10000, CONSUME: 20000}
    assert (await cluster.cluster.zk.get_config("users", "user")).items() >= credential.items()


@kafka("CQR-4")
async def test_quotas_of_addresses_apply(cluster: Clients, quotas: Quotas) -> None:  # rule B1.50
    one, default = {"ip": "1.2.3.4"}, {"ip": None}

    async def check(match: Any, expected: dict[str | None, float]) -> None:
        found = await quotas.describe(component("ip", match), strict=True)
        assert found == {(("ip", name),): {CONNECTIONS: rate} for name, rate in expected.items()}
        limits = cluster.node(1).broker.socket_server.quotas

        async def applied() -> bool:
            return all(limits.ip_rate(name or "2.3.4.5") == rate for name, rate in expected.items())

        await cluster.cluster.wait_until(applied, "the rates of addresses")

    await check(Any, {})
    await quotas.alter(one, **{CONNECTIONS: 100.0})  # type: ignore[arg-type]
    await check("1.2.3.4", {"1.2.3.4": 100})
    await quotas.alter(one, **{CONNECTIONS: 150.0})  # type: ignore[arg-type]
    await check("1.2.3.4", {"1.2.3.4": 150})
    await quotas.alter(default, **{CONNECTIONS: 200.0})  # type: ignore[arg-type]
    await check(None, {None: 200})
    await check(Any, {"1.2.3.4": 150, None: 200})
    await quotas.alter(one, **{CONNECTIONS: None})
    await check("1.2.3.4", {})
    await quotas.alter(default, **{CONNECTIONS: None})
    await check(Any, {})

    async def unlimited() -> bool:
        return cluster.node(1).broker.socket_server.quotas.ip_rate("1.2.3.4") == UNLIMITED

    await cluster.cluster.wait_until(unlimited, "no rate")


@kafka("CQR-5")
@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        ({"user": ""}, {TIME: 12.34}),
        ({"client-id": ""}, {TIME: 12.34}),
        ({"": "name"}, {TIME: 12.34}),
        ({}, {PRODUCE: 10000.5}),
        ({"user": "user"}, {"bad": 1.0}),
        ({"user": "user"}, {PRODUCE: 10000.5}),
    ],
)
async def test_requests_that_are_refused(quotas: Quotas, entity: Entity, changes: dict[str, float]) -> None:
    code, _ = await quotas.try_alter(entity, validate_only=True, **changes)
    assert code == REFUSED


@kafka("CQR-6")
@pytest.mark.parametrize("other", ["user", "client-id"])
async def test_addresses_do_not_mix_with_users(quotas: Quotas, other: str) -> None:
    code, text = await quotas.try_alter({other: "name", "ip": "1.2.3.4"}, validate_only=True, **{TIME: 12.34})
    assert code == REFUSED
    assert "Invalid quota entity combination" in str(text)


@kafka("CQR-7")
@pytest.mark.parametrize("name", ["not a valid host because it has spaces", "RFC2606.invalid"])
async def test_what_is_no_address(quotas: Quotas, name: str) -> None:
    code, text = await quotas.try_alter({"ip": name}, validate_only=True, **{CONNECTIONS: 50.0})
    assert code == REFUSED
    assert "not a valid IP" in str(text)


@kafka("CQR-8")
@pytest.mark.parametrize("other", ["user", "client-id"])
async def test_filters_of_addresses_do_not_mix_with_others(quotas: Quotas, other: str) -> None:
    answer = await quotas.ask(component("ip", Any), component(other, Any), strict=False)
    assert (answer.error_code, answer.entries) == (REFUSED, None)
    assert "Invalid entity filter component combination" in str(answer.error_message)


OF_CLIENTS: list[tuple[Entity, float]] = [
    ({"user": "user-1", "client-id": "client-id-1"}, 50.50),
    ({"user": "user-2", "client-id": "client-id-1"}, 51.51),
    ({"user": "user-3", "client-id": "client-id-2"}, 52.52),
    ({"user": None, "client-id": "client-id-1"}, 53.53),
    ({"user": "user-1", "client-id": None}, 54.54),
    ({"user": "user-3", "client-id": None}, 55.55),
    ({"user": "user-1"}, 56.56),
    ({"user": "user-2"}, 57.57),
    ({"user": "user-3"}, 58.58),
    ({"user": None}, 59.59),
    ({"client-id": "client-id-2"}, 60.60),
]
OF_ADDRESSES: list[tuple[Entity, float]] = [({"ip": "1.2.3.4"}, 10.0), ({"ip": "2.3.4.5"}, 20.0)]


@pytest.fixture
async def many(cluster: Clients, quotas: Quotas) -> Quotas:
    changes = [(entity, {TIME: value}) for entity, value in OF_CLIENTS]
    changes += [(entity, {CONNECTIONS: value}) for entity, value in OF_ADDRESSES]
    answer = results(await cluster.ask(1, alteration(changes), 1))
    assert answer == {key_of(entity): (ErrorCode.NONE, None) for entity, _ in changes}
    return quotas


@kafka("CQR-9")
async def test_filters_for_one_entity(many: Quotas) -> None:
    for entity, value in OF_CLIENTS:
        assert await many.of(entity) == {TIME: pytest.approx(value, abs=1e-6)}
    nobody: list[Entity] = [
        {"user": "user-1", "client-id": "client-id-2"},
        {"user": "user-3", "client-id": "client-id-1"},
        {"user": "user-2", "client-id": None},
        {"user": "user-4"},
        {"user": None, "client-id": "client-id-2"},
        {"client-id": "client-id-1"},
        {"client-id": "client-id-3"},
    ]
    for entity in nobody:
        assert await many.of(entity) == {}


@kafka("CQR-10")
async def test_filters_for_many_entities(many: Quotas) -> None:
    cases: list[tuple[list[tuple[str, Any]], bool, int, Callable[[Entity], bool]]] = [
        ([("user", "user-1")], False, 3, lambda e: e.get("user") == "user-1"),
        ([("user", "unknown")], False, 0, lambda e: False),
        ([("client-id", "client-id-2")], False, 2, lambda e: e.get("client-id") == "client-id-2"),
        ([("user", None)], False, 2, lambda e: "user" in e and e["user"] is None),
        ([("user", "user-2")], True, 1, lambda e: e.get("user") == "user-2" and "client-id" not in e),
        ([("client-id", "client-id-1")], True, 0, lambda e: False),
        ([("user", Any)], True, 4, lambda e: "user" in e and "client-id" not in e),
        ([("user", Any)], False, 10, lambda e: "user" in e),
        ([("client-id", Any)], True, 1, lambda e: "client-id" in e and "user" not in e),
        ([("client-id", Any)], False, 7, lambda e: "client-id" in e),
        ([("ip", Any)], False, 2, lambda e: "ip" in e),
        ([], False, 13, lambda e: True),
        ([], True, 0, lambda e: False),
    ]
    for components, strict, count, wanted in cases:
        found = await many.describe(*(component(*each) for each in components), strict=strict)
        expected = {key_of(entity): {TIME: value} for entity, value in OF_CLIENTS if wanted(entity)}
        expected |= {key_of(entity): {CONNECTIONS: value} for entity, value in OF_ADDRESSES if wanted(entity)}
        assert (len(found), found) == (count, expected)


@kafka("CQR-11")
async def test_other_types_of_entities(quotas: Quotas) -> None:
    answer = await quotas.ask(component("other", "name"), strict=True)
    assert (answer.error_code, answer.entries) == (ErrorCode.UNSUPPORTED_VERSION, None)


@kafka("CQR-12")
async def test_names_that_are_encoded_in_zookeeper(cluster: Clients, quotas: Quotas) -> None:
    entity = {"user": "user with spaces"}
    await quotas.alter(entity, **{PRODUCE: 20000.0})  # type: ignore[arg-type]
    assert await quotas.of(entity) == {PRODUCE: 20000}
    assert await cluster.cluster.zk.get_config("users", "user%20with%20spaces") == {PRODUCE: "20000"}


@kafka("CQR-13")
async def test_a_client_with_the_name_of_the_default(quotas: Quotas) -> None:
    entity = {"client-id": "<default>"}
    await quotas.alter(entity, **{PRODUCE: 20000.0})  # type: ignore[arg-type]
    assert await quotas.of(entity) == {PRODUCE: 20000}
    assert await quotas.describe(component("client-id", None), strict=True) == {}


# ours


async def test_an_empty_configuration_leaves_nothing_behind(cluster: Clients, quotas: Quotas) -> None:  # rule B8.15
    zk = cluster.cluster.zk
    both, user = {"user": "u", "client-id": "c"}, {"user": "u"}
    for entity in (both, user):
        await quotas.alter(entity, **{PRODUCE: 1.0})  # type: ignore[arg-type]
    await quotas.alter(user, **{PRODUCE: None})
    assert await zk.get_config("users", "u") == {}  # its client is below it
    assert await zk.get_config("users", "u/clients/c") == {PRODUCE: "1"}
    await quotas.alter(both, **{PRODUCE: None})
    assert await zk.get_children("/config/users") == []
    for entity in (both, user):
        await quotas.alter(entity, **{PRODUCE: 1.0})  # type: ignore[arg-type]
    await quotas.alter(both, **{PRODUCE: None})
    assert await zk.get_children("/config/users/u") == []
    assert await quotas.of(user) == {PRODUCE: 1}

    async def applied() -> bool:
        produce = cluster.node(1).broker.client_quotas.produce
        return (produce.limit_of("u", "c"), produce.limit_of("v", "c")) == (1, 2.0**63)

    await cluster.cluster.wait_until(applied, "the quota of the user alone")


async def test_an_entity_that_is_named_twice_is_answered_once(cluster: Clients, quotas: Quotas) -> None:
    entity = {"user": "u"}
    answer = await cluster.ask(1, alteration([(entity, {PRODUCE: 1.0}), (entity, {CONSUME: 2.5})]), 0)
    assert len(answer.entries) == 1
    assert results(answer)[key_of(entity)][0] == REFUSED
    assert await quotas.of(entity) == {PRODUCE: 1}


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [({"ip": "1.2.3.4"}, CONNECTIONS, -1.0), ({"user": "u"}, PRODUCE, -1.0), ({"ip": "1.2.3.4"}, PRODUCE, 1.0),
     ({"ip": "1.2.3.4"}, CONNECTIONS, 2.0**31), ({"client-id": "c"}, CONNECTIONS, 1.0), ({"ip": "::1"}, CONNECTIONS, 1),
     ({"client-id": "c"}, "SCRAM-SHA-256", 1.0), ({"user": "u"}, CONSUME, math.inf)],
)  # fmt: skip
async def test_values_and_keys_that_are_refused(quotas: Quotas, entity: Entity, key: str, value: float) -> None:
    code, text = await quotas.try_alter(entity, **{key: value})  # type: ignore[arg-type]
    assert (code, bool(text)) == (REFUSED, True)
    assert await quotas.of(entity) == {}


async def test_values_as_kafka_writes_them(cluster: Clients, quotas: Quotas) -> None:  # rule B8.17
    user, address = {"user": "u"}, {"ip": "localhost"}
    await quotas.alter(user, **{PRODUCE: 1.9999999, CONSUME: 0.0, TIME: math.inf})  # type: ignore[arg-type]
    await quotas.alter(address, **{CONNECTIONS: 3.0})  # type: ignore[arg-type]
    config = await cluster.cluster.zk.get_config("users", "u")
    assert config == {PRODUCE: "2", CONSUME: "0", TIME: "Infinity"}
    assert await quotas.of(user) == {PRODUCE: 2, CONSUME: 0, TIME: math.inf}

    async def applied() -> bool:
        return cluster.node(1).broker.socket_server.quotas.ip_rate("127.0.0.1") == 3

    await cluster.cluster.wait_until(applied, "the rate of localhost")
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assert await quotas.try_alter(user, **{"SCRAM-SHA-256": 1.0}) == (unknown, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([component("user", Any)] * 2, REFUSED),
        ([component("", Any)], REFUSED),
        ([component("user", "u"), component("other", Any)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_that_are_refused(quotas: Quotas, components: list[Any], code: ErrorCode) -> None:
    answer = await quotas.ask(*components, strict=False)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message
