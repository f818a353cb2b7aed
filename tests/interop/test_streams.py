"""Kafka Streams, unchanged, on our brokers: it counts exactly once, though leaders, coordinators and it die."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, partition_for
from kce.harness.sync_cluster import SyncCluster
from tests.interop.streaming import (
    APPLICATION,
    INPUT,
    OFFSETS_PARTITIONS,
    OUTPUT,
    PARTITIONS,
    PROPERTIES,
    Counts,
    Lines,
    word_count,
)

pytestmark = pytest.mark.slow
REPARTITION, CHANGELOG = f"{APPLICATION}-words-repartition", f"{APPLICATION}-counts-changelog"
#: counts between two faults
EACH = 300
QUIET_S = 1


def leader(cluster: SyncCluster, topic: str, partition: int = 0) -> int:
    (found,) = cluster.describe_topics([topic])
    leadership = found.partitions[partition].leadership
    assert leadership is not None
    return leadership.leader_and_isr.leader


def test_words_are_counted_exactly_once(tmp_path: Path) -> None:
    """With caches off each count is written: 1, 2, 3, ... for each word, without a gap, without another."""
    victims = [(GROUP_METADATA_TOPIC, partition_for(APPLICATION, OFFSETS_PARTITIONS)), (CHANGELOG, 0), (REPARTITION, 0)]
    with SyncCluster(3, properties=PROPERTIES, processes=True) as cluster, ExitStack() as stack:
        cluster.wait_for_controller()
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        counts = stack.enter_context(closing(Counts(bootstrap)))
        uncommitted = stack.enter_context(closing(Counts(bootstrap, "read_uncommitted")))
        first = stack.enter_context(word_count(bootstrap, tmp_path, "first"))
        with Lines(bootstrap, seed=5) as lines:
            first.wait_for("RUNNING")
            counts.read(EACH, first)
            for topic, partition in victims:
                victim = leader(cluster, topic, partition)
                cluster.kill(victim)
                counts.read(counts.total() + EACH, first)
                cluster.start(victim)
                cluster.wait_until_settled()
            # in the midst of a transaction: its counts are there, and not committed
            uncommitted.read(counts.total(), first)
            uncommitted.read(uncommitted.total() + 1, first)
            first.kill()
            second = stack.enter_context(word_count(bootstrap, tmp_path, "second"))
            counts.read(counts.total() + EACH, second)
        counts.read(sum(lines.counts.values()), second)
        counts.read_more(QUIET_S)
        ends = {word: (len(seen), max(seen)) for word, seen in counts.seen.items()}
        assert ends == {word: (count, count) for word, count in lines.counts.items()}
        assert counts.seen == {word: list(range(1, count + 1)) for word, count in lines.counts.items()}
        assert second.close() == 0, second.errors()
        assert "ERROR" not in second.lines
