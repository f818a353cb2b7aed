"""Settings that a node refuses, each in one line that says why."""

from __future__ import annotations

import pytest

from harness import HarnessError
from harness.node import Node

GIVEN = {"broker.id": "1", "zookeeper.connect": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("zookeeper.set.acl", "true", "zookeeper.set.acl=true needs an identity"),
        ("leader.imbalance.check.interval.seconds", "0", "leader.imbalance.check.interval.seconds=0 is no number"),
        ("inter.broker.protocol.version", "0.7", "inter.broker.protocol.version=0.7"),
    ],
)
def test_refusals(key: str, text: str, told: str) -> None:
    with pytest.raises(HarnessError) as caught:
        Node(GIVEN | {key: text})
    assert str(caught.value).startswith(told)


def test_protections_that_are_off() -> None:
    Node(GIVEN | {"zookeeper.set.acl": "false", "zookeeper.ssl.client.enable": "false"})


def test_nothing_can_be_had_without_zookeeper() -> None:
    with pytest.raises(HarnessError, match=r"the setting zookeeper\.connect is missing"):
        Node({"broker.id": "1"})
