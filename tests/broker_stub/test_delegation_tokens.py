"""Requests about delegation tokens: who may send them, and what they answer (rule B9.22).

Covers: broker_stub/handlers/delegation_tokens.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import trio

from kce import wire
from kce.broker_stub.security import ANONYMOUS, KafkaPrincipal
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.wire import ErrorCode
from tests.broker_stub.conformance.test_delegation_token_manager import DAY, HOUR, MAX_LIFE, RENEW, World
from tests.broker_stub.security.authorizers import add, authorizers, entry, literal
from tests.broker_stub.support import ONE_LISTENER, Node
from tests.certificates import authority, plain_users

ALICE, BOB, CAROL = (KafkaPrincipal("User", name) for name in ("alice", "bob", "carol"))
#: then the requester is the owner
NOBODY: Final = KafkaPrincipal("", "")
NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
DISABLED: Final = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
UNAUTHORIZED: Final = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
WRONG_TYPE: Final = ErrorCode.INVALID_PRINCIPAL_TYPE
REQUESTS: Final = (
    wire.CreateDelegationTokenRequest(max_lifetime_ms=-1),
    wire.RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=-1),
    wire.ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=-1),
    wire.DescribeDelegationTokenRequest(owners=None),
)


class Tokens(Node):
    """A broker with one listener of each security protocol, without an authorizer unless there is one."""

    def __init__(self, nursery: trio.Nursery, tokens: DelegationTokenManager | None, **more: Any) -> None:
        tls: dict[str, Any] = {**authority().of_node()}
        super().__init__(
            nursery=nursery,
            tokens=tokens,
            listeners="DATA://127.0.0.1:0,TLS://127.0.0.1:0,SASL://127.0.0.1:0,BOTH://127.0.0.1:0",
            listener_security_protocol_map="DATA:PLAINTEXT,TLS:SSL,SASL:SASL_PLAINTEXT,BOTH:SASL_SSL",
            base=ONE_LISTENER,
            sasl_enabled_mechanisms="PLAIN",
            listener_name_sasl_plain_sasl_jaas_config=plain_users(admin="secret"),
            listener_name_both_plain_sasl_jaas_config=plain_users(admin="secret"),
            **tls,
            **more,
        )
        self.principal = ALICE

    async def ask(self, message: wire.Message, version: int | None = None, *, listener: str = "SASL") -> Any:
        return await super().ask(message, version, listener=listener)

    async def create(
        self,
        owner: KafkaPrincipal = NOBODY,
        *renewers: KafkaPrincipal,
        lifetime_ms: int = -1,
        version: int | None = None,
    ) -> Any:
        request = wire.CreateDelegationTokenRequest(
            owner_principal_type=owner.principal_type,
            owner_principal_name=owner.name,
            renewers=tuple(wire.CreatableRenewers(principal_type=t, principal_name=n) for t, n in renewers),
            max_lifetime_ms=lifetime_ms,
        )
        return await self.ask(request, version)

    async def renew(self, token: Any, period_ms: int = -1) -> tuple[ErrorCode, int]:
        answer = await self.ask(wire.RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms))
        return ErrorCode(answer.error_code), answer.expiry_timestamp_ms

    async def expire(self, token: Any, period_ms: int = -1) -> tuple[ErrorCode, int]:
        answer = await self.ask(wire.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms))
        return ErrorCode(answer.error_code), answer.expiry_timestamp_ms

    async def describe(self, *owners: KafkaPrincipal, every: bool = False, version: int | None = None) -> Any:
        wanted = (wire.DescribeDelegationTokenOwner(principal_type=t, principal_name=n) for t, n in owners)
        return await self.ask(wire.DescribeDelegationTokenRequest(owners=None if every else tuple(wanted)), version)

    async def seen(self, *owners: KafkaPrincipal, every: bool = False) -> set[str]:
        answer = await self.describe(*owners, every=every)
        assert answer.error_code == ErrorCode.NONE
        return {token.token_id for token in answer.tokens}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def node(world: World) -> Tokens:
    return Tokens(world.nursery, await world.start())


@pytest.fixture
async def authorizer() -> AsyncIterator[AclAuthorizer]:
    async with authorizers() as made:
        yield await made.start()


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize(
    ("listener", "principal", "with_token", "allowed"),
    [
        ("DATA", ANONYMOUS, False, False),
        ("DATA", ALICE, False, False),
        ("TLS", ANONYMOUS, False, False),
        ("TLS", ALICE, False, True),
        ("SASL", ALICE, False, True),
        ("SASL", ANONYMOUS, False, True),
        ("SASL", ALICE, True, False),
        ("BOTH", ALICE, False, True),
        ("BOTH", ANONYMOUS, False, True),
        ("BOTH", ALICE, True, False),
    ],
)
async def test_requests_need_authentication_without_a_token(
    node: Tokens, message: wire.Message, listener: str, principal: KafkaPrincipal, with_token: bool, allowed: bool
) -> None:
    node.principal, node.token_authenticated = principal, with_token
    answer = await node.ask(message, listener=listener)
    assert (answer.error_code != NOT_ALLOWED) == allowed
    if not allowed:
        assert getattr(answer, "expiry_timestamp_ms", -1) == -1
        assert not node.services.tokens.tokens()  # type: ignore[union-attr]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
async def test_there_are_no_tokens_without_a_secret_key(world: World, message: wire.Message) -> None:
    node = Tokens(world.nursery, None)
    assert (await node.ask(message)).error_code == DISABLED
    assert (await node.ask(message, listener="DATA")).error_code == NOT_ALLOWED  # which is checked first


@pytest.mark.parametrize("version", range(4))
async def test_what_is_created_is_answered_and_described(world: World, node: Tokens, version: int) -> None:
    made = await node.create(NOBODY, BOB, CAROL, version=version)
    requester = ALICE if version >= 3 else NOBODY
    (token,) = node.services.tokens.tokens()  # type: ignore[union-attr]
    assert made == wire.CreateDelegationTokenResponse(
        principal_type="User",
        principal_name="alice",
        token_requester_principal_type=requester.principal_type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=world.now,
        expiry_timestamp_ms=world.now + RENEW,
        max_timestamp_ms=world.now + MAX_LIFE,
        token_id=token.token_id,
        hmac=node.services.tokens.hmac(token.token_id),  # type: ignore[union-attr]
    )
    assert len(made.hmac) == 64
    answer = await node.describe(every=True, version=version)
    assert answer == wire.DescribeDelegationTokenResponse(
        tokens=(
            wire.DescribedDelegationToken(
                principal_type="User",
                principal_name="alice",
                token_requester_principal_type=requester.principal_type,
                token_requester_principal_name=requester.name,
                issue_timestamp=world.now,
                expiry_timestamp=world.now + RENEW,
                max_timestamp=world.now + MAX_LIFE,
                token_id=made.token_id,
                hmac=made.hmac,
                renewers=(
                    wire.DescribedDelegationTokenRenewer(principal_type="User", principal_name="bob"),
                    wire.DescribedDelegationTokenRenewer(principal_type="User", principal_name="carol"),
                ),
            ),
        )
    )


@pytest.mark.parametrize(
    ("asked", "lives", "expires"),
    [
        (-1, MAX_LIFE, RENEW),
        (0, MAX_LIFE, RENEW),
        (1, 1, 1),
        (HOUR, HOUR, HOUR),
        (3 * DAY, 3 * DAY, RENEW),
        (8 * DAY, MAX_LIFE, RENEW),
    ],
)
async def test_how_long_a_token_lives(world: World, node: Tokens, asked: int, lives: int, expires: int) -> None:
    made = await node.create(lifetime_ms=asked)
    assert (made.max_timestamp_ms, made.expiry_timestamp_ms) == (world.now + lives, world.now + expires)


async def test_a_token_of_another_owner(world: World, authorizer: AclAuthorizer) -> None:
    node = Tokens(world.nursery, await world.start(), authorizer=authorizer)
    refused = await node.create(BOB)
    assert refused == wire.CreateDelegationTokenResponse(
        error_code=UNAUTHORIZED,
        principal_type="User",
        principal_name="bob",
        token_requester_principal_type="User",
        token_requester_principal_name="alice",
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
    assert (await node.create(ALICE)).error_code == ErrorCode.NONE  # oneself needs no permission
    assert (await node.create(KafkaPrincipal("User", ""))).principal_name == "alice"  # nobody is named
    await add(authorizer, literal("User:bob", "User"), entry("CreateTokens", "Allow", ALICE))
    made = await node.create(BOB)
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "bob", "alice")
    assert (await node.create(CAROL)).error_code == UNAUTHORIZED
    assert (await node.create(KafkaPrincipal("Group", "alice"))).error_code == UNAUTHORIZED  # another principal


async def test_an_owner_whose_type_is_null_is_an_unknown_error(node: Tokens) -> None:
    """The answer names nobody, as Kafka's. Measured."""
    made = await node.ask(wire.CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name="bob"))
    assert made.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (made.principal_name, made.token_requester_principal_name) == ("ANONYMOUS", "ANONYMOUS")


