"""Limits of connections, and of their rates (rules B1.45-B1.52).

Covers: broker_stub/reactor/quotas.py.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.connection_limits import ConnectionLimits
from kce.broker_stub.reactor import Request
from kce.broker_stub.reactor.acceptor import ThrottledLinks
from kce.broker_stub.reactor.quotas import ConnectionQuotas, Rate
from kce.wire.configuration import ConfigError, Properties
from tests.broker_stub.support import (
    ONE_LISTENER,
    Client,
    ScriptedApis,
    config,
    connect,
    listener,
    make_broker,
    running_server,
    until,
)  # fmt: skip

QUESTION = wire.ApiVersionsRequest()
ANSWER = wire.ApiVersionsResponse()
ADDRESS = "10.0.0.1"


def answer(request: Request) -> None:
    request.respond(ANSWER)


def limits(**properties: str) -> ConnectionLimits:
    names = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
    return ConnectionLimits.from_properties(Properties(names), ("A", "B"))


def test_limits_from_properties() -> None:
    assert limits() == ConnectionLimits()
    found = limits(
        max_connections="7",
        listener_name_b_max_connections="3",
        max_connections_per_ip="0",
        max_connections_per_ip_overrides="localhost:2, [::1]:3,10.0.0.1:4",
        listener_name_a_max_connection_creation_rate="5",
        quota_window_num="2",
    )
    assert found == ConnectionLimits(
        total=7,
        of_listener={"A": 7, "B": 3},
        per_ip=0,
        per_ip_overrides={"127.0.0.1": 2, "::1": 3, ADDRESS: 4},
        rate_of_listener={"A": 5},
        samples=2,
    )
    found = limits(max_connection_creation_rate="2", listener_name_a_max_connection_creation_rate="5")
    # rule B1.47: the broker's limits are those of each listener by itself, too, of the protected one
    assert (found.rate, found.rate_of_listener, found.of_listener) == (2, {"A": 5, "B": 2}, {})
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip=0: must be at least 1 without"):
        limits(max_connections_per_ip="0")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:-1, localhost : +2", {ADDRESS: -1, "127.0.0.1": 2}), (":3", {"127.0.0.1": 3}),
        ("10.0.0.1:1,10.0.0.1:2,,", {ADDRESS: 2}), (",", {}),
        ("10.0.0.1:1,,10.0.0.2:2", None), ("10.0.0.1:2147483648", None), (",10.0.0.1:1", None),
    ],
)  # fmt: skip
def test_limits_of_addresses_as_kafka_reads_them(text: str, found: dict[str, int] | None) -> None:
    """Measured."""
    if found is None:
        with pytest.raises(ConfigError, match="is not HOST:LIMIT"):
            limits(max_connections_per_ip_overrides=text)
    else:
        assert limits(max_connections_per_ip_overrides=text).per_ip_overrides == found


def test_an_address_may_have_a_limit_of_its_own() -> None:  # rules B1.45, B1.46
    quotas = ConnectionQuotas(ConnectionLimits(per_ip=1, per_ip_overrides={ADDRESS: 2}))
    assert [quotas.acquire("A", ADDRESS) for _ in range(3)] == [True, True, False]
    assert [quotas.acquire("A", "10.0.0.2") for _ in range(2)] == [True, False]
    quotas.release("A", ADDRESS)
    assert quotas.acquire("B", ADDRESS)
    assert quotas.open_from(ADDRESS) == 2
    assert quotas.total == 3


async def test_a_full_listener_blocks_its_acceptor_until_a_connection_closes(nursery) -> None:  # rule B1.47
    base = {**ONE_LISTENER, "listener.name.data.max.connections": "2"}
    async with running_server(ScriptedApis(answer), config(base=base)) as server:
        clients = []
        for _ in range(2):
            clients.append(Client(await trio.open_tcp_stream(*listener(server)[2:])))
            await clients[-1].ask(QUESTION)
        async with connect(listener(server)) as third, connect(listener(server)) as fourth:
            await third.send(QUESTION)
            await fourth.send(QUESTION)
            await wait_all_tasks_blocked(0.01)
            assert server.metrics.connections_open == 2
            await clients[0].stream.aclose()
            assert await third.receive() == ANSWER
            await wait_all_tasks_blocked(0.01)
            assert server.metrics.connections_accepted == 3
            await third.stream.aclose()
            assert await fourth.receive() == ANSWER
        await clients[1].stream.aclose()


async def test_the_inter_broker_listener_is_protected_from_the_brokers_limit() -> None:  # rules B1.48, B1.49
    """A connection there beyond the limit costs the least recently used one elsewhere."""
    async with running_server(ScriptedApis(answer), config(max_connections="2")) as server:
        control, data = listener(server, "CONTROL"), listener(server, "DATA")  # DATA is the inter-broker listener
        async with AsyncExitStack() as stack:
            older = await stack.enter_async_context(connect(control))
            await older.ask(QUESTION)
            newer = await stack.enter_async_context(connect(control))
            await newer.ask(QUESTION)
            await older.ask(QUESTION)
            protected = await stack.enter_async_context(connect(data))
            assert await protected.ask(QUESTION) == ANSWER
            assert await newer.closed()
            assert await older.ask(QUESTION) == ANSWER
            await until(lambda: server.quotas.total == 2)
            async with connect(control) as waiting:
                await waiting.send(QUESTION)
                await wait_all_tasks_blocked(0.01)
                assert server.metrics.connections_open == 2
                await protected.stream.aclose()
                assert await waiting.receive() == ANSWER


def test_without_another_listener_none_is_protected() -> None:  # rule B1.48
    (acceptor,) = make_broker(config(base=ONE_LISTENER)).socket_server.acceptors
    assert not acceptor._quotas.is_protected("DATA")


async def test_raised_limits_take_effect_at_once(nursery) -> None:  # rule B1.52
    broker = make_broker(config(max_connections="1"))
    quotas, admitted = broker.socket_server.quotas, trio.Event()
    assert quotas.acquire("CONTROL", ADDRESS)

    async def wait() -> None:
        await quotas.wait_for_slot("CONTROL")
        admitted.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert not admitted.is_set()
    broker.config_changed({"max.connections": "nonsense"}, {})
    await wait_all_tasks_blocked()
    assert not admitted.is_set()
    broker.config_changed({"max.connections": "2", "max.connections.per.ip.overrides": f"{ADDRESS}:1"}, {})
    await admitted.wait()
    assert not quotas.acquire("CONTROL", ADDRESS)
    broker.config_changed({}, {"max.connections": "3"})
    assert quotas.limits.total == 3
    assert dict(broker.dynamic_config.by_source.dynamic_default) == {"max.connections": "3"}
    broker.config_changed({"max.connections": "4"}, {"max.connections": "3"})
    assert quotas.limits.total == 4  # its own come first
    assert dict(broker.dynamic_config.by_source.dynamic) == {"max.connections": "4"}
    broker.config_changed({}, {})
    assert quotas.limits == broker.config.connection_limits


def test_the_rate_is_that_of_the_window() -> None:
    rate = Rate(samples=3, sample_seconds=1)
    for _ in range(20):
        rate.record(100.0)
    assert rate.delay(100.0, 10) == 0  # 20 in two seconds: the window counts as all but full
    for _ in range(21):
        rate.record(100.5)
    assert rate.delay(100.5, 10) == 1.0  # at most a sample
    assert rate.delay(100.5, 15) == 0.233  # (41 / 2.5 - 15) / 15 * 2.5
    rate.record(103.5)
    assert rate.delay(103.5, 1) == 0  # the old sample is out of the window
    assert Rate(3, 1).delay(0, 0) == 0


async def test_connections_beyond_the_rate_wait(autojump_clock) -> None:  # rule B1.50
    quotas = ConnectionQuotas(ConnectionLimits(rate=10, rate_of_listener={"B": 1}, samples=2), protected="C")
    begin = trio.current_time()
    for _ in range(10):
        await quotas.wait_for_slot("A")
    assert trio.current_time() == begin
    await quotas.wait_for_slot("A")
    assert trio.current_time() == pytest.approx(begin + 0.1)
    for _ in range(50):
        await quotas.wait_for_slot("C")  # the broker's limit does not apply
    assert trio.current_time() == pytest.approx(begin + 0.1)
    await trio.sleep(10)
    begin = trio.current_time()
    for _ in range(2):
        await quotas.wait_for_slot("B")
    assert trio.current_time() - begin == pytest.approx(1)


async def test_an_address_beyond_its_rate_is_closed_unserved_after_a_delay(autojump_clock, nursery) -> None:  # B1.50
    broker = make_broker(config(quota_window_num="2"))
    quotas = broker.socket_server.quotas
    broker.client_config_changed("ips", "<default>", {"connection_creation_rate": "2"})
    broker.client_config_changed("ips", ADDRESS, {"connection_creation_rate": "1"})
    delays = [quotas.ip_delay("A", ADDRESS) for _ in range(3)]
    assert delays == pytest.approx([0, 1, 1])
    await trio.sleep(1.5)
    assert quotas.ip_delay("A", ADDRESS) == pytest.approx(0.5)  # the refused ones do not count: 2 in 1.5 s
    assert [quotas.ip_delay("A", "10.0.0.2") for _ in range(3)] == pytest.approx([0, 0, 0.5])
    broker.client_config_changed("ips", ADDRESS, {})
    broker.client_config_changed("ips", "<default>", {})
    assert [quotas.ip_delay("A", ADDRESS) for _ in range(9)] == [0] * 9
    broker.client_config_changed("clients", "c", {"controller_mutation_rate": "1"})
    assert broker.client_quotas.controller_mutation.limit_of("u", "c") == 1


class ClosingLink:
    def __init__(self) -> None:
        self.closed_at: float | None = None

    async def aclose(self) -> None:
        self.closed_at = trio.current_time()


async def test_throttled_connections_close_when_the_latest_is_due(autojump_clock) -> None:  # rule B1.51
    throttled, links = ThrottledLinks(), [ClosingLink() for _ in range(4)]
    begin = trio.current_time()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(throttled.run)
            throttled.close_after(links[0], 1)  # type: ignore[arg-type]
            throttled.close_after(links[1], 3)  # type: ignore[arg-type]
            await trio.sleep(2)
            throttled.close_after(links[2], 2)  # type: ignore[arg-type]
            await trio.sleep(8)
            throttled.close_after(links[3], 5)  # type: ignore[arg-type]
            scope.cancel()
    closed = [each.closed_at - begin for each in links if each.closed_at is not None]
    assert closed == pytest.approx([4, 4, 4, 10])


async def test_a_throttled_address_gets_no_answer() -> None:  # rule B1.50
    async with running_server(ScriptedApis(answer), config(quota_window_num="2")) as server:
        server.quotas.ip_config_changed("127.0.0.1", 1)
        async with connect(listener(server)) as first, connect(listener(server)) as second:
            assert await first.ask(QUESTION) == ANSWER
            await second.send(QUESTION)
            assert await second.closed()
        assert server.metrics.connections_accepted == 1
