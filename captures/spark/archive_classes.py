"""Writes the archive of Spark's classes (170 MB) below $XDG_CACHE_HOME; `make setup` does.

python -m kce.captures.spark.archive_classes
"""

from __future__ import annotations

import os
import sys

from kce import class_archive, wire
from kce.captures.record.recorder import Recorder
from kce.captures.spark.class_archive import WRITTEN_TO, location
from kce.captures.spark.job import analyze
from kce.captures.spark.session import BRIEF_JVM


def main() -> None:
    """Write the archive: run all analyses, and wait for the JVM, which writes when it ends."""
    if not class_archive.can_be_written():
        print("This Java maps no archive of its own classes: `kce analyze` will start some seconds slower.")
        return
    archive = location(BRIEF_JVM)
    with class_archive.writing(archive) as written:
        run = "from kce.captures.spark.archive_classes import train; train()"
        # the JVM has the pipe of stdout until it ends
        class_archive.run([sys.executable, "-c", run], {**os.environ, WRITTEN_TO: str(written)}, written.parent)
    print(archive)


def train() -> None:
    """Analyse a capture of one request, with a report."""
    recorder = Recorder("training.pcapng")
    tap = recorder.connection(("127.0.0.1", 40001), ("127.0.0.1", 9093))
    state = wire.UpdateMetadataPartitionState(partition_index=0, controller_epoch=1, leader=1)
    topics = (wire.UpdateMetadataTopicState(topic_name="training", partition_states=(state,)),)
    body = wire.UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=topics)
    tap.sent("client", wire.frame(wire.encode_request(body, api_version=5, correlation_id=0, client_id="1")))
    recorder.close()
    analyze(["training.pcapng"], evidence=True)


if __name__ == "__main__":
    main()
