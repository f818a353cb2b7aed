"""Groups of three members of each client, unchanged: they join, crash, leave, outlive their coordinator, and resume.

Eagerly, cooperatively, and as static members, where the client can. And different clients share a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import kce
from kce import wire
from kce.harness.sync_cluster import SyncCluster
from kce.wire import ErrorCode
from tests.interop.members import COMMANDS, PROPERTIES, Group

pytestmark = pytest.mark.slow

#: a member starts in less, also on a busy machine
START_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster(3, properties=PROPERTIES) as running:
        running.wait_for_controller()
        yield running


@pytest.mark.parametrize("client", COMMANDS)
def test_three_members(client: str, cluster: SyncCluster, tmp_path: Path) -> None:
    """Rebalances by join, crash, leave and the death of the coordinator; what is committed is not read again."""
    with Group(client, cluster, tmp_path) as group:
        first, second, third = (group.start(client) for _ in range(3))
        group.wait_to_share(first, second, third)
        group.wait_to_read(group.produce())
        third.kill()
        group.wait_to_share(first, second)
        second.leave()
        group.wait_to_share(first)
        with group.dead_coordinator():
            group.wait_to_read(group.produce())
        first.leave()
        values = group.produce()
        last = group.start(client)
        group.wait_to_read(values)
        assert min(last.values) == values.start


def as_failed(message: wire.Message) -> wire.Message:
    assert isinstance(message, wire.OffsetCommitResponse)
    return dataclasses.replace(
        message,
        topics=tuple(
            dataclasses.replace(
                topic,
                partitions=tuple(
                    dataclasses.replace(p, error_code=ErrorCode.REBALANCE_IN_PROGRESS) for p in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )


@pytest.mark.parametrize("client", COMMANDS)
def test_records_of_a_commit_that_failed_but_was_applied_are_reported(
    client: str, cluster: SyncCluster, tmp_path: Path
) -> None:
    """Nobody else will read them."""
    with Group(f"unsure-{client}", cluster, tmp_path) as group:
        member = group.start(client)
        group.wait_to_share(member)
        with cluster.faults(kce.Rule(api="OffsetCommit", is_request=False, nth=1, change=as_failed)):
            group.wait_to_read(group.produce())


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        ("librdkafka", "cooperative"), ("franz-go", "cooperative"), ("java", "cooperative"),
        ("kafka-python", "range"), ("aiokafka", "range"),
    ],
)  # fmt: skip
def test_static_members(client: str, strategy: str, cluster: SyncCluster, tmp_path: Path) -> None:
    """One that comes back in time gets its partitions again, and nobody else notices; cooperatively if it can be."""
    with Group(f"static-{client}", cluster, tmp_path) as group:
        first, second = (group.start(client, strategy, f"{client}-{number}") for number in range(2))
        third = group.start(client, strategy, f"{client}-2", session_s=START_S)
        group.wait_to_share(first, second, third)
        group.wait_to_read(group.produce())
        owned, changes = third.owned, (first.changes, second.changes)
        third.kill()
        back = group.start(client, strategy, f"{client}-2", session_s=START_S)
        group.wait_until(lambda: back.owned == owned, "to own the same")
        group.wait_to_read(group.produce())
        assert (first.changes, second.changes) == changes
        second.kill()
        group.wait_to_share(first, back)


def test_clients_of_different_libraries_share_a_group(cluster: SyncCluster, tmp_path: Path) -> None:
    """The leader's library assigns for the others."""
    with Group("mixed", cluster, tmp_path) as group:
        members = [group.start(client) for client in ("librdkafka", "java", "franz-go")]
        group.wait_to_share(*members)
        group.wait_to_read(group.produce())
        members[0].leave()
        group.wait_to_share(*members[1:])
        members += [group.start("kafka-python")]
        group.wait_to_share(*members[1:])
        group.wait_to_read(group.produce())
        members[1].kill()
        members += [group.start("aiokafka")]
        group.wait_to_share(*members[2:])
        group.wait_to_read(group.produce())
