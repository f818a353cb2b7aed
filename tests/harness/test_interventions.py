"""Sessions that expire, followers that lag, log directories that fail, and waiting until all is noticed.

Covers: harness/interventions.py, harness/settling.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.recording import Recording
from kce.harness import ActiveController, Cluster, HarnessError, SyncCluster
from kce.harness.faults import Rule
from kce.harness.members import InProcessMember
from kce.harness.world import memory
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import znodes
from kce.zookeeper.store import SetData, value
from tests.clusters import leaders_and_isrs, node

FAST = {"zookeeper.session.timeout.ms": "2000"}
DIRS = ["/one", "/two"]
T0 = TopicPartition("t", 0)
DAY_S = 86_400


@asynccontextmanager
async def cluster_with_topic(seed: int = 3, **properties: str) -> AsyncIterator[Cluster]:
    """Node 1 leads t-0, the others follow."""
    async with Cluster(3, world=memory(seed), properties=FAST | properties) as cluster:
        await cluster.create_topic("t", assignment={0: [1, 2, 3]})
        yield cluster


async def session_of(cluster: Cluster, node_id: int) -> int | None:
    (stat,) = await cluster.store.exists([znodes.broker_path(node_id)])
    return None if stat is None else stat.ephemeral_owner


# expire


async def test_a_session_expires_and_the_node_registers_again() -> None:
    async with cluster_with_topic() as cluster:
        old = await cluster.wait_for_controller()
        before, began = await session_of(cluster, old.id), trio.current_time()
        await cluster.expire_session(old.id)
        new = await cluster.wait_for_controller(other_than=old)
        await cluster.wait_until_settled()
        assert (new.epoch, cluster.member(old.id).state) == (old.epoch + 1, "running")
        assert await session_of(cluster, old.id) not in (before, None)
        assert trio.current_time() - began < 1  # without waiting for the session's timeout


async def test_the_session_of_a_dead_node_expires_at_once() -> None:
    async with cluster_with_topic() as cluster:
        await cluster.kill(1)
        assert 1 in await cluster.registered()
        began = trio.current_time()
        await cluster.expire_session(1)
        assert trio.current_time() - began < 1
        assert await cluster.registered() == {2, 3}
        await cluster.wait_until_settled()
        assert (await leaders_and_isrs(cluster, "t"))[0][0] != 1
        await cluster.start(1)
        await cluster.wait_until_settled()


async def test_a_node_that_is_cut_off_learns_of_its_expired_session_when_it_is_healed() -> None:
    async with cluster_with_topic() as cluster:
        await cluster.cut_from_zookeeper(2)
        await cluster.expire_session(2)
        await cluster.wait_until_settled()
        assert await cluster.registered() == {1, 3}
        with pytest.raises(HarnessError, match="node 2 is not registered in ZooKeeper"):
            await cluster.expire_session(2)
        await cluster.heal(2)
        await cluster.wait_until_settled()
        assert await cluster.registered() == {1, 2, 3}


# controllers


async def test_two_controllers_until_the_first_learns() -> None:
    async with cluster_with_topic() as cluster:
        first = await cluster.second_controller()
        second = await cluster.wait_for_controller()
        assert second.id != first.id
        assert (await cluster.node_status(first.id)).believes_active
        await cluster.wait_until(lambda: believes(cluster, second.id), "the second to take over")
        await cluster.heal(first.id)
        await cluster.wait_until_settled()
        assert not await believes(cluster, first.id)
        await cluster.kill(first.id)
        await cluster.kill(6 - first.id - second.id)
        with pytest.raises(HarnessError, match=f"node {second.id} is the only one that runs"):
            await cluster.second_controller()
        await cluster.delete_controller()
        await cluster.kill(second.id)
        with pytest.raises(HarnessError, match="no node that runs is controller"):
            await cluster.zombie_controller()


async def test_a_zombie_that_no_node_can_follow_is_refused_and_holds_nothing() -> None:
    async with cluster_with_topic() as cluster:
        first = await cluster.zombie_controller()
        second = await cluster.zombie_controller()
        last = await cluster.wait_for_controller()
        began = trio.current_time()
        with pytest.raises(HarnessError, match=f"heal a node that is cut off .{min(first.id, second.id)}, "):
            await cluster.zombie_controller()
        with pytest.raises(HarnessError, match=f"node {last.id} is the only one that ZooKeeper hears of"):
            await cluster.second_controller()
        assert trio.current_time() - began < 1
        assert cluster.held.keys() == {first.id, second.id}
        assert await cluster.controller() == last


async def believes(cluster: Cluster, node_id: int) -> bool:
    return (await cluster.node_status(node_id)).believes_active


async def test_a_zombie_is_fenced() -> None:
    """Rule 9.2: what it has sent before it was cut off arrives with an old controller epoch."""
    async with cluster_with_topic() as cluster:
        old = await cluster.wait_for_controller()
        await cluster.hold_control_requests(old.id)
        await cluster.create_topic("late", assignment={0: [1, 2, 3]})
        assert await cluster.zombie_controller() == old
        await cluster.wait_until(lambda: others_have(cluster, old, old.epoch + 1), "brokers to know the new epoch")
        cluster.history.clear()
        await cluster.release_control_requests(old.id)
        answers = await cluster.history.wait_for(
            lambda m: getattr(m, "error_code", 0) == ErrorCode.STALE_CONTROLLER_EPOCH, is_request=False, to=old.id
        )
        assert answers[0].destination == old.id
        await cluster.heal(old.id)
        await cluster.wait_until_settled()
        new = await cluster.zombie_controller()
        assert cluster.held.keys() == {new.id}


async def others_have(cluster: Cluster, zombie: ActiveController, epoch: int) -> bool:
    """Whether all brokers but the zombie, which is not registered, have accepted that controller epoch."""
    await trio.lowlevel.checkpoint()
    others = [member.id for member in cluster.members if member.id != zombie.id]
    return all(node(cluster, other).broker.replica_manager.controller_epoch == epoch for other in others)


async def test_controller_and_its_epoch_are_rewritten_and_deleted() -> None:
    async with cluster_with_topic() as cluster:
        old = await cluster.wait_for_controller()
        other = old.id % 3 + 1
        await cluster.rewrite_controller(other)
        assert await cluster.controller_id() == other
        await cluster.wait_until(lambda: believes(cluster, other), "it to believe")  # E12.9
        assert not await believes(cluster, old.id)
        await cluster.delete_controller()
        new = await cluster.wait_for_controller(other_than=old)
        await cluster.rewrite_controller_epoch(40)
        await cluster.create_topic("fenced", assignment={0: [1]}, wait=False)
        await trio.sleep(10)
        assert await leaders_and_isrs(cluster, "fenced") == {}  # rules 2.9, 2.17: refused, and it does not resign
        assert await cluster.controller_id() == new.id
        await cluster.delete_controller()
        await cluster.wait_until(lambda: epoch_is(cluster, 41), "the next controller")
        await cluster.wait_until_settled()
        await cluster.delete_controller_epoch()
        await cluster.delete_controller()
        await cluster.wait_until(lambda: epoch_is(cluster, 1), "an election without the epochs before")
        with pytest.raises(HarnessError, match="there is no node 4"):
            await cluster.rewrite_controller(4)
        for wrong in (2**31, -(2**31) - 1):
            with pytest.raises(HarnessError, match=f"a controller epoch has 32 bits: {wrong} does not fit"):
                await cluster.rewrite_controller_epoch(wrong)
    async with Cluster(1, world=memory()) as cluster:
        await cluster.kill(1)
        await cluster.delete_controller_epoch()
        with pytest.raises(HarnessError, match="there is no /controller_epoch to be rewritten"):
            await cluster.rewrite_controller_epoch(3)


async def test_faults_need_no_controller_epoch_that_can_be_read() -> None:
    async with Cluster(2, world=memory()) as cluster:
        await cluster.store.write([SetData(znodes.CONTROLLER_EPOCH, b"nonsense")])
        await cluster.cut_link(1, 2)
        await cluster.heal_link(1, 2)
        async with cluster.faults(Rule(api="LeaderAndIsr"), must_fire=False):
            pass


async def epoch_is(cluster: Cluster, epoch: int) -> bool:
    found = await cluster.controller()
    return found is not None and found.epoch == epoch


async def test_a_node_that_is_cut_off_is_not_bounced_nor_started_again() -> None:
    async with Cluster(2, world=memory()) as cluster:
        await cluster.cut_from_zookeeper(2)
        for again in (cluster.bounce, cluster.restart):
            with pytest.raises(HarnessError, match="node 2 is cut off from ZooKeeper and could not"):
                await again(2)
            assert cluster.member(2).state == "running"
        await cluster.kill(2)
        with pytest.raises(HarnessError, match="node 2 is cut off from ZooKeeper and could not"):
            await cluster.start(2)
        await cluster.heal(2)
        await cluster.start(2)
        await cluster.bounce(2)


async def test_a_bounced_node_has_a_new_broker_epoch() -> None:
    async with cluster_with_topic() as cluster:
        before, began = node(cluster, 2).broker.broker_epoch, trio.current_time()
        await cluster.bounce(2)
        assert trio.current_time() - began < 1
        assert node(cluster, 2).broker.broker_epoch > before
        await cluster.wait_until_settled()


async def test_a_repair_starts_what_ends_meanwhile() -> None:
    async with Cluster(3, world=memory()) as cluster:
        await cluster.kill(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.repair)
            await trio.sleep(1)  # it waits for the session of node 3 to expire
            await cluster.kill(1)
        assert [member.state for member in cluster.members] == ["running"] * 3


async def test_a_node_that_zookeeper_does_not_reach() -> None:
    """What the controller asks for is done; it does not hear of it, gives the connection up, and another follows."""
    async with cluster_with_topic() as cluster:
        old = await cluster.wait_for_controller()
        await cluster.mute_zookeeper(old.id)
        with pytest.raises(HarnessError, match="nothing takes -1 s longer"):
            await cluster.delay_zookeeper(old.id, -1)
        new = await cluster.wait_for_controller(other_than=old)
        assert new.id != old.id
        assert old.id not in await cluster.registered()
        await cluster.heal(old.id)
        await cluster.wait_until_settled()
        assert await cluster.registered() == {1, 2, 3}


# links


async def test_one_direction_between_two_nodes() -> None:
    """Node 2 gets no requests of node 1, and its own arrive there, without answers."""
    async with cluster_with_topic(**{"request.timeout.ms": "3000"}) as cluster:
        controller = await cluster.wait_for_controller()
        source, to = controller.id, controller.id % 3 + 1
        await cluster.create_topic("followed", assignment={0: [source, to]})
        await cluster.cut_link(source, to)
        await cluster.cut_link(source, to)  # once
        cluster.history.clear()
        await cluster.create_topic("u", assignment={0: [to]}, wait=False)
        await cluster.history.wait_for(api="UpdateMetadata", source=source, to=6 - source - to)
        await trio.sleep(100)  # longer than a fetcher waits for a response
        assert not cluster.history.events(source=source, to=to)
        assert not cluster.history.events(source=source, to=to, is_request=False)
        assert cluster.history.events(source=to, to=source)
        await cluster.heal_link(source, to)
        await cluster.wait_until_settled()
        assert cluster.history.events(api="LeaderAndIsr", source=source, to=to)
        await cluster.cut_link(to, source)
        await cluster.repair()
        assert cluster.links.rules == ()
        for pair, error in (((1, 1), "node 1 has no link to itself"), ((1, 4), "there is no node 4")):
            with pytest.raises(HarnessError, match=error):
                await cluster.cut_link(*pair)


# lag


@pytest.mark.parametrize("ibp", ["2.6", "3.9"])  # ISRs by ZooKeeper, and by AlterPartition
async def test_a_follower_lags_until_it_is_healed(ibp: str) -> None:
    properties = {"inter.broker.protocol.version": ibp}
    async with cluster_with_topic(**properties) as cluster:
        began = trio.current_time()
        await cluster.shrink_isr("t", 0, 2)
        assert trio.current_time() - began < 5  # without waiting for replica.lag.time.max.ms
        assert await leaders_and_isrs(cluster, "t") == {0: (1, {1, 3})}
        await trio.sleep(60)
        assert await leaders_and_isrs(cluster, "t") == {0: (1, {1, 3})}
        await cluster.heal_isr("t", 0, 2)
        await cluster.wait_until(lambda: isr_is(cluster, {1, 2, 3}), "broker 2 to rejoin")


async def isr_is(cluster: Cluster, wanted: set[int]) -> bool:
    return (await leaders_and_isrs(cluster, "t"))[0][1] == wanted


async def test_the_next_leader_and_the_next_life_of_the_follower_know_who_lags() -> None:
    async with cluster_with_topic() as cluster:
        await cluster.shrink_isr("t", 0, 2)
        await cluster.kill(1)
        await cluster.expire_session(1)
        await cluster.wait_until_settled()
        await cluster.restart(2)
        await cluster.start(1)
        await cluster.wait_until(lambda: isr_is(cluster, {1, 3}), "broker 1 to rejoin")
        await trio.sleep(60)
        assert await leaders_and_isrs(cluster, "t") == {0: (3, {1, 3})}
        assert cluster.history.events(api="Fetch", source=1)
        cluster.history.clear()
        await trio.sleep(60)
        assert not cluster.history.events(api="Fetch", source=2)  # its only partition
        await cluster.repair()
        await cluster.wait_until(lambda: isr_is(cluster, {1, 2, 3}), "broker 2 to rejoin")
        assert not any(member.lags for member in cluster.members)


async def test_the_high_watermark_does_not_wait_for_who_lags_on_command() -> None:
    """Rule 9.50: a replica that has fetched lately, and might join, holds it back; not one that may not join."""
    async with cluster_with_topic() as cluster:
        await cluster.shrink_isr("t", 0, 2)
        partition = node(cluster, 1).broker.replica_manager.partitions[T0]
        follower = partition.followers.get(2)
        assert follower is not None
        end = partition.log.end._replace(offset=9) if partition.log else None
        assert end is not None
        follower.caught_up_ms = trio.current_time() * 1000
        third = partition.followers.get(3)
        assert third is not None
        third.end = end
        assert partition.followers.high_watermark(end, (1, 3), lambda *_: True) == end
        partition.followers.laggards = ()
        assert partition.followers.high_watermark(end, (1, 3), lambda *_: True) == follower.end


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("t", 0, 1), "broker 1 leads t-0"),
        (("t", 0, 4), "there is no node 4"),
        (("t", 7, 2), "there is no partition 7 in topic t"),
        (("u", 0, 2), "unknown topic u"),
        (("one", 0, 2), "broker 2 has no replica of one-0; 3 have"),
    ],
)
async def test_who_cannot_lag(arguments: tuple[str, int, int], error: str) -> None:
    async with cluster_with_topic() as cluster:
        await cluster.create_topic("one", assignment={0: [3]})
        with pytest.raises(HarnessError, match=error):
            await cluster.shrink_isr(*arguments)
        assert not any(member.lags for member in cluster.members)
        if "leads" not in error:
            with pytest.raises(HarnessError, match=error):
                await cluster.heal_isr(*arguments)


# log directories


async def test_a_log_directory_fails_until_the_node_restarts() -> None:
    async with Cluster(2, world=memory(5), properties=FAST | {"log.dirs": ",".join(DIRS)}) as cluster:
        await cluster.create_topic("t", assignment={number: [1, 2] for number in range(4)})
        logs = node(cluster, 1).logs
        assert logs is not None
        await cluster.wait_until_settled()
        lost = {tp.partition for tp, log in logs.logs.items() if log.folder.startswith("/one/")}
        assert 0 < len(lost) < 4
        await cluster.fail_log_dir(1, "/one/")

        async def have_moved() -> bool:
            state = await leaders_and_isrs(cluster, "t")
            return all(state[number] == ((2, {2}) if number in lost else (1, {1, 2})) for number in state)

        await cluster.wait_until(have_moved, "the leaders of its partitions to move")
        for wrong in ("/one", "/three"):
            with pytest.raises(HarnessError, match=f"there is no log directory {wrong} of node 1; online are /two"):
                await cluster.fail_log_dir(1, wrong)
        await cluster.restart(1)

        async def have_returned() -> bool:
            return all(isr == {1, 2} for _, isr in (await leaders_and_isrs(cluster, "t")).values())

        await cluster.wait_until(have_returned, "node 1 to rejoin the ISRs")


@pytest.mark.parametrize("ibp", ["0.11.0", "3.9"])
async def test_a_node_halts_when_it_cannot_go_on(ibp: str) -> None:
    """Rule 9.68: without its last log directory; with an old protocol, without any."""
    dirs = ",".join(DIRS) if ibp == "0.11.0" else DIRS[0]
    properties = FAST | {"log.dirs": dirs, "inter.broker.protocol.version": ibp}
    async with Cluster(2, world=memory(5), properties=properties) as cluster:
        await cluster.fail_log_dir(1, DIRS[0])
        assert cluster.member(1).state == "stopped"
        with pytest.raises(HarnessError, match="node 1 is not running"):
            await cluster.fail_log_dir(1, DIRS[0])
        assert 1 in await cluster.registered()  # its session lasts, as after a crash
        await cluster.start(1)


# settling


async def test_what_has_not_settled_is_named() -> None:
    async with cluster_with_topic() as cluster:
        old = await cluster.wait_for_controller()
        other = min({1, 2, 3} - {old.id})
        await cluster.wait_until_settled()
        await cluster.kill(other)
        with pytest.raises(HarnessError, match=r"timed out after 1 s .* the nodes \[1, 2, 3\] are registered, not"):
            await cluster.wait_until_settled(1)
        await cluster.wait_until_settled()
        hold = Rule(api="UpdateMetadata", hold=True)
        await cluster.add_rule(hold)
        await cluster.create_topic("u", assignment={0: [old.id]}, wait=False)
        with pytest.raises(HarnessError, match=f"control requests of node {old.id} are pending"):
            await cluster.wait_until_settled(1)
        await cluster.remove_rule(hold)
        await cluster.wait_until_settled()
        await cluster.delete_topic("t", wait=False)  # a replica is dead: it waits
        await cluster.wait_until_settled()
        await cluster.start(other)
        await cluster.wait_until_settled()
        assert [topic.name for topic in await cluster.describe_topics()] == ["u"]


def test_without_async() -> None:
    with SyncCluster(2, world=memory(1), properties=FAST) as cluster:
        cluster.create_topic("t", assignment={0: [1, 2]})
        cluster.shrink_isr("t", 0, 2)
        cluster.heal_isr("t", 0, 2)
        cluster.expire_session(2)
        cluster.wait_until_settled()
        (folder,) = cluster.member(2).properties["log.dirs"].split(",")
        cluster.fail_log_dir(2, folder)
        assert cluster.member(2).state == "stopped"


async def test_a_recording_has_the_time_of_the_cluster_where_the_clock_of_a_node_is_wrong(tmp_path: Path) -> None:
    record = tmp_path / "x.pcapng"
    async with Cluster(3, world=memory(7), properties=FAST, record=record) as cluster:
        await cluster.create_topic("t", replication_factor=3)
        for node_id in (1, 2, 3):
            await cluster.jump_clock(node_id, -DAY_S)
        await cluster.create_topic("u", replication_factor=3)
        await cluster.wait_until_settled()
        events = cluster.history.events()
    times = [event.time_ns for event in events]
    assert times == sorted(times)
    with CaptureFile(record) as capture:
        steps = Recording.read(capture).steps
    assert len(steps) == sum(1 for event in events if event.is_request)
    assert [step for step in steps if step.response is None] == []


async def registered_ms(cluster: Cluster, node_id: int) -> int:
    """When the node has registered, by its clock."""
    (found,) = await cluster.store.get_data([znodes.broker_path(node_id)])
    return int(json.loads(value(found).data)["timestamp"])


async def has_stopped(cluster: Cluster, node_id: int) -> bool:
    await trio.lowlevel.checkpoint()
    return cluster.member(node_id).state == "stopped"


@pytest.mark.slow
async def test_in_processes(zookeeper: str) -> None:
    """A suspended node's session can expire, and a node of its own halts by itself."""
    properties = {"controlled.shutdown.enable": "false", "zookeeper.session.timeout.ms": "60000"}
    async with Cluster(2, processes=True, zookeeper=f"{zookeeper}/interventions", properties=properties) as cluster:
        old = await cluster.wait_for_controller()
        other = 3 - old.id
        await cluster.create_topic("t", assignment={0: [old.id, other]})
        await cluster.shrink_isr("t", 0, other)
        assert await leaders_and_isrs(cluster, "t") == {0: (old.id, {old.id})}
        await cluster.restart(other)
        await cluster.wait_until_settled()
        assert await leaders_and_isrs(cluster, "t") == {0: (old.id, {old.id})}
        await cluster.heal_isr("t", 0, other)
        await cluster.wait_until(lambda: isr_is(cluster, {1, 2}), "the follower to rejoin")
        await cluster.pause(old.id)
        await cluster.expire_session(old.id)
        assert (await cluster.wait_for_controller(other_than=old)).id == other
        await cluster.wait_until_settled()
        await cluster.resume(old.id)
        await cluster.wait_until_settled()
        await cluster.jump_clock(old.id, -DAY_S)
        await cluster.slow_disk(old.id, 0.001)
        await cluster.restart(old.id)  # its machine is the same
        assert await registered_ms(cluster, old.id) < await registered_ms(cluster, other) - DAY_S * 500
        await cluster.jump_clock(old.id, DAY_S)
        await cluster.fill_disk(old.id)
        await cluster.create_topic("u", assignment={0: [old.id]}, wait=False)
        await cluster.wait_until(lambda: has_stopped(cluster, old.id), "the node whose disk is full to halt")
        assert "and none is left" in cluster.member(old.id).end_reason()
        assert old.id in await cluster.registered()  # its session lasts, as after a crash
        member = cluster.member(other)
        assert not isinstance(member, InProcessMember)
        with pytest.raises(HarnessError, match=f"there is no log directory /nowhere of node {other}"):
            await cluster.fail_log_dir(other, "/nowhere")
        await cluster.fail_log_dir(other, member.properties["log.dirs"])
        assert member.state == "stopped"
        assert "and none is left" in member.end_reason()
