"""What can go wrong while deciding, as exceptions that the event loop tells apart."""

from __future__ import annotations

from typing import NamedTuple

from wire import ErrorCode


class ControllerMoved(Exception):
    """Another controller has been elected: a write under our epoch was refused, or we are not active (rule 1.47)."""


class StateChangeFailed(Exception):
    """A partition or replica could not make the transition; its state is unchanged (rules 6.14, 6.15)."""


class IllegalState(Exception):
    """An invariant of the controller does not hold."""


class BrokenBatch(IllegalState):
    """The controller's own batch could not be made or sent; it gives up the role (rule 2.20)."""


class StaleBrokerEpoch(Exception):
    """The request names an earlier incarnation of the broker (rule 11.41)."""


class BrokerNotAvailable(Exception):
    """The broker is not registered (rule 11.41)."""


class ApiError(NamedTuple):
    """What a requester is told of one thing that it asked for: a code, NONE for success, and an explanation."""

    code: ErrorCode = ErrorCode.NONE
    message: str = ""


NO_ERROR = ApiError()


def api_error(error: Exception) -> ApiError:
    """What Kafka's Errors.forException makes of it."""
    code = ErrorCode.STALE_CONTROLLER_EPOCH if isinstance(error, ControllerMoved) else ErrorCode.UNKNOWN_SERVER_ERROR
    return ApiError(code, str(error))
