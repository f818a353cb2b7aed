"""Topics of a recording, created elsewhere with the leaders that they had."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, partition_for
from kce.captures.errors import CaptureError
from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.recording import Recording
from kce.harness import Cluster
from kce.harness.errors import HarnessError
from kce.harness.recorded_layout import Layout, create_topics, layout_of
from tests.captures.replay.recordings import Conversation
from tests.captures.samples import CAPTURES
from tests.clusters import leaders_and_isrs


def shown(topic, *partitions):
    """A response to Metadata. Partitions: (number, leader, replicas)."""
    states = tuple(
        wire.MetadataResponsePartition(partition_index=number, leader_id=leader, replica_nodes=replicas)
        for number, leader, replicas in partitions
    )
    return wire.MetadataResponse(topics=(wire.MetadataResponseTopic(name=topic, partitions=states),))


def asked(*topics):
    return wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name=name) for name in topics))


def recorded(*exchanges):
    """Steps of (request, response, version)."""
    talk = Conversation()
    for number, (request, response, version) in enumerate(exchanges):
        talk.at(number).ask(request, version, number)
        talk.at(number + 0.5).answer(response, version, number)
    return talk.recording().steps


def found(broker, *keys, key_type=0):
    """FindCoordinator of version 4, and its response."""
    coordinators = tuple(wire.Coordinator(key=key, node_id=broker, host="h", port=1) for key in keys)
    request = wire.FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
    return request, wire.FindCoordinatorResponse(coordinators=coordinators), 4


def test_who_led_first_leads():
    steps = recorded(
        (asked("orders"), shown("orders", (0, -1, (1, 2)), (1, 2, (1, 2, 3))), 9),
        (asked("orders"), shown("orders", (0, 2, (1, 2)), (1, 3, (1, 2, 3))), 9),
    )
    assert layout_of(steps, steps).topics == {"orders": {0: (1, 2), 1: (2, 1, 3)}}


def test_what_control_requests_show_counts_and_topics_of_others_do_not():
    state = wire.LeaderAndIsrPartitionState(partition_index=0, leader=3, isr=(3,), replicas=(1, 3))
    old = wire.UpdateMetadataPartitionState(topic_name="old", partition_index=0, leader=2, isr=(2,), replicas=(2, 1))
    other = wire.LeaderAndIsrTopicState(topic_name="other", partition_states=(state,))
    topics = (wire.LeaderAndIsrTopicState(topic_name="orders", partition_states=(state,)), other)
    steps = recorded(
        (wire.LeaderAndIsrRequest(topic_states=topics), wire.LeaderAndIsrResponse(), 4),
        (wire.UpdateMetadataRequest(ungrouped_partition_states=(old,)), wire.UpdateMetadataResponse(), 4),
        (asked("orders", "old"), shown("orders", (0, 1, (1, 3))), 9),
    )
    assert layout_of(steps, steps[2:]).topics == {"orders": {0: (3, 1)}, "old": {0: (2, 1)}}


def test_what_the_client_creates_is_left_to_it():
    create = wire.CreateTopicsRequest(topics=(wire.CreatableTopic(name="own", num_partitions=1, replication_factor=1),))
    steps = recorded(
        (create, wire.CreateTopicsResponse(), 5),
        (asked("own"), shown("own", (0, 1, (1,))), 9),
    )
    assert layout_of(steps, steps).topics == {}


def test_coordinators_lead_the_partitions_of_their_keys():
    steps = recorded(
        (asked("orders"), shown("orders", (0, 1, (1, 2, 4, 5))), 9),
        found(4, "readers"),
        found(-1, "nobody"),
        found(5, "copy", key_type=1),
        (wire.FindCoordinatorRequest(key="old"), wire.FindCoordinatorResponse(node_id=2), 0),
    )
    layout, coordinators, _ = layout_of(steps, steps)
    assert coordinators == {
        (GROUP_METADATA_TOPIC, "readers"): 4, (TRANSACTION_STATE_TOPIC, "copy"): 5, (GROUP_METADATA_TOPIC, "old"): 2,
    }  # fmt: skip
    assert layout.keys() == {"orders", GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC}
    groups, transactions = layout[GROUP_METADATA_TOPIC], layout[TRANSACTION_STATE_TOPIC]
    assert [*groups] == [*transactions] == [*range(50)]
    assert groups[partition_for("readers", 50)] == (4, 5, 1)
    assert groups[partition_for("old", 50)] == (2, 4, 5)
    assert transactions[partition_for("copy", 50)][0] == 5
    assert {replicas[0] for replicas in groups.values()} == {1, 2, 4, 5}


def test_internal_topics_that_are_shown_are_taken_as_they_were():
    state = wire.UpdateMetadataPartitionState(partition_index=0, leader=3, isr=(3,), replicas=(3,))
    topics = (wire.UpdateMetadataTopicState(topic_name=GROUP_METADATA_TOPIC, partition_states=(state,)),)
    steps = recorded(
        (wire.UpdateMetadataRequest(topic_states=topics), wire.UpdateMetadataResponse(), 8),
        found(3, "readers"),
        (asked("orders"), wire.MetadataResponse(), 9),
    )
    assert layout_of(steps, steps[1:]).topics == {GROUP_METADATA_TOPIC: {0: (3,)}}
    assert layout_of(steps, steps[2:]).topics == {}


def test_what_cannot_be_is_left_out():
    """Of a damaged recording: partitions that no topic has, or without replicas; keys of no coordinator."""
    state = wire.LeaderAndIsrPartitionState(partition_index=1, leader=1, isr=(), replicas=())
    topics = (wire.LeaderAndIsrTopicState(topic_name="orders", partition_states=(state,)),)
    steps = recorded(
        (wire.LeaderAndIsrRequest(topic_states=topics), wire.LeaderAndIsrResponse(), 4),
        (asked("orders"), shown("orders", (-1, 1, (1,)), (2**31 - 1, 1, (1,)), (0, 1, (1,))), 9),
        found(1, "key", key_type=2),
        found(1, "key", key_type=-1),
    )
    assert layout_of(steps, steps) == ({"orders": {0: (1,)}}, {}, set())


def test_the_layout_of_real_kafka():
    with CaptureFile(CAPTURES["kafka-3.9.1-tour"]) as capture:
        recording = Recording.read(capture)
    layout = layout_of(recording.steps, recording.of_connection(98))
    assert (layout.coordinators, layout.producer_id_brokers) == ({}, set())
    assert layout.topics == {"orders": {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 3, 2)}}


LAYOUT = {"orders": {0: (3, 1), 1: (1, 2, 3), 2: (2, 3)}, GROUP_METADATA_TOPIC: {0: (2, 1), 1: (3, 2)}}
IN_SECOND = next(name for name in "abc" if partition_for(name, 2) == 1)


@pytest.mark.slow
async def test_topics_are_created_with_their_leaders(zookeeper):
    async with Cluster(3, zookeeper=f"{zookeeper}/layout", properties={"offsets.topic.num.partitions": "2"}) as cluster:
        await cluster.create_topic("there", assignment={0: [2]})
        host, _, port = cluster.bootstrap_servers().split(",")[0].rpartition(":")

        async def create(topics, coordinators=None):
            return await create_topics(Layout(topics, coordinators or {}), (host, int(port)), trio.open_tcp_stream)

        there = {"there": {0: (2,)}}
        assert await create(there) == []
        coordinators = {(GROUP_METADATA_TOPIC, IN_SECOND): 3}
        assert await create(there | LAYOUT, coordinators) == [
            f"created: {GROUP_METADATA_TOPIC} (2 partitions), orders (3 partitions)"
        ]
        leaders = {n: leader for n, (leader, _) in (await leaders_and_isrs(cluster, "orders")).items()}
        assert leaders == {0: 3, 1: 1, 2: 2}
        described = {topic.name: topic for topic in await cluster.describe_topics()}
        replicas = [tuple(each.assignment.replicas) for each in described["orders"].partitions]
        assert replicas == [(3, 1), (1, 2), (2, 3)]  # Kafka refuses different numbers of replicas
        assert described[GROUP_METADATA_TOPIC].config["cleanup.policy"] == "compact"
        others = {"orders": {0: (2, 1), 2: (7, 8)}, "new": {1: (9,)}}
        coordinators = {(GROUP_METADATA_TOPIC, IN_SECOND): 2, (TRANSACTION_STATE_TOPIC, "t"): 1}
        assert await create(others, coordinators) == [
            "the live cluster has no broker 7, 8, 9: others lead the partitions that it led",
            "topic orders exists already, with other leaders of 3 partitions; partition 0: 3 instead of 2",
            "created: new (2 partitions)",
            f"broker 2 is not the coordinator of {IN_SECOND}, which it was",
            "broker 1 is not the coordinator of t, which it was",
        ]
        addresses = cluster.bootstrap_servers().split(",")
        given = {number: (f"broker-{number}", number) for number in (1, 2, 3)}

        async def dial(name, number):  # as where what brokers advertise cannot be reached
            assert given[number] == (name, number)
            to, _, its_port = addresses[number - 1].rpartition(":")
            return await trio.open_tcp_stream(to, int(its_port))

        layout = Layout({"behind": {0: (2,), 1: (3,)}}, {(GROUP_METADATA_TOPIC, IN_SECOND): 3})
        notes = await create_topics(layout, given[1], dial, targets={None: given[2], **given})
        assert notes == ["created: behind (2 partitions)"]
        with pytest.raises(HarnessError, match=r"topic a b cannot be created: .*characters"):
            await create({"a b": {0: (1,)}})


async def test_a_broker_that_knows_of_no_controller_creates_nothing(nursery):
    async def answer(stream):
        request = await stream.receive_some(1000)
        response = wire.MetadataResponse(controller_id=-1)
        assert len(request) == int.from_bytes(request[:4]) + 4
        await stream.send_all(wire.frame(wire.encode_response(response, api_version=1, correlation_id=0)))

    async def dial(host, port):
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(answer, there)
        return here

    with pytest.raises(HarnessError, match="has no controller yet"):
        await create_topics(Layout(LAYOUT, {}), ("h", 1), dial)


async def test_who_does_not_answer_is_named():
    async def refuse(host, port):
        raise ConnectionRefusedError("Connection refused")

    with pytest.raises(CaptureError, match="MetadataRequest to h:1: Connection refused"):
        await create_topics(Layout(LAYOUT, {}), ("h", 1), refuse)
