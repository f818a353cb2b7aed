"""Ports of DelegationTokenManagerTest: tokens are made, renewed, expired and described.

Covers: broker_stub/security/tokens.py, broker_stub/zookeeper/token_store.py.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import AsyncIterator, Iterable
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce.broker_stub.errors import Refused
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.broker_stub.security.scram import ScramCredential, ScramMechanism
from kce.broker_stub.security.tokens import DelegationTokenManager, TokenConfig, is_visible
from kce.broker_stub.zookeeper.token_store import TokenChanges, ZkTokenStore
from kce.harness.world import uuids
from kce.wire import ErrorCode
from kce.wire.configuration import Properties
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import TOKENS, TokenInformation, get_token
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.broker_stub.security.authorizers import add, authorizers, entry, literal, requester

SECRET = "secretKey"
HOUR = 60 * 60 * 1000
DAY = 24 * HOUR
MAX_LIFE, RENEW = 7 * DAY, DAY


def principal(name: str) -> KafkaPrincipal:
    return KafkaPrincipal("User", name)


OWNER, RENEWER = principal("owner"), principal("renewer1")


class World:
    """Managers that share a ZooKeeper and a clock."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.now = 1_000_000
        self.nursery = nursery

    def client(self) -> KafkaZkClient:
        return KafkaZkClient(self.zookeeper.connect(), now_ms=lambda: self.now)

    async def start(self, **properties: str) -> DelegationTokenManager:
        config = TokenConfig.from_properties(
            Properties(
                {"delegation.token.secret.key": SECRET, **{k.replace("_", "."): v for k, v in properties.items()}}
            )
        )
        assert config is not None
        zk = self.client()
        manager = DelegationTokenManager(config, ZkTokenStore(zk), now_ms=lambda: self.now, new_uuid=uuids(Random(7)))
        await self.nursery.start(TokenChanges(zk, manager, lambda: False).run)
        return manager


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()


def password(token: TokenInformation) -> bytes:
    return hmac.digest(SECRET.encode(), token.token_id.encode(), "sha512")


async def refused(call) -> ErrorCode:  # type: ignore[no-untyped-def]
    with pytest.raises(Refused) as caught:
        await call
    return caught.value.code


def created(token: TokenInformation, now: int) -> TokenInformation:
    """What the cases expect of a token that was just made."""
    return TokenInformation(token.token_id, str(OWNER), str(OWNER), (str(RENEWER),), now, now + MAX_LIFE, now + RENEW)


async def test_create_token(world: World) -> None:
    manager = await world.start()
    token = await manager.create(OWNER, OWNER, [RENEWER], -1)
    assert token == created(token, world.now)
    assert len(base64.urlsafe_b64decode(token.token_id + "==")) == 16
    assert manager.hmac(token.token_id) == password(token)
    assert list(manager.tokens()) == [token]
    assert await get_token(world.client(), token.token_id) == token


