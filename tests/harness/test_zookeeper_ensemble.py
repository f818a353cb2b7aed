"""A ZooKeeper of three servers whose leader dies under a cluster."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kce.harness import Cluster, HarnessError
from kce.harness.guard import Guard
from kce.harness.world import memory
from kce.harness.zookeeper_ensemble import Ensemble
from kce.zookeeper import znodes

#: no session expires while servers are slow to elect
PATIENT = {"zookeeper.session.timeout.ms": "60000"}


@pytest.mark.slow
async def test_the_cluster_goes_on_when_the_leader_of_zookeeper_dies() -> None:
    async with Cluster(2, zookeepers=3, properties=PATIENT) as cluster:
        assert len(cluster.zookeeper.split(",")) == 3
        controller = await cluster.wait_for_controller()
        registrations = await cluster.store.exists([znodes.broker_path(1), znodes.broker_path(2)])
        await cluster.kill_zookeeper_leader()
        await cluster.create_topic("after", assignment={0: [1, 2]})
        assert await cluster.controller() == controller
        assert await cluster.store.exists([znodes.broker_path(1), znodes.broker_path(2)]) == registrations
        await cluster.expire_session(2)  # by a server that lives
        await cluster.wait_until_settled()

        await cluster.kill_zookeeper_leader()
        with pytest.raises(HarnessError, match=r"^1 of 3 ZooKeeper servers run, which cannot elect a leader$"):
            await cluster.kill_zookeeper_leader()
        await cluster.restart_zookeeper()
        await cluster.delete_topic("after")


async def test_what_is_no_ensemble() -> None:
    async with Cluster(1, world=memory()) as cluster:
        with pytest.raises(HarnessError, match="ZooKeeper in memory is one server"):
            await cluster.kill_zookeeper_leader()
    for arguments, error in (
        ({"world": memory(), "zookeepers": 3}, "zookeepers=3: ZooKeeper in memory is one server"),
        ({"zookeeper": "zk:1", "zookeepers": 3}, "zookeepers=3 starts servers, and zk:1 is given"),
        ({"zookeepers": 0}, "a cluster needs one"),
    ):
        with pytest.raises(HarnessError, match=error):
            async with Cluster(1, **arguments):  # type: ignore[arg-type]
                pass


@pytest.mark.slow
async def test_a_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    with closing(Guard()) as guard:
        ensemble = Ensemble(tmp_path, guard, [(70_000, 70_001, 70_002)])  # no ports
        with pytest.raises(HarnessError, match=r"^ZooKeeper server 1 did not start, see .*zookeeper.log: "):
            await ensemble.start()
        await ensemble.aclose()
