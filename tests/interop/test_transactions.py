"""Transactions of librdkafka and of Kafka's own client, unchanged: copies that are exactly once, though brokers die.

And fencing, and Kafka's tools.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException

from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, partition_for
from kce.harness import Cluster
from tests.interop.copiers import (
    ID,
    INPUT,
    LIMIT_S,
    OFFSETS_PARTITIONS,
    OUTPUT,
    PARTITIONS,
    PROPERTIES,
    RECORDS,
    STATE_PARTITIONS,
    Copier,
    JavaCopier,
    fill,
    producer,
    read,
)
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow


async def leader(cluster: Cluster, topic: str, partition: int) -> int:
    (found,) = await cluster.describe_topics([topic])
    leadership = found.partitions[partition].leadership
    assert leadership is not None
    return leadership.leader_and_isr.leader


async def state_is_in_sync(cluster: Cluster) -> bool:
    (found,) = await cluster.describe_topics([TRANSACTION_STATE_TOPIC])
    leadership = found.partitions[partition_for(ID, STATE_PARTITIONS)].leadership
    return leadership is not None and len(leadership.leader_and_isr.isr) == 3


async def coordinator(cluster: Cluster) -> int:
    return await leader(cluster, TRANSACTION_STATE_TOPIC, partition_for(ID, STATE_PARTITIONS))


async def group_coordinator(cluster: Cluster) -> int:
    """Of the group that is named like the id."""
    return await leader(cluster, GROUP_METADATA_TOPIC, partition_for(ID, OFFSETS_PARTITIONS))


async def output_leader(cluster: Cluster) -> int:
    return await leader(cluster, OUTPUT, 0)


async def separate_coordinators(cluster: Cluster) -> None:
    """Node 1 coordinates groups; node 2, 3 if that is killed, coordinates transactions (see Copier)."""
    for topic, partitions, replicas in (
        (GROUP_METADATA_TOPIC, OFFSETS_PARTITIONS, [1, 2, 3]),
        (TRANSACTION_STATE_TOPIC, STATE_PARTITIONS, [2, 3, 1]),
    ):
        assignment = dict.fromkeys(range(partitions), replicas)
        await cluster.create_topic(topic, assignment=assignment, config={"cleanup.policy": "compact"})


async def test_a_copy_is_exactly_once(tmp_path: Path, tools: Tools, zookeeper: str) -> None:
    """Every third transaction is aborted; the coordinator is killed between, and later the next one."""
    in_thread = trio.to_thread.run_sync
    properties = {**PROPERTIES, "log.dirs": f"{tmp_path}/logs-{{id}}"}
    async with Cluster(3, zookeeper=f"{zookeeper}/copy", properties=properties) as cluster:
        await cluster.wait_for_controller()
        await separate_coordinators(cluster)
        for topic in (INPUT, OUTPUT):
            await cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        await in_thread(fill, bootstrap)
        copier = await in_thread(Copier, bootstrap)
        try:
            await in_thread(copier.copy, RECORDS // 3)
            for part in (2, 3):
                # else the coordinator of the group may be the only one that can take over
                await cluster.wait_until(lambda: state_is_in_sync(cluster), "all replicas of the state in sync")
                doomed = await coordinator(cluster)
                assert doomed != await group_coordinator(cluster)
                await cluster.kill(doomed)
                await in_thread(copier.copy, part * RECORDS // 3)
                await cluster.start(doomed)
        finally:
            await in_thread(copier.close)
        assert await in_thread(read, bootstrap, OUTPUT) == list(range(RECORDS))
        assert copier.transactions > 2
        last = await coordinator(cluster)
    number = partition_for(ID, STATE_PARTITIONS)
    path = tmp_path / f"logs-{last}" / f"{TRANSACTION_STATE_TOPIC}-{number}" / f"{0:020}.log"
    dumped = await in_thread(
        tools.run, "kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--print-data-log", "--files", str(path)
    )
    states = [line for line in dumped.splitlines() if f"transaction_metadata::transactionalId={ID}" in line]
    assert {state for state in ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort")
            if any(f"state={state}" in line for line in states)} == {
        "Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort",
    }  # fmt: skip


async def test_kafkas_own_client_copies_exactly_once(tmp_path: Path, zookeeper: str) -> None:
    """Coordinators of transactions and of groups, and a leader, are killed -9 while it copies, one after another."""
    in_thread = trio.to_thread.run_sync
    doomed = (coordinator, group_coordinator, output_leader)
    async with Cluster(3, zookeeper=f"{zookeeper}/java-copy", properties=PROPERTIES, processes=True) as cluster:
        await cluster.wait_for_controller()
        for topic in (INPUT, OUTPUT):
            await cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        await in_thread(fill, bootstrap)
        copier = JavaCopier(bootstrap, tmp_path / "copier.log")
        try:
            for part, who in enumerate(doomed):
                start, end = part * RECORDS // len(doomed), (part + 1) * RECORDS // len(doomed)
                copier.start(end)
                await in_thread(copier.wait, start + 1)
                victim = await who(cluster)
                await cluster.kill(victim)
                await in_thread(copier.wait, end)
                await cluster.start(victim)
        finally:
            await in_thread(copier.kill)
        assert await in_thread(read, bootstrap, OUTPUT) == list(range(RECORDS))
        assert len(await in_thread(read, bootstrap, OUTPUT, "read_uncommitted")) > RECORDS, "some were aborted"


async def test_the_first_producer_is_fenced_by_the_second(zookeeper: str) -> None:
    in_thread = trio.to_thread.run_sync
    async with Cluster(1, zookeeper=f"{zookeeper}/fence", properties=PROPERTIES) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic(OUTPUT, partitions=PARTITIONS, replication_factor=1)
        bootstrap = cluster.bootstrap_servers()
        await in_thread(_fence, bootstrap)
        assert await in_thread(read, bootstrap, OUTPUT) == [2]
        assert await in_thread(read, bootstrap, OUTPUT, "read_uncommitted") == [1, 2]


def _fence(bootstrap: str) -> None:
    first = producer(bootstrap)
    first.begin_transaction()
    first.produce(OUTPUT, "1", partition=0)
    first.flush(LIMIT_S)
    second = producer(bootstrap)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(LIMIT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(OUTPUT, "2", partition=0)
    second.commit_transaction(LIMIT_S)
