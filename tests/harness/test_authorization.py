"""Whole clusters whose brokers have an authorizer, in memory.

Covers: harness/node_security.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import kce
from kce.broker_stub import BrokerConfig
from kce.broker_stub.security.authorizer import CLASS_NAME
from kce.harness import HarnessError
from kce.harness.sync_cluster import SyncCluster
from kce.wire import ErrorCode
from kce.wire.configuration import ConfigError

CONTROL_APIS = ("UpdateMetadata", "LeaderAndIsr")
GUARDED = {"authorizer.class.name": CLASS_NAME}


def test_nodes_that_are_super_users_work_as_ever() -> None:
    properties = GUARDED | {"super.users": "User:admin;User:ANONYMOUS"}
    with SyncCluster(3, world=kce.memory(seed=3), properties=properties) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        old = cluster.wait_for_controller()
        cluster.kill(old.id)
        cluster.wait_for_controller(other_than=old)
        cluster.restart(old.id)
        cluster.wait_until_settled()


def test_without_acls_of_its_own_a_cluster_may_allow_everything() -> None:
    properties = GUARDED | {"allow.everyone.if.no.acl.found": "true"}
    with SyncCluster(2, world=kce.memory(seed=3), properties=properties) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=2)
        cluster.wait_until_settled()


def test_control_requests_of_anybody_else_are_denied() -> None:
    """LeaderAndIsr, StopReplica and UpdateMetadata need ClusterAction."""
    with SyncCluster(2, world=kce.memory(seed=3), properties=GUARDED) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=2, wait=False)
        cluster.wait_until(
            lambda: all(cluster.history.events(api=api, is_request=False) for api in CONTROL_APIS), "answers"
        )
        for api in CONTROL_APIS:
            answers: list[Any] = list(cluster.history.messages(api=api, is_request=False))
            assert {answer.error_code for answer in answers} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "must be"),
        ("super.users", "admin", "TYPE:NAME"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(name: str, text: str, why: str) -> None:
    with (
        pytest.raises(HarnessError, match=why),
        SyncCluster(1, world=kce.memory(seed=1), properties=GUARDED | {name: text}),
    ):
        pass


def test_acls_are_not_looked_for_in_another_zookeeper() -> None:
    given = {"broker.id": "1", "listeners": "PLAINTEXT://:0", **GUARDED, "authorizer.zookeeper.url": "localhost:2181"}
    with pytest.raises(ConfigError, match="in the broker's ZooKeeper"):
        BrokerConfig.from_properties(given)
