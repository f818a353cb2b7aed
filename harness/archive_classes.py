"""Writes the archive of ZooKeeper's classes (17 MB) below $XDG_CACHE_HOME; `make setup` does.

python -m kce.harness.archive_classes
"""

from __future__ import annotations

from pathlib import Path

import trio

from kce.harness import class_archive
from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import SHORT_LIVED, archive, embedded_zookeeper, spark_jars

#: it takes ten seconds where nothing is wrong
_TIMEOUT_S = 180


def main() -> None:
    if not class_archive.can_be_written():
        print("This Java maps no archive of its own classes: ZooKeeper will start half a second slower.")
        return
    archived = archive(spark_jars())
    with class_archive.writing(archived) as written:
        trio.run(train, written)
    print(archived)


async def train(written: Path) -> None:
    """Run a node with a topic at a ZooKeeper that writes the archive as it ends. Raises trio.TooSlowError."""
    jvm = (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={written}")
    with trio.fail_after(_TIMEOUT_S):
        async with (
            embedded_zookeeper(written.parent, jvm=jvm, patience_s=60) as address,
            Cluster(1, zookeeper=address) as cluster,
        ):
            await cluster.create_topic("training")


if __name__ == "__main__":
    main()
