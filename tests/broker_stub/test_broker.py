"""A complete broker on real sockets: startup, registration, control requests, a real client, shutdown."""

from __future__ import annotations

from random import Random

import confluent_kafka.admin
import pytest
import trio

from kce import wire
from kce.broker_stub import BindError, Broker, BrokerState, TopicPartition
from kce.broker_stub.alter_partition_manager import AlterPartitionManager
from kce.broker_stub.replication.throttle import ReplicationQuotas
from kce.wire import ErrorCode
from tests.broker_stub.fake_nodes import FakeNodes, answering
from tests.broker_stub.logs import FailingLogManager, MemoryLogManager
from tests.broker_stub.replication.support import follower_fetches
from tests.broker_stub.support import (
    ID_A,
    ONE_LISTENER,
    TWO_LISTENERS,
    codes,
    config,
    connect,
    lai_state,
    leader_and_isr,
    make_broker,
    running_broker,
    umr_broker,
    umr_state,
    until,
    update_metadata,
)

A0 = TopicPartition("a", 0)


def _alive(broker: Broker) -> wire.UpdateMetadataBroker:
    """The broker in an UpdateMetadata request."""
    endpoints = tuple(
        wire.UpdateMetadataEndpoint(host=e.host, port=e.port, listener=e.listener) for e in broker.endpoints
    )
    return wire.UpdateMetadataBroker(id=broker.config.broker_id, endpoints=endpoints, rack="r1")


async def test_a_broker_starts_serves_and_stops() -> None:  # rules 2.1, 9.5, 9.7, B11.5, B11.15
    broker = make_broker(config(controlled_shutdown_enable="false"))
    assert broker.state is BrokerState.NOT_RUNNING
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        assert broker.state is BrokerState.STARTING
        control, data = broker.endpoints
        assert (control.listener, data.listener) == ("CONTROL", "DATA")
        assert 0 < control.port != data.port > 0
        broker.broker_epoch = 70
        broker.enable_request_processing()
        assert broker.state is BrokerState.RUNNING
        async with connect(control) as controller, connect(data) as client:
            stale = await controller.ask(leader_and_isr(lai_state(), broker_epoch=69))
            assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
            assert (await controller.ask(update_metadata(broker_epoch=70, alive=(1,)))).error_code == 0
            assert codes(await controller.ask(leader_and_isr(lai_state(), broker_epoch=70))) == {(ID_A, 0): 0}
            assert [b.port for b in (await client.ask(wire.MetadataRequest(topics=()))).brokers] == [9011]
        assert broker.replica_manager.partitions[A0].is_leader
        await broker.shutdown(5)
    assert broker.state is BrokerState.NOT_RUNNING


def test_what_a_broker_is_made_with() -> None:
    """What it is not given it makes itself."""
    settings, quotas, logs, secrets = config(), ReplicationQuotas(config()), MemoryLogManager(), Random(5)
    given = make_broker(settings, replication_quotas=quotas, log_manager=logs, secrets=secrets, offsets_partitions=3)
    sasl = given.socket_server._sasl
    assert sasl is not None
    assert (given.replication.quotas, given.log_manager, sasl.random) == (quotas, logs, secrets)
    assert (given.state, given.broker_epoch, given.groups.manager.partition_count) == (BrokerState.NOT_RUNNING, -1, 3)
    random = Random(6)
    made = make_broker(settings, random=random)
    assert made.socket_server._sasl is not None
    assert made.socket_server._sasl.random is random
    assert made.replication.quotas.leader is not quotas.leader
    assert made.groups.manager.partition_count == settings.groups.offsets_topic_num_partitions
    assert made.replica_manager.coordinators == (made.groups, made.transactions)


async def test_advertised_ports_default_to_the_bound_ones() -> None:  # rule B11.5
    base = {**TWO_LISTENERS, "advertised.listeners": "DATA://data.example:19092,CONTROL://control.example:0"}
    async with running_broker(config(base=base)) as broker:
        data, control = broker.endpoints
        assert str(data) == "DATA://data.example:19092"
        assert (control.host, control.port) == ("control.example", broker.socket_server.bound_listeners()[0].port)


async def test_a_port_in_use_fails_the_start() -> None:
    async with running_broker(config(base=ONE_LISTENER)) as first:
        base = {**ONE_LISTENER, "listeners": f"DATA://127.0.0.1:{first.endpoints[0].port}"}
        second = make_broker(config(2, base=base))
        async with trio.open_nursery() as nursery:
            with pytest.raises(BindError, match="the port is in use"):
                await nursery.start(second.run)


