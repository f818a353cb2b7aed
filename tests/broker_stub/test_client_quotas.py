"""Which quota applies to whom, and the controller mutation quota (rules 10.11, B8.1, B8.9, B8.10)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.client_quotas import ClientQuotas, ControllerMutationQuotas, Entity
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


def test_the_most_specific_quota_applies() -> None:  # rule B8.9
    quotas = ClientQuotas()
    in_order = [
        ("users", "u/clients/c"), ("users", "u/clients/<default>"), ("users", "u"), ("users", "<default>/clients/c"),
        ("users", "<default>/clients/<default>"), ("users", "<default>"), ("clients", "c"), ("clients", "<default>"),
    ]  # fmt: skip
    both, user, client = Entity("u", "c"), Entity("u", None), Entity(None, "c")
    assert quotas.quota(RATE, "u", "c") is None
    for limit, (kind, name) in enumerate(in_order, 1):
        quotas.changed(kind, name, {RATE: str(limit)})
    for limit, shared_by in enumerate((both, both, user, both, both, user, client, client), 1):
        assert quotas.quota(RATE, "u", "c") == (shared_by, limit)
        quotas.changed(*in_order[limit - 1], {})
    assert quotas.quota(RATE, "u", "c") is None


def test_values_that_are_not_numbers_are_ignored() -> None:
    quotas = ClientQuotas()
    quotas.changed("users", "a%20b", {"SCRAM-SHA-256": "salt=x", RATE: "1.5", "request_percentage": "nan"})
    assert quotas.quota(RATE, "a b", "") == (Entity("a b", None), 1.5)
    assert quotas.quota("request_percentage", "a b", "") is None
    assert quotas.quota("SCRAM-SHA-256", "a b", "") is None


def test_a_bucket_can_be_overdrawn_once_and_refills() -> None:  # rule B8.10
    quotas = ClientQuotas()
    quotas.changed("clients", "<default>", {RATE: "2"})
    mutations = ControllerMutationQuotas(quotas, samples=11, window_seconds=1)
    first = mutations.of_request("c", 100, strict=True)
    assert (first.record(22), first.record(8), first.throttle_time_ms) == (
        True,
        True,
        0,
    )  # 22 tokens, 0, -8
    assert (first.record(1), first.throttle_time_ms) == (False, 4000)
    assert mutations.of_request("other", 100, strict=True).record(1)  # has its own bucket
    later = mutations.of_request("c", 103.5, strict=True)
    assert (later.record(1), later.throttle_time_ms) == (False, 500)
    lenient = mutations.of_request("c", 103.5, strict=False)
    assert (lenient.record(1), lenient.throttle_time_ms) == (True, 1000)
    assert mutations.of_request("c", 104.5, strict=True).record(1)
    full = mutations.of_request("c", 1_000_000, strict=True)
    assert (full.record(22), full.record(1), full.record(1), full.throttle_time_ms) == (True, True, False, 500)


def test_a_quota_of_zero_is_no_quota() -> None:
    quotas = ClientQuotas()
    mutations = ControllerMutationQuotas(quotas, samples=11, window_seconds=1)
    assert mutations.of_request("c", 0, strict=True).record(10**9)
    quotas.changed("clients", "c", {RATE: "0"})
    assert mutations.of_request("c", 0, strict=True).record(10**9)


async def ask(node: Node, message: wire.Message, version: int) -> Any:
    with trio.fail_after(5):
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
        with trio.fail_after(5):
            await server.shutdown(1)
            assert await client.closed()
