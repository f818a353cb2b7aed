"""Broker 1, which hosts a-0, for cases about one partition: the clock stands still, nothing happens by itself.

The test answers proposals of ISRs. Kafka writes a time at which nothing happened as 0, ours is minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from kce.broker_stub.partition import Partition
from kce.wire import ErrorCode
from tests.broker_stub.replication.support import A0, RecordNode, batch
from tests.broker_stub.support import codes, lai_state, leader_and_isr, umr_state, update_metadata

NEVER, UNKNOWN = -math.inf, -1
#: of the leader, and before it
EPOCH, OLD_EPOCH = 5, 4
MAX_LAG_SECONDS = 30


class Known(NamedTuple):
    """What the leader knows of a follower."""

    caught_up_ms: float
    log_start: int = UNKNOWN
    log_end: int = UNKNOWN


class Host(RecordNode):
    def seed(self, records: int, epoch: int = OLD_EPOCH) -> None:
        """Append, whoever leads."""
        log = self.record_logs.get_or_create_log(A0, is_new=False, topic_id=None)
        log.append_as_leader(batch(*[b"v"] * records), epoch)

    async def become(
        self, leader: int = 1, *, isr: tuple[int, ...], replicas: tuple[int, ...], epoch: int = EPOCH,
        partition_epoch: int = 1, **more: Any,
    ) -> None:  # fmt: skip
        """As upstream, which calls makeLeader and makeFollower: the same leader epoch is applied again."""
        state = lai_state(
            leader=leader, isr=isr, replicas=replicas, leader_epoch=epoch, partition_epoch=partition_epoch, **more
        )
        answer = await self.ask(leader_and_isr(state, is_kraft_controller=True))
        assert set(codes(answer).values()) == {ErrorCode.NONE}

    async def learn(self, alive: Iterable[int]) -> None:
        await self.ask(update_metadata(umr_state(), alive=alive))

    async def follower_fetches(self, replica: int, offset: int) -> None:
        assert (await self.fetch(offset, replica=replica)).error_code == ErrorCode.NONE

    def follower(self, replica: int) -> Known:
        found = self.a0.followers.get(replica)
        assert found is not None
        return Known(found.caught_up_ms, found.log_start_offset, found.end.offset)

    @property
    def a0(self) -> Partition:
        return self.replicas.partitions[A0]

    @property
    def followers(self) -> list[int]:
        return [i for i in range(10) if self.a0.followers.get(i) is not None]

    @property
    def isrs(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Committed, and with what is about to join."""
        return self.a0.isr, self.a0.maximal_isr

    @property
    def in_flight(self) -> int:
        return len(self.submitter.unanswered)

    @property
    def outcomes(self) -> tuple[int, int, int]:
        """Expansions, shrinks, failures."""
        isr = self.replication.isr
        return isr.expands, isr.shrinks, isr.failures

    def shrink(self) -> None:
        self.replication.isr.shrink(self.a0)

    def written(self, partition_epoch: int) -> None:
        """The controller has written what was proposed last."""
        wanted = self.submitter.submitted[-1][0].leader_and_isr
        self.submitter.answer(A0, wanted._replace(partition_epoch=partition_epoch))


@asynccontextmanager
async def host(*, alive: Iterable[int] = (1, 2, 3, 4), records: int = 0, **topic: str) -> AsyncIterator[Host]:
    async with trio.open_nursery() as nursery:
        node = Host(nursery, {key.replace("_", "."): value for key, value in topic.items()}, None, ("/logs",))
        await node.record_logs.load()
        if records:
            node.seed(records)
        await node.learn(alive)
        yield node
        nursery.cancel_scope.cancel()


def now() -> float:
    return trio.current_time() * 1000
