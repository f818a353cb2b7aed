"""`inter.broker.protocol.version` (IBP): names, order, and the request versions and features that each implies.

MetadataVersion.parse("2.6") < MetadataVersion.parse("2.7-IV2")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: release -> number of its "-IV<n>" versions; 0 before the suffix existed
_RELEASES: Final = {
    "0.8.0": 0, "0.8.1": 0, "0.8.2": 0, "0.9.0": 0, "0.10.0": 2, "0.10.1": 3, "0.10.2": 1, "0.11.0": 3,
    "1.0": 1, "1.1": 1, "2.0": 2, "2.1": 3, "2.2": 2, "2.3": 2, "2.4": 2, "2.5": 1, "2.6": 1, "2.7": 3, "2.8": 2,
    "3.0": 2, "3.1": 1, "3.2": 1, "3.3": 4, "3.4": 1, "3.5": 3, "3.6": 3, "3.7": 5, "3.8": 1, "3.9": 1,
}  # fmt: skip

_NAMES: Final = tuple(
    f"{release}-IV{n}" if count else release for release, count in _RELEASES.items() for n in range(count or 1)
)


@dataclass(frozen=True, slots=True, order=True)
class MetadataVersion:
    """An inter-broker protocol version, ordered by age."""

    _rank: int
    name: str = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> MetadataVersion:
        """Parse as Kafka does: "2.4-IV1" exactly; "2.4" and "2.4.1" mean the last version of that release.

        Raises ValueError.
        """
        segments = text.split(".")
        release = ".".join(segments[: 3 if text.startswith("0.") else 2])
        name = f"{release}-IV{_RELEASES[release] - 1}" if _RELEASES.get(release) else release
        if name not in _NAMES:
            raise ValueError(f"{text!r} is not a version from {_NAMES[0]} to {_NAMES[-1]}")
        return cls(_NAMES.index(name), name)

    def __str__(self) -> str:
        return self.name

    @property
    def leader_and_isr_version(self) -> int:
        return self._requests[0]

    @property
    def update_metadata_version(self) -> int:
        return self._requests[1]

    @property
    def stop_replica_version(self) -> int:
        return self._requests[2]

    @property
    def controlled_shutdown_version(self) -> int:
        return self._requests[3]

    @property
    def fetch_version(self) -> int:
        return self._version(_FETCH_VERSIONS)

    @property
    def list_offsets_version(self) -> int:
        return self._version(_LIST_OFFSETS_VERSIONS)

    @property
    def offset_for_leader_epoch_version(self) -> int | None:
        """The version of OffsetForLeaderEpoch that followers use; None if they use none."""
        version = self._version(_OFFSET_FOR_LEADER_EPOCH_VERSIONS)
        return None if version < 0 else version

    def _version(self, versions: tuple[tuple[MetadataVersion, int], ...]) -> int:
        return next(version for since, version in versions if self >= since)

    @property
    def truncates_on_fetch(self) -> bool:
        """Leaders report diverging logs to followers in Fetch responses (rule B5.8)."""
        return self >= IBP_2_7_IV1

    @property
    def _requests(self) -> tuple[int, int, int, int]:
        return next(versions for since, versions in _REQUEST_VERSIONS if self >= since)

    @property
    def supports_topic_ids(self) -> bool:
        return self >= IBP_2_8_IV0

    @property
    def supports_alter_partition(self) -> bool:
        """Leaders send AlterPartition instead of writing the ISR to ZooKeeper."""
        return self >= IBP_2_7_IV2

    @property
    def supports_allocate_producer_ids(self) -> bool:
        """The controller allocates blocks of producer ids, not each broker in ZooKeeper."""
        return self >= IBP_3_0_IV0

    @property
    def supports_leader_recovery_state(self) -> bool:
        return self >= IBP_3_2_IV0

    @property
    def record_version(self) -> int:
        """The magic of the newest message format (rule B3.23)."""
        return (self >= _IBP_0_10_0_IV0) + (self >= _IBP_0_11_0_IV0)

    @property
    def supports_feature_versioning(self) -> bool:
        return self >= IBP_2_7_IV0

    @property
    def feature_znode_version(self) -> int:
        """Version of the JSON in /feature (rule 1.41)."""
        return 2 if self >= IBP_3_3_IV0 else 1

    @property
    def broker_znode_version(self) -> int:
        """Version of the JSON in /brokers/ids (rule 1.15)."""
        if self >= IBP_2_7_IV0:
            return 5
        return 4 if self >= MetadataVersion.parse("0.10.0-IV1") else 2


_IBP_0_10_0_IV0: Final = MetadataVersion.parse("0.10.0-IV0")
_IBP_0_11_0_IV0: Final = MetadataVersion.parse("0.11.0-IV0")
IBP_2_7_IV0: Final = MetadataVersion.parse("2.7-IV0")
IBP_2_7_IV1: Final = MetadataVersion.parse("2.7-IV1")
IBP_2_7_IV2: Final = MetadataVersion.parse("2.7-IV2")
IBP_2_8_IV0: Final = MetadataVersion.parse("2.8-IV0")
IBP_3_0_IV0: Final = MetadataVersion.parse("3.0-IV0")
IBP_3_2_IV0: Final = MetadataVersion.parse("3.2-IV0")
IBP_3_3_IV0: Final = MetadataVersion.parse("3.3-IV0")
LATEST: Final = MetadataVersion.parse("3.9")

#: rule 8.18: (since, versions of LeaderAndIsr, UpdateMetadata, StopReplica and ControlledShutdown)
_REQUEST_VERSIONS: Final = tuple(
    (MetadataVersion.parse(since), versions)
    for since, versions in (
        ("3.4-IV0", (7, 8, 4, 3)),
        ("3.2-IV0", (6, 7, 3, 3)),
        ("2.8-IV1", (5, 7, 3, 3)),
        ("2.6-IV0", (4, 6, 3, 3)),
        ("2.4-IV1", (4, 6, 2, 3)),
        ("2.4-IV0", (3, 5, 1, 2)),
        ("2.2-IV0", (2, 5, 1, 2)),
        ("1.0-IV0", (1, 4, 0, 1)),
        ("0.10.2-IV0", (0, 3, 0, 1)),
        ("0.10.0-IV1", (0, 2, 0, 1)),
        ("0.9.0", (0, 1, 0, 1)),
        ("0.8.0", (0, 0, 0, 0)),
    )
)


def _since(text: str) -> tuple[tuple[MetadataVersion, int], ...]:
    """Pairs of a version of the protocol and the version of a request from then on, newest first."""
    pairs = (line.split() for line in text.split(","))
    return tuple((MetadataVersion.parse(since), int(version)) for since, version in pairs)


# the requests of a follower (section 5b of the broker's rules)
_FETCH_VERSIONS: Final = _since(
    "3.9-IV0 17, 3.7-IV4 16, 3.5-IV1 15, 3.5-IV0 14, 3.1-IV0 13, 2.7-IV1 12, 2.3-IV1 11, 2.1-IV2 10, 2.0-IV1 8,"
    "1.1-IV0 7, 0.11.0-IV1 5, 0.11.0-IV0 4, 0.10.1-IV1 3, 0.10.0-IV0 2, 0.9.0 1, 0.8.0 0"
)
_LIST_OFFSETS_VERSIONS: Final = _since(
    "3.9-IV0 9, 3.5-IV0 8, 3.0-IV1 7, 2.8-IV0 6, 2.2-IV1 5, 2.1-IV1 4, 2.0-IV1 3, 0.11.0-IV0 2, 0.10.1-IV2 1, 0.8.0 0"
)
_OFFSET_FOR_LEADER_EPOCH_VERSIONS: Final = _since("2.8-IV0 4, 2.3-IV1 3, 2.1-IV1 2, 2.0-IV0 1, 0.11.0-IV2 0, 0.8.0 -1")
