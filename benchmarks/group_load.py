"""Clients of `benchmarks.groups`: members of groups, one request under way on each connection, and transactions.

Each function runs in a process of its own, the same for every server.
"""

from __future__ import annotations

import itertools
import statistics
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, Final

import confluent_kafka
import trio

from benchmarks.broker_load import Address
from kce import wire
from kce.wire import ErrorCode

SESSION_MS: Final = 30_000
#: where the response to a Heartbeat of version 3 has its error code: after correlation id and throttle time
_ERROR_OF_HEARTBEAT: Final = 8
#: whose members send heartbeats when others come or go, so many one after the other
_SMALL_GROUP: Final = 10
_HEARTBEATS_AT_ONCE: Final = 3
REBALANCE_MS: Final = 60_000
TOPIC: Final = "transactions"
LIMIT_S: Final = 60.0
#: of the consumer protocol, version 0: no topics, no user data; an assignment is alike. Kafka hangs on other bytes
SUBSCRIPTION: Final = struct.pack(">hii", 0, 0, -1)

COMMIT: Final = wire.frame(
    wire.encode_request(
        wire.OffsetCommitRequest(
            group_id="committer",
            generation_id_or_member_epoch=-1,
            topics=(
                wire.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=(wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=7),),
                ),
            ),
        ),
        api_version=7, correlation_id=1, client_id="benchmark",
    )
)  # fmt: skip