async def test_renew_token(world: World) -> None:
    manager = await world.start()
    token = await manager.create(OWNER, OWNER, [RENEWER], -1)
    most, secret = world.now + MAX_LIFE, password(token)
    assert await refused(manager.renew(OWNER, b"test", -1)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert await refused(manager.renew(principal("Unknown"), secret, -1)) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    world.now += DAY
    assert await manager.renew(OWNER, secret, -1) == world.now + RENEW
    world.now += DAY
    assert await manager.renew(RENEWER, secret, HOUR) == world.now + HOUR
    world.now += HOUR
    assert await manager.renew(OWNER, secret, 8 * DAY) == most
    world.now += 8 * DAY
    assert await refused(manager.renew(OWNER, secret, -1)) is ErrorCode.DELEGATION_TOKEN_EXPIRED


async def test_expire_token(world: World) -> None:
    manager = await world.start()
    token = await manager.create(OWNER, OWNER, [RENEWER], -1)
    secret = password(token)
    assert await refused(manager.expire(OWNER, b"test", -1)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert await refused(manager.expire(principal("Unknown"), secret, -1)) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    world.now += DAY
    assert await manager.expire(OWNER, secret, 2 * HOUR) == world.now + 2 * HOUR
    world.now += 8 * DAY
    assert await refused(manager.renew(OWNER, secret, -1)) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert await refused(manager.expire(OWNER, secret, HOUR)) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert await manager.expire(OWNER, secret, -1) == world.now  # at once, even if it has expired
    assert list(manager.tokens()) == []
    assert await get_token(world.client(), token.token_id) is None


async def test_an_expired_token_has_no_hmac(world: World) -> None:
    manager = await world.start()
    token = await manager.create(OWNER, OWNER, [RENEWER], -1)
    await manager.expire(OWNER, password(token), -1)
    assert await refused(manager.expire(OWNER, password(token), -1)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert manager.credential(token.token_id, ScramMechanism.SHA_256) is None


async def test_describe_token(world: World) -> None:
    manager = await world.start()
    owners = {name: principal(name) for name in ("owner1", "owner2", "owner3", "owner4", "owner5", "requester1")}
    renewers = {name: principal(name) for name in ("renewer1", "renewer2", "renewer3", "renewer4")}

    async def create(owner: str, by: str, *of: KafkaPrincipal, hours: int) -> TokenInformation:
        return await manager.create(owners[owner], owners[by], of, hours * HOUR)

    await create("owner1", "owner1", renewers["renewer1"], renewers["renewer2"], hours=1)
    token2 = await create("owner2", "owner2", renewers["renewer3"], hours=1)
    token3 = await create("owner3", "owner3", renewers["renewer4"], hours=2)
    await create("owner4", "owner4", owners["owner1"], renewers["renewer4"], hours=2)
    await create("requester1", "owner5", renewers["renewer1"], hours=1)
    assert len(manager.tokens()) == 5

    async with authorizers() as made:
        authorizer = await made.start()

        def visible(by: str, wanted: Iterable[str] | None, session: str = "owner1") -> int:
            who = requester(session, "192.168.1.1")

            def may(operation: Operation, kind: ResourceType):  # type: ignore[no-untyped-def]
                return lambda name: authorizer.authorize(who, operation, kind, name)

            names = None if wanted is None else {str(principal(name)) for name in wanted}
            token_may = may(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN)
            user_may = may(Operation.DESCRIBE_TOKENS, ResourceType.USER)
            return sum(is_visible(t, str(principal(by)), names, token_may, user_may) for t in manager.tokens())

        assert visible("owner1", ["unknown"]) == 0
        assert visible("owner1", []) == 0
        assert visible("owner1", ["owner1"]) == 2
        assert visible("owner1", None) == 2
        assert visible("unknown", None) == 0
        assert visible("owner1", ["owner1", "renewer4"]) == 2
        assert visible("requester1", ["owner5"]) == 1
        await add(authorizer, literal(token3.token_id, "DelegationToken"), entry("Describe", "Allow", "User:owner1"))
        assert visible("owner1", ["owner1", "renewer4"]) == 3
        assert visible("renewer4", ["renewer4"]) == 2
        assert visible("renewer2", ["renewer2", "renewer3"]) == 1
        await add(authorizer, literal(token2.token_id, "DelegationToken"), entry("Describe", "Allow", "User:renewer2"))
        assert visible("renewer2", ["renewer2", "renewer3"], session="renewer2") == 2
        await add(authorizer, literal("User:owner3", "User"), entry("DescribeTokens", "Allow", "User:reader"))
        assert visible("reader", None, session="reader") == 1


async def test_periodic_token_expiry(world: World) -> None:
    manager = await world.start()
    for hours in (1, 1, 2, 2):
        await manager.create(OWNER, OWNER, [RENEWER], hours * HOUR)
    assert len(manager.tokens()) == 4
    world.now += 2 * HOUR
    await manager.expire_tokens()
    assert len(manager.tokens()) == 2


async def test_another_broker_knows_a_token(world: World) -> None:  # rule 1.45
    first, second = await world.start(), await world.start()
    token = await first.create(OWNER, OWNER, [RENEWER], -1)
    await wait_all_tasks_blocked()
    assert list(second.tokens()) == [token]
    late = await world.start()
    assert list(late.tokens()) == [token]
    await second.renew(OWNER, password(token), 3 * DAY)
    await wait_all_tasks_blocked()
    (known,) = first.tokens()
    assert known.expiry_timestamp == world.now + 3 * DAY
    await first.expire(RENEWER, password(token), -1)
    await wait_all_tasks_blocked()
    assert not second.tokens()
    assert await world.client().get_children(TOKENS) == []


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
async def test_the_hmac_in_base64_is_the_password(world: World, mechanism: ScramMechanism) -> None:  # rule B9.22
    manager = await world.start()
    token = await manager.create(OWNER, OWNER, [], -1)
    found = manager.credential(token.token_id, mechanism)
    assert found is not None
    assert (found.owner, found.expires_at_ms) == ("owner", token.expiry_timestamp)
    secret = base64.b64encode(password(token)).decode()
    assert found.credential == ScramCredential.of_password(mechanism, secret, 4096, found.credential.salt)
    assert manager.credential("no such token", mechanism) is None


async def test_only_the_controller_expires_tokens(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """Rule 4.20."""
    manager = await world.start(delegation_token_expiry_check_interval_ms="1000")
    await manager.create(OWNER, OWNER, [], HOUR)
    world.now += 2 * HOUR
    is_controller = False
    world.nursery.start_soon(manager.run, lambda: is_controller)
    await trio.sleep(1.5)
    assert len(manager.tokens()) == 1
    is_controller = True
    await trio.sleep(1)
    assert not manager.tokens()


@pytest.mark.parametrize("name", ["delegation.token.secret.key", "delegation.token.master.key"])
def test_tokens_need_a_key(name: str) -> None:
    assert TokenConfig.from_properties(Properties({})) is None
    assert TokenConfig.from_properties(Properties({name: "k"})) == TokenConfig("k", MAX_LIFE, RENEW, HOUR)
