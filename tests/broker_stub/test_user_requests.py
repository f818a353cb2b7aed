"""Whole answers about quotas of clients and credentials of users, and what they leave in the store (B8.15-17, B9.21).

Covers: broker_stub/handlers/alter_user_scram_credentials.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.errors import Refused
from kce.broker_stub.security.scram import ScramCredential, ScramMechanism
from kce.wire import ErrorCode as E
from tests.broker_stub.support import Node
from tests.broker_stub.test_admin_handlers import Active

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


class Store:
    """Configurations by kind and name. ``broken``: names that cannot be read."""

    def __init__(self) -> None:
        self.configs_by_kind: dict[str, dict[str, dict[str, str]]] = {"users": {}, "clients": {}, "ips": {}}
        self.broken: set[str] = set()

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        if name in self.broken:
            raise OSError(name)
        return self.configs_by_kind[kind].get(name, {})

    async def configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        return self.configs_by_kind[kind]

    client_configs = configs

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        self.configs_by_kind[kind][name] = dict(config)

    change_client_config = change_config


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def node(nursery: trio.Nursery, store: Store) -> Node:
    admin: Any = store
    return Node(controller=Active(), admin=admin, nursery=nursery)


# quotas


def entity(make: Any, **names: str | None) -> tuple[Any, ...]:
    return tuple(make(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in names.items())


def described(quotas: Mapping[str, float], **names: str | None) -> wire.DescribeClientQuotasResponseEntryData:
    return wire.DescribeClientQuotasResponseEntryData(
        entity=entity(wire.DescribeClientQuotasResponseEntityData, **names),
        values=tuple(wire.ValueData(key=key, value=value) for key, value in quotas.items()),
    )


async def test_quotas_are_described(node: Node, store: Store) -> None:
    store.configs_by_kind |= {
        "users": {
            "a%20b": {"producer_byte_rate": "7", "request_percentage": "0.5", "SCRAM-SHA-256": "x"},
            "a%20b/clients/<default>": {"consumer_byte_rate": "8"}, "only": {"SCRAM-SHA-256": "x"},
        },
        "clients": {"c": {"producer_byte_rate": "9", "connection_creation_rate": "1"}},
        "ips": {"10.0.0.1": {"connection_creation_rate": "3", "producer_byte_rate": "1"}},
    }  # fmt: skip
    users = (
        described({"producer_byte_rate": 7, "request_percentage": 0.5}, user="a b"),
        described({"consumer_byte_rate": 8}, user="a b", client_id=None),
    )
    of_client, of_ip = (
        described({"producer_byte_rate": 9}, client_id="c"), described({"connection_creation_rate": 3}, ip="10.0.0.1"),
    )  # fmt: skip

    async def ask(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
        made = tuple(wire.ComponentData(entity_type=t, match_type=m, match=n) for t, m, n in components)
        return await node.ask(wire.DescribeClientQuotasRequest(components=made, strict=strict), 1)

    everything = wire.DescribeClientQuotasResponse(entries=(*users, of_client, of_ip))
    assert await ask() == everything
    assert await ask(("user", 0, "a b")) == wire.DescribeClientQuotasResponse(entries=users)
    assert await ask(("user", 0, "a b"), strict=True) == wire.DescribeClientQuotasResponse(entries=users[:1])
    assert await ask(("user", 2, None), ("client-id", 1, None)) == wire.DescribeClientQuotasResponse(entries=users[1:])
    assert await ask(("client-id", 2, None), strict=True) == wire.DescribeClientQuotasResponse(entries=(of_client,))
    assert await ask(("ip", 2, None)) == wire.DescribeClientQuotasResponse(entries=(of_ip,))
    for component, code, text in (
        (("planet", 2, None), E.UNSUPPORTED_VERSION, "Custom entity type 'planet' not supported"),
        (("user", 7, None), E.UNKNOWN_SERVER_ERROR, None),
    ):
        assert await ask(component) == wire.DescribeClientQuotasResponse(
            error_code=code, error_message=text, entries=None
        )


async def test_quotas_are_changed(node: Node, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.configs_by_kind["users"]["alice"] = {"SCRAM-SHA-256": "x", "consumer_byte_rate": "5"}
    store.broken = {"broken"}

    def entry(*ops: tuple[str, float | None], **names: str | None) -> wire.AlterClientQuotasRequestEntryData:
        return wire.AlterClientQuotasRequestEntryData(
            entity=entity(wire.AlterClientQuotasRequestEntityData, **names),
            ops=tuple(wire.OpData(key=key, value=value or 0, remove=value is None) for key, value in ops),
        )

    entries = (
        entry(("producer_byte_rate", 7), ("consumer_byte_rate", None), user="alice"),
        entry(("request_percentage", 0.5), user="alice", client_id=None),
        entry(("producer_byte_rate", 1.5), client_id="c"),
        entry(("producer_byte_rate", 1), ip="10.0.0.1"),
        entry(("connection_creation_rate", 3), ip="10.0.0.1"),
        entry(("producer_byte_rate", 1), user="broken"),
        entry(("producer_byte_rate", 8), user="alice"),
    )
    expected = wire.AlterClientQuotasResponse(
        entries=tuple(
            wire.AlterClientQuotasResponseEntryData(
                error_code=code,
                error_message=text,
                entity=entity(wire.AlterClientQuotasResponseEntityData, **names),
            )
            for code, text, names in (
                (E.NONE, None, {"user": "alice"}),
                (E.NONE, None, {"user": "alice", "client_id": None}),
                (E.INVALID_REQUEST, "Configuration producer_byte_rate must be a LONG value", {"client_id": "c"}),
                (E.NONE, None, {"ip": "10.0.0.1"}),
                (E.UNKNOWN_SERVER_ERROR, None, {"user": "broken"}),
            )
        )
    )
    before = {kind: dict(configs) for kind, configs in store.configs_by_kind.items()}
    request = wire.AlterClientQuotasRequest(entries=entries, validate_only=True)
    assert await node.ask(request, 1) == expected
    assert store.configs_by_kind == before
    assert await node.ask(wire.AlterClientQuotasRequest(entries=entries), 0) == expected
    assert store.configs_by_kind == {
        "users": {
            "alice": {"SCRAM-SHA-256": "x", "producer_byte_rate": "8"},
            "alice/clients/<default>": {"request_percentage": "0.5"},
        },
        "clients": {},
        "ips": {"10.0.0.1": {"connection_creation_rate": "3"}},
    }
    assert caplog.messages == ["could not change the quotas of {'user': 'broken'}"] * 2


# credentials


def credential(iterations: int = 4096) -> ScramCredential:
    return ScramCredential(b"salt", b"stored", b"server", iterations)


async def test_credentials_are_described(node: Node, store: Store) -> None:
    store.configs_by_kind["users"] = {
        "b": {"SCRAM-SHA-512": str(credential(8192)), "SCRAM-SHA-256": str(credential())},
        "a%2Fx": {"SCRAM-SHA-256": str(credential(5000)), "producer_byte_rate": "1"},
        "none": {"producer_byte_rate": "1"}, "bad": {"SCRAM-SHA-256": "x"},
    }  # fmt: skip
    store.broken = {"broken"}
    result = wire.DescribeUserScramCredentialsResult

    def known(user: str, **of: int) -> wire.DescribeUserScramCredentialsResult:
        infos = tuple(wire.CredentialInfo(mechanism=int(name[1:]), iterations=count) for name, count in of.items())
        return result(user=user, credential_infos=infos)

    def refused(user: str, code: E, text: str | None = None) -> wire.DescribeUserScramCredentialsResult:
        return result(user=user, error_code=code, error_message=text)

    async def ask(*users: str) -> Any:
        names = tuple(wire.UserName(name=name) for name in users)
        return (await node.ask(wire.DescribeUserScramCredentialsRequest(users=names or None), 0)).results

    a, b, bad = known("a/x", m1=5000), known("b", m1=4096, m2=8192), refused("bad", E.UNKNOWN_SERVER_ERROR)
    assert await ask() == (a, b, bad)
    missing = "Attempt to describe a user credential that does not exist: "
    twice = "Cannot describe SCRAM credentials for the same user twice in a single request: b"
    assert await ask("b", "a/x", "none", "", "b", "who", "broken", "bad") == (
        refused("b", E.DUPLICATE_RESOURCE, twice),
        a,
        refused("none", E.RESOURCE_NOT_FOUND, f"{missing}none"),
        refused("", E.RESOURCE_NOT_FOUND, "Username must not be empty"),
        refused("who", E.RESOURCE_NOT_FOUND, f"{missing}who"),
        refused("broken", E.UNKNOWN_SERVER_ERROR),
        bad,
    )
    assert await ask("b") == (b,)


def put(user: str, mechanism: int = 1, iterations: int = 4096) -> wire.ScramCredentialUpsertion:
    return wire.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"salted"
    )


def delete(user: str, mechanism: int = 1) -> wire.ScramCredentialDeletion:
    return wire.ScramCredentialDeletion(name=user, mechanism=mechanism)


async def test_credentials_are_changed(node: Node, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.configs_by_kind["users"] = {
        "both": {"SCRAM-SHA-256": "x", "SCRAM-SHA-512": "y", "producer_byte_rate": "1"}, "one": {"SCRAM-SHA-256": "x"},
    }  # fmt: skip
    store.broken = {"broken"}
    bad, twice = E.UNACCEPTABLE_CREDENTIAL, "A user credential cannot be altered twice in the same request"
    deletions = (delete("both"), delete("one", 2), delete("", 1), delete("three", 3), delete("twice"))
    upsertions = (
        put("new/"), put("new/", 2, 16384), put("few", 1, 4095), put("many", 1, 16385), put("twice"), put("broken"),
        put("zero", 0), put("one", 2, 16384),
    )  # fmt: skip
    answer = await node.ask(wire.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions), 0)
    expected = (
        ("", bad, "Username must not be empty"),
        ("three", E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ("few", bad, "Too few iterations"),
        ("many", bad, "Too many iterations"),
        ("zero", E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ("one", E.DUPLICATE_RESOURCE, twice),
        ("twice", E.DUPLICATE_RESOURCE, twice),
        ("broken", E.UNKNOWN_SERVER_ERROR, None),
        ("both", E.NONE, ""),
        ("new/", E.NONE, ""),
    )
    result = wire.AlterUserScramCredentialsResult
    assert answer == wire.AlterUserScramCredentialsResponse(
        results=tuple(result(user=user, error_code=code, error_message=text) for user, code, text in expected)
    )
    made = {
        mechanism.mechanism_name: str(ScramCredential.of_salted(mechanism, b"salt", b"salted", iterations))
        for mechanism, iterations in ((SHA_256, 4096), (SHA_512, 16384))
    }
    assert store.configs_by_kind["users"] == {
        "both": {"SCRAM-SHA-512": "y", "producer_byte_rate": "1"}, "one": {"SCRAM-SHA-256": "x"}, "new%2F": made,
    }  # fmt: skip
    assert caplog.messages == ["the credentials of user broken could not be read"]
    answer = await node.ask(wire.AlterUserScramCredentialsRequest(deletions=(delete("one", 2),)), 0)
    assert answer.results == (
        result(
            user="one", error_code=E.RESOURCE_NOT_FOUND,
            error_message="Attempt to delete a user credential that does not exist",
        ),
    )  # fmt: skip
    assert store.configs_by_kind["users"]["one"] == {"SCRAM-SHA-256": "x"}


async def test_an_empty_salted_password_fails_every_user(node: Node, store: Store) -> None:  # as in Kafka
    store.configs_by_kind["users"] = {"a": {"SCRAM-SHA-256": "x"}}
    empty = replace(put("b"), salted_password=b"")
    request = wire.AlterUserScramCredentialsRequest(
        deletions=(delete("a"), delete("c")),
        upsertions=(put("d"), empty, replace(put("few", 1, 1), salted_password=b"")),
    )
    answer = await node.ask(request, 0)
    assert {result.user: result.error_code for result in answer.results} == {
        "few": E.UNACCEPTABLE_CREDENTIAL, "c": E.RESOURCE_NOT_FOUND, **dict.fromkeys("abd", E.UNKNOWN_SERVER_ERROR),
    }  # fmt: skip
    assert store.configs_by_kind["users"] == {"a": {"SCRAM-SHA-256": "x"}}
    # of a user that fails anyway
    only = wire.AlterUserScramCredentialsRequest(deletions=(delete("a"), delete("b")), upsertions=(empty,))
    assert [result.error_code for result in (await node.ask(only, 0)).results] == [E.DUPLICATE_RESOURCE, E.NONE]


async def test_without_a_controller_nothing_is_changed(
    node: Node, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # rule 1.54
    async def refuse(kind: str, name: str, config: Mapping[str, str]) -> None:
        raise Refused(E.STALE_CONTROLLER_EPOCH, "nobody")

    monkeypatch.setattr(store, "change_config", refuse)
    answer = await node.ask(wire.AlterUserScramCredentialsRequest(upsertions=(put("new"),)), 0)
    assert [(r.error_code, r.error_message) for r in answer.results] == [(E.STALE_CONTROLLER_EPOCH, "nobody")]
    assert caplog.messages == []


async def test_another_broker_changes_no_credentials(nursery: trio.Nursery, store: Store) -> None:
    admin: Any = store
    other = Node(admin=admin, nursery=nursery)
    request = wire.AlterUserScramCredentialsRequest(
        deletions=(delete("b"),), upsertions=(put("c"), put("a"), put("b", 2))
    )
    result = wire.AlterUserScramCredentialsResult
    assert (await other.ask(request, 0)).results == tuple(
        result(user=user, error_code=E.NOT_CONTROLLER, error_message=None) for user in "abc"
    )
    assert store.configs_by_kind["users"] == {}