async def test_renewers_are_users(world: World, authorizer: AclAuthorizer) -> None:
    node = Tokens(world.nursery, await world.start(), authorizer=authorizer)
    group = KafkaPrincipal("Group", "bob")
    answer = await node.create(NOBODY, CAROL, group)
    assert (answer.error_code, answer.expiry_timestamp_ms, answer.hmac) == (WRONG_TYPE, -1, b"")
    assert (await node.create(BOB, group)).error_code == UNAUTHORIZED  # which is checked first
    assert not await node.seen(every=True)
    disabled = Tokens(world.nursery, None)
    assert (await disabled.create(NOBODY, group)).error_code == WRONG_TYPE  # before DELEGATION_TOKEN_AUTH_DISABLED
    assert (await disabled.create(BOB)).error_code == DISABLED


@pytest.mark.parametrize("change", [Tokens.renew, Tokens.expire])
async def test_the_owner_and_renewers_change_a_token(world: World, node: Tokens, change: Any) -> None:
    token = await node.create(BOB, CAROL)
    for principal, error in ((ALICE, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH), (BOB, 0), (CAROL, 0)):
        node.principal = principal
        expires = -1 if error else world.now + HOUR
        assert await change(node, token, HOUR) == (error, expires)
    unknown = wire.CreateDelegationTokenResponse(hmac=b"unknown")
    assert await change(node, unknown, HOUR) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)


