"""What the controller decides without asking anyone: elections, placement, versions, JSON, requests."""

from __future__ import annotations

import json
import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wire
from controller import request_batch, zk_data
from controller.assignment import (
    assign_replicas,
)
from controller.context import ControllerContext
from controller.errors import IllegalState
from controller.leader_selection import (
    elect_offline,
)
from controller.model import (
    RECOVERED,
    RECOVERING,
    Broker,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from controller.request_batch import BatchConfig, ControllerRequestBatch
from tests.controller.support import CONTROL, DATA, broker
from wire.metadata_version import MetadataVersion


def b(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(i) for i in ids)


def state(isr: tuple[int, ...], leader: int = -1, epoch: int = 5) -> LeaderAndIsr:
    return LeaderAndIsr(BrokerId(leader), b(*isr), epoch, RECOVERED, 3)


# elections, section 7


def test_unclean_is_never_used_where_a_clean_leader_is_to_be_had() -> None:  # rule 7.3
    elected = elect_offline(state((4,)), b(2, 4), {2, 4}.__contains__, unclean_allowed=True, recovery_supported=True)
    assert elected is not None
    assert (elected.state.leader, elected.unclean) == (4, False)
    outside = elect_offline(state((8, 9)), b(2, 4), {2, 9}.__contains__, unclean_allowed=True, recovery_supported=True)
    assert outside is None


@given(
    replicas=st.lists(st.integers(0, 6), unique=True, min_size=1, max_size=5),
    isr=st.lists(st.integers(0, 6), unique=True, max_size=5),
    online=st.sets(st.integers(0, 6)),
    unclean=st.booleans(),
)
def test_offline_election_never_elects_a_dead_or_foreign_leader(
    replicas: list[int], isr: list[int], online: set[int], unclean: bool
) -> None:
    elected = elect_offline(
        state(tuple(isr)), b(*replicas), online.__contains__, unclean_allowed=unclean, recovery_supported=True
    )
    clean_possible = any(r in online and r in isr for r in replicas)
    if elected is None:
        assert not clean_possible
    else:
        assert elected.state.leader in online
        assert elected.state.leader in replicas
        assert elected.state.leader in elected.state.isr
        assert elected.unclean != (elected.state.leader in isr)
        assert not (elected.unclean and clean_possible)
        assert elected.state.leader_epoch == 6


# placement, section 10c


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9),
    partitions=st.integers(1, 30),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_placement_spreads_over_brokers_and_racks(
    racks: list[str], partitions: int, data: st.DataObject, seed: int
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    made = assign_replicas(dict(enumerate(racks)), partitions, factor, random=Random(seed))
    assert list(made) == list(range(partitions))
    for replicas in made.values():
        assert len(set(replicas)) == factor
        assert len({racks[r] for r in replicas}) == min(factor, len(set(racks)))


# assignments, section 5


def test_topic_ids_do_not_change_hands() -> None:  # rule 5.5
    context = ControllerContext()
    context.set_topics(["a", "b"])
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    context.add_topic_id("a", one)
    context.add_topic_id("a", one)
    for topic, topic_id in (("a", two), ("b", one), ("c", two)):
        with pytest.raises(IllegalState):
            context.add_topic_id(topic, topic_id)


# JSON, section 1


def test_broker_nodes_that_are_written_in_other_ways() -> None:  # rules 1.15-1.19
    address = zk_data.decode_broker(1, b'{"version":5,"endpoints":["PLAINTEXT://[::1]:9092"]}')
    assert address.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "::1", 9092),)
    for bad in (b"", b"[]", b'{"version":0}', b'{"version":4}', b'{"version":4,"endpoints":["nonsense"]}'):
        with pytest.raises(zk_data.BadZNode, match="/brokers/ids/1"):
            zk_data.decode_broker(1, bad)


def test_broker_nodes_as_we_write_them() -> None:
    node = json.loads(zk_data.encode_broker(broker(3, rack="r"), MetadataVersion.parse("3.9"), 77))
    assert node == {
        "version": 5, "host": "127.0.0.1", "port": 1003, "jmx_port": -1, "timestamp": "77", "rack": "r", "features": {},
        "endpoints": ["CONTROL://127.0.0.1:1003", "DATA://127.0.0.1:2003"],
        "listener_security_protocol_map": {"CONTROL": "PLAINTEXT", "DATA": "PLAINTEXT"},
    }  # fmt: skip
    old = json.loads(zk_data.encode_broker(broker(3, rack="r"), MetadataVersion.parse("0.9.0"), 77))
    assert old["version"] == 2
    assert not {"rack", "listener_security_protocol_map", "features"} & old.keys()


def test_topic_nodes() -> None:  # rules 1.25, 1.26
    topic_id = uuid.UUID(int=2**127 + 5)
    moving = ReplicaAssignment(b(4, 1), b(4), b(1))
    data = zk_data.encode_topic(topic_id, {0: ReplicaAssignment(b(1, 2)), 1: moving})
    assert json.loads(data) == {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [4, 1]},
        "adding_replicas": {"1": [4]},
        "removing_replicas": {"1": [1]},
        "topic_id": zk_data.encode_topic_id(topic_id),
    }
    assert len(zk_data.encode_topic_id(topic_id)) == 22
    back = zk_data.decode_topic("t", data)
    assert (back.topic_id, back.partitions) == (topic_id, {0: ReplicaAssignment(b(1, 2)), 1: moving})
    old = zk_data.decode_topic("t", b'{"version":1,"partitions":{"10":[1],"2":[3]}}')
    assert (old.topic_id, list(old.partitions)) == (None, [2, 10])
    assert zk_data.decode_topic("t", b"rubbish").partitions == {}


