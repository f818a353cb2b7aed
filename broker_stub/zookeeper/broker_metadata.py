"""Who a broker is: the meta.properties that each of its log directories keeps, and what a start makes of them (B11.7).

Nothing else is kept in those directories by a broker without logs, and without any it is told its id each time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_stub.config import NO_BROKER_ID, BrokerConfig
from controller.admin_nodes import generate_broker_id
from controller.kafka_zk_client import KafkaZkClient
from harness.errors import HarnessError

FILE_NAME = "meta.properties"
#: of Kafka's formats, that of clusters with ZooKeeper
VERSION = "0"


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """None is what no directory knows."""

    cluster_id: str | None = None
    broker_id: int | None = None


def read_metadata(log_dirs: Sequence[str]) -> BrokerMetadata:
    """What the directories agree on; those without a file do not matter.

    Raises HarnessError where they do not agree, and for a file that cannot be read.
    """
    found = {path: _read(path) for path in _files(log_dirs) if path.exists()}
    cluster_ids = {path: known.cluster_id for path, known in found.items() if known.cluster_id is not None}
    broker_ids = {path: known.broker_id for path, known in found.items() if known.broker_id is not None}
    for what, values in (("cluster.id", cluster_ids), ("broker.id", broker_ids)):
        if len(set(values.values())) > 1:
            told = ", ".join(f"{value} in {path}" for path, value in values.items())
            raise HarnessError(f"the log directories do not agree on {what}: {told}")
    return BrokerMetadata(next(iter(cluster_ids.values()), None), next(iter(broker_ids.values()), None))


def write_metadata(log_dirs: Sequence[str], metadata: BrokerMetadata) -> None:
    """Into the directories, which are made, that have none; called when the broker is registered. Raises HarnessError.

    A reader finds the whole file or none.
    """
    text = f"version={VERSION}\ncluster.id={metadata.cluster_id}\nbroker.id={metadata.broker_id}\n"
    for path in _files(log_dirs):
        if path.exists():
            continue
        part = path.with_name(f"{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
        except OSError as e:
            raise HarnessError(f"{path} cannot be written: {e}") from None


async def choose_broker_id(zk: KafkaZkClient, config: BrokerConfig, known: BrokerMetadata) -> int:
    """The configured id, else the one that is known, else a new one (rules B11.7, 1.31).

    Raises HarnessError where two of them contradict each other.
    """
    if config.broker_id == NO_BROKER_ID:
        return (
            await generate_broker_id(zk, config.reserved_broker_max_id) if known.broker_id is None else known.broker_id
        )
    if known.broker_id not in (None, config.broker_id):
        raise HarnessError(
            f"broker.id={config.broker_id}: {FILE_NAME} in {', '.join(config.log_dirs)} says {known.broker_id}; "
            f"give a new broker directories of its own"
        )
    return config.broker_id


def check_cluster_id(config: BrokerConfig, cluster_id: str, known: BrokerMetadata) -> None:
    """Raises HarnessError when the directories belong to another cluster than that of ZooKeeper."""
    if known.cluster_id not in (None, cluster_id):
        raise HarnessError(
            f"the cluster in ZooKeeper has id {cluster_id}, {FILE_NAME} in {', '.join(config.log_dirs)} says "
            f"{known.cluster_id}: is zookeeper.connect another cluster's?"
        )


def _files(log_dirs: Sequence[str]) -> list[Path]:
    return [Path(log_dir) / FILE_NAME for log_dir in log_dirs]


def _read(path: Path) -> BrokerMetadata:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise HarnessError(f"{path} cannot be read: {e}") from None
    entries = {
        key.strip(): text.strip() for key, _, text in (line.partition("=") for line in lines) if not key.startswith("#")
    }
    if entries.get("version") != VERSION:
        raise HarnessError(f"{path} has version={entries.get('version', '')}: only {VERSION} is of a ZooKeeper cluster")
    broker_id = entries.get("broker.id")
    if broker_id is not None and not broker_id.isdecimal():
        raise HarnessError(f"{path} has broker.id={broker_id}, which is no id")
    return BrokerMetadata(entries.get("cluster.id"), None if broker_id is None else int(broker_id))
