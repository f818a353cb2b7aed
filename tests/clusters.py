"""What tests ask a running cluster."""

from __future__ import annotations

import trio

from kce import wire
from kce.harness import Cluster
from kce.harness.connections import Link
from kce.harness.links import Links
from kce.harness.members import InProcessMember
from kce.harness.node import Node
from kce.harness.node_links import NodeLinks
from kce.harness.world import RealWorld
from kce.zookeeper.store import Create, value


async def dial(host: str, port: int) -> Link:
    """A client's connection on a real socket."""
    return await NodeLinks(RealWorld(), Links(), -1).dial(host, port, to=-1, listener="")


async def request(address: str, message: wire.Message, version: int) -> wire.Message:
    """The response of the listener at host:port."""
    host, _, port = address.rpartition(":")
    connection = await dial(host, int(port))
    try:
        await connection.send_frame(
            wire.encode_request(message, api_version=version, correlation_id=1, client_id="test")
        )
        frame = await connection.receive_frame()
    finally:
        await connection.aclose()
    return wire.decode_response(frame, api_key=message.__api_key__, api_version=version)[1]


async def metadata(address: str) -> wire.MetadataResponse:
    """The metadata of all topics that the node at host:port has."""
    response = await request(address, wire.MetadataRequest(topics=None), 12)
    assert isinstance(response, wire.MetadataResponse)
    return response


async def know_each_other(*addresses: str) -> None:
    """Wait until each broker's Metadata names all of them: one that has started waits for its first UpdateMetadata.

    An AdminClient of librdkafka that asks earlier does not ask again: its requests to the others time out.
    """
    with trio.fail_after(60):
        for address in addresses:
            while True:
                response = await request(address, wire.MetadataRequest(topics=()), 1)
                assert isinstance(response, wire.MetadataResponse)
                if len(response.brokers) == len(addresses):
                    break
                await trio.sleep(0.05)


def node(cluster: Cluster, node_id: int) -> Node:
    """A node that runs in this process."""
    member = cluster.member(node_id)
    assert isinstance(member, InProcessMember)
    assert member.node is not None
    return member.node


async def leaders_and_isrs(cluster: Cluster, topic: str) -> dict[int, tuple[int, set[int]]]:
    """Leader and ISR by partition, from ZooKeeper."""
    (described,) = await cluster.describe_topics([topic])
    return {p.partition: (p.state.leader, set(p.state.isr)) for p in described.partitions if p.state is not None}


async def is_registered(cluster: Cluster, node_id: int) -> bool:
    return node_id in await cluster.registered()


async def create_znode(cluster: Cluster, path: str, data: bytes) -> None:
    value((await cluster.store.write([Create(path, data)]))[0])
