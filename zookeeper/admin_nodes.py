"""Typed operations on the znodes of reassignments, preferred elections, producer ids and generated broker ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kce.zookeeper import cluster_nodes
from kce.zookeeper import znodes as zd
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, EpochZkVersion, ProducerIdsBlock, TopicPartition
from kce.zookeeper.store import BadVersion, Create, Delete, NoNode, SetData, Stat, value

log = logging.getLogger(__name__)

#: producer ids in a block (rule 1.43)
PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1

Targets = Mapping[TopicPartition, Sequence[BrokerId]]


async def get_partition_reassignment(zk: KafkaZkClient) -> dict[TopicPartition, tuple[BrokerId, ...]] | None:
    """Targets in /admin/reassign_partitions; None if the node does not exist, {} for malformed content (1.38)."""
    found = await zk.get_one(zd.REASSIGN_PARTITIONS)
    if found is None:
        return None
    try:
        return cluster_nodes.decode_partition_reassignment(found.data)
    except zd.BadZNode as e:
        log.warning("ignoring malformed reassignments: %s", e)
        return {}


async def set_partition_reassignment(zk: KafkaZkClient, targets: Targets, expected: EpochZkVersion) -> None:
    data = cluster_nodes.encode_partition_reassignment(targets)
    answer = (await zk.fenced([SetData(zd.REASSIGN_PARTITIONS, data)], expected))[0]
    if isinstance(answer, NoNode):
        answer = (await zk.fenced([Create(zd.REASSIGN_PARTITIONS, data)], expected))[0]
    value(answer)


async def delete_partition_reassignment(zk: KafkaZkClient, expected: EpochZkVersion) -> None:
    await _delete(zk, zd.REASSIGN_PARTITIONS, expected)


async def get_preferred_replica_election(zk: KafkaZkClient) -> set[TopicPartition] | None:
    """Partitions in /admin/preferred_replica_election; empty if the node does not exist, None for malformed content."""
    found = await zk.get_one(zd.PREFERRED_REPLICA_ELECTION)
    try:
        return (
            set()
            if found is None
            else set(cluster_nodes.decode_partition_list(zd.PREFERRED_REPLICA_ELECTION, found.data))
        )
    except zd.BadZNode as e:
        log.warning("ignoring malformed preferred elections: %s", e)
        return None


async def delete_preferred_replica_election(zk: KafkaZkClient, expected: EpochZkVersion) -> None:
    await _delete(zk, zd.PREFERRED_REPLICA_ELECTION, expected)


async def _delete(zk: KafkaZkClient, path: str, expected: EpochZkVersion) -> None:
    answer = (await zk.fenced([Delete(path)], expected))[0]
    if not isinstance(answer, NoNode):
        value(answer)


async def allocate_producer_ids(zk: KafkaZkClient, broker: BrokerId) -> ProducerIdsBlock:
    """Allocate the next block of producer ids to ``broker`` (rule 1.43).

    The write is conditional on the version that was read. It skips blocks that another controller allocated meanwhile,
    and a block whose response was lost: ids may be skipped, but never allocated twice. Raises IllegalState when ids are
    exhausted, BadZNode, StoreError.
    """
    while True:
        await zk.ensure_paths([zd.PRODUCER_ID_BLOCK])
        found = await zk.get_one(zd.PRODUCER_ID_BLOCK)
        if found is None:
            continue
        first = cluster_nodes.decode_producer_id_block(found.data).last + 1 if found.data else 0
        if first - 1 > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
            raise IllegalState(f"all producer ids are exhausted: the last block ends at {first - 1}")
        block = ProducerIdsBlock(broker, first, first + PRODUCER_ID_BLOCK_SIZE - 1)
        write = SetData(zd.PRODUCER_ID_BLOCK, cluster_nodes.encode_producer_id_block(block), found.stat.version)
        answer = (await zk.store.write([write]))[0]
        if not isinstance(answer, (BadVersion, NoNode)):
            value(answer)
            return block


async def generate_broker_id(zk: KafkaZkClient, reserved_max: int) -> BrokerId:
    """A new broker id above ``reserved_max`` (rule 1.31)."""
    while True:
        await zk.ensure_paths([zd.BROKER_SEQUENCE_ID])
        answer = (await zk.store.write([SetData(zd.BROKER_SEQUENCE_ID, b"")]))[0]
        if not isinstance(answer, NoNode):
            stat = value(answer)
            assert isinstance(stat, Stat)
            return BrokerId(reserved_max + stat.version)
