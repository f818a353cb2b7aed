"""Election, failover, resignation and sessions (sections 2 and 4 of docs/controller-semantics.md).

Covers: kce.controller.kafka_controller, kce.controller.controller_role.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from kce.controller.events import ControllerDeleted
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from kce.zookeeper.client import UNFENCED, ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, TopicPartition
from kce.zookeeper.store import (
    Check,
    Create,
    Delete,
    MultiFailed,
    Op,
    OpResult,
    SessionExpired,
    SetData,
    StoreError,
    value,
)
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.controller import requests
from tests.controller.conformance.cluster import event_thread_blocked
from tests.controller.support import Sent, texts, world


async def test_the_first_controller_has_epoch_1(autojump_clock: MockClock) -> None:  # rules 1.8, 1.13, 2.7-2.9
    async with world(brokers=()) as w:
        controller = await w.start_controller(1)
        assert controller.is_active
        assert (controller.context.epoch, controller.context.epoch_zk_version) == (1, 1)
        assert await w.get("/controller_epoch") == b"1"
        node = json.loads(await w.get("/controller") or b"")
        assert node == {"version": 2, "brokerid": 1, "timestamp": "0", "kraftControllerEpoch": -1}
        stat = (await w.store.exists(["/controller"]))[0]
        assert stat is not None
        assert stat.ephemeral_owner == w.registrations[1].session_id


async def test_the_loser_knows_the_winner_and_waits(autojump_clock: MockClock) -> None:  # rules 2.6, 2.14
    async with world(brokers=()) as w:
        await w.start_controller(1)
        second = await w.start_controller(2)
        assert not second.is_active
        assert second.active_controller_id == 1
        assert second.failovers == 0


async def test_failover_sends_brokers_before_leaderships(autojump_clock: MockClock) -> None:  # rules 4.13, 4.14
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2], 1: [2, 3]})
        await w.start_controller(3)
        w.take()
        await w.store.write([Delete("/controller")])
        await w.settle()
        sent = texts(w.take(), 2)
        assert sent == [
            "UMR alive=[1, 2, 3]",
            "LAI t-1:2@0[2, 3] t-0:1@0[1, 2]",
            "UMR alive=[1, 2, 3] t-1:2@0[2, 3] t-0:1@0[1, 2]",
        ]


async def test_every_request_is_stamped(autojump_clock: MockClock) -> None:  # rule 8.14
    async with world() as w:
        controller = await w.start_controller(2)
        await w.create_topic("t", {0: [1, 2, 3]})
        epochs = controller.context.broker_epochs
        for sent in w.take():
            stamps = (sent.message.controller_id, sent.message.controller_epoch, sent.message.broker_epoch)
            assert stamps == (2, 1, epochs[sent.broker])  # type: ignore[index]
            assert sent.header.client_id == "2"


async def test_a_hand_deleted_controller_resigns_and_the_epoch_rises(autojump_clock: MockClock) -> None:  # rule 2.22
    async with world(brokers=()) as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        await w.store.write([Delete("/controller")])
        await w.settle()
        assert [c.is_active for c in (first, second)].count(True) == 1
        assert await w.get("/controller_epoch") == b"2"
        winner = first if first.is_active else second
        assert winner.context.epoch == 2
        assert winner.failovers == (2 if winner is first else 1)


async def test_the_death_of_the_controller(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.start_controller(1)
        second = await w.start_controller(2)
        await w.create_topic("t", {0: [1, 2, 3]})
        await w.kill_controller(1)
        await w.settle()
        assert second.is_active
        assert second.context.epoch == 2
        assert await w.state("t") == (2, 2, (2, 3))  # rule 6.33: one epoch for the ISR, one for the election


async def test_overwriting_controller_with_another_id(autojump_clock: MockClock) -> None:  # rules 2.23, 2.24
    async with world(brokers=()) as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        await w.store.write([SetData("/controller", znodes.encode_controller(2, 0))])
        await w.settle()
        assert not first.is_active
        assert first.context.epoch == 0  # rule 4.31
        assert second.is_active
        assert second.failovers == 0
        assert second.context.epoch == 0


async def test_overwriting_controller_with_its_own_id_changes_nothing(autojump_clock: MockClock) -> None:  # rule 2.25
    async with world(brokers=()) as w:
        first = await w.start_controller(1)
        await w.store.write([SetData("/controller", znodes.encode_controller(1, 5))])
        await w.settle()
        assert first.is_active
        assert first.failovers == 1


async def test_overwriting_the_epoch_fences_the_controller_without_ending_it(
    autojump_clock: MockClock,
) -> None:  # rule 2.26
    async with world() as w:
        controller = await w.start_controller(1)
        await w.store.write([SetData("/controller_epoch", b"7")])
        await w.create_topic("t", {0: [1, 2]})
        assert controller.is_active
        assert await w.get("/brokers/topics/t/partitions/0/state") is None
        await w.store.write([Delete("/controller")])
        await w.settle()
        assert controller.context.epoch == 8
        assert await w.state("t") == (1, 0, (1, 2))


class LosesAnswers(MemoryStore):
    """Every multi is carried out, its answer is lost, and it is sent again (rule 1.52)."""

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        await super().multi(groups)
        return await super().multi(groups)


async def test_a_fenced_controller_whose_session_ends(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 2.17, 2.30
    """It ends while the controller looks whether it is one still: that is no failure of the event."""
    async with world() as w:
        controller = await w.start_controller(1)
        node = w.nodes[1]
        real = node.zk.register_and_check

        async def ends(path: str, handler: ChangeHandler) -> bool:
            monkeypatch.setattr(node.zk, "register_and_check", real)
            w.server.expire(node.store)
            raise SessionExpired("the session has ended")

        monkeypatch.setattr(node.zk, "register_and_check", ends)
        await w.store.write([SetData("/controller_epoch", b"7")])
        await w.create_topic("t", {0: [2]})
        assert controller.loop.failures == {}
        assert (controller.is_active, controller.context.epoch) == (True, 8)
        assert await w.state("t") == (2, 0, (2,))


async def test_a_lost_answer_to_the_claim_is_a_won_election() -> None:  # rule 2.10
    zk = KafkaZkClient(LosesAnswers(MemoryZooKeeper(), 1), now_ms=lambda: 0)
    assert await zk.register_controller(BrokerId(1)) == (1, 1)


async def test_a_claim_that_another_won_is_controller_moved() -> None:  # rule 2.10
    server = MemoryZooKeeper()
    first, second = (KafkaZkClient(server.connect(), now_ms=lambda: 0) for _ in range(2))
    await first.register_controller(BrokerId(1))
    with pytest.raises(ControllerMoved):
        await second.register_controller(BrokerId(2))
    assert await second.get_controller_epoch() == (1, 1)


async def test_session_expiry_of_the_active_controller(autojump_clock: MockClock) -> None:  # rules 2.28-2.32
    async with world() as w:
        first = await w.start_controller(1)
        second = await w.start_controller(2)
        await w.create_topic("t", {0: [1, 2, 3]})
        old_epoch = first.context.broker_epochs[1]  # type: ignore[index]
        w.server.expire(w.nodes[1].store)
        await w.settle()
        assert second.is_active
        assert not first.is_active
        assert first.context.epoch == 0
        assert second.context.epoch == 2
        assert second.context.broker_epochs[1] > old_epoch  # type: ignore[index]


async def test_session_expiry_of_the_only_contender_elects_it_again(autojump_clock: MockClock) -> None:
    async with world() as w:
        first = await w.start_controller(1)
        w.server.expire(w.nodes[1].store)
        await w.settle()
        assert first.is_active
        assert first.context.epoch == 2
        assert first.failovers == 2
        assert await w.get(znodes.broker_path(1)) is not None


async def test_a_broken_connection_without_expiry_does_nothing(autojump_clock: MockClock) -> None:  # rule 2.33
    async with world() as w:
        first = await w.start_controller(1)
        w.server.disconnect(w.nodes[1].store)
        await w.settle()
        assert first.is_active
        await w.start_broker(4)
        w.server.reconnect(w.nodes[1].store)
        await w.settle()
        assert first.failovers == 1
        assert 4 in first.context.broker_epochs


@pytest.mark.parametrize("ibp", ["2.6", "3.9"])
async def test_who_resigned_watches_nothing_but_who_is_controller(
    autojump_clock: MockClock, ibp: str
) -> None:  # rules 4.26-4.29, 4.32
    features = {"f": (1, 2)} if ibp == "3.9" else {}
    async with world(brokers=(), ibp=MetadataVersion.parse(ibp), features=features) as w:
        controller = await w.start_controller(1, supported_features=features)
        w.features = {}
        for broker_id in (2, 3):  # where there are features, these brokers lack them (rule 11.53)
            await w.start_broker(broker_id)
        for topic in ("t", "by-hand"):
            await w.create_topic(topic, {0: [1]})
        requests.alter_partition_reassignments(controller, {TopicPartition("t", 0): [1, 9]}, lambda _: None)
        await w.zk.ensure_paths([znodes.REASSIGN_PARTITIONS])
        await w.settle()
        await w.zk._delete_recursive("/brokers/topics/by-hand", UNFENCED)
        await w.settle()
        zk = w.nodes[1].zk
        assert len(zk._change_handlers) > 5
        await w.store.write([SetData("/controller", b'{"version":1,"brokerid":99,"timestamp":"0"}')])
        await w.settle()
        assert not controller.is_active
        assert set(zk._change_handlers) == {"/controller"}
        assert set(zk._child_handlers) == {"/config/changes"}


async def test_close_resigns_and_leaves_controller_to_the_session(autojump_clock: MockClock) -> None:  # rule 2.21
    async with world(brokers=()) as w:
        controller = await w.start_controller(1)
        controller.close()
        await w.settle()
        assert controller.context.epoch == 0
        assert await w.get("/controller") is not None
        await w.registrations[1].aclose()
        assert await w.get("/controller") is None


async def test_old_notifications_are_discarded_at_failover(autojump_clock: MockClock) -> None:  # rule 4.4
    async with world() as w:
        parents = znodes.ISR_CHANGE_NOTIFICATION, znodes.LOG_DIR_EVENT_NOTIFICATION
        paths = await w.store.write([Create(f"{parent}/x_", b"{}", sequential=True) for parent in parents])
        observer, deleted = w.server.connect(), list[str]()
        observer.on_watch = lambda event: deleted.append(event.path)
        await observer.exists([str(path) for path in paths], watch=True)
        await w.start_controller(1)
        assert deleted == paths[::-1]
        for parent in parents:
            assert await w.zk.get_children(parent) == []


async def test_feature_node(autojump_clock: MockClock) -> None:  # rules 4.22, 4.23; CI-30..CI-32
    async with world(brokers=()) as w:
        await w.start_controller(1)
        assert json.loads(await w.get("/feature") or b"") == {"version": 2, "status": 1, "features": {}}
        stat = (await w.store.exists(["/feature"]))[0]
        await w.store.write([Delete("/controller")])
        await w.settle()
        assert (await w.store.exists(["/feature"]))[0] == stat
        disabled = {"version": 2, "status": 0, "features": {"x": {"max_version_level": 1}}}
        await w.store.write([SetData("/feature", json.dumps(disabled).encode()), Delete("/controller")])
        await w.settle()
        assert json.loads(await w.get("/feature") or b"") == {"version": 2, "status": 1, "features": {}}


async def test_topics_without_id_get_one_at_failover(autojump_clock: MockClock) -> None:  # rule 4.7
    async with world() as w:
        old = {"version": 2, "partitions": {"0": [1, 2]}}
        value((await w.store.write([Create("/brokers/topics/old", json.dumps(old).encode())]))[0])
        controller = await w.start_controller(1)
        node = json.loads(await w.get("/brokers/topics/old") or b"")
        assert node["version"] == 3
        assert znodes.decode_topic_id(node["topic_id"]) == controller.context.topic_ids["old"]


async def test_an_election_lost_to_a_controller_that_left(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 2.10: nobody holds the node, and no watch will tell of it
    register, attempts = KafkaZkClient.register_controller, 0

    async def beaten_once(zk: KafkaZkClient, broker: BrokerId) -> object:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ControllerMoved("another controller was elected")
        return await register(zk, broker)

    monkeypatch.setattr(KafkaZkClient, "register_controller", beaten_once)
    async with world(brokers=()) as w:
        controller = await w.start_controller(1)
        assert (controller.is_active, controller.failovers, attempts) == (True, 1, 2)


async def test_an_election_lost_to_another_is_not_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 2.14
    attempts = 0

    async def beaten(zk: KafkaZkClient, broker: BrokerId) -> object:
        nonlocal attempts
        attempts += 1
        await zk.store.write([Create("/controller", znodes.encode_controller(BrokerId(99), 0))])
        raise ControllerMoved("another controller was elected")

    monkeypatch.setattr(KafkaZkClient, "register_controller", beaten)
    async with world(brokers=()) as w:
        controller = await w.start_controller(1)
        assert (controller.active_controller_id, attempts) == (99, 1)


async def test_a_claim_in_a_session_that_the_controller_does_not_know_yet(
    autojump_clock: MockClock,
) -> None:  # rules 2.29-2.31
    async with world(brokers=(2,)) as w:
        controller = await w.start_controller(1)
        node = w.nodes[1]
        async with event_thread_blocked(w, controller):
            w.server.expire(node.store)
            # what an event may do that was under way, and goes on in the session that follows
            assert await node.zk.register_controller(BrokerId(1)) == (2, 2)
        await w.settle()
        assert controller.is_active
        assert (controller.context.epoch, controller.failovers, controller.is_settled) == (3, 2, True)
        assert set(controller.context.broker_epochs) == {1, 2}


async def test_a_failing_failover_leaves_no_half_controller(autojump_clock: MockClock) -> None:  # rules 2.13, 4.21
    async with world(brokers=()) as w:
        failing = True

        async def wait_for_features(version: int, timeout_s: float) -> None:
            await w.store.write([Delete("/feature")])  # it is waited for again at the next failover
            if failing:
                raise TimeoutError

        w.wait_for_features = wait_for_features
        await w.start_broker(1)
        w.spawn_controller(1)
        while (await w.get("/controller_epoch") or b"0") < b"3":  # it fails, gives up and tries again, as Kafka does
            await trio.lowlevel.checkpoint()
        controller = w.nodes[1].controller
        assert controller.failovers == 0
        assert not controller.is_settled
        failing = False
        await w.settle()
        assert controller.is_active
        assert controller.failovers == 1


async def test_an_election_won_while_still_active_starts_anew(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 4.8
    """The node goes between the two reads of its deletion's event, so that nothing has resigned."""
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2]})
        zk = w.nodes[1].zk
        known, reads = zk.get_controller_id, []

        async def read_and_delete() -> BrokerId | None:
            found = await known()
            if not reads:
                reads.append(found)
                await w.store.write([Delete("/controller")])
            return found

        monkeypatch.setattr(zk, "get_controller_id", read_and_delete)
        context = controller.context
        context.shutting_down.add(BrokerId(2))
        context.leadership[TopicPartition("gone", 0)] = context.leadership[TopicPartition("t", 0)]
        controller._runtime.put(ControllerDeleted())
        await w.settle()
        assert reads == [1]
        assert controller.context.epoch == 2
        assert context.shutting_down == set()
        assert list(context.leadership) == [TopicPartition("t", 0)]


