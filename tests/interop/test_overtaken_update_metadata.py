"""Why "converged" of `kce.harness.invariants` has an exemption: a real broker takes an older UpdateMetadata, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from kce import wire
from tests.clusters import request
from tests.interop.real_kafka import real_brokers

CONTROLLER, EPOCH = 100, 50


def update(leader_epoch: int, isr: tuple[int, ...], control_port: int, data_port: int) -> wire.UpdateMetadataRequest:
    """From one controller epoch, whatever ``leader_epoch`` is."""
    endpoints = tuple(
        wire.UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener=name, security_protocol=0)
        for name, port in (("CONTROL", control_port), ("DATA", data_port))
    )
    state = wire.UpdateMetadataPartitionState(
        topic_name="t", partition_index=0, controller_epoch=EPOCH, leader=1, leader_epoch=leader_epoch, isr=isr,
        zk_version=leader_epoch, replicas=(1, 2), offline_replicas=(),
    )  # fmt: skip
    return wire.UpdateMetadataRequest(
        controller_id=CONTROLLER, controller_epoch=EPOCH, broker_epoch=-1,
        topic_states=(wire.UpdateMetadataTopicState(topic_name="t", partition_states=(state,)),),
        live_brokers=(wire.UpdateMetadataBroker(id=1, endpoints=endpoints),),
    )  # fmt: skip


@pytest.mark.slow
async def test_the_last_accepted_wins(zookeeper: str, tmp_path: Path) -> None:
    """Rule 9.36: a broker compares no epochs of partitions, only that of the controller."""
    async with real_brokers([1], f"{zookeeper}/overtaken", tmp_path) as brokers:
        broker = brokers[1]
        for leader_epoch, isr in ((7, (1,)), (3, (1, 2))):
            message = update(leader_epoch, isr, broker.control_port, broker.data_port)
            answer = await request(f"127.0.0.1:{broker.control_port}", message, 8)
            assert isinstance(answer, wire.UpdateMetadataResponse)
            assert answer.error_code == wire.ErrorCode.NONE
            topics = (wire.MetadataRequestTopic(name="t"),)
            described = await request(broker.address, wire.MetadataRequest(topics=topics), 12)
            assert isinstance(described, wire.MetadataResponse)
            (partition,) = described.topics[0].partitions
            assert (partition.leader_epoch, tuple(partition.isr_nodes)) == (leader_epoch, isr)
