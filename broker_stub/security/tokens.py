"""Delegation tokens: made, renewed, expired, and known to SCRAM (rules 1.45, B9.22)."""

from __future__ import annotations

import base64
import functools
import hmac
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import trio

from kce.broker_stub.errors import Refused
from kce.broker_stub.security.credentials import TokenCredential
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.broker_stub.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism
from kce.wire import ErrorCode
from kce.wire.configuration import Properties
from kce.zookeeper.security_nodes import TokenInformation

log = logging.getLogger(__name__)

#: of a response with an error
NO_TIMESTAMP: Final = -1
_SALT_BYTES: Final = 16


class TokenConfig(NamedTuple):
    secret_key: str
    max_lifetime_ms: int
    expiry_time_ms: int
    expiry_check_interval_ms: int

    @classmethod
    def from_properties(cls, read: Properties) -> TokenConfig | None:
        """None without a key: then there are no tokens. Raises ConfigError."""
        key = read.text("delegation.token.secret.key") or read.text("delegation.token.master.key")  # its old name
        if not key:
            return None
        return cls(
            key,
            read.integer("delegation.token.max.lifetime.ms"),
            read.integer("delegation.token.expiry.time.ms"),
            read.integer("delegation.token.expiry.check.interval.ms"),
        )


class TokenStore(Protocol):
    """Tokens in ZooKeeper. Every method may raise what the store raises."""

    async def read(self, token_id: str) -> TokenInformation | None: ...

    async def write(self, token: TokenInformation) -> None:
        """Also tells all brokers, as ``delete`` does."""

    async def delete(self, token_id: str) -> None: ...


