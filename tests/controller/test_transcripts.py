"""All that the controller sends, asks ZooKeeper, answers and knows, in lives of many operations.

`make interop` compares lives like these with Kafka's, request by request; the files beside this test are ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.events import LeaderRebalanceDue
from kce.wire import ErrorCode
from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, ElectionType, ReplicaAssignment, UpgradeType
from kce.zookeeper.store import Create, Delete, SetData
from tests import transcripts
from tests.controller.lives import Life, living, tp
from tests.controller.support import FakeBroker, answer, stopped

FOLDER = Path(__file__).parent / "transcripts"
UNKNOWN_ID = UUID(int=99)


async def ordinary(life: Life) -> None:
    """Topics come, grow, move and go; brokers come and go; the controller moves."""
    w = life.w
    async with life.step("a second contender"):
        life.record(2)
        w.spawn_controller(2)
    await life.create("a", {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 4, 5], 3: [5, 1, 4], 4: [4], 5: [5, 4]})
    await life.create("b", {0: [4, 5], 1: [3, 2]})
    await life.stop(3)
    await life.stop(4, 5)
    await life.elect(["a-0", "a-2", "a-4", "a-9", "x-0"])
    await life.elect(["a-2", "a-4"], ElectionType.UNCLEAN)
    await life.start(4)
    await life.start(5, 3)
    for name, isr in (("a-0", [1, 2, 3]), ("a-1", [2, 1, 3]), ("a-2", [4, 5, 3]), ("b-0", [5, 4]), ("b-1", [2, 3])):
        await life.join_isr(name, isr)
    await life.elect(["a-1", "a-2", "b-0"])
    async with life.step("rebalance"):
        life.controller.loop.put(LeaderRebalanceDue())
    await life.reassign({"a-0": (4, 5), "a-1": (2, 3), "b-1": (1,), "b-0": None, "a-3": (), "a-4": (9,), "x-1": (1,)})
    await life.ask("list", wire.ListPartitionReassignmentsRequest(topics=None))
    await life.join_isr("a-0", [1, 2, 3, 4, 5])
    await life.reassign({"b-1": None})
    await life.reassign_in_zookeeper({"b-0": (2, 3), "a-5": (1, 4), "x-0": (1,), "a-2": (3, 4, 5)})
    await life.stop(2)
    async with life.step("the controller resigns"):
        await w.store.write([Delete(znodes.CONTROLLER)])
    await life.start(2)
    await life.join_isr("a-5", [5, 4, 1])
    await life.join_isr("b-0", [5, 4, 2, 3])
    await life.shut_down(5)
    await life.shut_down(5, epoch=-1)
    await life.shut_down(4, epoch=1)
    await life.shut_down(9, epoch=7)
    await life.stop(5)
    async with life.step("registered anew"):
        await w.bounce_broker(3)
    found = znodes.decode_topic("b", (await w.get("/brokers/topics/b")) or b"")
    grown = {**found.partitions, 2: found.partitions[0], 3: found.partitions[1]}
    await life.write(SetData("/brokers/topics/b", znodes.encode_topic(found.topic_id, grown)))
    await life.write(
        Create("/admin/preferred_replica_election", cluster_nodes.encode_partition_list([tp("a-0"), tp("b-3")]))
    )
    await life.write(Create("/admin/delete_topics/b"), Create("/admin/delete_topics/unknown"))
    await life.write(Create("/admin/delete_topics/a"))
    await life.create("c", {0: [1, 2]})
    async with life.step("the session of the controller expires"):
        node = life.controller.config.broker_id
        w.server.expire(w.nodes[node].store)
    await life.start(5)
    await life.write(Delete("/brokers/topics/c/partitions/0/state"), Delete("/brokers/topics/c/partitions/0"))
    await life.create("d", {0: [9, 8], 1: [1]})


async def failures(life: Life) -> None:
    """What brokers answer with errors, and what makes no sense."""
    w = life.w
    await life.create("a", {0: [1, 2, 3], 1: [2, 3], 2: [3, 2]})
    await life.create("b", {0: [2, 4], 1: [4, 2]})
    fails = wire.LeaderAndIsrResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)

    def with_code(code: int, deleted: int = ErrorCode.NONE) -> Callable[[Any, wire.Header], wire.Message]:
        def answers(request: Any, header: wire.Header) -> wire.Message:
            made: Any = answer(request, header)
            if isinstance(request, wire.LeaderAndIsrRequest):
                topics = tuple(
                    wire.LeaderAndIsrTopicError(
                        topic_id=t.topic_id,
                        partition_errors=tuple(
                            wire.LeaderAndIsrPartitionError(partition_index=p.partition_index, error_code=code)
                            for p in t.partition_errors
                        ),
                    )
                    for t in made.topics
                )
                return wire.LeaderAndIsrResponse(topics=topics)
            if isinstance(request, wire.StopReplicaRequest) and deleted:
                errors = tuple(
                    wire.StopReplicaPartitionError(
                        topic_name=p.topic, partition_index=p.partition, error_code=deleted * (p.partition == 1)
                    )
                    for p in stopped(request)
                )
                return wire.StopReplicaResponse(partition_errors=errors)
            return made  # type: ignore[no-any-return]

        return answers

    broker: FakeBroker = w.brokers[2]
    broker.answer = with_code(ErrorCode.KAFKA_STORAGE_ERROR)
    event = cluster_nodes.encode_log_dir_event(BrokerId(2))
    path = znodes.LOG_DIR_EVENT_NOTIFICATION
    await life.write(Create(f"{path}/log_dir_event_", event, sequential=True))
    await life.write(Create(f"{path}/log_dir_event_", b"nonsense", sequential=True))
    broker.answer = answer
    await life.write(Create(f"{path}/log_dir_event_", event, sequential=True))
    await life.stop(4)
    broker.answer = lambda request, header: (
        fails if isinstance(request, wire.LeaderAndIsrRequest) else answer(request, header)
    )
    await life.start(4)
    broker.answer = answer
    await life.join_isr("b-1", [4, 2])
    await life.join_isr("a-0", [1, 7])
    w.brokers[4].answer = with_code(ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
    await life.write(Create("/admin/delete_topics/b"))
    await life.reassign({"b-0": (1,)})
    w.brokers[4].answer = answer
    async with life.step("registered anew"):
        await w.bounce_broker(4)
    await life.reassign({"a-1": (4, 5)})
    await life.write(Create("/admin/delete_topics/a"))
    await life.create("c", {0: [2, 3], 1: [3, 2]})
    await life.stop(3)
    await life.write(Create("/admin/delete_topics/c"))
    await life.start(3)
    for version in (0, 1, 2, 3):
        await life.ask("alter", await alteration(life, "a-0", version), version)
    await life.create("e", {0: [2, 3], 1: [3, 2]})
    for version in (2, 3):
        await life.ask("alter", await alteration(life, "e-1", version), version)
    for broker_id, epoch in ((2, None), (2, 0), (9, 0), (3, None)):
        known = life.controller.context.broker_epochs.get(BrokerId(broker_id))
        request = wire.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=known if epoch is None else epoch)
        await life.ask("allocate", request)
    await life.write(SetData(znodes.BROKER_IDS + "/5", b"nonsense"))
    await life.write(Create("/brokers/topics/f", b"nonsense"), Create("/brokers/topics/not allowed", b"{}"))
    await life.write(
        Create("/config/topics/e", cluster_nodes.encode_config({"unclean.leader.election.enable": "true"}))
    )
    await life.stop(3)
    await life.stop(2)
    await life.start(3)


async def alteration(life: Life, name: str, version: int) -> wire.AlterPartitionRequest:
    """By the leader, of one partition in several ways, and of unknown ones."""
    context = life.controller.context
    partition = tp(name)
    known = context.leadership.get(partition)
    leader, epoch, partition_epoch = (2, 0, 0) if known is None else (
        known.leader_and_isr.leader, known.leader_and_isr.leader_epoch, known.leader_and_isr.partition_epoch
    )  # fmt: skip
    made = []
    for isr, at, recovery in (
        ((leader,), (epoch, partition_epoch), 0), ((leader,), (epoch + 1, partition_epoch), 0),
        ((leader,), (epoch - 1, partition_epoch), 0), ((2, 3), (epoch, partition_epoch + 1), 0),
    ):  # fmt: skip
        made.append(
            wire.AlterPartitionRequestPartitionData(
                partition_index=partition.partition,
                leader_epoch=at[0],
                partition_epoch=at[1],
                new_isr=() if version > 2 else isr,
                new_isr_with_epochs=tuple(wire.BrokerState(broker_id=r) for r in isr) if version > 2 else (),
                leader_recovery_state=recovery,
            )
        )
    topics = []
    for data in (made[0], made[1], made[2], made[3]):
        named: dict[str, Any] = {"topic_name": partition.topic} if version < 2 else {}
        if version >= 2:
            named["topic_id"] = context.topic_ids.get(partition.topic, UNKNOWN_ID)
        topics.append(wire.AlterPartitionRequestTopicData(partitions=(data,), **named))
    return wire.AlterPartitionRequest(
        broker_id=leader, broker_epoch=context.broker_epochs[BrokerId(leader)], topics=tuple(topics[::-1])
    )


async def old(life: Life) -> None:
    """An inter-broker protocol whose brokers write their ISRs themselves."""
    w = life.w
    await life.create("a", {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 4, 5]})
    await life.reassign({"a-0": (4, 5), "a-1": (2, 3)})

    async def write_isr(name: str, isr: Sequence[int], *, notify: bool) -> None:
        known = life.controller.context.leadership[tp(name)]
        state = known.leader_and_isr._replace(isr=tuple(map(BrokerId, isr)))
        path = znodes.partition_state_path(tp(name))
        changed = SetData(path, znodes.encode_partition_state(known._replace(leader_and_isr=state)))
        note = Create(
            f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_",
            cluster_nodes.encode_partition_list([tp(name)]),
            sequential=True,
        )
        await life.write(changed, *([note] if notify else []))

    await write_isr("a-2", (3, 4), notify=True)
    await write_isr("a-0", (1, 2, 3, 4, 5), notify=False)
    await life.write(Create(f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_", b"nonsense", sequential=True))
    await life.reassign({"a-1": (4, 5)})
    await life.reassign({"a-1": None})
    await life.stop(3)
    await life.shut_down(4, epoch=-1)
    await life.stop(4)
    await life.start(3, 4)
    await life.elect(["a-1", "a-2"])
    await life.write(Create("/admin/delete_topics/a"))
    await life.create("b", {0: [1, 2]})
    async with life.step("registered elsewhere"):
        moved = w._broker(2, "r")
        data = znodes.encode_broker(moved, w.ibp, 5)
        await w.store.write([SetData("/brokers/ids/2", data)])


async def many(life: Life) -> None:
    """Enough for hash tables beyond their first sizes, and for reassignments that share their requests."""
    life.is_brief = True
    assignment = {p: [(p + i) % 5 + 1 for i in range(3)] for p in range(12)}
    for n in range(6):
        await life.create(f"many-{n}", assignment)
    together = ("orders", "clicks", "a.b", "T", "log-1", "payments", "x_y")
    replicas = {p: ReplicaAssignment((BrokerId(p + 1), BrokerId(3))) for p in (0, 1)}
    await life.write(
        *(Create(f"/brokers/topics/{topic}", znodes.encode_topic(life.w.new_uuid(), replicas)) for topic in together)
    )
    await life.stop(2, 4)
    await life.start(4, 2)
    targets = {f"many-{n}-{p}": [(p + i + 2) % 5 + 1 for i in range(2)] for n in range(3) for p in range(12)}
    await life.reassign(targets)
    await life.reassign({name: None if name.endswith("1") else [1, 2] for name in targets})
    await life.elect([f"many-{n}-{p}" for n in range(6) for p in range(12)])
    async with life.step("the controller resigns"):
        await life.w.store.write([Delete(znodes.CONTROLLER)])
    await life.write(*(Create(f"/admin/delete_topics/many-{n}") for n in (3, 1, 5)))


async def settings(life: Life) -> None:
    """No topic may be deleted, leaders may be elected uncleanly, and features are finalized."""
    await life.create("a", {0: [2, 3], 1: [3, 2], 2: [2]})
    await life.write(Create("/admin/delete_topics/a"))
    await life.stop(3)
    await life.stop(2)
    await life.start(3)
    await life.start(2)
    await life.join_isr("a-0", [3, 2])
    down, up = UpgradeType.SAFE_DOWNGRADE, UpgradeType.UPGRADE
    for validate_only, updates in (
        (True, [("f", 2, up)]),
        (False, [("f", 1, down), ("g", 1, up)]),
        (False, [("f", 0, UpgradeType.UNSAFE_DOWNGRADE)]),
        (False, [("f", 9, up), ("f", 3, up)]),
        (False, [("f", 0, down), ("g", 0, down)]),
    ):
        await life.update_features(updates, validate_only=validate_only)
    life.w.features = {}
    await life.start(6)
    await life.update_features([("f", 1, up), ("g", 1, up)])
    async with life.step("rebalance"):
        life.controller.loop.put(LeaderRebalanceDue())
    async with life.step("the controller resigns"):
        await life.w.store.write([Delete(znodes.CONTROLLER)])
    await life.write(
        Create("/config/brokers/1", cluster_nodes.encode_config({"unclean.leader.election.enable": "false"}))
    )
    await life.write(
        Create("/config/changes/config_change_", cluster_nodes.encode_config_change("brokers", "1"), sequential=True)
    )


V = MetadataVersion.parse
LIVES: Mapping[str, tuple[Callable[[Life], Awaitable[None]], MetadataVersion, Mapping[str, Any]]] = {
    "ordinary": (ordinary, LATEST, {}),
    "failures": (failures, LATEST, {}),
    "old": (old, V("2.6"), {}),
    "oldest": (old, V("0.10.1"), {}),
    "many": (many, LATEST, {}),
    "settings": (
        settings,
        LATEST,
        {
            "delete_topic_enable": False,
            "unclean_leader_election_enable": True,
            "supported_features": {"f": (1, 3), "g": (1, 1)},
            "features": {"f": (1, 4), "g": (1, 1)},
        },
    ),
}


@pytest.mark.parametrize("name", LIVES)
async def test_a_life(autojump_clock: MockClock, name: str) -> None:
    live, ibp, of_controller = LIVES[name]
    async with living(ibp, **of_controller) as life:
        await live(life)
    transcripts.check(FOLDER / f"{name}.txt", life.lines)
