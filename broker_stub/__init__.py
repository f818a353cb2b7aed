"""A broker that obeys its controller, or fences it, exactly as Kafka 3.9 does (controller-semantics.md, section 9).

It serves seven APIs and holds no records: leaders, epochs and ISRs are real, logs are a name in a dict.

    config                     Kafka's settings under Kafka's names
    reactor/                   sockets, queues, tasks: a request in, an answer out; knows no API
    handlers/                  one file per API, and the table of them
    replica_manager            fences the three control requests; hosts partitions
      partition  log_manager   one hosted replica; which logs there are
      metadata_cache           what the controller said about the cluster, in snapshots
      isr                      when a leader proposes another ISR
    alter_partition_manager    sends those proposals, one request in flight
    zk_alter_partition_manager  writes them into ZooKeeper instead, as brokers before 2.7 did
      node_to_controller       ... to whichever broker is controller
    client_quotas              which quota is whose; the one on partitions created and deleted
    finalized_features         which feature levels the cluster has agreed on
    controlled_shutdown        says goodbye first
    broker                     wires all of it; starts and drains
    ports                      what others hand in: dialling, taps, the controller of this node

Everything between two awaits happens at once, and no state is changed across one: that is all the locking there is.
A broker knows nothing of ZooKeeper: who starts it registers it and tells it its broker epoch.
"""

from __future__ import annotations

from broker_stub.broker import Broker, BrokerState
from broker_stub.config import BrokerConfig, ConfigError
from broker_stub.log_manager import InMemoryLogManager, LogManager
from broker_stub.metadata_cache import MetadataCache, MetadataSnapshot
from broker_stub.ports import ConnectionLost, ControllerPort, Dial, FramedConnection, NoController, Tap
from broker_stub.reactor import BindError
from wire.vocabulary import Endpoint, TopicPartition

__all__ = [
    "BindError",
    "Broker",
    "BrokerConfig",
    "BrokerState",
    "ConfigError",
    "ConnectionLost",
    "ControllerPort",
    "Dial",
    "Endpoint",
    "FramedConnection",
    "InMemoryLogManager",
    "LogManager",
    "MetadataCache",
    "MetadataSnapshot",
    "NoController",
    "Tap",
    "TopicPartition",
]
