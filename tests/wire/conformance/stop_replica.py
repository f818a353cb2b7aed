"""StopReplica requests as our controller builds them."""

from __future__ import annotations

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.request_batch import BatchConfig, StopReplicaState, build_stop_replica
from kce.wire.metadata_version import LATEST
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper.model import BrokerEpoch, BrokerId
from tests.controller.support import DATA, broker

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def built(version: int, **deletes: bool) -> wire.StopReplicaRequest:
    """As our controller builds it: ``t0``, ``t1`` and ``u0`` say whether the replica is deleted; epochs 3, 4, 5."""
    context = ControllerContext()
    context.add_live_brokers([(broker(1), BrokerEpoch(6))])
    config = BatchConfig(broker_id=BrokerId(0), ibp=LATEST, inter_broker_listener=DATA)
    wanted = {"t0": (T0, 3), "t1": (T1, 4), "u0": (U0, 5)}
    states = {wanted[key][0]: StopReplicaState(wanted[key][1], delete) for key, delete in deletes.items()}
    return build_stop_replica(version, config, context, BrokerId(1), states)
