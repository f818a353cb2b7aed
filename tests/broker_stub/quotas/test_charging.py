"""What requests of all kinds are charged, on a node without sockets and with a clock of the test (section 8).

Covers: broker_stub/quotas/client_quotas.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.errors import Refused
from kce.broker_stub.quotas.entities import Client
from kce.broker_stub.reactor.request import Action
from kce.broker_stub.sampled import now_ms
from kce.broker_stub.security import KafkaPrincipal
from kce.wire import ErrorCode
from tests.broker_stub.replication.support import RecordNode, a_node, batch, fetch_request, produce_request
from tests.broker_stub.support import Node, leader_and_isr, update_metadata

TEST = Client("", "test")


class Told(NamedTuple):
    """The answer to a request, its action, and for how many ms its connection is not read."""

    answer: Any
    action: Action
    throttle_ms: int


async def tell(
    node: Node,
    message: wire.Message,
    version: int | None = None,
    *,
    seconds: float = 0,
    clock: MockClock | None = None,
    principal: KafkaPrincipal | None = None,
) -> Told:
    """The request is handled after ``seconds``, which its handler is charged for."""
    if version is None:
        version = message.__versions__.last
    more = {} if principal is None else {"principal": principal}
    request, captured = node.request(message, version, **more)  # type: ignore[arg-type]
    if clock is not None:
        clock.jump(seconds)
    try:
        waits = node.apis.handle(request)
        if waits is not None:
            await waits
    except Exception as e:  # noqa: BLE001 - as in the handler pool
        request.fail(e)
    await captured.answered.wait()
    response = captured.response
    assert response is not None
    answer = None
    if response.action is Action.SEND:
        _, answer = wire.decode_response(response.payload, api_key=message.__api_key__, api_version=version)
    return Told(answer, response.action, request.throttle_ms)


def size_of(message: wire.Message, version: int) -> int:
    return len(wire.encode_request(message, api_version=version, correlation_id=5, client_id="test"))


def measured(quota: Any, node: Node, client: Client = TEST) -> float:
    return float(quota.clients[client].measured.total(now_ms()) if client in quota.clients else math.nan)


async def test_a_producer_above_its_rate_is_throttled(autojump_clock: MockClock) -> None:  # rules B8.5-B8.7
    async with a_node() as node:
        await node.lead()
        request = produce_request(batch(b"x" * 2000), 1)
        size = size_of(request, 9)
        node.quotas.changed("clients", "test", {"producer_byte_rate": str(size // 20)})
        first, second = await tell(node, request, 9), await tell(node, request, 9)
        rate = size // 20
        expected = [round((n * size / 10 - rate) / rate * 10_000) for n in (1, 2)]
        assert [first.throttle_ms, second.throttle_ms] == expected
        assert first.answer.throttle_time_ms == first.throttle_ms
        assert node.log.log_end_offset == 2  # they are appended
        assert node.quotas.produce.queue_size(now_ms()) == 2
        old = await tell(node, request, 0)
        assert old.throttle_ms > 0  # version 0 cannot say so
        node.quotas.changed("clients", "test", {"producer_byte_rate": "1000000"})  # at once
        assert (await tell(node, request, 9)).throttle_ms == 0
        node.quotas.changed("clients", "test", {})
        assert (await tell(node, request, 9)).throttle_ms == 0


async def test_a_producer_without_acknowledgements_is_throttled_too(autojump_clock: MockClock) -> None:  # rule B3.36
    async with a_node() as node:
        await node.lead()
        request = produce_request(batch(b"x"), 0)
        node.quotas.changed("clients", "test", {"producer_byte_rate": "1", "request_percentage": "0.0001"})
        told = await tell(node, request, 9, seconds=1, clock=autojump_clock)
        size = size_of(request, 9)
        assert told == (None, Action.NO_OP, round((size / 10 - 1) * 10_000))
        assert (node.quotas.request.clients, node.quotas.exempt_time.total(now_ms())) == ({}, 100)


async def consumer(node: RecordNode, rate: int) -> None:
    await node.lead()
    await node.produce(batch(b"x" * 3000))
    await node.produce(batch(b"y" * 3000))
    node.quotas.changed("users", "ANONYMOUS", {"consumer_byte_rate": str(rate)})


USER = Client("ANONYMOUS", "")


@pytest.mark.parametrize("version", [4, 11, 12, 16])
async def test_the_size_of_a_fetch_is_that_of_its_response(version: int, autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await consumer(node, 10**6)
        request, captured = node.request(fetch_request(0, version=version, partition_max_bytes=100_000), version)
        node.apis.handle(request)
        assert captured.response is not None
        header = 5 if version >= 12 else 4
        assert measured(node.quotas.fetch, node, USER) == 4 + len(captured.response.payload) - header


async def test_a_consumer_above_its_rate_gets_nothing(autojump_clock: MockClock) -> None:  # rules B8.7, B4.5, B4.32
    async with a_node() as node:
        await consumer(node, 200)
        request = fetch_request(0, version=12, session_epoch=0, partition_max_bytes=3200)
        first = await tell(node, request, 12)
        session_id = first.answer.session_id
        assert session_id == 0  # it is not kept
        assert len(node.replication.data_plane.sessions) == 0
        assert first.answer.responses == ()
        assert first.answer.throttle_time_ms == first.throttle_ms > 5000
        assert measured(node.quotas.fetch, node, USER) == 0
        node.quotas.changed("users", "ANONYMOUS", {"consumer_byte_rate": "350"})
        second = await tell(node, request, 12)  # 3500 bytes may be fetched at once: one batch
        assert second.throttle_ms == 0
        (data,) = second.answer.responses[0].partitions
        assert 3000 < len(data.records) < 3500
        session_id = second.answer.session_id
        assert session_id > 0
        more = wire.FetchRequest(session_id=session_id, session_epoch=1, max_bytes=10**6)
        third = await tell(node, more, 12)
        assert (third.answer.responses, third.answer.session_id) == ((), session_id)
        assert third.throttle_ms > 0
        autojump_clock.jump(30)
        fourth = await tell(node, wire.FetchRequest(session_id=session_id, session_epoch=2, max_bytes=10**6), 12)
        assert fourth.throttle_ms == 0
        assert fourth.answer.responses[0].partitions[0].records == data.records  # the epoch was consumed, no more


async def test_followers_are_not_charged(autojump_clock: MockClock) -> None:  # rule B4.45
    async with a_node() as node:
        await consumer(node, 1)
        node.quotas.changed("users", "ANONYMOUS", {"consumer_byte_rate": "1", "request_percentage": "0.0001"})
        told = await tell(node, fetch_request(0, version=12, replica=2), 12, seconds=2, clock=autojump_clock)
        assert (told.throttle_ms, told.answer.throttle_time_ms) == (0, 0)
        assert told.answer.responses[0].partitions[0].records
        assert (measured(node.quotas.fetch, node, USER), node.quotas.exempt_time.total(now_ms())) == pytest.approx(
            (math.nan, 200), nan_ok=True
        )


async def test_the_larger_of_two_throttle_times_counts(autojump_clock: MockClock) -> None:  # rule B8.5
    async with a_node() as node:
        await node.lead()
        request = produce_request(batch(b"x"), 1)
        node.quotas.changed("clients", "test", {"producer_byte_rate": "1", "request_percentage": "0.01"})
        told = await tell(node, request, 9, seconds=1, clock=autojump_clock)
        now = now_ms()
        assert told.throttle_ms == told.answer.throttle_time_ms > 1000
        assert (node.quotas.produce.queue_size(now), node.quotas.request.queue_size(now)) == (1, 0)
        node.quotas.changed("clients", "test", {"producer_byte_rate": "1000000", "request_percentage": "0.01"})
        told = await tell(node, request, 9, seconds=1, clock=autojump_clock)
        now = now_ms()
        assert told.throttle_ms == told.answer.throttle_time_ms == 1000
        assert node.quotas.request.queue_size(now) == 1
        fetch = fetch_request(0, version=12)
        assert (await tell(node, fetch, 12, seconds=1, clock=autojump_clock)).answer.responses == ()


async def test_request_time_is_charged_by_user(autojump_clock: MockClock) -> None:  # rules B8.5, B8.6
    node = Node()
    node.cache.update(update_metadata())
    question = wire.MetadataRequest(topics=())
    node.quotas.changed("users", "alice", {"request_percentage": "1"})
    for who, expected in (("alice", 500), ("bob", 0)):
        principal = KafkaPrincipal("User", who)
        told = await tell(node, question, 9, seconds=0.105, clock=autojump_clock, principal=principal)
        assert (told.throttle_ms, told.answer.throttle_time_ms) == (expected, expected)
    alice = KafkaPrincipal("User", "alice")
    most = await tell(node, question, 9, seconds=60, clock=autojump_clock, principal=alice)
    assert most.throttle_ms == 1000  # one window


async def test_api_versions_say_for_how_long(autojump_clock: MockClock) -> None:
    node = Node()
    node.quotas.changed("clients", "test", {"request_percentage": "1"})
    for version, seconds, expected in ((3, 0, 0), (3, 1, 1000), (0, 1, 1000)):
        told = await tell(node, wire.ApiVersionsRequest(client_software_name="a", client_software_version="1"),
                          version, seconds=seconds, clock=autojump_clock)  # fmt: skip
        assert told.throttle_ms == expected
        assert told.answer.throttle_time_ms == (expected if version else 0)
        assert len(told.answer.api_keys) > 40


async def test_requests_of_controllers_are_not_charged(autojump_clock: MockClock) -> None:  # rule B8.8
    node = Node()
    node.quotas.changed("clients", "<default>", {"request_percentage": "0.0001"})
    for message in (update_metadata(), leader_and_isr(), wire.StopReplicaRequest(broker_epoch=-1)):
        assert (await tell(node, message, seconds=1, clock=autojump_clock)).throttle_ms == 0
    assert node.quotas.exempt_time.total(now_ms()) == 300
    assert not node.quotas.request.clients


@pytest.mark.parametrize(
    ("message", "error", "throttled"),
    [
        (leader_and_isr(), ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (leader_and_isr(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True),
        (wire.UpdateFeaturesRequest(), ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (wire.UpdateFeaturesRequest(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True),
        (wire.MetadataRequest(topics=()), ErrorCode.UNKNOWN_SERVER_ERROR, True),
        (wire.DescribeClusterRequest(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True),
    ],
)
async def test_which_failures_are_charged(
    message: wire.Message, error: ErrorCode, throttled: bool, autojump_clock: MockClock
) -> None:  # rule B1.41
    node = Node()
    node.quotas.changed("clients", "<default>", {"request_percentage": "0.0001"})
    request, _ = node.request(message, message.__versions__.last)
    autojump_clock.jump(1)
    request.fail(Refused(error))
    assert request.throttle_ms == (1000 if throttled else 0)


async def test_a_parked_request_is_charged_for_its_handler_only(autojump_clock: MockClock) -> None:
    node = Node()
    node.quotas.changed("clients", "<default>", {"request_percentage": "1"})
    request, _ = node.request(wire.MetadataRequest(topics=()), 9)
    autojump_clock.jump(0.05)
    request.handled_at = request.clock()
    autojump_clock.jump(3600)
    request.respond(wire.MetadataResponse())
    assert (request.throttle_ms, measured(node.quotas.request, node)) == (0, pytest.approx(5))


async def test_without_limits_nothing_is_measured(autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"x"))
        await node.fetch(0)
        assert node.apis.request_quota is None
        quotas = node.quotas
        kinds: tuple[Any, ...] = (quotas.produce, quotas.fetch, quotas.request, quotas.controller_mutation)
        assert [kind.clients for kind in kinds] == [{}] * 4


@pytest.mark.parametrize(("rate", "by_size"), [(200, True), (310, False)])
async def test_a_fetch_is_throttled_by_its_size_or_by_its_time(
    rate: int, by_size: bool, autojump_clock: MockClock
) -> None:  # rules B8.5, B8.7
    async with a_node() as node:
        await consumer(node, rate)
        limits = {"consumer_byte_rate": str(rate), "request_percentage": "0.01"}
        node.quotas.changed("users", "ANONYMOUS", limits)
        request = fetch_request(0, version=12, partition_max_bytes=3200)
        told = await tell(node, request, 12, seconds=1, clock=autojump_clock)
        now = now_ms()
        assert (node.quotas.fetch.queue_size(now), node.quotas.request.queue_size(now)) == (by_size, not by_size)
        assert (told.throttle_ms > 1000, told.throttle_ms == 1000) == (by_size, not by_size)
        assert measured(node.quotas.fetch, node, USER) == 0


@pytest.mark.parametrize("payload", [*range(54, 62), 16_300, 16_320, 20_000])
async def test_sizes_of_any_length_are_counted(payload: int, autojump_clock: MockClock) -> None:
    """The length of the records takes one byte, two or three."""
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"x" * payload))
        node.quotas.changed("users", "ANONYMOUS", {"consumer_byte_rate": "1000000"})
        request, captured = node.request(fetch_request(0, version=12, partition_max_bytes=100_000), 12)
        node.apis.handle(request)
        assert captured.response is not None
        assert measured(node.quotas.fetch, node, USER) == 4 + len(captured.response.payload) - 5