class Connection:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._frames = wire.FrameBuffer(max_frame_bytes=1 << 30)
        self._ids = itertools.count()

    async def ask(self, request: Any, version: int) -> Any:
        answer = await self.exchange(self.encoded(request, version))
        return wire.decode_response(answer, api_key=request.__api_key__, api_version=version)[1]

    def encoded(self, request: Any, version: int) -> bytes:
        """The frame of a request."""
        return wire.frame(
            wire.encode_request(request, api_version=version, correlation_id=next(self._ids), client_id="benchmark")
        )

    async def exchange(self, frame: bytes) -> bytes:
        """The response, without its length."""
        await self.stream.send_all(frame)
        while (answer := self._frames.next_frame()) is None:
            data = await self.stream.receive_some(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._frames.receive_data(data)
        return answer


async def connect(stack: AsyncExitStack, address: Address, count: int) -> list[Connection]:
    return [Connection(await stack.enter_async_context(await trio.open_tcp_stream(*address))) for _ in range(count)]


class Group:
    """Members that join, until ``size`` of them have their assignments in one generation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        #: of the generation that is complete
        self.complete = 0
        #: in the generation that the leader knows
        self._led = 0
        self._counts: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        self._changed = trio.Event()
        #: somebody joins, or has left
        self.stirs = trio.Event()

    def stir(self) -> None:
        self.stirs.set()
        self.stirs = trio.Event()

    def leads(self, generation: int, members: int) -> None:
        self._counts[generation] = members

    def synced(self, generation: int) -> None:
        self._synced[generation] = self._synced.get(generation, 0) + 1
        if self._counts.get(generation) == self.size == self._synced[generation]:
            self.complete = generation
            self._changed.set()
            self._changed = trio.Event()

    async def completed(self, after: int) -> None:
        while self.complete <= after:
            await self._changed.wait()


class Member:
    def __init__(self, group: Group, connection: Connection) -> None:
        self._group = group
        self._connection = connection
        self._id = ""
        self._generation = -1

    async def run(self) -> None:
        """Join, and join again whenever others come or go."""
        group = self._group
        while True:
            assignment = await self._join()
            answer = await self._connection.ask(
                wire.SyncGroupRequest(
                    group_id=group.name,
                    generation_id=self._generation,
                    member_id=self._id,
                    assignments=assignment,
                ),
                3,
            )
            if answer.error_code == ErrorCode.NONE:
                group.synced(self._generation)
                await self._until_others_come_or_go()
            elif answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise RuntimeError(f"SyncGroup was refused: {ErrorCode(answer.error_code).name}")

    async def _join(self) -> tuple[wire.SyncGroupRequestAssignment, ...]:
        while True:
            self._group.stir()
            answer = await self._connection.ask(
                wire.JoinGroupRequest(
                    group_id=self._group.name,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    member_id=self._id,
                    protocol_type="consumer",
                    protocols=(wire.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION),),
                ),
                5,
            )
            self._id = answer.member_id
            if answer.error_code == ErrorCode.NONE:
                break
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                raise RuntimeError(f"JoinGroup was refused: {ErrorCode(answer.error_code).name}")
        self._generation = answer.generation_id
        if answer.leader != self._id:
            return ()
        self._group.leads(self._generation, len(answer.members))
        return tuple(
            wire.SyncGroupRequestAssignment(member_id=member.member_id, assignment=SUBSCRIPTION)
            for member in answer.members
        )

    async def _until_others_come_or_go(self) -> None:
        """Heartbeats with pauses between; in small groups also whenever somebody joins or has left.

        With pauses alone they would be what is measured; without any, a server under a load of heartbeats would be.
        """
        group, at_once = self._group, 0
        pause = 0.0005 * group.size
        heartbeat = self._connection.encoded(
            wire.HeartbeatRequest(group_id=group.name, generation_id=self._generation, member_id=self._id), 3
        )
        while True:
            answer = await self._connection.exchange(heartbeat)
            if int.from_bytes(answer[_ERROR_OF_HEARTBEAT:], "big") != ErrorCode.NONE:
                return
            if group.size > _SMALL_GROUP:
                await trio.sleep(pause)
                continue
            at_once -= 1
            if at_once <= 0:
                with trio.move_on_after(pause):
                    await group.stirs.wait()
                    at_once = _HEARTBEATS_AT_ONCE  # the first may come before the request of who joins

    async def leave(self) -> None:
        answer = await self._connection.ask(wire.LeaveGroupRequest(group_id=self._group.name, member_id=self._id), 2)
        if answer.error_code != ErrorCode.NONE:
            raise RuntimeError(f"LeaveGroup was refused: {ErrorCode(answer.error_code).name}")
        self._group.stir()


def three(address: Address, groups: int) -> tuple[float, float]:
    """Seconds until three members have joined, and until two go on when the third has left: medians of ``groups``."""

    async def run() -> tuple[float, float]:
        joined, left = [], []
        for i in range(groups):
            async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                with trio.fail_after(LIMIT_S):
                    one = await _three(stack, nursery, address, f"three-{time.time_ns()}-{i}")
                joined.append(one[0])
                left.append(one[1])
        return statistics.median(joined), statistics.median(left)

    return trio.run(run)


async def _three(stack: AsyncExitStack, nursery: trio.Nursery, address: Address, name: str) -> tuple[float, float]:
    group = Group(name)
    group.size = 3
    connections = await connect(stack, address, 3)
    members = [Member(group, connection) for connection in connections]
    scopes = [trio.CancelScope() for _ in members]

    async def serve(member: Member, scope: trio.CancelScope) -> None:
        with scope:
            await member.run()

    begin = time.perf_counter()
    for member, scope in zip(members, scopes, strict=True):
        nursery.start_soon(serve, member, scope)
    await group.completed(0)
    joined = time.perf_counter() - begin
    generation, group.size = group.complete, 2
    scopes[2].cancel()
    (leaving,) = await connect(stack, address, 1)
    members[2]._connection = leaving  # its own has a heartbeat under way
    begin = time.perf_counter()
    await members[2].leave()
    await group.completed(generation)
    left = time.perf_counter() - begin
    for scope in scopes:
        scope.cancel()
    return joined, left


def large(address: Address, size: int) -> float:
    """Seconds until a group of so many members has a generation in which all have their assignments."""

    async def run() -> float:
        group = Group(f"large-{time.time_ns()}")
        group.size = size
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            connections = await connect(stack, address, size)
            begin = time.perf_counter()
            for connection in connections:
                nursery.start_soon(Member(group, connection).run)
            with trio.fail_after(LIMIT_S):
                await group.completed(0)
            seconds = time.perf_counter() - begin
            nursery.cancel_scope.cancel()
        return seconds

    return trio.run(run)


def many(address: Address, groups: int, connections: int) -> float:
    """Seconds until so many groups of one member each have joined, been assigned and sent a heartbeat.

    Then the members leave, so that their sessions do not end during the next measurement.
    """

    async def run() -> float:
        prefix = f"many-{time.time_ns()}"
        numbers = iter(range(groups))
        members: list[tuple[str, str]] = []

        async def join(connection: Connection) -> None:
            for number in numbers:
                group = f"{prefix}-{number}"
                members.append((group, await _one_member(connection, group)))

        async def leave(connection: Connection) -> None:
            while members:
                group, member = members.pop()
                await connection.ask(wire.LeaveGroupRequest(group_id=group, member_id=member), 2)

        async with AsyncExitStack() as stack:
            made = await connect(stack, address, connections)
            begin = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for connection in made:
                    nursery.start_soon(join, connection)
            seconds = time.perf_counter() - begin
            async with trio.open_nursery() as nursery:
                for connection in made:
                    nursery.start_soon(leave, connection)
        return seconds

    return trio.run(run)


async def _one_member(connection: Connection, group: str) -> str:
    """The id of the member that has joined. Raises RuntimeError."""
    joined = await connection.ask(
        wire.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(wire.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION),),
        ),
        3,
    )
    who = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    assignment = wire.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=SUBSCRIPTION)
    synced = await connection.ask(wire.SyncGroupRequest(assignments=(assignment,), **who), 3)
    alive = await connection.ask(wire.HeartbeatRequest(**who), 3)
    if (joined.error_code, synced.error_code, alive.error_code) != (0, 0, 0):
        raise RuntimeError(f"refused: {joined.error_code}, {synced.error_code}, {alive.error_code}")
    return str(joined.member_id)


def transactions(address: Address, producers: int, seconds: float) -> float:
    """Transactions of one record a second, of so many producers at the same time."""

    def one(number: int) -> int:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": "{}:{}".format(*address), "transactional.id": f"{time.time_ns()}-{number}",
                "linger.ms": 0, "log_level": 0,
            }
        )  # fmt: skip
        producer.init_transactions(LIMIT_S)
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            producer.begin_transaction()
            producer.produce(TOPIC, b"x" * 100, partition=number)
            producer.commit_transaction(LIMIT_S)
            done += 1
        return done

    with ThreadPoolExecutor(producers) as pool:
        return sum(pool.map(one, range(producers))) / seconds


def prepare(address: Address, partitions: int) -> None:
    """Create the topic, and both internal topics; returns when their coordinators answer."""
    trio.run(_prepare, address, partitions)


async def _prepare(address: Address, partitions: int) -> None:
    async with AsyncExitStack() as stack:
        with trio.fail_after(LIMIT_S):
            (connection,) = await connect(stack, address, 1)
            topic = wire.CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1)

            async def created() -> int:
                answer = await connection.ask(wire.CreateTopicsRequest(topics=(topic,), timeout_ms=30_000), 5)
                return int(answer.topics[0].error_code)

            await _until(created, (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS))
            for kind in (0, 1):

                async def found(kind: int = kind) -> int:
                    answer = await connection.ask(wire.FindCoordinatorRequest(key="benchmark", key_type=kind), 3)
                    return int(answer.error_code)

                await _until(found, (ErrorCode.NONE,))

            async def committed() -> int:
                request = wire.decode_request(COMMIT[4:])[1]
                answer = await connection.ask(request, 7)
                return int(answer.topics[0].partitions[0].error_code)

            await _until(committed, (ErrorCode.NONE,))


async def _until(ask: Callable[[], Awaitable[int]], wanted: Sequence[int]) -> None:
    while await ask() not in wanted:  # noqa: ASYNC110 - the server tells nobody when it is ready
        await trio.sleep(0.1)
