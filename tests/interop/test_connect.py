"""Kafka Connect, unchanged, copies a file over our brokers line by line, though leaders and coordinators die."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, partition_for
from kce.harness.embedded_zookeeper import free_port
from kce.harness.sync_cluster import SyncCluster
from tests.interop.connecting import (
    GROUP,
    SINK_GROUP,
    TOPIC,
    Files,
    Topic,
    configure,
    distributed,
    standalone,
)
from tests.interop.streaming import OFFSETS_PARTITIONS, PROPERTIES, Program
from tests.interop.test_streams import leader

pytestmark = pytest.mark.slow
#: lines between two faults
EACH = 500
QUIET_S = 1


def _copy_while_they_die(cluster: SyncCluster, files: Files, worker: Program, victims: list[tuple[str, int]]) -> None:
    for topic, partition in victims:
        victim = leader(cluster, topic, partition)
        files.write(EACH)
        cluster.kill(victim)
        files.write(EACH)
        files.wait_until_copied(worker)
        cluster.start(victim)
        cluster.wait_until_settled()


def _check(bootstrap: str, files: Files) -> None:
    with closing(Topic(bootstrap)) as topic:
        topic.read(files.lines[-1])
        topic.read_more(QUIET_S)
        assert topic.lines == files.lines


def test_a_standalone_worker_copies_each_line_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    victims = [(TOPIC, 0), (GROUP_METADATA_TOPIC, partition_for(SINK_GROUP, OFFSETS_PARTITIONS)), (TOPIC, 0)]
    with SyncCluster(3, properties=PROPERTIES, processes=True) as cluster, ExitStack() as stack:
        cluster.wait_for_controller()
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        first = stack.enter_context(standalone(bootstrap, tmp_path, "first", files))
        files.write(EACH)
        files.wait_until_copied(first)
        _copy_while_they_die(cluster, files, first, victims)
        first.terminate()
        files.write(EACH)
        second = stack.enter_context(standalone(bootstrap, tmp_path, "second", files))
        files.wait_until_copied(second)
        second.terminate()
        assert files.copied() == files.lines
        _check(bootstrap, files)


def test_a_distributed_worker_sends_each_line_once(tmp_path: Path) -> None:
    """Its source is exactly once, even when the worker is killed; its sink is so while only brokers are."""
    files = Files(tmp_path)
    port = free_port()
    victims = [("connect-offsets", 0), (GROUP_METADATA_TOPIC, partition_for(GROUP, OFFSETS_PARTITIONS)), (TOPIC, 0)]
    with SyncCluster(3, properties=PROPERTIES, processes=True) as cluster, ExitStack() as stack:
        cluster.wait_for_controller()
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        first = stack.enter_context(distributed(bootstrap, tmp_path, "first", port))
        configure(port, files, first)
        files.write(EACH)
        files.wait_until_copied(first)
        _copy_while_they_die(cluster, files, first, victims)
        assert files.copied() == files.lines
        # in the midst of a transaction: its lines are there, and not committed
        uncommitted = stack.enter_context(closing(Topic(bootstrap, "read_uncommitted")))
        uncommitted.read(files.lines[-1])
        files.write(EACH)
        uncommitted.read(files.lines[-1])
        first.kill()
        second = stack.enter_context(distributed(bootstrap, tmp_path, "second", port))
        files.write(EACH)
        files.wait_until_copied(second)
        _check(bootstrap, files)
