"""A broker's identity: meta.properties in each of its log directories, and the choice of the broker id (rule B11.7).

Without directories a broker forgets a generated id.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kce.broker_stub.config import NO_BROKER_ID, BrokerConfig
from kce.broker_stub.disk import Disk, replace
from kce.broker_stub.errors import BrokerFailure
from kce.wire.configuration import ConfigError
from kce.wire.configuration.property_file import parse_properties
from kce.zookeeper.admin_nodes import generate_broker_id
from kce.zookeeper.kafka_zk_client import KafkaZkClient

log = logging.getLogger(__name__)

FILE_NAME = "meta.properties"
#: the format of clusters with ZooKeeper
VERSION = "0"


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """None: no directory has it."""

    cluster_id: str | None = None
    broker_id: int | None = None


def read_metadata(disk: Disk, log_dirs: Sequence[str], failed: dict[str, OSError]) -> BrokerMetadata:
    """Read the ids from the directories that have a file; ``failed`` gets those whose file cannot be read (rule B11.9).

    Raises BrokerFailure if they differ, or for a file with other contents.
    """
    found: dict[str, BrokerMetadata] = {}
    for log_dir, path in _files(log_dirs):
        try:
            known = _read(disk, path)
        except OSError as e:
            log.error("%s cannot be read: %s", path, e)
            failed[log_dir] = e
        else:
            if known is not None:
                found[path] = known
    cluster_ids = {path: known.cluster_id for path, known in found.items() if known.cluster_id is not None}
    broker_ids = {path: known.broker_id for path, known in found.items() if known.broker_id is not None}
    for what, values in (("cluster.id", cluster_ids), ("broker.id", broker_ids)):
        if len(set(values.values())) > 1:
            found_in = ", ".join(f"{value} in {path}" for path, value in values.items())
            raise BrokerFailure(f"the log directories disagree on {what}: {found_in}")
    return BrokerMetadata(next(iter(cluster_ids.values()), None), next(iter(broker_ids.values()), None))


def write_metadata(disk: Disk, log_dirs: Sequence[str], metadata: BrokerMetadata, failed: dict[str, OSError]) -> None:
    """Write the file where it says something else or is missing, before registration (rules B6.8, B11.1).

    Creates the directories. Each file is written atomically. ``failed`` gets the directories where that is not possible
    (rule B11.10); those that are there already are left alone.
    """
    text = f"version={VERSION}\ncluster.id={metadata.cluster_id}\nbroker.id={metadata.broker_id}\n"
    for log_dir, path in _files([log_dir for log_dir in log_dirs if log_dir not in failed]):
        try:
            if _read(disk, path) != metadata:
                replace(disk, path, text.encode())
        except OSError as e:
            log.error("%s cannot be written: %s", path, e)
            failed[log_dir] = e


async def choose_broker_id(zk: KafkaZkClient, config: BrokerConfig, known: BrokerMetadata) -> int:
    """The configured id, else the stored one, else a new one (rules B11.7, 1.31).

    Raises BrokerFailure if the configured and the stored id differ.
    """
    if config.broker_id == NO_BROKER_ID:
        return (
            await generate_broker_id(zk, config.reserved_broker_max_id) if known.broker_id is None else known.broker_id
        )
    if known.broker_id not in (None, config.broker_id):
        raise BrokerFailure(
            f"broker.id={config.broker_id}: {FILE_NAME} in {', '.join(config.log_dirs)} has {known.broker_id}; "
            f"a new broker needs its own directories"
        )
    return config.broker_id


def check_cluster_id(config: BrokerConfig, cluster_id: str, known: BrokerMetadata) -> None:
    """Raises BrokerFailure if the directories belong to another cluster than ZooKeeper."""
    if known.cluster_id not in (None, cluster_id):
        raise BrokerFailure(
            f"the cluster in ZooKeeper has id {cluster_id}, but {FILE_NAME} in {', '.join(config.log_dirs)} has "
            f"{known.cluster_id}: does zookeeper.connect point to another cluster?"
        )


def _files(log_dirs: Sequence[str]) -> list[tuple[str, str]]:
    """Directory and file of each."""
    return [(log_dir, f"{log_dir.rstrip('/')}/{FILE_NAME}") for log_dir in log_dirs]


def _read(disk: Disk, path: str) -> BrokerMetadata | None:
    """None where there is no such file. Raises OSError, BrokerFailure."""
    content = disk.read(path)
    if content is None:
        return None
    try:
        entries = parse_properties(content.decode("latin-1"))  # as java.util.Properties reads bytes
    except ConfigError as e:
        raise BrokerFailure(f"{path} cannot be read: {e}") from None
    version = entries.get("version", VERSION)
    if version != VERSION:
        raise BrokerFailure(f"{path} has version={version}: a ZooKeeper cluster has {VERSION}")
    broker_id = entries.get("broker.id")
    if broker_id is not None and not broker_id.isdecimal():
        raise BrokerFailure(f"{path} has broker.id={broker_id}, which is not a valid id")
    return BrokerMetadata(entries.get("cluster.id"), None if broker_id is None else int(broker_id))
