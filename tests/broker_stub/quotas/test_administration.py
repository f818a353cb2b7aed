"""What DescribeClientQuotas finds and AlterClientQuotas accepts, without a broker (rules B8.15-B8.17)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from kce.broker_stub.errors import ApiException, InvalidRequest
from kce.broker_stub.quotas.administration import (
    ANY_NAME,
    DEFAULT_NAME,
    EXACT,
    Component,
    Entity,
    Filter,
    altered,
    entity_of,
    place_of,
    quotas_in,
)
from kce.wire import ErrorCode

ALICE: Entity = {"user": "alice"}
DEFAULT_USER: Entity = {"user": None}
CLIENT: Entity = {"client-id": "c"}
BOTH: Entity = {"user": "alice", "client-id": "c"}
ADDRESS: Entity = {"ip": "10.0.0.1"}
ENTITIES = (ALICE, DEFAULT_USER, CLIENT, BOTH, ADDRESS, {"user": "bob", "client-id": None}, {"ip": None})


def code_of(call: Any, *arguments: Any, **named: Any) -> ErrorCode:
    with pytest.raises(ApiException) as caught:
        call(*arguments, **named)
    return caught.value.code


def user(match_type: int = ANY_NAME, match: str | None = None) -> Component:
    return Component("user", match_type, match)


def client(match_type: int = ANY_NAME, match: str | None = None) -> Component:
    return Component("client-id", match_type, match)


def ip(match_type: int = ANY_NAME, match: str | None = None) -> Component:
    return Component("ip", match_type, match)


@pytest.mark.parametrize(
    ("components", "strict", "matching", "kinds"),
    [
        ((), False, range(7), ("users", "clients", "ips")),
        ((), True, (), ()),
        ((user(),), False, (0, 1, 3, 5), ("users", "clients")),
        ((user(),), True, (0, 1), ("users", "clients")),
        ((user(EXACT, "alice"),), False, (0, 3), ("users", "clients")),
        ((user(EXACT, "alice"),), True, (0,), ("users", "clients")),
        ((user(DEFAULT_NAME),), False, (1,), ("users", "clients")),
        ((user(DEFAULT_NAME, "alice"),), False, (1,), ("users", "clients")),
        ((client(),), False, (2, 3, 5), ("users", "clients")),
        ((client(DEFAULT_NAME),), False, (5,), ("users", "clients")),
        ((user(), client()), False, (3, 5), ("users", "clients")),
        ((user(), client()), True, (3, 5), ("users", "clients")),
        ((user(EXACT, "alice"), client(EXACT, "c")), True, (3,), ("users", "clients")),
        ((user(EXACT, "alice"), client(EXACT, "d")), False, (), ("users", "clients")),
        ((ip(),), False, (4, 6), ("ips",)),
        ((ip(DEFAULT_NAME),), True, (6,), ("ips",)),
        ((ip(EXACT, "10.0.0.1"),), True, (4,), ("ips",)),
    ],
)
def test_which_entities_a_filter_matches(
    components: Sequence[Component], strict: bool, matching: Sequence[int], kinds: tuple[str, ...]
) -> None:
    wanted = Filter(components, strict=strict)
    assert [i for i, entity in enumerate(ENTITIES) if wanted.matches(entity)] == list(matching)
    assert tuple(wanted.kinds) == kinds


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((user(-1),), ErrorCode.UNKNOWN_SERVER_ERROR),
        ((user(3),), ErrorCode.UNKNOWN_SERVER_ERROR),
        ((user(EXACT),), ErrorCode.UNKNOWN_SERVER_ERROR),
        ((Component("", ANY_NAME, None),), ErrorCode.INVALID_REQUEST),
        ((Component("planet", ANY_NAME, None),), ErrorCode.UNSUPPORTED_VERSION),
        ((user(), user(EXACT, "a")), ErrorCode.INVALID_REQUEST),
        ((ip(), user()), ErrorCode.INVALID_REQUEST),
        ((client(), ip()), ErrorCode.INVALID_REQUEST),
        # all match types are looked at first
        ((Component("planet", ANY_NAME, None), user(3)), ErrorCode.UNKNOWN_SERVER_ERROR),
        ((user(), user(), user(EXACT)), ErrorCode.UNKNOWN_SERVER_ERROR),
        # no path of a znode
        *[((Component("ip", EXACT, name),), ErrorCode.UNKNOWN_SERVER_ERROR) for name in ("", ".", "..")],
    ],
)
def test_filters_that_are_refused(components: Sequence[Component], code: ErrorCode) -> None:
    assert code_of(Filter, components, strict=False) is code


@pytest.mark.parametrize("name", ["", ".", ".."])
@pytest.mark.parametrize(
    ("other", "strict", "is_refused"),
    [
        ((), True, True), ((), False, False), ((client(),), False, False), ((client(),), True, False),
        ((client(EXACT, "c"),), False, True), ((client(DEFAULT_NAME),), True, True),
    ],
)  # fmt: skip
def test_filters_for_a_name_that_no_znode_can_have(
    other: Sequence[Component], strict: bool, is_refused: bool, name: str
) -> None:
    """It fails where one znode is read, and matches nothing where all are. Measured."""
    components = (user(EXACT, name), *other)
    if is_refused:
        with pytest.raises(ApiException, match="no znode"):
            Filter(components, strict=strict)
    else:
        assert not Filter(components, strict=strict).matches(BOTH)


@pytest.mark.parametrize(
    ("components", "words"),
    [
        ((client(), client()), "Duplicate client filter component entity type"),
        ((user(), user()), "Duplicate user filter component entity type"),
        ((ip(), user()), "combination, IP filter component should not be used with user or clientId filter component."),
    ],
)
def test_what_is_said_of_filters(components: Sequence[Component], words: str) -> None:
    """Measured."""
    with pytest.raises(InvalidRequest, match=f"{words}$"):
        Filter(components, strict=False)


@pytest.mark.parametrize(
    ("entity", "place"),
    [
        (ALICE, ("users", "alice")),
        (DEFAULT_USER, ("users", "<default>")),
        ({"user": "<default>"}, ("users", "%3Cdefault%3E")),
        (CLIENT, ("clients", "c")),
        (BOTH, ("users", "alice/clients/c")),
        ({"client-id": None, "user": "a b/c*"}, ("users", "a%20b%2Fc%2A/clients/<default>")),
        (ADDRESS, ("ips", "10.0.0.1")),
        ({"ip": None}, ("ips", "<default>")),
        ({"ip": "localhost"}, ("ips", "localhost")),
    ],
)
def test_where_the_quotas_of_an_entity_are(entity: Entity, place: tuple[str, str]) -> None:
    assert place_of(entity) == place
    assert entity_of(*place) == entity


@pytest.mark.parametrize(
    "entity",
    [
        {}, {"planet": "earth"}, {"user": ""}, {"user": "alice", "client-id": ""}, {"ip": ""}, {"ip": "1.2.3"},
        {"ip": "::1"}, {"ip": "10.0.0.1", "user": "alice"}, {"client-id": None, "ip": None}, {"ip": "256.0.0.1"},
    ],
)  # fmt: skip
def test_entities_that_are_refused(entity: Entity) -> None:
    assert code_of(place_of, entity) is ErrorCode.INVALID_REQUEST


def test_what_is_said_of_addresses_of_users() -> None:
    """Measured."""
    words = "Invalid quota entity combination, IP entity should not be used with user/client ID entity."
    with pytest.raises(InvalidRequest, match=f"^{words}$"):
        place_of({"ip": "10.0.0.1", "user": "alice"})


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("entity", [{"user": "a", "client-id": None}, {"client-id": None}, {"user": None}])
def test_names_that_no_znode_can_have(entity: Entity, name: str) -> None:
    for kind in entity:
        assert code_of(place_of, {**entity, kind: name}) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("kind", "key", "value", "text"),
    [
        ("users", "producer_byte_rate", 100.0, "100"),
        ("clients", "consumer_byte_rate", 100.0000005, "100"),
        ("clients", "consumer_byte_rate", 99.9999995, "100"),
        ("users", "consumer_byte_rate", 0.0, "0"),
        ("users", "consumer_byte_rate", math.inf, None),
        ("users", "consumer_byte_rate", float(2**63), str(2**63 - 1)),
        ("users", "consumer_byte_rate", -float(2**63), str(-(2**63))),
        ("users", "consumer_byte_rate", float(2**62), str(2**62)),
        ("users", "producer_byte_rate", 100.5, None),
        ("users", "producer_byte_rate", 100.00001, None),
        ("users", "producer_byte_rate", -1.0, None),
        ("users", "producer_byte_rate", math.nan, "0"),
        ("ips", "connection_creation_rate", 2.0**31 - 1, str(2**31 - 1)),
        ("ips", "connection_creation_rate", 2.0**31 - 2, str(2**31 - 2)),
        ("ips", "connection_creation_rate", 2.0**31 + 5, None),
        ("users", "request_percentage", 12.5, "12.5"),
        ("users", "request_percentage", math.inf, "Infinity"),
        ("users", "request_percentage", -math.inf, "-Infinity"),
        ("users", "request_percentage", math.nan, "NaN"),
        ("clients", "controller_mutation_rate", 0.1, "0.1"),
    ],
)
def test_values_as_they_are_stored(kind: str, key: str, value: float, text: str | None) -> None:
    before = {"other": "1", key: "7"}
    if text is None:
        assert code_of(altered, kind, before, [(key, value)]) is ErrorCode.INVALID_REQUEST
    else:
        assert altered(kind, before, [(key, value)]) == {"other": "1", key: text}
    assert before == {"other": "1", key: "7"}


def test_removing_quotas() -> None:
    before = {"producer_byte_rate": "1", "consumer_byte_rate": "2"}
    assert altered("users", before, [("producer_byte_rate", None)]) == {"consumer_byte_rate": "2"}
    assert altered("users", before, [("request_percentage", None), ("unknown", None)]) == before
    changed = altered("users", before, [("producer_byte_rate", None), ("producer_byte_rate", 3.0)])
    assert changed == before | {"producer_byte_rate": "3"}


@pytest.mark.parametrize(
    ("kind", "key", "code"),
    [
        ("users", "unknown", ErrorCode.INVALID_REQUEST),
        ("users", "connection_creation_rate", ErrorCode.INVALID_REQUEST),
        ("ips", "producer_byte_rate", ErrorCode.INVALID_REQUEST),
        ("users", "SCRAM-SHA-256", ErrorCode.UNKNOWN_SERVER_ERROR),
        ("users", "SCRAM-SHA-512", ErrorCode.UNKNOWN_SERVER_ERROR),
        ("clients", "SCRAM-SHA-256", ErrorCode.INVALID_REQUEST),
    ],
)
def test_keys_that_are_refused(kind: str, key: str, code: ErrorCode) -> None:
    assert code_of(altered, kind, {}, [(key, 1.0)]) is code


def test_only_quotas_are_described() -> None:
    config = {"producer_byte_rate": "10", "SCRAM-SHA-256": "salt=", "connection_creation_rate": "5"}
    assert quotas_in("users", config) == {"producer_byte_rate": 10.0}
    assert quotas_in("ips", config) == {"connection_creation_rate": 5.0}
    with pytest.raises(ValueError, match="ten"):
        quotas_in("clients", {"producer_byte_rate": "ten"})
