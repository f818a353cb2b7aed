"""Names of the files and folders of logs (rules B6.2 to B6.5)."""

from __future__ import annotations

import re
import sys
from typing import Final, NamedTuple

from kce.wire.vocabulary import TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
#: the files of a segment
SEGMENT_FILES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

#: to be removed
DELETED: Final = ".deleted"
#: written by a compaction that has not finished; complete, and about to replace segments
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

#: in a partition's folder
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

#: in a log directory
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
#: folders that are no partitions of a broker
REMOTE_INDEX_CACHE: Final = "remote-log-index-cache"
KRAFT_METADATA: Final = "__cluster_metadata"

_OFFSET_DIGITS: Final = 20
_MAX_NAME: Final = 255
_MAX_PARTITION: Final = 2**31 - 1
_SEGMENT_FILE: Final = re.compile(rf"(\d{{{_OFFSET_DIGITS}}})(\.\w+)")
_FOLDER: Final = re.compile(r"(?P<topic>\S+)-(?P<partition>\d+)(?:\.\S+-(?P<kind>delete|future|stray))?")


class Folder(NamedTuple):
    """The name of a partition's folder. ``kind``: delete, future or stray; None for that of a partition in use."""

    partition: TopicPartition
    kind: str | None


def offset_name(offset: int, suffix: str) -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """Parse (offset, suffix); None for other files, also for files marked for deletion."""
    found = _SEGMENT_FILE.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])


def parse_folder(name: str) -> Folder | None:
    """Parse the name of a partition's folder; None for any other folder."""
    found = _FOLDER.fullmatch(name)
    if found is None or (found["kind"] is None and name.endswith(("-delete", "-future", "-stray"))):
        return None
    if int(found["partition"]) > _MAX_PARTITION:
        return None
    topic = sys.intern(found["topic"])  # the partitions of a topic share its name
    return Folder(TopicPartition(topic, int(found["partition"])), found["kind"])


def marked_folder(partition: TopicPartition, kind: str, unique: str) -> str:
    """The name of a folder to be deleted, of a future or of a stray replica. ``unique``: 32 hexadecimal digits."""
    suffix = f"-{partition.partition}.{unique}-{kind}"
    topic = partition.topic if kind == "future" else partition.topic[: _MAX_NAME - len(suffix)]
    return topic + suffix
