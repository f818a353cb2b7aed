"""CID: the id of the cluster (section 14 of docs/controller-semantics.md; rule 1.40)."""

from __future__ import annotations

import uuid

import pytest

from kce.zookeeper.kafka_zk_client import KafkaZkClient
from tests.zookeeper.conformance.nodes import Fixture

# CID: what a node does with it at its start


@pytest.mark.kafka("CID-1")
async def test_a_cluster_id_is_made_once(f: Fixture) -> None:  # rule 1.40
    made = await f.zk.get_or_create_cluster_id()
    assert len(made) == 22
    assert await f.client().get_or_create_cluster_id() == made  # after a restart


@pytest.mark.kafka("CID-2")
async def test_nodes_that_start_in_turn_have_one_cluster_id(f: Fixture) -> None:
    found = [await f.client().get_or_create_cluster_id() for _ in range(3)]
    assert len(set(found)) == 1


class Behind(KafkaZkClient):
    """A node that looks for the id before anyone has made one, and is then overtaken."""

    def __init__(self, f: Fixture) -> None:
        super().__init__(f.server.connect(), now_ms=lambda: 0, new_uuid=uuid.uuid4)
        self._winner: KafkaZkClient | None = f.client()

    async def ensure_paths(self, paths: object) -> None:
        if self._winner is not None:
            winner, self._winner = self._winner, None
            await winner.get_or_create_cluster_id()


@pytest.mark.kafka("CID-3")
async def test_nodes_that_race_have_one_cluster_id(f: Fixture) -> None:
    loser = await Behind(f).get_or_create_cluster_id()
    assert loser == await f.zk.get_or_create_cluster_id()
