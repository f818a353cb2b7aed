"""Ports of AlterUserScramCredentialsRequestTest and DescribeUserScramCredentialsRequestTest (rule B9.21).

Covers: broker_stub/handlers/alter_user_scram_credentials.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest

import kce
from kce import Cluster
from kce.broker_stub.node_client import NodeClient
from kce.broker_stub.security.config import login_module
from kce.broker_stub.security.sasl_client import SaslClient
from kce.harness.cluster_config import DATA
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.wire import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ErrorCode,
    Message,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tests.certificates import plain_users
from tests.harness.test_security import secured

SHA_256, SHA_512, UNKNOWN = 1, 2, 0


def upsertion(user: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"saltedPassword"
    )


def deletion(user: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=user, mechanism=mechanism)


class Admin:
    """A client of the controller's broker, and of another one."""

    def __init__(self, cluster: Cluster, controller: int, sasl: SaslClient | None = None) -> None:
        self._cluster = cluster
        self._sasl = {} if sasl is None else {DATA: sasl}
        self._controller = controller

    async def _ask(self, message: Message, *, controller: bool = True) -> Message:
        members = [m.id for m in self._cluster.members if (m.id == self._controller) == controller]
        host, _, port = self._cluster.member(members[0]).addresses[DATA].rpartition(":")
        links = NodeLinks(self._cluster.world.observer(), Links(set()), -1, sasl=self._sasl)
        client = NodeClient(await links.dial(host, int(port), to=members[0], listener=DATA), "admin")
        response = await client.request(message, 0)
        await client.aclose()
        return response

    async def alter(
        self,
        deletions: Sequence[ScramCredentialDeletion] = (),
        upsertions: Sequence[ScramCredentialUpsertion] = (),
        *,
        controller: bool = True,
    ) -> tuple[AlterUserScramCredentialsResult, ...]:
        request = AlterUserScramCredentialsRequest(deletions=tuple(deletions), upsertions=tuple(upsertions))
        response = await self._ask(request, controller=controller)
        assert isinstance(response, AlterUserScramCredentialsResponse)
        return response.results

    async def describe(
        self, *users: str, everybody: bool = False, controller: bool = True
    ) -> tuple[DescribeUserScramCredentialsResult, ...]:
        """``everybody``: by null instead of an empty list."""
        named = None if everybody else tuple(UserName(name=user) for user in users)
        response = await self._ask(DescribeUserScramCredentialsRequest(users=named), controller=controller)
        assert isinstance(response, DescribeUserScramCredentialsResponse)
        assert response.error_code == ErrorCode.NONE, response.error_code
        return response.results


@asynccontextmanager
async def admin() -> AsyncIterator[Admin]:
    async with Cluster(2, world=kce.memory(seed=1)) as cluster:
        yield Admin(cluster, (await cluster.wait_for_controller()).id)


ALICE = SaslClient(
    mechanism="PLAIN", module=login_module("PLAIN", plain_users(alice="alice's")), client_id="c", random=Random(1),
    now_ms=lambda: 0,
)  # fmt: skip


@asynccontextmanager
async def not_authorized() -> AsyncIterator[Admin]:
    """The client logs in as alice, who may do nothing; nodes may all, as admin."""
    properties = secured("SASL_PLAINTEXT", "PLAIN") | {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:admin",
    }  # fmt: skip
    async with Cluster(2, world=kce.memory(seed=1), properties=properties) as cluster:
        yield Admin(cluster, (await cluster.wait_for_controller()).id, ALICE)


def errors(results: Sequence[AlterUserScramCredentialsResult]) -> list[tuple[str, int]]:
    return sorted((result.user, result.error_code) for result in results)


@pytest.mark.kafka("SCA-3")
async def test_alter_nothing() -> None:
    async with admin() as client:
        assert await client.alter() == ()


@pytest.mark.kafka("SCA-4")
async def test_alter_same_thing_twice() -> None:
    async with admin() as client:
        both = [upsertion("user1"), upsertion("user2")]
        assert errors(await client.alter([], both)) == [("user1", 0), ("user2", 0)]
        for deletions, upsertions in (
            ([deletion("user1")] * 2, [upsertion("user2")] * 2),
            ([deletion("user1"), deletion("user2")], both),
        ):
            results = await client.alter(deletions, upsertions)
            assert errors(results) == [(user, ErrorCode.DUPLICATE_RESOURCE) for user in ("user1", "user2")]


@pytest.mark.kafka("SCA-5")
async def test_alter_empty_user() -> None:
    async with admin() as client:
        for deletions, upsertions in (
            ([deletion("")], []), ([], [upsertion("")]), ([deletion("")] * 2, [upsertion("")]),
        ):  # fmt: skip
            (result,) = await client.alter(deletions, upsertions)
            assert result.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
            assert result.error_message == "Username must not be empty"


@pytest.mark.kafka("SCA-6")
async def test_alter_unknown_mechanism() -> None:
    async with admin() as client:
        results = await client.alter(
            [deletion("user1", UNKNOWN), deletion("user1"), deletion("user2", 10)],
            [
                upsertion("user4", UNKNOWN, 8192), upsertion("user4", SHA_256, 8192), upsertion("user5", 10, 8192),
                upsertion("user6", UNKNOWN, 8192),
            ],
        )  # fmt: skip
        unsupported = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert errors(results) == [(f"user{number}", unsupported) for number in (1, 2, 4, 5, 6)]
        assert {result.error_message for result in results} == {"Unknown SCRAM mechanism"}


