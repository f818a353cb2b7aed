"""Values shared by controllers and brokers: partitions, endpoints, special ids and epochs. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

V = TypeVar("V")

#: `leader` in a partition state: no leader is elected
NO_LEADER: Final = -1
#: `leader` in an UpdateMetadata partition state: the partition is being deleted (rule 9.36)
LEADER_DURING_DELETE: Final = -2
#: `leader_epoch` of a StopReplica partition state: unknown (rules 9.30, 13.24)
NO_EPOCH: Final = -1
#: `leader_epoch` of a StopReplica partition state: the topic is being deleted, ignore the epoch (rule 9.30)
EPOCH_DURING_DELETE: Final = -2

#: `leader_recovery_state` after an unclean election (KIP-704)
RECOVERED: Final = 0
RECOVERING: Final = 1

#: ids of security protocols in UpdateMetadata (rule 13.20)
SECURITY_PROTOCOLS: Final = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}

_LONGEST_TOPIC_NAME: Final = 249
_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_LONGEST_TOPIC_NAME}}}")


def is_valid_topic_name(name: str) -> bool:
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


def topic_name_problem(name: str) -> str | None:
    """Why it is no name of a topic, in Kafka's words; None if it is one."""
    if is_valid_topic_name(name):
        return None
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > _LONGEST_TOPIC_NAME:
        return f"the length of '{name}' is longer than the max allowed length {_LONGEST_TOPIC_NAME}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


class ElectionType(enum.Enum):
    """Type of an election; values as in ElectLeaders requests."""

    PREFERRED = 0
    UNCLEAN = 1


class UpgradeType(enum.Enum):
    """Direction of a feature update; values as in UpdateFeatures requests from version 1."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """Finalize a feature at this level; a downgrade to a level below 1 removes it."""

    feature: str
    max_version_level: int
    upgrade_type: UpgradeType


class TopicPartition(NamedTuple):
    """A partition; printed as Kafka does, ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(values: Mapping[TopicPartition, V]) -> dict[str, dict[int, V]]:
    """Group values as messages do: topic -> partition -> value."""
    grouped: dict[str, dict[int, V]] = {}
    for (topic, number), value in values.items():
        grouped.setdefault(topic, {})[number] = value
    return grouped


class Endpoint(NamedTuple):
    """An address of a broker: listener, security protocol, host and port."""

    listener: str
    security_protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port, with an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        """The endpoint in the format of `listeners` and of the registration: ``DATA://127.0.0.1:9092``."""
        return f"{self.listener}://{self.address}"