async def test_a_returned_broker_rejoins_the_isr(autojump_clock) -> None:  # rules 9.49, 9.53, 9.56, 9.59
    """The requests use the control listeners of the broker and of the controller, broker 9."""
    nodes = FakeNodes()
    written = wire.AlterPartitionResponsePartitionData(
        leader_id=1, leader_epoch=4, isr=(1, 2, 3), partition_epoch=8, partition_index=0
    )
    topic = wire.AlterPartitionResponseTopicData(topic_id=ID_A, partitions=(written,))
    nodes.nodes["host9", 9090] = answering(
        wire.AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        wire.AlterPartitionResponse(topics=(topic,)),
    )
    broker = make_broker(config(), dial=nodes.dial)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.alter_partition_manager.run)
        manager = broker.replica_manager
        manager.maybe_update_metadata_cache(update_metadata(umr_state(), alive=(1, 2, 3, 9)), 1)
        manager.become_leader_or_follower(leader_and_isr(lai_state(leader_epoch=4, partition_epoch=7, isr=(1, 2))), 2)
        await trio.testing.wait_all_tasks_blocked()
        assert nodes.requests == []
        broker.broker_epoch = 70
        follower_fetches(broker.replication.data_plane, 3, epoch=4)
        await trio.testing.wait_all_tasks_blocked()
        broker.broker_epoch = 71  # after a lost session and another registration
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    proposals = [message for _, _, message in nodes.requests if isinstance(message, wire.AlterPartitionRequest)]
    assert [message.broker_epoch for message in proposals] == [70, 71]
    (partition,) = proposals[1].topics[0].partitions
    assert [member.broker_id for member in partition.new_isr_with_epochs] == [1, 2, 3]
    assert nodes.dialled == [("host9", 9090)]
    hosted = manager.partitions[A0]
    assert (hosted.isr, hosted.partition_epoch, hosted.pending) == ((1, 2, 3), 8, None)


async def test_the_first_inter_broker_protocol_with_alter_partition_uses_it() -> None:  # rule 9.51
    broker = make_broker(config(inter_broker_protocol_version="2.7-IV2"))
    assert isinstance(broker.alter_partition_manager, AlterPartitionManager)


class LogDirEvents:
    """A store that may fail."""

    def __init__(self, error: Exception | None) -> None:
        self.notified = trio.Event()
        self._error = error

    async def log_dir_failed(self) -> None:
        await trio.lowlevel.checkpoint()
        self.notified.set()
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [None, OSError("no store")])
async def test_a_failed_log_directory_is_notified(error, caplog) -> None:  # rule 9.68
    logs, events = FailingLogManager(), LogDirEvents(error)
    logs.broken.add(A0)
    running = running_broker(log_manager=logs, log_dir_events=events)
    async with running as broker, connect(broker.endpoints[0]) as controller:
        await controller.ask(update_metadata(alive=[_alive(broker)]))
        for _ in range(2):  # the second time it is known to be offline
            answer = await controller.ask(leader_and_isr(lai_state()))
            assert list(codes(answer).values()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        with trio.fail_after(60):
            await events.notified.wait()
    assert ("could not notify the controller of a failed log directory" in caplog.text) == (error is not None)


async def test_shutdown_starts_with_a_controlled_shutdown() -> None:  # rules 11.48, B11.11, B11.14, B11.15
    nodes = FakeNodes()
    broker = make_broker(config(), dial=nodes.dial)
    states = []
    second = trio.Event()

    async def controller(header: wire.Header, message: wire.Message) -> wire.Message:
        states.append((broker.state, message))
        nursery.start_soon(shut_down_again)
        await trio.testing.wait_all_tasks_blocked()
        assert not second.is_set()
        async with connect(broker.endpoints[0]) as channel:  # the broker still serves requests
            await channel.ask(leader_and_isr(lai_state(leader=2, leader_epoch=1)))
        return wire.ControlledShutdownResponse()

    async def shut_down_again() -> None:
        await broker.shutdown(5)
        second.set()

    nodes.nodes["host9", 9091] = controller
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        broker.broker_epoch = 70
        broker.enable_request_processing()
        async with connect(broker.endpoints[0]) as channel:
            await channel.ask(update_metadata(alive=(1, 2, 9)))
            await channel.ask(leader_and_isr(lai_state()))
            await broker.shutdown(5)
            assert await channel.closed()
    assert states == [
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, wire.ControlledShutdownRequest(broker_id=1, broker_epoch=70))
    ]
    assert broker.replica_manager.partitions[A0].leader == 2
    assert nodes.open == 0
    assert second.is_set()
    assert broker.state is BrokerState.NOT_RUNNING


