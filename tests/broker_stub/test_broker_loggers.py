"""Levels of loggers as settings of a broker (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kce.broker_stub import broker_loggers
from kce.broker_stub.config_operations import Change, OpType
from kce.broker_stub.errors import ApiException, InvalidConfig, InvalidRequest

NAME = "kce.broker_stub.test_broker_loggers"


@pytest.fixture(autouse=True)
def levels_are_restored() -> Iterator[None]:
    logger, before = logging.getLogger(NAME), logging.root.level
    yield
    logger.setLevel(logging.NOTSET)
    logging.root.setLevel(before)


@pytest.mark.parametrize(
    ("level", "number"), [("TRACE", 5), ("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERROR", 40), ("FATAL", 50)]
)
def test_a_level_is_set_and_described(level: str, number: int) -> None:
    broker_loggers.change([Change(NAME, OpType.SET, level)], validate_only=False)
    assert logging.getLogger(NAME).level == number
    assert broker_loggers.levels()[NAME] == level


def test_a_level_that_is_removed_is_its_parents() -> None:
    broker_loggers.change(
        [Change(NAME, OpType.SET, "FATAL"), Change(broker_loggers.ROOT, OpType.SET, "ERROR")], validate_only=False
    )
    broker_loggers.change([Change(NAME, OpType.DELETE, None)], validate_only=False)
    assert logging.getLogger(NAME).level == logging.NOTSET
    assert broker_loggers.levels()[NAME] == broker_loggers.levels()["root"] == "ERROR"


def test_validation_changes_nothing() -> None:
    broker_loggers.change([Change(NAME, OpType.SET, "FATAL")], validate_only=True)
    assert logging.getLogger(NAME).level == logging.NOTSET


def test_one_bad_change_changes_nothing() -> None:
    changes = [Change(NAME, OpType.SET, "FATAL"), Change(NAME, OpType.SET, "LOUD")]
    with pytest.raises(InvalidConfig):
        broker_loggers.change(changes, validate_only=False)
    assert logging.getLogger(NAME).level == logging.NOTSET


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (Change("no.such", OpType.SET, "INFO"), InvalidConfig, "Logger no.such does not exist!"),
        (Change("no.such", OpType.DELETE, None), InvalidConfig, "Logger no.such does not exist!"),
        (
            Change(NAME, OpType.SET, "info"), InvalidConfig,
            f"Cannot set the log level of {NAME} to info as it is not a supported log level. Valid log levels are "
            "DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        (
            Change("root", OpType.DELETE, None), InvalidRequest,
            "Removing the log level of the root logger is not allowed",
        ),
        (
            Change(NAME, OpType.APPEND, "INFO"), InvalidRequest,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        (Change(NAME, 9, "INFO"), ApiException, "Unknown operation type 9"),
    ],
)  # fmt: skip
def test_what_is_refused(change: Change, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as refused:
        broker_loggers.change([change], validate_only=False)
    assert type(refused.value) is error
    assert str(refused.value) == text
