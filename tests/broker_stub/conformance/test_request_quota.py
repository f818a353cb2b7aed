"""RQT, TCE: requests of all APIs are charged (section 12 of docs/broker-semantics.md; rules B8.8-B8.7).

`unit/kafka/server/` RequestQuotaTest, ThrottledChannelExpirationTest. Each request takes a second of its handler.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.quotas.client_quota import RateQuota
from kce.broker_stub.quotas.client_quotas import EXEMPT
from kce.broker_stub.quotas.entities import Client, Entity
from kce.broker_stub.sampled import now_ms
from tests.broker_stub.quotas.test_charging import Told, tell
from tests.broker_stub.replication.support import RecordNode, a_node, batch, fetch_request, produce_request
from tests.broker_stub.security.authorizers import ALICE
from tests.broker_stub.test_authorization import Guarded

kafka = pytest.mark.kafka

REQUESTS = {handler.request.__name__: handler.request() for handler in HANDLERS}
del REQUESTS["EnvelopeRequest"]  # closes the connection
REQUESTS["ProduceRequest"] = produce_request(batch(b"test"), 1)
REQUESTS["FetchRequest"] = fetch_request(0, version=12)
REQUESTS["ApiVersionsRequest"] = wire.ApiVersionsRequest(client_software_name="test", client_software_version="1")
REQUESTS["DescribeAclsRequest"] = wire.DescribeAclsRequest(
    resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
)
VERSIONS = {"ProduceRequest": 9, "FetchRequest": 12}
OF_CLIENTS = sorted(name for name, message in REQUESTS.items() if message.__api_key__ not in EXEMPT)
TEST = Client("", "test")


@pytest.fixture
async def node(autojump_clock: MockClock) -> AsyncIterator[RecordNode]:
    async with a_node() as made:
        await made.lead()
        default = {"request_percentage": "0.01", "producer_byte_rate": "2000", "consumer_byte_rate": "2000"}
        made.quotas.changed("clients", "<default>", default)
        yield made


async def ask(node: RecordNode, name: str, clock: MockClock) -> Told:
    return await tell(node, REQUESTS[name], VERSIONS.get(name), seconds=1, clock=clock)


def throttle_time(quota: Any) -> float:
    return float(quota.clients[TEST].throttle_time.measure(now_ms()))


@kafka("RQT-1")
@pytest.mark.parametrize("name", OF_CLIENTS)
async def test_the_response_says_for_how_long(node: RecordNode, name: str, autojump_clock: MockClock) -> None:
    told = await ask(node, name, autojump_clock)
    assert told.throttle_ms == 1000
    assert getattr(told.answer, "throttle_time_ms", 1000) == 1000
    assert throttle_time(node.quotas.request) == 1000


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param("ProduceRequest", "producer_byte_rate", marks=kafka("RQT-2")),
        pytest.param("FetchRequest", "consumer_byte_rate", marks=kafka("RQT-3")),
    ],
)
async def test_the_quota_of_bytes_may_be_the_larger(
    node: RecordNode, name: str, key: str, autojump_clock: MockClock
) -> None:
    node.quotas.changed("clients", "test", {key: "1", "request_percentage": "0.01"})
    told = await ask(node, name, autojump_clock)
    assert told.answer.throttle_time_ms == told.throttle_ms > 1000
    of_bytes = node.quotas.produce if name == "ProduceRequest" else node.quotas.fetch
    assert throttle_time(of_bytes) == told.throttle_ms
    assert math.isnan(throttle_time(node.quotas.request))


@kafka("RQT-4")
@pytest.mark.parametrize("name", OF_CLIENTS)
async def test_a_client_with_a_high_limit(node: RecordNode, name: str, autojump_clock: MockClock) -> None:
    more = {"request_percentage": "2000", "producer_byte_rate": "2000", "consumer_byte_rate": "2000"}
    node.quotas.changed("clients", "test", more)
    told = await ask(node, name, autojump_clock)
    assert (told.throttle_ms, getattr(told.answer, "throttle_time_ms", 0)) == (0, 0)
    assert math.isnan(throttle_time(node.quotas.request))


@kafka("RQT-5")
@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - OF_CLIENTS))
async def test_requests_of_brokers_and_controllers(node: RecordNode, name: str, autojump_clock: MockClock) -> None:
    told = await ask(node, name, autojump_clock)
    assert told.throttle_ms == 0
    assert node.quotas.exempt_time.total(now_ms()) == 100
    assert TEST not in node.quotas.request.clients


@kafka("RQT-6")
@pytest.mark.parametrize("name", sorted(REQUESTS))
async def test_who_may_do_nothing_is_throttled(name: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        node = Guarded(nursery)  # alice has no ACLs
        node.quotas.changed("clients", "<default>", {"request_percentage": "0.01"})
        await tell(node, REQUESTS[name], VERSIONS.get(name), seconds=1, clock=autojump_clock, principal=ALICE)
        charged = node.quotas.request.clients[TEST]
        assert charged.throttle_time.measure(now_ms()) > 0
        nursery.cancel_scope.cancel()


@kafka("TCE-1")
def test_connections_are_read_again_when_they_are_due() -> None:
    quota = RateQuota(11, 1)
    quota.update(Entity(None, "test"), 1)
    for ms in (10, 30, 30, 20):
        quota.throttled("", "test", ms, 0)
    assert [quota.queue_size(now) for now in (0, 9, 10, 20, 30, 30, 40)] == [4, 4, 3, 2, 0, 0, 0]
