"""Create-, Renew-, Expire- and DescribeDelegationToken (keys 38 to 41)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.base import Handler, Services, answering, answering_later
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security import ANONYMOUS, KafkaPrincipal
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.broker_stub.security.principal import USER_TYPE
from kce.broker_stub.security.tokens import NO_TIMESTAMP, DelegationTokenManager, is_visible
from kce.wire import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ErrorCode,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kce.zookeeper.security_nodes import TokenInformation

_REQUESTER_SINCE: Final = 3


def _check_allowed(context: RequestContext, services: Services) -> None:
    """Not on a connection without authentication, and not with a token. Raises Refused."""
    security = services.dynamic_config.current.security[context.listener]
    is_anonymous = security.sasl is None and (security.tls is None or context.principal == ANONYMOUS)
    if context.connection.token_authenticated or is_anonymous:
        raise Refused(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _manager(services: Services) -> DelegationTokenManager:
    """Raises Refused."""
    if services.tokens is None:
        raise Refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return services.tokens


def _split(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _requester(principal: KafkaPrincipal, api_version: int) -> KafkaPrincipal:
    """As the response of that version tells it."""
    return principal if api_version >= _REQUESTER_SINCE else KafkaPrincipal("", "")


def _owner(message: CreateDelegationTokenRequest, context: RequestContext) -> KafkaPrincipal:
    if not message.owner_principal_name:
        return context.principal
    return KafkaPrincipal(message.owner_principal_type or "", message.owner_principal_name)


async def _create(
    message: CreateDelegationTokenRequest, context: RequestContext, services: Services
) -> CreateDelegationTokenResponse:
    """Raises Refused."""
    if message.owner_principal_name and message.owner_principal_type is None:  # Kafka breaks at it
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    requester, owner = context.principal, _owner(message, context)
    _check_allowed(context, services)
    if owner != requester and not services.authorization.allows(
        context, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
    ):
        raise Refused(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    renewers = [KafkaPrincipal(renewer.principal_type, renewer.principal_name) for renewer in message.renewers]
    if any(renewer.principal_type != USER_TYPE for renewer in renewers):
        raise Refused(ErrorCode.INVALID_PRINCIPAL_TYPE)
    manager = _manager(services)
    token = await manager.create(owner, requester, renewers, message.max_lifetime_ms)
    requester_type, requester_name = _requester(requester, context.api_version)
    return CreateDelegationTokenResponse(
        principal_type=owner.principal_type,
        principal_name=owner.name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp_ms=token.issue_timestamp,
        expiry_timestamp_ms=token.expiry_timestamp,
        max_timestamp_ms=token.max_timestamp,
        token_id=token.token_id,
        hmac=manager.hmac(token.token_id),
    )


def _create_error(
    message: CreateDelegationTokenRequest, context: RequestContext, error: ErrorCode
) -> CreateDelegationTokenResponse:
    owner = requester = ANONYMOUS
    if error != ErrorCode.UNKNOWN_SERVER_ERROR:
        owner, requester = _owner(message, context), context.principal
    requester_type, requester_name = _requester(requester, context.api_version)
    return CreateDelegationTokenResponse(
        error_code=error,
        principal_type=owner.principal_type,
        principal_name=owner.name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp_ms=NO_TIMESTAMP,
        expiry_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
    )


async def _renew(
    message: RenewDelegationTokenRequest, context: RequestContext, services: Services
) -> RenewDelegationTokenResponse:
    """Raises Refused."""
    _check_allowed(context, services)
    expires = await _manager(services).renew(context.principal, message.hmac, message.renew_period_ms)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires)


def _renew_error(
    message: RenewDelegationTokenRequest, context: RequestContext, error: ErrorCode
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=NO_TIMESTAMP)


async def _expire(
    message: ExpireDelegationTokenRequest, context: RequestContext, services: Services
) -> ExpireDelegationTokenResponse:
    """Raises Refused."""
    _check_allowed(context, services)
    expires = await _manager(services).expire(context.principal, message.hmac, message.expiry_time_period_ms)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires)


def _expire_error(
    message: ExpireDelegationTokenRequest, context: RequestContext, error: ErrorCode
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=NO_TIMESTAMP)


def _describe(
    message: DescribeDelegationTokenRequest, context: RequestContext, services: Services
) -> DescribeDelegationTokenResponse:
    """Raises Refused."""
    _check_allowed(context, services)
    manager, authorization = _manager(services), services.authorization
    owners = None
    if message.owners is not None:
        owners = {str(KafkaPrincipal(owner.principal_type, owner.principal_name)) for owner in message.owners}

    def may_describe_token(token_id: str) -> bool:
        return authorization.allows(context, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id)

    def may_describe_tokens_of(owner: str) -> bool:
        return authorization.allows(context, Operation.DESCRIBE_TOKENS, ResourceType.USER, owner)

    requester = str(context.principal)
    visible = (
        token
        for token in manager.tokens()
        if is_visible(token, requester, owners, may_describe_token, may_describe_tokens_of)
    )
    return DescribeDelegationTokenResponse(tokens=tuple(_described(visible, manager, context.api_version)))


def _described(
    tokens: Iterable[TokenInformation], manager: DelegationTokenManager, api_version: int
) -> Iterable[DescribedDelegationToken]:
    for token in tokens:
        owner_type, owner = _split(token.owner)
        requester_type, requester_name = _requester(KafkaPrincipal(*_split(token.token_requester)), api_version)
        yield DescribedDelegationToken(
            principal_type=owner_type,
            principal_name=owner,
            token_requester_principal_type=requester_type,
            token_requester_principal_name=requester_name,
            issue_timestamp=token.issue_timestamp,
            expiry_timestamp=token.expiry_timestamp,
            max_timestamp=token.max_timestamp,
            token_id=token.token_id,
            hmac=manager.hmac(token.token_id),
            renewers=tuple(
                DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
                for kind, name in map(_split, token.renewers)
            ),
        )


def _describe_error(
    message: DescribeDelegationTokenRequest, context: RequestContext, error: ErrorCode
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=error)


HANDLERS: Final[tuple[Handler[Any], ...]] = (
    Handler(CreateDelegationTokenRequest, answering_later(_create), _create_error),
    Handler(RenewDelegationTokenRequest, answering_later(_renew), _renew_error),
    Handler(ExpireDelegationTokenRequest, answering_later(_expire), _expire_error),
    Handler(DescribeDelegationTokenRequest, answering(_describe), _describe_error),
)
