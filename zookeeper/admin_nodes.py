"""What administrators and brokers leave in ZooKeeper for the controller, as typed operations beside `kafka_zk_client`:
reassignments, preferred elections, producer ids, the numbers that brokers without an id draw, and the offsets of
consumers before 0.9.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from controller import zk_data as zd
from controller.errors import IllegalState
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId, EpochZkVersion, ProducerIdsBlock, TopicPartition
from controller.store import BadVersion, Create, Delete, NoNode, SetData, Stat, value

log = logging.getLogger(__name__)

#: producer ids in a block (rule 1.43)
PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1

Targets = Mapping[TopicPartition, Sequence[BrokerId]]


async def get_partition_reassignment(zk: KafkaZkClient) -> dict[TopicPartition, tuple[BrokerId, ...]] | None:
    """What /admin/reassign_partitions wants; None where there is no such node, {} for malformed content (1.38)."""
    found = await zk.get_one(zd.REASSIGN_PARTITIONS)
    if found is None:
        return None
    try:
        return zd.decode_partition_reassignment(found.data)
    except zd.BadZNode as e:
        log.warning("nothing is reassigned: %s", e)
        return {}


async def set_partition_reassignment(zk: KafkaZkClient, targets: Targets, expected: EpochZkVersion) -> None:
    data = zd.encode_partition_reassignment(targets)
    answer = (await zk.fenced([SetData(zd.REASSIGN_PARTITIONS, data)], expected))[0]
    if isinstance(answer, NoNode):
        answer = (await zk.fenced([Create(zd.REASSIGN_PARTITIONS, data)], expected))[0]
    value(answer)


async def delete_partition_reassignment(zk: KafkaZkClient, expected: EpochZkVersion) -> None:
    await _delete(zk, zd.REASSIGN_PARTITIONS, expected)


async def get_preferred_replica_election(zk: KafkaZkClient) -> set[TopicPartition]:
    """Partitions that /admin/preferred_replica_election names; none where there is no such node."""
    found = await zk.get_one(zd.PREFERRED_REPLICA_ELECTION)
    return set() if found is None else set(zd.decode_partition_list(found.data))


async def delete_preferred_replica_election(zk: KafkaZkClient, expected: EpochZkVersion) -> None:
    await _delete(zk, zd.PREFERRED_REPLICA_ELECTION, expected)


async def _delete(zk: KafkaZkClient, path: str, expected: EpochZkVersion) -> None:
    answer = (await zk.fenced([Delete(path)], expected))[0]
    if not isinstance(answer, NoNode):
        value(answer)


async def allocate_producer_ids(zk: KafkaZkClient, broker: BrokerId) -> ProducerIdsBlock:
    """The next block of producer ids, written down for ``broker`` (rule 1.43).

    The write is conditional on the version that was read; what another controller allocated between is skipped, and
    so is a block whose answer was lost: ids may be left out, they are never given twice. Raises IllegalState when
    there are none left, BadZNode, StoreError.
    """
    while True:
        await zk.ensure_paths([zd.PRODUCER_ID_BLOCK])
        found = await zk.get_one(zd.PRODUCER_ID_BLOCK)
        if found is None:
            continue
        first = zd.decode_producer_id_block(found.data).last + 1 if found.data else 0
        if first - 1 > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
            raise IllegalState(f"all producer ids are exhausted: the last block ends at {first - 1}")
        block = ProducerIdsBlock(broker, first, first + PRODUCER_ID_BLOCK_SIZE - 1)
        write = SetData(zd.PRODUCER_ID_BLOCK, zd.encode_producer_id_block(block), found.stat.version)
        answer = (await zk.store.write([write]))[0]
        if not isinstance(answer, (BadVersion, NoNode)):
            value(answer)
            return block


async def generate_broker_id(zk: KafkaZkClient, reserved_max: int) -> BrokerId:
    """An id that no broker was given before, above ``reserved_max`` (rule 1.31)."""
    while True:
        await zk.ensure_paths([zd.BROKER_SEQUENCE_ID])
        answer = (await zk.store.write([SetData(zd.BROKER_SEQUENCE_ID, b"")]))[0]
        if not isinstance(answer, NoNode):
            stat = value(answer)
            assert isinstance(stat, Stat)
            return BrokerId(reserved_max + stat.version)


async def get_consumer_offset(zk: KafkaZkClient, group: str, tp: TopicPartition) -> int | None:
    """The offset that a consumer before 0.9 has committed, None if it has not. Raises BadZNode."""
    path = zd.consumer_offset_path(group, tp)
    found = await zk.get_one(path)
    if found is None or not found.data:
        return None
    try:
        return int(found.data)
    except ValueError:
        raise zd.BadZNode(f"{path} holds no offset: {found.data[:100]!r}") from None


async def set_or_create_consumer_offset(zk: KafkaZkClient, group: str, tp: TopicPartition, offset: int) -> None:
    await zk.set_or_create(zd.consumer_offset_path(group, tp), str(offset).encode())
