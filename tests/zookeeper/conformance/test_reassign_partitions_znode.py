"""RPZ: /admin/reassign_partitions (section 14 of docs/controller-semantics.md; rule 1.38)."""

from __future__ import annotations

import json

import pytest

from kce.zookeeper import cluster_nodes, znodes
from tests.controller.conformance.bench import ids
from tests.zookeeper.conformance.nodes import T0, T1, U0

# RPZ: /admin/reassign_partitions


@pytest.mark.kafka("RPZ-1")
def test_reassignments_are_encoded() -> None:  # rule 1.38
    data = cluster_nodes.encode_partition_reassignment({T0: ids(1, 2)})
    assert data == b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'


@pytest.mark.kafka("RPZ-2")
def test_reassignments_that_are_no_json() -> None:  # rule 1.38
    for bad in (b"invalid json", b"{invalid", b"", b"[]", b'{"partitions":[{"topic":"t"}]}'):
        with pytest.raises(znodes.BadZNode, match="/admin/reassign_partitions"):
            cluster_nodes.decode_partition_reassignment(bad)


@pytest.mark.kafka("RPZ-3")
def test_reassignments_are_decoded() -> None:  # rule 1.38
    entries = [{"topic": "t", "partition": 1, "replicas": [1, 2]}, {"topic": "u", "partition": 0, "replicas": [3]}]
    data = json.dumps({"version": 1, "partitions": entries}).encode()
    assert cluster_nodes.decode_partition_reassignment(data) == {T1: (1, 2), U0: (3,)}
