"""A cluster that tests share is as new after `reset`, whatever a test has left.

Covers: harness/original.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kce import wire
from kce.harness import Cluster
from kce.harness.faults import Rule
from kce.harness.original import Original
from kce.harness.simulated_client import GROUP, TRANSACTION, SimulatedClient
from kce.harness.world import memory
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import client_configs, security_nodes, znodes
from kce.zookeeper.security_nodes import NO_VERSION, AccessControlEntry, ResourcePattern, TokenInformation

PROPERTIES = {
    "zookeeper.session.timeout.ms": "4000", "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1", "log.dirs": "/one-{id},/two-{id}",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS",
}  # fmt: skip
TP = TopicPartition("left", 0)
ORDERS = ResourcePattern("Topic", "orders")
ALICE = AccessControlEntry("User:alice", "*", "Read", "Allow")
TOKEN = TokenInformation("t", "User:alice", "User:alice", (), 0, 10, 10)


async def _ask_until(ask: Callable[[], Awaitable[Any]], is_good: Callable[[Any], bool]) -> Any:
    for _ in range(100):
        answer = await ask()
        if answer is not None and is_good(answer):
            return answer
    raise AssertionError("no answer")


async def _leave_clients_work(client: SimulatedClient) -> None:
    """A group with an offset, and an open transaction."""
    partition = wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    commit = wire.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="",
        topics=(wire.OffsetCommitRequestTopic(name=TP.topic, partitions=(partition,)),),
    )  # fmt: skip
    await _ask_until(
        lambda: client.ask_coordinator("g", GROUP, commit, 8), lambda a: a.topics[0].partitions[0].error_code == 0
    )
    init = wire.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    made = await _ask_until(lambda: client.ask_coordinator("x", TRANSACTION, init, 4), lambda a: a.error_code == 0)
    topic = wire.AddPartitionsToTxnTopic(name=TP.topic, partitions=(0,))
    add = wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x", v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch, v3_and_below_topics=(topic,),
    )  # fmt: skip
    await _ask_until(
        lambda: client.ask_coordinator("x", TRANSACTION, add, 3),
        lambda a: a.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0,
    )


async def _listed(cluster: Cluster, client: SimulatedClient) -> tuple[list[str], list[str]]:
    """The groups and the transactional ids that any broker coordinates."""
    groups, ids = [], []
    for member in cluster.members:
        found = await client.ask(member.id, wire.ListGroupsRequest(), 4)
        groups += [group.group_id for group in found.groups]
        open_ones = await client.ask(member.id, wire.ListTransactionsRequest(), 0)
        ids += [state.transactional_id for state in open_ones.transaction_states]
    return groups, ids


async def test_nothing_of_the_last_test_is_left() -> None:
    async with Cluster(3, world=memory(seed=1), properties=PROPERTIES, users={"bob": "secret"}) as cluster:
        at_start = await Original.read(cluster.zk)
        assert ("users", "bob") in at_start.configs
        client = SimulatedClient(cluster, Random(1))
        await cluster.create_topic(TP.topic, assignment={0: [1, 2, 3]}, config={"retention.ms": "1000"})
        await _leave_clients_work(client)
        assert await _listed(cluster, client) == (["g"], ["x"])
        for kind, name in (("brokers", "2"), ("clients", "app"), ("users", "alice/clients/app"), ("users", "bob")):
            await client_configs.change(cluster.zk, kind, name, {"consumer_byte_rate": "1000"})
        await security_nodes.set_acls(cluster.zk, ORDERS, [ALICE], NO_VERSION)
        await security_nodes.create_token_paths(cluster.zk)
        await security_nodes.set_or_create_token(cluster.zk, TOKEN)
        await cluster.add_rule(Rule(api="Metadata", error=ErrorCode.UNKNOWN_SERVER_ERROR))
        await cluster.hold_control_requests(1)
        await cluster.jump_clock(2, -3600)
        await cluster.proxy(3, 65_000)
        await cluster.kill(2)

        await cluster.reset()

        assert await cluster.describe_topics() == []
        assert await Original.read(cluster.zk) == at_start
        assert cluster.links.rules == ()
        assert (cluster.member(2).machine.clock_ns, await cluster.registered()) == (0, {1, 2, 3})
        assert cluster.member(3).addresses == cluster.member(3).bound
        await client.aclose()
        client = SimulatedClient(cluster, Random(2))
        assert await _listed(cluster, client) == ([], [])
        await cluster.create_topic(TP.topic, assignment={0: [2, 3, 1]})
        assert await cluster.zk.get_config("topics", TP.topic) == {}
        await client.aclose()


async def _rewrite_controller(cluster: Cluster) -> None:
    active = await cluster.wait_for_controller()
    await cluster.rewrite_controller(active.id % 3 + 1)


async def _lower_epoch(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.delete_controller()
        await cluster.wait_for_controller()
    await cluster.rewrite_controller_epoch(1)
    await cluster.delete_controller()


async def _two_controllers(cluster: Cluster) -> None:
    await cluster.second_controller()


async def _fail_log_dir(cluster: Cluster) -> None:
    await cluster.fail_log_dir(2, "/two-2")


@pytest.mark.parametrize(
    "leave", [_rewrite_controller, Cluster.delete_controller_epoch, _lower_epoch, _two_controllers, _fail_log_dir]
)
async def test_a_cluster_whose_controller_or_disk_is_broken_works_again(
    leave: Callable[[Cluster], Awaitable[object]],
) -> None:
    async with Cluster(3, world=memory(seed=2), properties=PROPERTIES) as cluster:
        await cluster.create_topic("left", partitions=8, replication_factor=3)
        await leave(cluster)
        await cluster.reset()
        await cluster.create_topic("new", partitions=8, replication_factor=3)
        await cluster.wait_until_settled()
        assert [topic.name for topic in await cluster.describe_topics()] == ["new"]
        active = await cluster.wait_for_controller()
        assert (await cluster.node_status(active.id)).controller_epoch == active.epoch
        assert await cluster.exists(znodes.CONTROLLER)
