"""`kce topic` with wrong arguments, and at a cluster without a controller; `test_up` runs it at a whole cluster."""

from __future__ import annotations

import json

import pytest
import trio

from kce.harness import Cluster
from kce.harness.cli.options import connected_store
from tests.harness.conftest import Here


def test_a_bad_replica_assignment_is_a_usage_error(here: Here) -> None:
    failed = here("topic", "create", "t", "--zookeeper", "127.0.0.1:1", "--replica-assignment", "1:x")
    assert failed.code == 2
    assert "--replica-assignment 1:x" in failed.err


@pytest.mark.slow
def test_topics_of_a_cluster_without_a_controller(here: Here, zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kce.harness.cli.topic.WAIT_TIMEOUT_S", 0.2)
    chroot = f"{zookeeper}/no-controller"
    where = ["--zookeeper", chroot]
    trio.run(_make_chroot, chroot)
    nothing = here("topic", "list", *where)
    assert (nothing.code, nothing.err) == (
        1, f"kce: there is no Kafka cluster in ZooKeeper at {chroot}: it has no /brokers/ids\n",
    )  # fmt: skip
    trio.run(_make_cluster_without_nodes, chroot)
    created = here("topic", "create", "t", *where, "--replica-assignment", "1:2,2:1")
    assert created.code == 1
    assert "is a controller active? See `kce describe`" in created.err
    (topic,) = json.loads(here("topic", "describe", "--json", *where).out)
    assert topic["topic"] == "t"
    assert [(p["leader"], p["replicas"], p["isr"]) for p in topic["partitions"]] == [
        (None, [1, 2], []),
        (None, [2, 1], []),
    ]
    assert "no state yet" in here("topic", "describe", *where).out
    deleted = here("topic", "delete", "t", *where)
    assert deleted.code == 1
    waits = (
        "broker 1, which has a replica and is not registered and broker 2, which has a replica and is not registered"
    )
    assert f"; it waits for {waits} and a controller: there is none\n" in deleted.err
    assert here("topic", "create", "u", *where, "--replica-assignment", "1", "--no-wait").code == 0
    assert here("topic", "list", *where).out == "t\nu\n"
    unknown = here("topic", "describe", "v", *where)
    assert (unknown.code, unknown.err) == (1, "kce: unknown topic v; existing topics: t, u\n")


async def _make_chroot(zookeeper: str) -> None:
    async with connected_store(zookeeper, None):
        pass


async def _make_cluster_without_nodes(zookeeper: str) -> None:
    async with Cluster(0, zookeeper=zookeeper):
        pass
