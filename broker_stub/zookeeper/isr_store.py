"""A broker's own writes to ZooKeeper: partition states (`broker_stub.ports.IsrStore`) and failures of log directories
(`LogDirEvents`)."""

from __future__ import annotations

from collections.abc import Collection

from kce.broker_stub.alter_partition_manager import AlterPartitionItem
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import ControllerEpoch, Leadership
from kce.zookeeper.store import BadVersion, Create, NoNode, SetData, Stat, value


class ZkIsrStore:
    """The leader's writes, not fenced by the controller epoch (rule 1.49)."""

    def __init__(self, zk: KafkaZkClient) -> None:
        self._zk = zk

    async def update_isr(self, item: AlterPartitionItem) -> int | None:
        """Rule 1.53: a version conflict may be due to our own write, whose response was lost."""
        path = znodes.partition_state_path(item.partition)
        wanted = Leadership(item.leader_and_isr, ControllerEpoch(item.controller_epoch))
        partition_epoch = item.leader_and_isr.partition_epoch
        write = SetData(path, znodes.encode_partition_state(wanted), partition_epoch)
        answer = (await self._zk.store.write([write]))[0]
        if isinstance(answer, Stat):
            return answer.version
        if isinstance(answer, NoNode):
            return None
        if not isinstance(answer, BadVersion):
            value(answer)
        found = await self._zk.get_one(path)
        stored = None if found is None else znodes.decode_partition_state(found.data, partition_epoch)
        return found.stat.version if found is not None and stored == wanted else None

    async def notify_isr_changes(self, partitions: Collection[TopicPartition]) -> None:
        data = cluster_nodes.encode_partition_list(partitions)
        value((await self._zk.store.write([Create(znodes.ISR_CHANGE_PREFIX, data, sequential=True)]))[0])


class ZkLogDirEvents:
    """Sequential notifications in `/log_dir_event_notification`."""

    def __init__(self, zk: KafkaZkClient, broker: int) -> None:
        self._zk = zk
        self._broker = broker

    async def log_dir_failed(self) -> None:
        await self._zk.propagate_log_dir_event(self._broker)
