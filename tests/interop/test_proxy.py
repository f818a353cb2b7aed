"""The proxy in front of real Kafka: a producer of librdkafka goes through it while rules disturb it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic

from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.faults import Rule
from kce.harness.proxy import Proxy
from kce.wire import ErrorCode
from tests.clusters import know_each_other
from tests.interop.real_kafka import real_brokers
from tests.interop.records import Ledger, Traffic

pytestmark = pytest.mark.slow
LIMIT_S = 120


def create(bootstrap: str, topic: str) -> None:
    new = NewTopic(topic, num_partitions=2, replication_factor=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # a client without references ends
    admin.create_topics([new])[topic].result(60)


async def disturb(proxy: Proxy, ledger: Ledger, *rules: Rule) -> None:
    """Send records until every rule has fired and 300 more are acknowledged, then wait for all of them."""
    async with proxy.faults(*rules):
        with Traffic(ledger):
            target = len(ledger.acknowledged) + 300
            while not all(rule.fired for rule in rules) or len(ledger.acknowledged) < target:  # noqa: ASYNC110
                await trio.sleep(0.05)
    await trio.to_thread.run_sync(ledger.flush)


async def test_nothing_is_lost_behind_a_proxy_that_refuses_resets_and_delays(tmp_path: Path) -> None:
    async with (
        embedded_zookeeper(tmp_path / "zookeeper") as zookeeper,
        real_brokers([1, 2], zookeeper, tmp_path) as brokers,
    ):
        await know_each_other(*(broker.address for broker in brokers.values()))
        async with Proxy(brokers[1].address) as proxy:
            direct = {brokers[n].address for n in (1, 2)}
            assert {"{}:{}".format(*theirs) for theirs in proxy.brokers} == direct
            await trio.to_thread.run_sync(create, proxy.bootstrap_servers, "t")
            slow = Rule(api="Produce", delay=0.01, jitter=0.02, probability=0.2)
            refused = Rule(api="Produce", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, topic="t", every=7)
            request_lost = Rule(api="Produce", reset=True, every=11)
            response_lost = Rule(api="Produce", is_request=False, reset=True, every=13)
            ledger = Ledger(proxy.bootstrap_servers, "t")
            with trio.fail_after(LIMIT_S):
                # not both at once: after a gap in its sequence librdkafka sends again in a new epoch what was lost
                await disturb(proxy, ledger, refused, slow)
                await disturb(proxy, ledger, request_lost, response_lost, slow)
                assert await trio.to_thread.run_sync(ledger.check) == ledger.sent
                assert ledger.twice == []
            destinations = {event.destination for event in proxy.history.events(api="Produce")}
            assert destinations == {1, 2}
