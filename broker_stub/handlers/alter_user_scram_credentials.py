"""AlterUserScramCredentials (key 51), version 0: the active controller's broker writes to the store (rule B9.21)."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, TypeAlias

from kce.broker_stub.errors import ApiException, Refused, error_code
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.broker_stub.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism
from kce.wire import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ErrorCode,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

log = logging.getLogger(__name__)

Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion
EMPTY_USER: Final = "Username must not be empty"


async def respond(
    message: AlterUserScramCredentialsRequest, context: RequestContext, services: Services
) -> AlterUserScramCredentialsResponse:
    """Raises Refused."""
    if not services.controller.is_active:
        raise Refused(ErrorCode.NOT_CONTROLLER)
    services.authorization.check_cluster(context, Operation.ALTER)
    results: dict[str, AlterUserScramCredentialsResult] = {}
    async for change in context.paced(_changes(message)):
        error = _error(change)
        if error is not None:
            results[change.name] = _result(change.name, *error)
    of_user: dict[str, list[Change]] = {}
    async for change in context.paced(_changes(message)):
        if change.name not in results:
            of_user.setdefault(change.name, []).append(change)
    async for user, changes in context.paced(of_user.items()):
        if len({change.mechanism for change in changes}) < len(changes):
            results[user] = _result(
                user, ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )
    configs: dict[str, dict[str, str]] = {}
    async for user, changes in context.paced(of_user.items()):
        if user in results:
            continue
        try:
            configs[user] = await _without_deleted(user, changes, services)
        except ApiException as e:
            results[user] = _result(user, e.code, str(e))
        except Exception as e:  # the other users are changed nevertheless
            log.exception("the credentials of user %s could not be read", user)
            results[user] = _result(user, error_code(e))
    if any(not upsertion.salted_password for upsertion in message.upsertions if upsertion.name in configs):
        # no HMAC has an empty key: as in Kafka, every user fails
        results |= {user: _result(user, ErrorCode.UNKNOWN_SERVER_ERROR) for user in configs}
        configs = {}
    for user, config in configs.items():
        try:
            await services.admin.change_config("users", _name(user), config | _upserted(of_user[user]))
            results[user] = AlterUserScramCredentialsResult(user=user)
        except ApiException as e:
            results[user] = _result(user, e.code, str(e))
        except Exception as e:
            log.exception("the credentials of user %s could not be changed", user)
            results[user] = _result(user, error_code(e))
    return AlterUserScramCredentialsResponse(results=tuple(results.values()))


def _changes(message: AlterUserScramCredentialsRequest) -> Iterator[Change]:
    return chain(message.deletions, message.upsertions)


def _error(change: Change) -> tuple[ErrorCode, str] | None:
    if not change.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, EMPTY_USER
    if ScramMechanism.of_number(change.mechanism) is None:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, ScramCredentialUpsertion):
        if change.iterations > MAX_ITERATIONS:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        if change.iterations < MIN_ITERATIONS:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    return None


def _name(user: str) -> str:
    return urllib.parse.quote(user, safe="")


async def _without_deleted(user: str, changes: Iterable[Change], services: Services) -> dict[str, str]:
    """The user's configuration. Raises Refused, and what the store raises."""
    config = dict(await services.admin.config("users", _name(user)))
    for change in changes:
        is_deletion = isinstance(change, ScramCredentialDeletion)
        if is_deletion and config.pop(_mechanism(change.mechanism).mechanism_name, None) is None:
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return config


def _upserted(changes: Iterable[Change]) -> dict[str, str]:
    """By the name of the mechanism."""
    return {
        mechanism.mechanism_name: str(
            ScramCredential.of_salted(mechanism, upsertion.salt, upsertion.salted_password, upsertion.iterations)
        )
        for upsertion in changes
        if isinstance(upsertion, ScramCredentialUpsertion)
        for mechanism in (_mechanism(upsertion.mechanism),)
    }


def _mechanism(number: int) -> ScramMechanism:
    found = ScramMechanism.of_number(number)
    assert found is not None, "an unknown mechanism is illegal"
    return found


def _result(user: str, error: ErrorCode, text: str | None = None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=user, error_code=error, error_message=text)


def error_response(
    message: AlterUserScramCredentialsRequest, context: RequestContext, error: ErrorCode
) -> AlterUserScramCredentialsResponse:
    users = sorted({change.name for change in _changes(message)})
    return AlterUserScramCredentialsResponse(results=tuple(_result(user, error) for user in users))


HANDLER: Final = Handler(
    AlterUserScramCredentialsRequest,
    answering_later(respond),
    error_response,
    distinct_errors="user",
)
