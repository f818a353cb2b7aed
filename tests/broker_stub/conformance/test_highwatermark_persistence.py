"""HWP: checkpoints of high watermarks (section 14 of docs/controller-semantics.md; rule B5.31)."""

from __future__ import annotations

import pytest

from kce.broker_stub.log.checkpoints import read_offsets
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import batch
from tests.broker_stub.logs import MemoryLogManager

kafka = pytest.mark.kafka
FOO1, FOO2 = TopicPartition("foo1", 0), TopicPartition("foo2", 0)


class Marks:
    """The logs of a broker that leads both, and their checkpoint."""

    def __init__(self) -> None:
        self.logs = MemoryLogManager()

    async def written(self, partition: TopicPartition) -> int:
        await self.logs.checkpoint_high_watermarks()
        return read_offsets(self.logs.disk, "/logs/replication-offset-checkpoint").get(partition, 0)

    def append(self, partition: TopicPartition, count: int) -> None:
        log = self.logs.get_or_create_log(partition, is_new=True, topic_id=None)
        log.append_as_leader(batch(*(b"%d" % i for i in range(count + 1))), 0)


@kafka("HWP-1")
async def test_one_partition() -> None:
    marks = Marks()
    assert await marks.written(FOO1) == 0
    log = marks.logs.get_or_create_log(FOO1, is_new=True, topic_id=None)
    assert await marks.written(FOO1) == log.high_watermark
    log.set_high_watermark(5)
    assert await marks.written(FOO1) == log.high_watermark == 0  # where the log ends


@kafka("HWP-2")
async def test_two_topics() -> None:
    marks = Marks()
    assert await marks.written(FOO1) == 0
    first = marks.logs.get_or_create_log(FOO1, is_new=True, topic_id=None)
    assert await marks.written(FOO1) == first.high_watermark
    marks.append(FOO1, 5)
    first.set_high_watermark(5)
    assert await marks.written(FOO1) == first.high_watermark == 5
    second = marks.logs.get_or_create_log(FOO2, is_new=True, topic_id=None)
    assert await marks.written(FOO2) == second.high_watermark
    marks.append(FOO2, 15)
    second.set_high_watermark(15)
    assert second.high_watermark == 15
    marks.append(FOO1, 5)
    first.set_high_watermark(10)
    assert first.high_watermark == 10
    assert (await marks.written(FOO2), await marks.written(FOO1)) == (15, 10)