@pytest.mark.parametrize("change", [Tokens.renew, Tokens.expire])
async def test_a_token_that_has_expired_is_not_changed(world: World, node: Tokens, change: Any) -> None:
    token = await node.create(lifetime_ms=2 * HOUR)
    world.now += 2 * HOUR
    last = world.now
    assert await change(node, token, DAY) == (ErrorCode.NONE, last)  # its last ms, and never beyond its end
    world.now += 1
    assert await change(node, token, DAY) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
    assert await node.expire(token, -1) == (ErrorCode.NONE, world.now)  # that is possible, still
    assert not await node.seen(every=True)


async def test_renewing_for_the_usual_period_and_for_none(world: World, node: Tokens) -> None:
    token = await node.create()
    world.now += HOUR
    assert await node.renew(token, 2 * DAY) == (ErrorCode.NONE, world.now + 2 * DAY)
    assert await node.renew(token, -1) == (ErrorCode.NONE, world.now + RENEW)
    assert await node.renew(token, 0) == (ErrorCode.NONE, world.now)
    (described,) = (await node.describe(every=True)).tokens
    assert (described.expiry_timestamp, described.max_timestamp) == (world.now, token.max_timestamp_ms)


@pytest.mark.parametrize("change", [Tokens.renew, Tokens.expire])
async def test_the_longest_period_ends_long_ago(world: World, node: Tokens, change: Any) -> None:
    """Kafka's sum of two longs goes round. Measured."""
    token = await node.create()
    assert await change(node, token, 2**62) == (ErrorCode.NONE, token.max_timestamp_ms)
    assert await change(node, token, 2**63 - 1) == (ErrorCode.NONE, world.now - 1 - 2**63)
    assert await change(node, token, HOUR) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)


async def test_a_period_of_zero_expires_a_token_but_leaves_it(world: World, node: Tokens) -> None:
    token = await node.create()
    assert await node.expire(token, 0) == (ErrorCode.NONE, world.now)
    assert await node.seen(every=True) == {token.token_id}
    assert await node.expire(token, -1) == (ErrorCode.NONE, world.now)
    assert await node.seen(every=True) == set()
    assert await node.expire(token, -1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)


async def test_who_sees_which_tokens(world: World, authorizer: AclAuthorizer) -> None:
    tokens = await world.start()
    node = Tokens(world.nursery, tokens, authorizer=authorizer)
    await add(authorizer, literal("User:bob", "User"), entry("CreateTokens", "Allow", ALICE))
    own = (await node.create(NOBODY, CAROL)).token_id
    bobs = (await node.create(BOB)).token_id
    assert await node.seen() == set()  # no owner is named
    assert await node.seen(every=True) == {own, bobs}  # alice has asked for both
    assert await node.seen(BOB) == {bobs}
    assert await node.seen(CAROL) == {own}
    node.principal = CAROL
    assert await node.seen(every=True) == {own}
    assert await node.seen(BOB) == set()
    await add(authorizer, literal(bobs, "DelegationToken"), entry("Describe", "Allow", CAROL))
    assert await node.seen(every=True) == {own, bobs}
    node.principal = KafkaPrincipal("User", "dave")
    assert await node.seen(every=True) == set()
    await add(authorizer, literal("User:bob", "User"), entry("DescribeTokens", "Allow", node.principal))
    assert await node.seen(every=True) == {bobs}
    assert await node.seen(ALICE, BOB) == {bobs}
    assert await node.seen(CAROL) == set()
