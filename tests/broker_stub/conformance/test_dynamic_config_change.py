"""DCC: changes of configuration at run time (section 14 of docs/controller-semantics.md; rules 1.34-1.36, B7.27, B8.9).

Quotas are written as `kafka-configs --zookeeper` writes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.connection_limits import UNLIMITED
from kce.broker_stub.quotas.client_quota import UNLIMITED as NO_LIMIT
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.zookeeper.admin_manager import ZkAdminManager
from kce.broker_stub.zookeeper.config_changes import ConfigChangeListener
from kce.wire import ErrorCode
from kce.zookeeper.store import Create, Delete
from tests.broker_stub.support import Node, running_broker
from tests.broker_stub.test_admin_handlers import node, nursery
from tests.controller.support import World, world

__all__ = ["node", "nursery"]  # fixtures


class Quotas:
    """A broker's quotas, which follow ZooKeeper while ``followed``."""

    def __init__(self, w: World) -> None:
        self._w = w
        self._admin = ZkAdminManager(w.zk, w.ibp, Random(0))
        self.quotas = ClientQuotas()

    async def set(self, kind: str, name: str, **quotas: str) -> None:
        await self._admin.change_config(kind, name, quotas)
        await self._w.settle()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        configs = ConfigChangeListener(self._w.zk, 1, static_unclean=False, on_client_config=self.quotas.changed)
        async with trio.open_nursery() as nursery:
            await nursery.start(configs.run)
            yield
            nursery.cancel_scope.cancel()

    def of(self, user: str, client_id: str) -> tuple[float | None, float | None]:
        """The quotas of producing and of fetching; None: no quota."""
        limits = (quota.limit_of(user, client_id) for quota in (self.quotas.produce, self.quotas.fetch))
        produce, fetch = (None if limit == NO_LIMIT else limit for limit in limits)
        return produce, fetch


@pytest.mark.kafka("DCC-10")
async def test_quotas_are_read_at_the_start(autojump_clock: MockClock) -> None:
    async with world(brokers=()) as w:
        await w.start_controller(1)
        broker = Quotas(w)
        for limit, (kind, name) in (
            (1000, ("clients", "overriddenClientId")),
            (10000, ("users", "overriddenUser")),
            (100000, ("users", "ANONYMOUS/clients/overriddenUserClientId")),
        ):
            await broker.set(kind, name, producer_byte_rate=str(limit), consumer_byte_rate=str(2 * limit))
        notifications = [f"/config/changes/{name}" for name in await w.zk.get_children("/config/changes")]
        assert len(notifications) == 3
        await w.store.write([Delete(path) for path in notifications])
        async with broker.followed():
            assert broker.of("someuser", "overriddenClientId") == (1000, 2000)
            assert broker.of("overriddenUser", "someclientId") == (10000, 20000)
            assert broker.of("ANONYMOUS", "overriddenUserClientId") == (100000, 200000)


@pytest.mark.kafka("DCC-15")
async def test_notifications_that_say_nothing_are_skipped(autojump_clock: MockClock) -> None:  # rules 1.35, 1.36
    async with world(brokers=()) as w:
        followed: list[str] = []
        configs = ConfigChangeListener(
            w.zk, 1, static_unclean=False, on_client_config=lambda kind, name, config: followed.append(f"{kind}/{name}")
        )
        await configs.read()
        for content in (
            b"not json",
            b'{"v":1,"x":2}',
            b'{"version":1,"entity_type":"garbage","entity_name":"x"}',
            b'{"version":1,"entity_type":"clients"}',
            b'{"version":1,"entity_type":"clients","entity_name":"x"}',
        ):
            await w.store.write([Create("/config/changes/config_change_", content, sequential=True)])
        await configs.read_notifications()
        assert followed == ["clients/x"]


TOPIC = 2
FLUSH = "flush.messages"


def alter(name: str) -> wire.AlterConfigsRequest:
    config = wire.AlterConfigsRequestAlterableConfig(name=FLUSH, value="200000")
    resource = wire.AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=(config,))
    return wire.AlterConfigsRequest(resources=(resource,))


def incremental_alter(name: str) -> wire.IncrementalAlterConfigsRequest:
    config = wire.IncrementalAlterConfigsRequestAlterableConfig(name=FLUSH, config_operation=0, value="200000")
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name=name, configs=(config,)
    )
    return wire.IncrementalAlterConfigsRequest(resources=(resource,))


@pytest.mark.parametrize(
    ("request_of", "name", "expected"),
    [
        pytest.param(alter, "gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, marks=pytest.mark.kafka("DCC-13")),
        pytest.param(
            incremental_alter, "gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, marks=pytest.mark.kafka("DCC-14")
        ),
        pytest.param(incremental_alter, "", ErrorCode.INVALID_REQUEST, marks=pytest.mark.kafka("DCC-16")),
        pytest.param(alter, "", ErrorCode.INVALID_REQUEST, marks=pytest.mark.kafka("DCC-17")),
    ],
)
async def test_only_topics_that_exist_are_configured(node: Node, request_of, name, expected) -> None:  # rule B7.27
    (answer,) = (await node.ask(request_of(name))).responses
    assert (answer.resource_name, answer.error_code) == (name, expected)
    assert node.services.admin.configs == {}


RATE = "connection_creation_rate"


@pytest.mark.kafka("DCC-11")
async def test_rates_of_connections_from_an_address_are_read_at_the_start() -> None:  # rules 1.36, B1.50
    async with world(brokers=()) as w, running_broker() as broker, trio.open_nursery() as following:
        await w.start_controller(1)
        admin = ZkAdminManager(w.zk, w.ibp, Random(0))
        configs = ConfigChangeListener(w.zk, 1, static_unclean=False, on_client_config=broker.client_config_changed)

        def rates() -> list[float]:
            return [broker.socket_server.quotas.ip_rate(address) for address in ("1.2.3.4", "2.4.6.8")]

        for address, rate in (("<default>", "20"), ("1.2.3.4", "10")):
            await admin.change_config("ips", address, {RATE: rate})
        for name in await w.zk.get_children("/config/changes"):
            await w.store.write([Delete(f"/config/changes/{name}")])
        assert rates() == [UNLIMITED] * 2
        await following.start(configs.run)
        assert rates() == [10, 20]
        following.cancel_scope.cancel()
