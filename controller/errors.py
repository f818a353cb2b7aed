"""Exceptions and results of the controller's decisions."""

from __future__ import annotations

from typing import NamedTuple

from kce.wire import ErrorCode
from kce.zookeeper.errors import ControllerMoved, IllegalState


class StateChangeFailed(Exception):
    """A partition or replica could not change its state (rules 6.14, 6.15)."""


class BrokenBatch(IllegalState):
    """The controller's own batch could not be built or sent; the controller resigns (rule 2.20)."""


class StaleBrokerEpoch(Exception):
    """The request has the epoch of an earlier registration of the broker (rule 11.41)."""


class BrokerNotAvailable(Exception):
    """The broker is not registered (rule 11.41)."""


class OperationResult(NamedTuple):
    """The result of one requested operation: an error code, NONE for success, and a message."""

    code: ErrorCode = ErrorCode.NONE
    message: str = ""


SUCCESS = OperationResult()


def failure_result(error: Exception) -> OperationResult:
    """The code that Kafka's Errors.forException gives the error."""
    code = ErrorCode.STALE_CONTROLLER_EPOCH if isinstance(error, ControllerMoved) else ErrorCode.UNKNOWN_SERVER_ERROR
    return OperationResult(code, str(error))
