"""The connection to another broker: when it is made, kept and closed, and in which version it asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.transactions.connection import BrokerConnection, UnsupportedByBroker
from kce.wire import ErrorCode
from kce.wire.transport import ConnectionLost
from kce.wire.vocabulary import Endpoint
from tests.broker_stub.fake_nodes import FakeConnection, FakeNodes, serves

ADD, END = wire.AddPartitionsToTxnRequest(), wire.EndTxnRequest(transactional_id="t")
HERE = Endpoint("CONTROL", "PLAINTEXT", "here", 1)
THERE = HERE._replace(listener="DATA", host="there", port=2)


class Broker(FakeNodes):
    """``fails``: how the next requests end."""

    def __init__(self, newest: int = 5) -> None:
        super().__init__()
        self.newest = newest
        self.fails: list[Exception | None] = []
        self.to: list[tuple[int, str]] = []
        self.nodes = {("here", 1): self._answer, ("there", 2): self._answer}

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> FakeConnection:
        self.to.append((to, listener))
        return await super().dial(host, port, to=to, listener=listener)

    async def _answer(self, header: wire.Header, message: Any) -> wire.Message | None:
        if isinstance(message, wire.ApiVersionsRequest):
            return serves(24, 0, self.newest)
        if self.fails:
            failure = self.fails.pop(0)
            if failure is None:
                return None
            raise failure
        if isinstance(message, wire.EndTxnRequest):
            return wire.EndTxnResponse()
        return wire.AddPartitionsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)

    @property
    def asked(self) -> list[tuple[str, int, int]]:
        """Host, API key and version of each request."""
        return [(host, header.api_key, header.api_version) for host, header, _ in self.requests]


def connection(broker: Broker) -> BrokerConnection:
    return BrokerConnection(7, broker.dial, "client", 500)


async def test_one_connection_for_all_requests() -> None:
    broker = Broker()
    made = connection(broker)
    for _ in range(2):
        assert await made.request(HERE, END, 1) == wire.EndTxnResponse()
        answer = await made.request_newest(HERE, ADD, 4)
        assert answer == wire.AddPartitionsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    assert [(key, version) for _, key, version in broker.asked if key != 18] == [(26, 1), (24, 5)] * 2
    assert [key for _, key, _ in broker.asked].count(18) == 1
    assert {header.client_id for _, header, _ in broker.requests} == {"client"}
    assert (broker.to, broker.open) == ([(7, "CONTROL")], 1)
    await made.request(THERE, END, 1)  # it has moved
    assert (broker.dialled, broker.to[1:], broker.open) == ([("here", 1), ("there", 2)], [(7, "DATA")], 1)
    await made.request_newest(THERE, ADD, 4)
    assert broker.asked[-2:] == [("there", 18, broker.asked[-2][2]), ("there", 24, 5)]
    for _ in range(2):
        await made.aclose()
    assert broker.open == 0


@pytest.mark.parametrize(
    ("newest", "least", "version"), [(4, 4, 4), (3, 4, None), (5, 4, 5), (9, 4, 5), (9, 5, 5), (9, 6, None)]
)
async def test_the_newest_version_that_both_know(newest: int, least: int, version: int | None) -> None:
    broker = Broker(newest)
    made = connection(broker)
    if version is None:
        with pytest.raises(UnsupportedByBroker, match=f"broker 7 knows versions up to {newest}"):
            await made.request_newest(HERE, ADD, least)
    else:
        await made.request_newest(HERE, ADD, least)
    assert [asked for _, key, asked in broker.asked if key == 24] == ([] if version is None else [version])
    with pytest.raises(UnsupportedByBroker, match="up to -1"):
        await made.request_newest(HERE, END, 0)
    assert (len(broker.dialled), broker.open) == (1, 1)  # an old broker is no failure
    await made.aclose()


@pytest.mark.parametrize("failure", [ConnectionLost("closed"), None])
async def test_a_failure_closes_it(failure: Exception | None, autojump_clock: MockClock) -> None:
    broker = Broker(4)
    made = connection(broker)
    await made.request_newest(HERE, ADD, 4)
    broker.newest = 5
    broker.fails = [failure]
    expected: Mapping[bool, type[Exception]] = {True: trio.TooSlowError, False: ConnectionLost}
    began = trio.current_time()
    with pytest.raises(expected[failure is None]):
        await made.request(HERE, END, 1)
    assert trio.current_time() - began == pytest.approx(0.5 if failure is None else 0)
    assert broker.open == 0
    await made.request_newest(HERE, ADD, 4)  # the broker may be another one by now
    assert (len(broker.dialled), broker.asked[-1]) == (2, ("here", 24, 5))
    await made.aclose()
