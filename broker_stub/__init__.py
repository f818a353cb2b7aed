"""A broker that obeys or fences its controller exactly as Kafka 3.9 does (controller-semantics.md, section 9).

It serves the APIs in the table of `handlers.kafka_apis`, keeps records and replicates them.

    config                     the broker's configuration, under Kafka's names
      config_entries           values of settings and their sources, for DescribeConfigs
      config_operations        changes of settings, for AlterConfigs and IncrementalAlterConfigs
      dynamic_config           the configuration of a running broker
      group_config             the settings of the group coordinator; transaction_config
    reactor/                   sockets, queues and tasks; independent of the APIs
    handlers/                  one module per API, and the table of handlers
    replica_manager            fences the three control requests; hosts partitions
      partition                one hosted replica
      metadata_cache           cluster metadata from the controller, in snapshots
    log/                       Kafka's log, on a disk
    replication/               what clients and followers do with a log; fetchers, ISR
    purgatory/                 requests that wait
    groups/                    the coordinator of consumer groups
    transactions/              the coordinator of transactions
      internal_topics          the topics of coordinators, and the partition of a key; auto_topic_creation
      internal_log             their partitions among the broker's logs; versioned_records: keys and values
    topic_configs              the settings of topics' logs
    disk                       the disk, as Protocols
    alter_partition_manager    sends the proposals, one request in flight
    zk_alter_partition_manager writes them to ZooKeeper instead, like brokers before 2.7
      node_to_controller       sends requests to the current controller
    producer_ids               producer ids, from blocks of the controller or of ZooKeeper
    quotas/                    what clients may take; charges their requests
      sampled                  rates over a window of samples, token buckets
    finalized_features         the cluster's finalized feature levels
    controlled_shutdown        requests a controlled shutdown before stopping
    zookeeper/                 the broker's work in ZooKeeper; implements the ports
    broker                     wires the parts; starts and drains
    ports                      what a broker needs from outside: connections, stores, the controller of its node

State changes between two awaits are atomic, and no state change spans an await; there are no other locks. Outside
zookeeper/ nothing uses ZooKeeper: a broker's owner registers it and sets its broker epoch.
"""

from __future__ import annotations

from kce.broker_stub.broker import Broker, BrokerState
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.metadata_cache import MetadataCache, MetadataSnapshot
from kce.broker_stub.ports import Bind, ControllerPort, Link, NoController
from kce.broker_stub.reactor import BindError
from kce.wire.vocabulary import Endpoint, TopicPartition

__all__ = [
    "Bind",
    "BindError",
    "Broker",
    "BrokerConfig",
    "BrokerState",
    "ControllerPort",
    "Endpoint",
    "Link",
    "LogManager",
    "LogManagerConfig",
    "MetadataCache",
    "MetadataSnapshot",
    "NoController",
    "TopicPartition",
]
