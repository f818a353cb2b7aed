"""DescribeUserScramCredentials (key 50), version 0: who has which, but nothing secret (rule B9.21)."""

from __future__ import annotations

import urllib.parse
from collections import Counter
from collections.abc import Mapping
from typing import Final

from kce.broker_stub.errors import error_code
from kce.broker_stub.handlers.alter_user_scram_credentials import EMPTY_USER
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.broker_stub.security.scram import ScramCredential, ScramMechanism
from kce.wire import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ErrorCode,
)


async def respond(
    message: DescribeUserScramCredentialsRequest, context: RequestContext, services: Services
) -> DescribeUserScramCredentialsResponse:
    if not message.users:
        results = await _all(services)
    else:
        times = Counter[str]()
        async for user in context.paced(message.users):
            times[user.name] += 1
        results = [await _one(name, count, services) async for name, count in context.paced(times.items())]
    return DescribeUserScramCredentialsResponse(results=tuple(results))


async def _all(services: Services) -> list[DescribeUserScramCredentialsResult]:
    """Raises what the store raises."""
    configs = await services.admin.configs("users")
    described = (_described(urllib.parse.unquote(name), config) for name, config in configs.items())
    return sorted((result for result in described if result is not None), key=lambda result: result.user)


async def _one(user: str, count: int, services: Services) -> DescribeUserScramCredentialsResult:
    if not user:
        return _refusal(user, ErrorCode.RESOURCE_NOT_FOUND, EMPTY_USER)
    if count > 1:
        return _refusal(
            user,
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    try:
        config = await services.admin.config("users", urllib.parse.quote(user, safe=""))
    except Exception as e:  # noqa: BLE001 - the other users are described nevertheless
        return _refusal(user, error_code(e))
    return _described(user, config) or _refusal(
        user, ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {user}"
    )


def _described(user: str, config: Mapping[str, str]) -> DescribeUserScramCredentialsResult | None:
    """None for a user without credentials."""
    texts = {each: config[each.mechanism_name] for each in ScramMechanism if each.mechanism_name in config}
    if not texts:
        return None
    try:
        infos = tuple(
            CredentialInfo(mechanism=mechanism.number, iterations=ScramCredential.parse(text).iterations)
            for mechanism, text in texts.items()
        )
    except ValueError:
        return _refusal(user, ErrorCode.UNKNOWN_SERVER_ERROR)
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


def _refusal(user: str, error: ErrorCode, text: str | None = None) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=user, error_code=error, error_message=text)


def error_response(
    message: DescribeUserScramCredentialsRequest, context: RequestContext, error: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    result = DescribeUserScramCredentialsResult(error_code=error, error_message=None)
    results = (result,) * len(message.users or ())
    return DescribeUserScramCredentialsResponse(error_code=error, error_message=None, results=results)


HANDLER: Final = Handler(
    DescribeUserScramCredentialsRequest, answering_later(respond), error_response, needs=Operation.DESCRIBE
)
