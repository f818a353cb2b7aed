"""pytest plugin, active wherever the package is installed: the fixture `kafka_cluster`.

    async def test_failover(kafka_cluster):                # with pytest-trio, `trio_mode = true` or @pytest.mark.trio
        await kafka_cluster.create_topic("orders", partitions=4, replication_factor=3)
        old = await kafka_cluster.wait_for_controller()
        await kafka_cluster.kill(old.id)
        await kafka_cluster.wait_for_controller(other_than=old)

It is a `harness.Cluster` of three nodes in this process with a real ZooKeeper, new for every test. The mark
`@pytest.mark.kafka_cluster(brokers=5, record="traffic.pcapng")` passes arguments to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kce.harness.cluster import Cluster

try:
    from pytest_trio import trio_fixture
except ImportError:  # the plugin must not break the tests of those who do not use it
    trio_fixture = None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kafka_cluster(**arguments): arguments of harness.Cluster for `kafka_cluster`")


if trio_fixture is not None:

    @trio_fixture  # type: ignore[untyped-decorator]
    async def kafka_cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
        """A running `harness.Cluster`: three nodes and a ZooKeeper unless the mark `kafka_cluster` says otherwise."""
        from kce.harness.cluster import Cluster

        mark = request.node.get_closest_marker("kafka_cluster")
        properties = {"zookeeper.session.timeout.ms": "2000"}
        async with Cluster(**{"properties": properties, **(mark.kwargs if mark else {})}) as cluster:
            yield cluster

else:

    @pytest.fixture
    def kafka_cluster() -> None:
        """Not without pytest-trio."""
        pytest.fail("the fixture kafka_cluster needs pytest-trio: pip install 'kafka-controller-emulator[pytest]'")
