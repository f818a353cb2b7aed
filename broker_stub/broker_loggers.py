"""The loggers of this process as resources that AlterConfigs changes, with Kafka's names of levels (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from kce.broker_stub.config_operations import Change, OpType
from kce.broker_stub.errors import ApiException, InvalidConfig, InvalidRequest

ROOT: Final = "root"
#: Python has no TRACE
_LEVELS: Final = {
    "TRACE": logging.DEBUG - 5, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING,
    "ERROR": logging.ERROR, "FATAL": logging.CRITICAL,
}  # fmt: skip
#: in the order of Kafka's message
_VALID: Final = "DEBUG, ERROR, FATAL, INFO, TRACE, WARN"


def levels() -> dict[str, str]:
    """The effective level of each logger."""
    known = logging.root.manager.loggerDict.items()
    found = {name: logger for name, logger in known if isinstance(logger, logging.Logger)}
    return {name: _name(logger) for name, logger in sorted({ROOT: logging.root, **found}.items())}


def change(changes: Iterable[Change], *, validate_only: bool) -> None:
    """Set levels, or remove them: then a logger has its parent's. Raises ApiException."""
    changes = list(changes)
    for each in changes:
        _check(each)
    if not validate_only:
        for name, op, value in changes:
            level = _LEVELS[value or ""] if op == OpType.SET else logging.NOTSET
            _logger(name).setLevel(level)


def _check(change: Change) -> None:
    name, op, value = change
    if op not in list(OpType):
        raise ApiException(f"Unknown operation type {op}")
    if op not in (OpType.SET, OpType.DELETE):
        raise InvalidRequest(f"{OpType(op).name} operation is not allowed for the BROKER_LOGGER resource")
    if name != ROOT and not isinstance(logging.root.manager.loggerDict.get(name), logging.Logger):
        raise InvalidConfig(f"Logger {name} does not exist!")
    if op == OpType.DELETE and name == ROOT:
        raise InvalidRequest(f"Removing the log level of the {ROOT} logger is not allowed")
    if op == OpType.SET and value not in _LEVELS:
        raise InvalidConfig(
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {_VALID}"
        )


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _name(logger: logging.Logger) -> str:
    """The level that lets through what the logger's does."""
    level = logger.getEffectiveLevel()
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")