class DelegationTokenManager:
    """``reload`` is called by whoever follows ZooKeeper. Times are in ms since the epoch."""

    def __init__(
        self,
        config: TokenConfig,
        store: TokenStore,
        *,
        now_ms: Callable[[], int],
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._new_uuid = new_uuid
        self._tokens: dict[str, TokenInformation] = {}
        self._ids: dict[bytes, str] = {}  # by HMAC
        self._changing = trio.Lock()

    # the tokens

    def hmac(self, token_id: str) -> bytes:
        return hmac.digest(self._config.secret_key.encode(), token_id.encode(), "sha512")

    def tokens(self) -> Collection[TokenInformation]:
        return self._tokens.values()

    def credential(self, token_id: str, mechanism: ScramMechanism) -> TokenCredential | None:
        """A `TokenLookup`: the password is the HMAC in Base64."""
        token = self._tokens.get(token_id)
        if token is None:
            return None
        password = base64.b64encode(self.hmac(token_id)).decode()
        _, _, owner = token.owner.partition(":")
        return TokenCredential(owner, _credential(mechanism, password), token.expiry_timestamp)

    async def create(
        self,
        owner: KafkaPrincipal,
        requester: KafkaPrincipal,
        renewers: Collection[KafkaPrincipal],
        max_lifetime_ms: int,
    ) -> TokenInformation:
        """``max_lifetime_ms``: not positive for the longest that is allowed. Raises what the store raises."""
        now = self._now_ms()
        longest = self._config.max_lifetime_ms
        max_timestamp = now + (longest if max_lifetime_ms <= 0 else min(max_lifetime_ms, longest))
        token = TokenInformation(
            token_id=base64.urlsafe_b64encode(self._new_uuid().bytes).decode().rstrip("="),
            owner=str(owner),
            token_requester=str(requester),
            renewers=tuple(map(str, renewers)),
            issue_timestamp=now,
            max_timestamp=max_timestamp,
            expiry_timestamp=min(max_timestamp, now + self._config.expiry_time_ms),
        )
        async with self._changing:
            await self._write(token)
        log.info("created delegation token %s of %s", token.token_id, owner)
        return token

    async def renew(self, principal: KafkaPrincipal, token_hmac: bytes, period_ms: int) -> int:
        """``period_ms``: negative for the usual one. Returns when the token expires. Raises Refused."""
        async with self._changing:
            token = self._of(principal, token_hmac)
            now = self._now_ms()
            if _is_expired(token, now):
                raise Refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
            period_ms = self._config.expiry_time_ms if period_ms < 0 else period_ms
            return await self._expires(token, _sum(now, period_ms))

    async def expire(self, principal: KafkaPrincipal, token_hmac: bytes, period_ms: int) -> int:
        """``period_ms``: negative for now. Returns when the token expires. Raises Refused."""
        async with self._changing:
            token = self._of(principal, token_hmac)
            now = self._now_ms()
            if period_ms < 0:
                await self._remove(token.token_id)
                return now
            if _is_expired(token, now):
                raise Refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
            return await self._expires(token, _sum(now, period_ms))

    async def expire_tokens(self) -> None:
        """Remove those whose time is over. Raises what the store raises."""
        async with self._changing:
            for token in list(self._tokens.values()):
                if _is_expired(token, self._now_ms()):
                    log.info("delegation token %s of %s has expired", token.token_id, token.owner)
                    await self._remove(token.token_id)

    async def run(self, is_controller: Callable[[], bool]) -> None:
        """Every `delegation.token.expiry.check.interval.ms` the controller removes expired tokens (rule 4.20).

        Until cancelled.
        """
        while True:
            if is_controller():
                try:
                    await self.expire_tokens()
                except Exception:
                    log.exception("expired delegation tokens could not be removed")
            await trio.sleep(self._config.expiry_check_interval_ms / 1000)

    async def reload(self, token_id: str) -> None:
        """Raises what the store raises."""
        async with self._changing:
            token = await self._store.read(token_id)
            if token is None:
                self._forget(token_id)
            else:
                self._know(token)

    def _of(self, principal: KafkaPrincipal, token_hmac: bytes) -> TokenInformation:
        """Raises Refused if there is no such token, or the principal may neither renew nor expire it."""
        token_id = self._ids.get(bytes(token_hmac))
        if token_id is None:
            raise Refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        token = self._tokens[token_id]
        if not is_owner_or_renewer(token, str(principal)):
            raise Refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return token

    async def _expires(self, token: TokenInformation, timestamp: int) -> int:
        token = replace(token, expiry_timestamp=min(token.max_timestamp, timestamp))
        await self._write(token)
        return token.expiry_timestamp

    async def _write(self, token: TokenInformation) -> None:
        await self._store.write(token)
        self._know(token)

    async def _remove(self, token_id: str) -> None:
        await self._store.delete(token_id)
        self._forget(token_id)

    def _know(self, token: TokenInformation) -> None:
        self._tokens[token.token_id] = token
        self._ids[self.hmac(token.token_id)] = token.token_id

    def _forget(self, token_id: str) -> None:
        if self._tokens.pop(token_id, None) is not None:
            del self._ids[self.hmac(token_id)]


def is_owner_or_renewer(token: TokenInformation, principal: str) -> bool:
    return principal == token.owner or principal in token.renewers


def _concerns(token: TokenInformation, principal: str) -> bool:
    """Whoever has asked for it may see it, too."""
    return principal == token.token_requester or is_owner_or_renewer(token, principal)


def is_visible(
    token: TokenInformation,
    requester: str,
    owners: Collection[str] | None,
    may_describe_token: Callable[[str], bool],
    may_describe_tokens_of: Callable[[str], bool],
) -> bool:
    """Whether a token is described to the requester. ``owners``: of which it asks for tokens; None: of all."""
    if owners is not None and not any(_concerns(token, owner) for owner in owners):
        return False
    return _concerns(token, requester) or may_describe_token(token.token_id) or may_describe_tokens_of(token.owner)


def _sum(now: int, period_ms: int) -> int:
    """Java's, of two longs: with the longest period a token expires long ago."""
    return (now + period_ms + 2**63) % 2**64 - 2**63


def _is_expired(token: TokenInformation, now: int) -> bool:
    return token.max_timestamp < now or token.expiry_timestamp < now


@functools.lru_cache(maxsize=64)
def _credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    """The salt need not be random: the password is, and nobody else has it."""
    salt = hmac.digest(password.encode(), mechanism.mechanism_name.encode(), "sha256")[:_SALT_BYTES]
    return ScramCredential.of_password(mechanism, password, MIN_ITERATIONS, salt)
