"""The few values that controllers and brokers both name: partitions, endpoints, special ids and epochs. Pure."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

#: `leader` in a partition state: none is elected
NO_LEADER: Final = -1
#: `leader` in an UpdateMetadata partition state: the partition is being deleted (rule 9.36)
LEADER_DURING_DELETE: Final = -2
#: `leader_epoch` of a StopReplica partition state: not known to the sender (rules 9.30, 13.24)
NO_EPOCH: Final = -1
#: `leader_epoch` of a StopReplica partition state: the topic is being deleted, stop whatever the epoch (rule 9.30)
EPOCH_DURING_DELETE: Final = -2

#: `leader_recovery_state`: whether the leader is still recovering from an unclean election (KIP-704)
RECOVERED: Final = 0
RECOVERING: Final = 1

#: the ids that UpdateMetadata gives security protocols (rule 13.20)
SECURITY_PROTOCOLS: Final = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


class ElectionType(enum.Enum):
    """What an administrator may ask for; the value is that of ElectLeaders requests."""

    PREFERRED = 0
    UNCLEAN = 1


class UpgradeType(enum.Enum):
    """How a feature may be moved; the value is that of UpdateFeatures requests, from version 1."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that a feature shall be finalized at; below 1 with a downgrade, that it shall not be finalized."""

    feature: str
    max_version_level: int
    upgrade_type: UpgradeType


class TopicPartition(NamedTuple):
    """One partition by the name of its topic; prints as Kafka prints it, ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Endpoint(NamedTuple):
    """An address of a broker: which listener it belongs to, what is spoken there, and where."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        """As in `listeners` and in the registration: ``DATA://127.0.0.1:9092``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"
