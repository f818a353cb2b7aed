"""What requests are charged, and how long connections are throttled (rules 10.11, B8.1-B8.13)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.quotas.client_quota import UNLIMITED
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.reactor import Request
from kce.wire import ErrorCode
from tests.broker_stub.support import (
    Node,
    ScriptedApis,
    connect,
    listener,
    running_server,
    umr_state,
    update_metadata,
)
from tests.broker_stub.test_admin_handlers import Active, Store, creatable, results

RATE = "controller_mutation_rate"


def test_changes_of_entities() -> None:
    quotas = ClientQuotas()
    quotas.changed("users", "a%20b", {"SCRAM-SHA-256": "salt=x", RATE: "1.5", "producer_byte_rate": "7"})
    assert quotas.controller_mutation.limit_of("a b", "") == 1.5
    assert quotas.produce.limit_of("a b", "") == 7
    assert not quotas.fetch.enabled
    quotas.changed(
        "users", "a%20b", {"SCRAM-SHA-256": "salt=x", "consumer_byte_rate": "8", "request_percentage": "2.5"}
    )
    assert quotas.controller_mutation.limit_of("a b", "") == UNLIMITED
    assert quotas.produce.limit_of("a b", "") == UNLIMITED
    assert (quotas.fetch.limit_of("a b", ""), quotas.request.limit_of("a b", "")) == (8, 2.5)


@pytest.mark.parametrize(
    ("kind", "name", "config"),
    [
        ("users", "u/c", {"producer_byte_rate": "1"}),
        ("users", "u", {"producer_byte_rate": "1.5"}),
        ("clients", "c", {"producer_byte_rate": "1", "request_percentage": "a lot"}),
        ("clients", "c", {"producer_byte_rate": "1", RATE: ""}),
    ],
)
def test_what_cannot_be_read_is_logged_and_changes_nothing(
    kind: str, name: str, config: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    quotas = ClientQuotas()
    quotas.changed(kind, name, config)
    assert f"quotas of /config/{kind}/{name} are not used" in caplog.text
    assert not quotas.produce.enabled


@pytest.mark.parametrize(
    ("limit", "is_throttled"), [("NaN", False), ("-Infinity", False), ("-0.0", False), ("1", True)]
)
def test_a_limit_that_is_no_number_throttles_nobody(limit: str, is_throttled: bool) -> None:
    """The others of its entity apply. Measured."""
    quotas = ClientQuotas()
    quotas.changed("clients", "c", {"producer_byte_rate": "5", "request_percentage": "2"})
    quotas.changed("clients", "c", {"producer_byte_rate": "7", "request_percentage": limit})
    assert quotas.produce.limit_of("u", "c") == 7
    assert (quotas.request.record("u", "c", 1e6, 1000) > 0) == is_throttled


async def ask(node: Node, message: wire.Message, version: int) -> Any:
    with trio.fail_after(60):
        return await node.ask(message, version)


EXCEEDED, DONE, LATE = ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("message", "strict_from", "accepted"),
    [
        (wire.CreateTopicsRequest(topics=(creatable("b", 3), creatable("c", 2)), timeout_ms=0), 6, LATE),
        (
            wire.CreatePartitionsRequest(
                topics=tuple(wire.CreatePartitionsTopic(name=name, count=3) for name in ("b", "c")), timeout_ms=0
            ),
            3,
            LATE,
        ),
        (wire.DeleteTopicsRequest(topic_names=("b", "c"), timeout_ms=0), 5, LATE),
    ],
)
async def test_mutations_beyond_the_quota_are_throttled(
    message: wire.Message, strict_from: int, accepted: ErrorCode, autojump_clock: MockClock
) -> None:  # rule 10.11
    for version in (strict_from, strict_from - 1):
        async with trio.open_nursery() as nursery:
            node = Node(controller=Active(), admin=Store(), nursery=nursery, controller_quota_window_num="1")
            if isinstance(message, wire.DeleteTopicsRequest):
                for name in ("b", "c"):
                    node.cache.update(update_metadata(umr_state(0), umr_state(1), topic=name))
            node.quotas.changed("clients", "test", {RATE: "1"})
            answer = await ask(node, message, version)
            strict = version == strict_from
            assert results(answer) == {"b": accepted, "c": EXCEEDED if strict else accepted}
            assert answer.throttle_time_ms > 0
            if strict:
                autojump_clock.jump(answer.throttle_time_ms / 1000)
                assert results(await ask(node, message, version))["b"] == accepted


async def test_a_throttled_connection_is_muted() -> None:  # rules B8.1, B1.27
    arrived: list[float] = []

    async def handle(request: Request) -> None:
        await trio.lowlevel.checkpoint()
        arrived.append(trio.current_time())
        request.respond(wire.ApiVersionsResponse(throttle_time_ms=100 if len(arrived) == 1 else 0))

    async with running_server(ScriptedApis(handle)) as server, connect(listener(server)) as client:
        await client.send(wire.ApiVersionsRequest(), wire.ApiVersionsRequest(), version=2)
        assert (await client.receive()).throttle_time_ms == 100
        answered = trio.current_time()
        await client.receive()
        assert arrived[1] - arrived[0] >= 0.1
        assert answered < arrived[1]


async def test_a_throttled_connection_closes_with_the_server() -> None:
    async def handle(request: Request) -> None:
        await trio.lowlevel.checkpoint()
        request.respond(wire.ApiVersionsResponse(throttle_time_ms=3_600_000))

    async with running_server(ScriptedApis(handle)) as server, connect(listener(server)) as client:
        await client.ask(wire.ApiVersionsRequest(), version=2)
        with trio.fail_after(60):
            await server.shutdown(1)
            assert await client.closed()


def test_exempt_time_is_that_of_a_minute() -> None:
    exempt = ClientQuotas().exempt_time
    exempt.record(7, 1_000_000)
    assert [exempt.total(1_000_000 + ms) for ms in (0, 59_999, 60_001)] == [7, 7, 0]
