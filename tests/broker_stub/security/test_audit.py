"""What the log of the authorizer says (rule B9.36), through the one place where handlers ask.

Covers: broker_stub/authorization.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from kce.broker_stub.authorization import Authorization
from kce.broker_stub.security.operations import Operation, ResourceType
from tests.broker_stub.security.authorizers import add, authorizers, entry, literal, requester

NAME, TRACE = "kafka.authorizer.logger", 5
READ, TOPIC = Operation.READ, ResourceType.TOPIC


@pytest.fixture
async def authorization() -> AsyncIterator[Authorization]:
    async with authorizers() as made:
        authorizer = await made.start()
        await add(authorizer, literal("a"), entry("Read"))
        yield Authorization(authorizer)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == NAME]
    caplog.clear()
    return found


async def test_each_decision_is_one_line(authorization: Authorization, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, NAME)
    alice = requester()

    def line(word: str, operation: str, resource: str, count: int = 1) -> str:
        return (
            f"Principal = User:alice is {word} Operation = {operation} from host = 192.168.0.1 on resource = "
            f"{resource} for request = Produce with resourceRefCount = {count}"
        )

    assert authorization.allows(alice, READ, TOPIC, "a", count=3)
    assert lines(caplog) == [(logging.DEBUG, line("Allowed", "Read", "Topic:LITERAL:a", 3))]
    assert not authorization.allows(alice, READ, TOPIC, "b", count=2)
    assert lines(caplog) == [(logging.INFO, line("Denied", "Read", "Topic:LITERAL:b", 2))]
    assert not authorization.allows(alice, READ, TOPIC, "b", log_denied=False)
    assert lines(caplog) == [(TRACE, line("Denied", "Read", "Topic:LITERAL:b"))]
    cluster = line("Denied", "Alter", "Cluster:LITERAL:kafka-cluster")
    assert not authorization.allows_on_cluster(alice, Operation.ALTER)
    assert lines(caplog) == [(logging.INFO, cluster)]
    assert not authorization.allows_on_cluster(alice, Operation.ALTER, log_denied=False)
    assert lines(caplog) == [(TRACE, cluster)]


async def test_names_are_counted_and_judged_once(
    authorization: Authorization, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(TRACE, NAME)
    assert authorization.denied_topics(requester(), READ, ["b", "a", "b"]) == {"b"}
    assert [(level, text[-1]) for level, text in lines(caplog)] == [(logging.INFO, "2"), (logging.DEBUG, "1")]
    assert authorization.denied_topics(requester(), READ, ["b"], log_denied=False) == {"b"}
    assert [level for level, _ in lines(caplog)] == [TRACE]


async def test_any_of_a_type_and_operations(authorization: Authorization, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, NAME)
    assert authorization.allows_on_any(requester(), READ, TOPIC)
    assert not authorization.allows_on_any(requester(), READ, ResourceType.GROUP)
    (allowed, first), (denied, second) = lines(caplog)
    assert (allowed, denied) == (logging.DEBUG, logging.INFO)
    assert "is Allowed Operation = Read" in first
    assert "Topic:UNKNOWN:NONE" in first
    assert first.endswith("resourceRefCount = 0")
    assert "is Denied" in second
    authorization.operations(requester(), TOPIC, "a")
    assert {level for level, _ in lines(caplog)} == {TRACE}  # nobody asks for these