async def test_a_broker_that_was_not_enabled_stops_without_a_controlled_shutdown() -> None:  # rule B11.11
    broker = make_broker(config())
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        await broker.shutdown(0)
    await broker.shutdown(0)


async def test_shutdown_waits_for_requests_in_progress() -> None:  # rules B1.56, B11.15
    replies = []

    class Controller:
        def submit(self, request, api_version, reply) -> None:
            replies.append(reply)

    async with (
        running_broker(config(controlled_shutdown_enable="false"), controller=Controller()) as broker,
        connect(broker.endpoints[1]) as client,
        trio.open_nursery() as nursery,
    ):
        await client.send(wire.ControlledShutdownRequest(broker_id=2))
        await until(lambda: len(replies) == 1)
        nursery.start_soon(broker.shutdown, 60)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.state is BrokerState.SHUTTING_DOWN
        replies[0](wire.ControlledShutdownResponse(error_code=5))
        assert (await client.receive()).error_code == 5


async def test_a_restarted_broker_has_its_logs() -> None:
    logs = MemoryLogManager()
    for _ in range(2):
        async with running_broker(log_manager=logs) as broker, connect(broker.endpoints[0]) as channel:
            assert codes(await channel.ask(leader_and_isr(lai_state()))) == {(ID_A, 0): 0}
    assert logs.topic_id(A0) == ID_A


async def test_alter_partition_and_controlled_shutdown_reach_the_controller() -> None:  # rules 9.69, 9.70
    class Controller:
        """Answers long after the handler has returned."""

        def __init__(self) -> None:
            self.replies = []

        def submit(self, request, api_version, reply) -> None:
            if isinstance(request, wire.AlterPartitionRequest):
                self.replies.append(lambda: reply(wire.AlterPartitionResponse(error_code=77)))
            else:
                self.replies.append(lambda: reply(wire.ControlledShutdownResponse(error_code=request.broker_id)))

    controller = Controller()
    async with (
        running_broker(controller=controller) as broker,
        connect(broker.endpoints[0]) as first,
        connect(broker.endpoints[0]) as second,
    ):
        await first.send(wire.AlterPartitionRequest(broker_id=2))
        await second.send(wire.ControlledShutdownRequest(broker_id=8))  # the one handler is free again (rule B1.29)
        await until(lambda: len(controller.replies) == 2)
        for reply in controller.replies:
            reply()
        assert (await first.receive()).error_code == 77
        assert (await second.receive()).error_code == 8


async def test_a_real_client_lists_topics() -> None:  # rules B1.40, B1.62, B7.5, B7.7
    """librdkafka sends ApiVersions, then Metadata."""
    async with (
        running_broker(config(auto_create_topics_enable="false")) as broker,
        connect(broker.endpoints[0]) as controller,
    ):
        alive = (_alive(broker), umr_broker(3))
        states = (
            umr_state(0, leader=1, leader_epoch=4, isr=(1, 3), replicas=(1, 3)),
            umr_state(1, leader=2, leader_epoch=5, isr=(2,), replicas=(2, 1)),
        )
        await controller.ask(update_metadata(*states, topic="orders", alive=alive, controller_id=1))
        data = broker.endpoints[1]
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": f"{data.host}:{data.port}"})
        listed = await trio.to_thread.run_sync(lambda: admin.list_topics(timeout=10))
        assert (listed.cluster_id, listed.controller_id) == ("cluster", 1)
        assert {b.id: (b.host, b.port) for b in listed.brokers.values()} == {
            1: (data.host, data.port),
            3: ("host3", 9031),
        }
        (topic,) = listed.topics.values()
        assert (topic.topic, topic.error) == ("orders", None)
        led, leaderless = topic.partitions[0], topic.partitions[1]
        assert (led.leader, led.replicas, led.isrs, led.error) == (1, [1, 3], [1, 3], None)
        assert leaderless.leader == -1
        assert leaderless.error.code() == confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE
        unknown = await trio.to_thread.run_sync(lambda: admin.list_topics("nope", timeout=10))
        assert unknown.topics["nope"].error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
        assert broker.socket_server.metrics.connections_closed_for_bad_requests == 0
