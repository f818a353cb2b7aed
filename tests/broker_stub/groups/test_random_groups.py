"""Members that do anything at any time, while appends fail and the partition moves: what must always hold."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.coordinator import Committer
from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.groups.member import SyncResult
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.groups.support import GROUP, TIMEOUT_MS, Host, Result

STEPS = 600
PARTITIONS = [TopicPartition("topic", i) for i in range(4)]
PROTOCOLS = ((("range", b"1"),), (("range", b"1"), ("roundrobin", b"1")), (("range", b"2"),))
FORGET = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
ERRORS = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]


class Consumer:
    """One client: what it knows, and the request that it waits for."""

    def __init__(self, world: World, instance_id: str | None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.member_id, self.generation = "", -1
        self.todo = "join"
        self.members: list[str] = []
        self.waits: Result | None = None

    def act(self, random: Random) -> None:
        if self.waits is not None:
            if self.waits.is_parked:
                if random.random() < 0.05:  # it reconnects, and forgets the request
                    self.waits = None
                return
            self.take(self.waits.answer)
            return
        action = self.todo if random.random() < 0.9 else random.choice(["join", "sync", "run", "leave"])
        if action == "run":
            action = random.choice(["heartbeat", "heartbeat", "commit"])
        getattr(self, action)(random)

    def join(self, random: Random) -> None:
        self.waits = self.world.host.join(
            self.member_id, instance_id=self.instance_id, protocols=random.choice(PROTOCOLS),
            requires_member_id=self.instance_id is None and random.random() < 0.5,
            rebalance_timeout_ms=random.choice([0, 300, TIMEOUT_MS, TIMEOUT_MS]),
        )  # fmt: skip

    def sync(self, random: Random) -> None:
        owners = {other: f"{i}".encode() for i, other in enumerate(self.members)}
        self.waits = self.world.host.sync(
            self.generation, self.member_id, owners, instance_id=self.instance_id, protocol_name=None
        )

    def heartbeat(self, random: Random) -> None:
        code = self.world.host.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
        if code is not ErrorCode.NONE:
            self.todo = "join"
        if code in FORGET:
            self.member_id = ""

    def commit(self, random: Random) -> None:
        offsets = {random.choice(PARTITIONS): random.randrange(100)}
        result = Result()
        self.world.commits.append((offsets, result))
        host = self.world.host
        host.coordinator.commit(
            GROUP, Committer(self.generation, self.member_id, self.instance_id),
            {partition: host.offset(offset) for partition, offset in offsets.items()}, result,
        )  # fmt: skip

    def leave(self, random: Random) -> None:
        self.world.host.leave((self.member_id, self.instance_id))
        self.member_id, self.todo = "", "join"

    def take(self, answer: Any) -> None:
        self.waits = None
        if answer.error in FORGET:
            self.member_id = ""
        self.todo = "join"
        if isinstance(answer, SyncResult):
            if answer.error is ErrorCode.NONE:
                self.todo = "run"
                self.world.assigned(self.generation, self.member_id, answer.assignment)
        elif answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
            if answer.error is ErrorCode.NONE:
                self.todo, self.generation = "sync", answer.generation
                self.members = [member.member_id for member in answer.members]


class World:
    def __init__(self, clock: MockClock, random: Random) -> None:
        self.random = random
        self.host = Host(clock, group_max_size="3")
        self.consumers = [Consumer(self, instance) for instance in (None, None, None, "a", "b")]
        self.commits: list[tuple[dict[TopicPartition, int], Result]] = []
        self.owners: dict[tuple[int, bytes], str] = {}
        self.epoch = 1
        self.states: set[GroupState] = set()

    def assigned(self, generation: int, member_id: str, assignment: bytes) -> None:
        """No two members of a generation own the same; a static member's successor may."""
        if assignment:
            owner = self.owners.setdefault((generation, assignment), member_id)
            prefix = member_id.partition("-")[0]
            assert owner == member_id or (prefix in ("a", "b") and owner.startswith(f"{prefix}-"))

    async def move(self) -> None:
        """The partition is led elsewhere, and here again."""
        host, self.epoch = self.host, self.epoch + 1
        host.log.release()
        host.log.held = False
        before = {tp: stored.committed for tp, stored in self.stored().items()}
        generation = host.manager.groups[GROUP].generation if GROUP in host.manager.groups else 0
        partition, parked = host.manager.partition_of(GROUP), self.parked
        host.manager.unload(partition, self.epoch)
        await host.work()
        assert all(len(result.answers) == 1 for result in parked)
        self.owners.clear()
        self.epoch += 1
        host.manager.load(partition, self.epoch)
        await host.work()
        found = {tp: stored.committed for tp, stored in self.stored().items()}
        assert found.items() >= before.items(), "what was committed is there"
        if GROUP in host.manager.groups:
            assert host.manager.groups[GROUP].generation <= generation
            assert host.state() in (GroupState.EMPTY, GroupState.STABLE, GroupState.PREPARING_REBALANCE)

    def stored(self) -> dict[TopicPartition, Any]:
        group = self.host.manager.groups.get(GROUP)
        return {} if group is None else dict(group.offsets.stored)

    @property
    def parked(self) -> list[Result]:
        """The requests that the group knows of."""
        group = self.host.manager.groups.get(GROUP)
        members = [] if group is None else list(group.members.values())
        return [answer for member in members for answer in (member.on_join, member.on_sync) if answer is not None]  # type: ignore[misc]

    def check(self) -> None:
        group = self.host.manager.groups.get(GROUP)
        if group is None:
            return
        self.states.add(group.state)
        assert group.awaiting_join == sum(member.on_join is not None for member in group.members.values())
        assert (group.leader in group.members) if group.members else group.leader is None
        assert set(group.static_members.values()) <= set(group.members)
        assert group.pending_syncs <= set(group.members)
        assert not group.pending_members & set(group.members)
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.protocol_name is not None
            assert len(group.members) <= 5
        for offsets, result in self.commits:
            assert len(result.answers) <= 1
            assert not result.answers or result.answers[0].keys() == offsets.keys()

    async def step(self) -> None:
        host, random = self.host, self.random
        chance = random.random()
        if chance < 0.8:
            random.choice(self.consumers).act(random)
        elif chance < 0.95:
            host.advance(random.choice([1, 20, 60, 200]))
        elif chance < 0.96:
            host.log.error = random.choice(ERRORS)
        elif chance < 0.975:
            host.log.held = True
        elif chance < 0.98:
            await self.move()
        else:
            host.log.error, host.log.held = ErrorCode.NONE, False
            host.log.release()
        self.check()


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_requests(mock_clock: MockClock, seed: int) -> None:
    world = World(mock_clock, Random(seed))
    for _ in range(STEPS):
        await world.step()
    assert world.states >= {GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    codes = [code for _, result in world.commits for answer in result.answers for code in answer.values()]
    assert ErrorCode.NONE in codes
    # nobody is left waiting for ever
    world.host.log.error, world.host.log.held = ErrorCode.NONE, False
    world.host.log.release()
    world.host.advance(10 * TIMEOUT_MS)
    world.host.advance(6 * 60 * 1000)
    assert world.parked == []
    assert world.host.state() is GroupState.EMPTY
