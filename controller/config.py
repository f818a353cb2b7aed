"""The controller's settings under Kafka's property names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kce.controller.channel import ChannelConfig
from kce.controller.control_requests import BatchConfig
from kce.wire.configuration import Properties
from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper.model import BrokerId

_DEFAULTS = Properties({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Names are Kafka's with underscores: `control.plane.listener.name` is ``control_plane_listener_name``."""

    broker_id: BrokerId
    inter_broker_listener_name: str
    control_plane_listener_name: str | None = None
    inter_broker_protocol_version: MetadataVersion = LATEST
    delete_topic_enable: bool = _DEFAULTS.boolean("delete.topic.enable")
    unclean_leader_election_enable: bool = _DEFAULTS.boolean("unclean.leader.election.enable")
    auto_leader_rebalance_enable: bool = _DEFAULTS.boolean("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = _DEFAULTS.integer("leader.imbalance.check.interval.seconds")
    leader_imbalance_per_broker_percentage: int = _DEFAULTS.integer("leader.imbalance.per.broker.percentage")
    #: feature -> (lowest, highest level); Kafka's brokers in ZooKeeper mode have none
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    request_timeout_ms: int = _DEFAULTS.integer("request.timeout.ms")
    zookeeper_connection_timeout_ms: int = _DEFAULTS.integer("zookeeper.session.timeout.ms")  # rule 1.7
    controller_socket_timeout_ms: int = _DEFAULTS.integer("controller.socket.timeout.ms")

    @property
    def channels(self) -> ChannelConfig:
        return ChannelConfig(
            broker_id=self.broker_id,
            inter_broker_listener=self.inter_broker_listener_name,
            control_plane_listener=self.control_plane_listener_name,
            request_timeout_ms=self.request_timeout_ms,
            socket_timeout_ms=self.controller_socket_timeout_ms,
        )

    @property
    def batches(self) -> BatchConfig:
        return BatchConfig(
            broker_id=self.broker_id,
            ibp=self.inter_broker_protocol_version,
            inter_broker_listener=self.inter_broker_listener_name,
        )
