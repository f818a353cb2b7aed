"""What a stub broker writes into ZooKeeper by itself: partition states (a `broker_stub.ports.IsrStore`), and that a log
directory has failed (a `LogDirEvents`)."""

from __future__ import annotations

from collections.abc import Collection

from broker_stub.alter_partition_manager import AlterPartitionItem
from controller import zk_data
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId, ControllerEpoch, LeaderAndIsr, Leadership
from controller.store import BadVersion, Create, NoNode, SetData, Stat, value
from wire.vocabulary import TopicPartition


class ZkIsrStore:
    """Nothing here is fenced by the controller's epoch: it is the leader's write (rule 1.49)."""

    def __init__(self, zk: KafkaZkClient) -> None:
        self._zk = zk

    async def update_isr(self, item: AlterPartitionItem) -> int | None:
        """Rule 1.53: a write that was refused for its version may have been ours, whose answer was lost."""
        path = zk_data.partition_state_path(item.partition)
        wanted = Leadership(
            LeaderAndIsr(
                leader=BrokerId(item.leader),
                isr=tuple(BrokerId(replica) for replica in item.isr),
                leader_epoch=item.leader_epoch,
                recovery_state=item.leader_recovery_state,
                partition_epoch=item.partition_epoch,
            ),
            ControllerEpoch(item.controller_epoch),
        )
        write = SetData(path, zk_data.encode_partition_state(wanted), item.partition_epoch)
        answer = (await self._zk.store.write([write]))[0]
        if isinstance(answer, Stat):
            return answer.version
        if isinstance(answer, NoNode):
            return None
        if not isinstance(answer, BadVersion):
            value(answer)
        found = await self._zk.get_one(path)
        stored = None if found is None else zk_data.decode_partition_state(found.data, item.partition_epoch)
        return found.stat.version if found is not None and stored == wanted else None

    async def notify_isr_changes(self, partitions: Collection[TopicPartition]) -> None:
        data = zk_data.encode_partition_list(partitions)
        value((await self._zk.store.write([Create(zk_data.ISR_CHANGE_PREFIX, data, sequential=True)]))[0])


class ZkLogDirEvents:
    """Sequential notifications in `/log_dir_event_notification`."""

    def __init__(self, zk: KafkaZkClient, broker: int) -> None:
        self._zk = zk
        self._broker = broker

    async def log_dir_failed(self) -> None:
        await self._zk.propagate_log_dir_event(self._broker)