def test_partition_states() -> None:  # rule 1.28
    recovering = Leadership(LeaderAndIsr(BrokerId(2), b(2), 4, RECOVERING, 9), ControllerEpoch(3))
    data = zk_data.encode_partition_state(recovering)
    assert json.loads(data)["leader_recovery_state"] == 1
    assert zk_data.decode_partition_state(data, 9) == recovering
    for bad in (b"", b"{}", b'{"leader":"x"}', b"[1]"):
        assert zk_data.decode_partition_state(bad, 0) is None


def test_controller_nodes_of_every_age() -> None:  # rules 1.9, 1.10
    for data, expected in (
        (b'{"version":1,"brokerid":5,"timestamp":"1"}', 5),
        (zk_data.encode_controller(6, 1), 6),
        (b"7", 7),
        (b"not json", None),
    ):
        assert zk_data.decode_controller(data) == expected
    with pytest.raises(zk_data.BadZNode):
        zk_data.decode_controller(b'{"version":2}')


# requests, section 8


class Outbox(request_batch.Outbox):
    def __init__(self) -> None:
        self.sent: list[tuple[int, wire.Message, int, bool]] = []

    def send(self, broker: BrokerId, request: wire.Message, api_version: int, on_response: object) -> None:
        self.sent.append((broker, request, api_version, on_response is not None))


def context(*live: int) -> ControllerContext:
    made = ControllerContext()
    made.epoch = ControllerEpoch(4)
    made.add_live_brokers((broker(i), BrokerEpoch(100 + i)) for i in live)
    made.set_topics(["t", "u"])
    made.add_topic_id("t", uuid.UUID(int=8))
    return made


def batch(made: ControllerContext, ibp: str = "3.9") -> tuple[ControllerRequestBatch, Outbox]:
    outbox = Outbox()
    config = BatchConfig(broker_id=BrokerId(1), ibp=MetadataVersion.parse(ibp), inter_broker_listener=DATA)
    return ControllerRequestBatch(config, made, outbox, None), outbox  # type: ignore[arg-type]


TP = TopicPartition("t", 0)
LEADER_1 = Leadership(LeaderAndIsr(BrokerId(1), b(1, 2), 6, RECOVERED, 2), ControllerEpoch(3))


ALL_IBPS = ["0.8.2", "0.9.0", "0.10.0", "0.10.2", "1.0", "2.2", "2.4-IV0", "2.4-IV1", "2.6", "2.8", "3.2", "3.9"]


@pytest.mark.parametrize("ibp", ALL_IBPS)
def test_every_request_of_every_version_can_be_written(ibp: str) -> None:
    made = context(1, 2)
    made.remove_live_brokers(b(1, 2))
    plain = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9)
    made.add_live_brokers((Broker(BrokerId(i), (plain,), "r"), BrokerEpoch(i)) for i in (1, 2))
    outbox = Outbox()
    config = BatchConfig(broker_id=BrokerId(1), ibp=MetadataVersion.parse(ibp), inter_broker_listener="PLAINTEXT")
    requests = ControllerRequestBatch(config, made, outbox, None)  # type: ignore[arg-type]
    made.set_assignment(TP, ReplicaAssignment(b(1, 2)))
    made.leadership[TP] = LEADER_1
    requests.new_batch()
    requests.add_leader_and_isr(b(1, 2), TP, LEADER_1, made.assignment(TP), is_new=True)
    requests.add_stop_replica(b(2), TP, delete=True)
    requests.add_stop_replica(b(2), TopicPartition("u", 1), delete=False)
    requests.send()
    for _, request, version, _ in outbox.sent:
        frame = wire.encode_request(request, api_version=version, correlation_id=1, client_id="1")
        header, back = wire.decode_request(frame)
        assert header.api_version == version
        assert [
            (p.leader, p.leader_epoch)
            for s in (getattr(back, "topic_states", ()), [back])
            for t in s
            for p in getattr(t, "partition_states", getattr(t, "ungrouped_partition_states", ()))
            if hasattr(p, "leader")
        ] in ([(1, 6)], [])
    kinds = [type(request).__name__ for _, request, _, _ in outbox.sent]
    stops = 1 if MetadataVersion.parse(ibp) >= MetadataVersion.parse("2.6") else 2
    assert kinds == ["LeaderAndIsrRequest"] * 2 + ["UpdateMetadataRequest"] * 2 + ["StopReplicaRequest"] * stops  # 8.12


def test_a_leader_that_is_none_is_sent_nothing() -> None:  # rules 8.3, 8.6
    requests, outbox = batch(context(1))
    requests.add_leader_and_isr(b(1, -1), TP, LEADER_1, ReplicaAssignment(b(1)), is_new=True)
    requests.add_stop_replica(b(1, -1), TP, delete=True)
    requests.add_update_metadata(b(1, -1), [])
    requests.send()
    assert [to for to, *_ in outbox.sent] == [1, 1, 1]


def test_a_batch_that_was_not_sent_blocks_the_next() -> None:  # rule 8.2
    made = context(1)
    requests, _ = batch(made)
    requests.new_batch()
    requests.add_update_metadata(b(1), [])
    with pytest.raises(IllegalState, match="UpdateMetadata"):
        requests.new_batch()


def test_listener_names_in_versions_that_have_none() -> None:  # rule 8.21
    made = context(1)
    requests, _ = batch(made, "0.10.0")
    requests.add_update_metadata(b(1), [])
    with pytest.raises(IllegalState, match=CONTROL):
        requests.send()
    requests, outbox = batch(made, "0.10.2")
    requests.add_update_metadata(b(1), [])
    requests.send()
    assert [version for _, _, version, _ in outbox.sent] == [3]