@pytest.mark.kafka("SCA-7")
async def test_alter_too_few_iterations() -> None:
    async with admin() as client:
        (result,) = await client.alter([], [upsertion("user1", SHA_256, 1)])
        assert result.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert result.error_message == "Too few iterations"


@pytest.mark.kafka("SCA-8")
async def test_alter_too_many_iterations() -> None:
    async with admin() as client:
        (result,) = await client.alter([], [upsertion("user1", SHA_256, 2**31 - 1)])
        assert result.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert result.error_message == "Too many iterations"


@pytest.mark.kafka("SCA-9")
async def test_delete_something_that_does_not_exist() -> None:
    async with admin() as client:
        assert errors(await client.alter([deletion("user1")])) == [("user1", ErrorCode.RESOURCE_NOT_FOUND)]


@pytest.mark.kafka("SCA-10")
async def test_alter_not_controller() -> None:
    async with admin() as client:
        results = await client.alter([deletion("user1")], [upsertion("user2", SHA_512)], controller=False)
        assert errors(results) == [(user, ErrorCode.NOT_CONTROLLER) for user in ("user1", "user2")]


@pytest.mark.kafka("SCA-11")
async def test_alter_and_describe() -> None:
    two = (CredentialInfo(mechanism=SHA_256, iterations=4096), CredentialInfo(mechanism=SHA_512, iterations=8192))
    one = (CredentialInfo(mechanism=SHA_512, iterations=8192),)
    user3 = "user3@user3.com"

    def described(user: str, *infos: CredentialInfo) -> DescribeUserScramCredentialsResult:
        return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)

    async with admin() as client:
        assert errors(await client.alter([], [upsertion("user1")])) == [("user1", 0)]
        more = [upsertion(user, SHA_512, 8192) for user in ("user1", "user2", user3)]
        assert errors(await client.alter([], more)) == [("user1", 0), ("user2", 0), (user3, 0)]
        assert await client.describe() == (
            described("user1", *two), described("user2", *one), described(user3, *one)
        )  # fmt: skip
        assert await client.describe("user1") == (described("user1", *two),)
        known, unknown = await client.describe("user1", "unknownUser")
        assert known == described("user1", *two)
        assert (unknown.user, unknown.error_code) == ("unknownUser", ErrorCode.RESOURCE_NOT_FOUND)
        known, twice = await client.describe("user1", "user2", "user2")
        assert known == described("user1", *two)
        assert (twice.user, twice.error_code) == ("user2", ErrorCode.DUPLICATE_RESOURCE)
        results = await client.alter([deletion("user1", SHA_256), deletion("user2", SHA_512)])
        assert errors(results) == [("user1", 0), ("user2", 0)]
        assert await client.describe() == (described("user1", *one), described(user3, *one))
        results = await client.alter([deletion("user1", SHA_512), deletion(user3, SHA_512)])
        assert errors(results) == [("user1", 0), (user3, 0)]
        assert await client.describe() == ()


@pytest.mark.kafka("SCA-14")
async def test_describe_nothing() -> None:
    async with admin() as client:
        assert await client.describe() == ()


@pytest.mark.kafka("SCA-15")
async def test_describe_with_null() -> None:
    async with admin() as client:
        assert await client.describe(everybody=True) == ()


@pytest.mark.kafka("SCA-16")
async def test_describe_not_controller() -> None:
    async with admin() as client:
        assert await client.describe(controller=False) == ()


@pytest.mark.kafka("SCA-17")
async def test_describe_same_user_twice() -> None:
    async with admin() as client:
        (result,) = await client.describe("user1", "user1")
        assert result.error_code == ErrorCode.DUPLICATE_RESOURCE
        assert result.error_message == (
            "Cannot describe SCRAM credentials for the same user twice in a single request: user1"
        )


@pytest.mark.kafka("SCA-18")
async def test_unknown_user() -> None:
    async with admin() as client:
        (result,) = await client.describe("unknownUser")
        assert result.error_code == ErrorCode.RESOURCE_NOT_FOUND
        assert result.error_message == "Attempt to describe a user credential that does not exist: unknownUser"


@pytest.mark.kafka("SCA-1")
async def test_alter_nothing_not_authorized() -> None:
    async with not_authorized() as client:
        assert await client.alter() == ()


@pytest.mark.kafka("SCA-2")
async def test_alter_something_not_authorized() -> None:
    async with not_authorized() as client:
        results = await client.alter([deletion("user1")], [upsertion("user2", SHA_512)])
        assert errors(results) == [(user, ErrorCode.CLUSTER_AUTHORIZATION_FAILED) for user in ("user1", "user2")]


@pytest.mark.kafka("SCA-13")
async def test_describe_not_authorized() -> None:
    async with not_authorized() as client:
        with pytest.raises(AssertionError, match=str(int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))):
            await client.describe()
