"""The controller's settings, under Kafka's property names where a person writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.channel_manager import ChannelConfig
from controller.model import BrokerId
from controller.request_batch import BatchConfig
from wire.metadata_version import LATEST, MetadataVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Names are Kafka's with underscores: `control.plane.listener.name` is ``control_plane_listener_name``."""

    broker_id: BrokerId
    inter_broker_listener_name: str
    control_plane_listener_name: str | None = None
    inter_broker_protocol_version: MetadataVersion = LATEST
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    #: feature -> (lowest, highest level); Kafka's brokers in ZooKeeper mode have none
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    request_timeout_ms: int = 30_000
    zookeeper_connection_timeout_ms: int = 18_000
    controller_socket_timeout_ms: int = 30_000

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
