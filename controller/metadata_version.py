"""`inter.broker.protocol.version`: which request versions and behaviours a cluster speaks (rule 8.18)."""

from __future__ import annotations

from functools import total_ordering

_ORDER = (
    "0.8.0", "0.8.1", "0.8.2", "0.9.0", "0.10.0-IV0", "0.10.0-IV1", "0.10.1-IV0", "0.10.1-IV1", "0.10.1-IV2",
    "0.10.2-IV0", "0.11.0-IV0", "0.11.0-IV1", "0.11.0-IV2", "1.0-IV0", "1.1-IV0", "2.0-IV0", "2.0-IV1", "2.1-IV0",
    "2.1-IV1", "2.1-IV2", "2.2-IV0", "2.2-IV1", "2.3-IV0", "2.3-IV1", "2.4-IV0", "2.4-IV1", "2.5-IV0", "2.6-IV0",
    "2.7-IV0", "2.7-IV1", "2.7-IV2", "2.8-IV0", "2.8-IV1", "3.0-IV0", "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0",
    "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2",
    "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0",
)  # fmt: skip
_INDEX = {name: i for i, name in enumerate(_ORDER)}

# (from this version on, LeaderAndIsr, UpdateMetadata, StopReplica, ControlledShutdown)
_REQUEST_VERSIONS = (
    ("3.4-IV0", 7, 8, 4, 3),
    ("3.2-IV0", 6, 7, 3, 3),
    ("2.8-IV1", 5, 7, 3, 3),
    ("2.6-IV0", 4, 6, 3, 3),
    ("2.4-IV1", 4, 6, 2, 3),
    ("2.4-IV0", 3, 5, 1, 2),
    ("2.2-IV0", 2, 5, 1, 2),
    ("1.0-IV0", 1, 4, 0, 1),
    ("0.10.2-IV0", 0, 3, 0, 1),
    ("0.10.0-IV1", 0, 2, 0, 1),
    ("0.9.0", 0, 1, 0, 1),
    ("0.8.0", 0, 0, 0, 0),
)


@total_ordering
class MetadataVersion:
    """One inter-broker protocol version, comparable by age."""

    __slots__ = ("_index", "name")

    def __init__(self, name: str) -> None:
        """``name`` is exact ("2.7-IV2") or a release ("2.7", "3.9.1"), which means its last. Raises ValueError."""
        if name not in _INDEX:
            release = ".".join(name.split(".")[: 3 if name.startswith("0.") else 2])
            of_release = [known for known in _ORDER if known == release or known.startswith(f"{release}-IV")]
            if not of_release or "-" in name:
                raise ValueError(f"inter.broker.protocol.version {name!r} is none of Kafka's, from 0.8.0 to 3.9")
            name = of_release[-1]
        self.name = name
        self._index = _INDEX[name]

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetadataVersion) and self._index == other._index

    def __lt__(self, other: MetadataVersion) -> bool:
        return self._index < other._index

    def __hash__(self) -> int:
        return self._index

    def _request_version(self, column: int) -> int:
        row = next(row for row in _REQUEST_VERSIONS if _INDEX[row[0]] <= self._index)
        version = row[column]
        assert isinstance(version, int)
        return version

    @property
    def leader_and_isr_version(self) -> int:
        return self._request_version(1)

    @property
    def update_metadata_version(self) -> int:
        return self._request_version(2)

    @property
    def stop_replica_version(self) -> int:
        return self._request_version(3)

    @property
    def controlled_shutdown_version(self) -> int:
        return self._request_version(4)

    @property
    def supports_topic_ids(self) -> bool:
        return self >= MetadataVersion("2.8-IV0")

    @property
    def supports_alter_partition(self) -> bool:
        """AlterPartition instead of ISR writes to ZooKeeper by leaders."""
        return self >= MetadataVersion("2.7-IV2")

    @property
    def supports_leader_recovery_state(self) -> bool:
        return self >= MetadataVersion("3.2-IV0")

    @property
    def supports_feature_versioning(self) -> bool:
        return self >= MetadataVersion("2.7-IV0")

    @property
    def feature_znode_version(self) -> int:
        return 2 if self >= MetadataVersion("3.3-IV0") else 1

    @property
    def broker_znode_version(self) -> int:
        """Version of the JSON in /brokers/ids (rule 1.15)."""
        if self >= MetadataVersion("2.7-IV0"):
            return 5
        return 4 if self >= MetadataVersion("0.10.0-IV1") else 2


LATEST = MetadataVersion("3.9")
