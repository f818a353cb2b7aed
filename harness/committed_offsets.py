"""The invariant "offsets" inside coordinators of this process: what a group has committed never goes back."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.partition import Partition
from kce.harness.commit_history import Violated
from kce.harness.node import Node
from kce.wire.vocabulary import TopicPartition

#: of a commit: its group and partition
_Key = tuple[str, TopicPartition]


class _Known:
    """Of a partition of `__consumer_offsets`: the greatest leader epoch, and where in the log the latest commits are
    that all of the ISR has."""

    __slots__ = ("commits", "life", "seen")

    def __init__(self) -> None:
        self.life: tuple[int, Node | None] = -1, None
        self.commits: dict[_Key, int] = {}
        #: what `check` has looked at last
        self.seen: tuple[object, ...] = ()


class CommittedOffsets:
    """A coordinator that has loaded a partition has every commit that an earlier coordinator of it had, or a later one.

    Positions in the log are compared, because a group may commit an offset below the one before. What a coordinator
    itself forgets has expired, or was deleted.
    """

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._known: dict[tuple[UUID | None, int], _Known] = {}

    def check(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            for number, epoch in node.broker.groups.manager.loaded.items():
                tp = TopicPartition(GROUP_METADATA_TOPIC, number)
                partition = node.broker.replica_manager.partitions.get(tp)
                if partition is not None and partition.is_leader and partition.leader_epoch == epoch:
                    self._check(node, partition, number, epoch)

    def _check(self, node: Node, partition: Partition, number: int, epoch: int) -> None:
        log = partition.log
        if log is None:
            return
        known = self._known.setdefault((log.topic_id, number), _Known())
        latest, high_watermark = known.life[0], log.high_watermark
        if epoch < latest or (node, epoch, high_watermark) == known.seen:
            return
        known.seen = node, epoch, high_watermark
        is_same_life = known.life == (epoch, node)
        known.life = epoch, node
        found = {
            (group.group_id, tp): stored.batch_offset
            for group in node.broker.groups.manager.groups.values()
            if node.broker.groups.manager.partition_of(group.group_id) == number
            for tp, stored in group.offsets.stored.items()
            if stored.batch_offset is not None
        }
        for key, before in list(known.commits.items()):
            now = found.get(key)
            if now is None and is_same_life:
                del known.commits[key]
            elif now is None or now < before:
                group, tp = key
                text = f"the coordinator {node.id} of {group} has the commit for {tp} at {now}, after one at {before}"
                self._violated("offsets", key, text)
        known.commits.update((key, at) for key, at in found.items() if at < high_watermark)
