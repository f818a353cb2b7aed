"""Writes the archive of ZooKeeper's classes (17 MB) below $XDG_CACHE_HOME; `make setup` does.

python -m kce.harness.archive_classes
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio

from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import SHORT_LIVED, archive, embedded_zookeeper, spark_jars


def main() -> None:
    archived = archive(spark_jars())
    archived.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archived.parent) as folder:
        written = Path(folder, archived.name)
        trio.run(train, Path(folder), written)
        written.replace(archived)
    print(archived)


async def train(folder: Path, written: Path) -> None:
    """Run a node with a topic at a ZooKeeper that writes the archive as it ends."""
    jvm = (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={written}")
    async with (
        embedded_zookeeper(folder, jvm=jvm, patience_s=60) as address,
        Cluster(1, zookeeper=address) as cluster,
    ):
        await cluster.create_topic("training")


if __name__ == "__main__":
    main()