async def test_a_controller_that_is_deposed_while_it_starts_tells_the_brokers_nothing(
    autojump_clock: MockClock,
) -> None:  # rules 4.10, 4.13
    async with world() as w:
        await w.create_topic("t", {0: [2]})
        await w.store.write([Create("/admin/delete_topics/t")])
        store = w.registrations[1]
        write = store.write

        async def depose(ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
            if ops and ops[0] == Delete("/admin/delete_topics/t"):
                await w.store.write([SetData("/controller_epoch", b"9"), Delete("/controller")])
                store.write = write  # type: ignore[method-assign]
                controllers_at_that_time.append(list(w.log))
            return await write(ops, fence=fence)

        controllers_at_that_time: list[list[Sent]] = []
        store.write = depose  # type: ignore[method-assign]
        await w.start_controller(1, delete_topic_enable=False)
        assert controllers_at_that_time == [[]]
        assert {s.message.controller_epoch for s in w.take()} == {10}


async def test_brokers_without_our_listener_are_ignored(autojump_clock: MockClock) -> None:  # rules 8.28, 11.50
    registration = b'{"version":4,"endpoints":["OTHER://h:1"],"listener_security_protocol_map":{"OTHER":"PLAINTEXT"}}'
    async with world(brokers=(2,)) as w:
        lonely = w.server.connect()
        value((await lonely.write([Create("/brokers/ids/9", registration, ephemeral=True)]))[0])
        controller = await w.start_controller(1)
        assert set(controller.context.broker_epochs) == {1, 2}
        value((await lonely.write([Create("/brokers/ids/8", registration, ephemeral=True)]))[0])
        await w.settle()
        await w.create_topic("t", {0: [2, 8]})
        assert await w.state("t") == (2, 0, (2,))
        await lonely.aclose()
        await w.settle()
        await w.create_topic("u", {0: [1]})
        assert await w.state("u") == (1, 0, (1,))
        assert controller.loop.failures == {}


async def test_who_gives_the_role_up_is_settled_no_more(autojump_clock: MockClock) -> None:  # rule 4.26
    async with world(brokers=(1,)) as w:
        w.spawn_controller(1)
        await w.settle()
        controller = w.nodes[1].controller
        assert controller.is_settled
        await controller.revoke_leadership()
        assert not controller.is_settled
