"""The settings of brokers and topics, each declared once: parsers, DescribeConfigs and docs/configuration.md use them.

It is part of wire because it is pure, and both floors above read settings: zookeeper, and controller and broker_stub.

definitions     the properties of a setting  broker_configs, topic_configs  the tables
properties      typed reading of a file      document                       docs/configuration.md
"""

from __future__ import annotations

from kce.wire.configuration.broker_configs import (
    BROKER_CONFIGS,
    ONLY_DYNAMIC,
    TLS_STORES,
    UNDEFINED,
    UNTYPED,
    broker_config,
    nearest,
)
from kce.wire.configuration.definitions import (
    BrokerConfigDef,
    ConfigDef,
    ConfigError,
    ConfigType,
    Dynamic,
    Support,
    TopicConfigDef,
    list_of,
    whole_number,
)
from kce.wire.configuration.properties import Properties
from kce.wire.configuration.topic_configs import TOPIC_CONFIGS, check_topic_config

__all__ = [
    "BROKER_CONFIGS",
    "ONLY_DYNAMIC",
    "TLS_STORES",
    "TOPIC_CONFIGS",
    "UNDEFINED",
    "UNTYPED",
    "BrokerConfigDef",
    "ConfigDef",
    "ConfigError",
    "ConfigType",
    "Dynamic",
    "Properties",
    "Support",
    "TopicConfigDef",
    "broker_config",
    "check_topic_config",
    "list_of",
    "nearest",
    "whole_number",
]
