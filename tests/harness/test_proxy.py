"""The proxy in front of a cluster.

Covers: harness/addresses.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kce import wire
from kce.broker_stub.node_client import NodeClient
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.messages import Request
from kce.captures.files.pcap import CaptureFile
from kce.harness import Cluster, HarnessError, addresses
from kce.harness.connections import Link
from kce.harness.faults import Rule
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.proxy import Proxy
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.wire import ErrorCode
from kce.wire.transport import ConnectionLost


@asynccontextmanager
async def proxied(
    record: Path | None = None, *, history: bool = True
) -> AsyncIterator[tuple[Cluster, Proxy, MemoryClusterWorld]]:
    world = memory(1)
    async with Cluster(3, world=world) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("t", partitions=3, replication_factor=3)
        bootstrap = cluster.member(1).addresses["DATA"]
        async with Proxy(bootstrap, world=world.observer(), record=record, history=history) as proxy:
            yield cluster, proxy, world


@asynccontextmanager
async def client(world: MemoryClusterWorld, address: tuple[str, int]) -> AsyncIterator[NodeClient]:
    connection = await NodeLinks(world.observer(), Links(), -1).dial(*address, to=-1, listener="")
    connected = NodeClient(connection, "test")
    try:
        yield connected
    finally:
        await connected.aclose()


def fronts(proxy: Proxy) -> dict[int, tuple[str, int]]:
    return dict(proxy.brokers.values())


METADATA = wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name="t"),))


async def metadata(world: MemoryClusterWorld, address: tuple[str, int], version: int = 12) -> wire.MetadataResponse:
    async with client(world, address) as connected:
        response = await connected.request(METADATA, version)
    assert isinstance(response, wire.MetadataResponse)
    return response


@pytest.mark.parametrize("version", [0, 9, 12])
async def test_clients_stay_behind_the_proxy(version: int) -> None:
    async with proxied() as (cluster, proxy, world):
        assert set(fronts(proxy)) == {1, 2, 3}
        assert proxy.bootstrap_servers == "{}:{}".format(*fronts(proxy)[1])
        direct = [tuple(m.addresses["DATA"].rsplit(":", 1)) for m in cluster.members]
        for address in fronts(proxy).values():
            response = await metadata(world, address, version)
            assert {b.node_id: (b.host, b.port) for b in response.brokers} == fronts(proxy)
            assert not {(b.host, str(b.port)) for b in response.brokers} & set(direct)
            assert [t.name for t in response.topics] == ["t"]
            assert len(response.topics[0].partitions) == 3


async def test_rules_act_on_requests_to_one_broker() -> None:
    async with proxied() as (_, proxy, world):
        rule = Rule(api="Metadata", to=2, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        async with proxy.faults(rule) as fault:
            for broker, expected in ((1, 0), (2, ErrorCode.UNKNOWN_SERVER_ERROR), (3, 0)):
                response = await metadata(world, fronts(proxy)[broker])
                assert response.topics[0].error_code == expected
        assert (fault.matched, fault.fired) == (1, 1)
        seen = [(e.source, e.destination) for e in proxy.history.events(api="Metadata")]
        assert seen == [(None, 1), (None, 2), (None, 3)]
        assert len(proxy.history.events(api="Metadata", is_request=False)) == 2  # node 2 never saw the request


async def test_topics_are_known_by_their_ids() -> None:
    """Fetch names only ids from version 13 on: brokers know them, and the proxy from the Metadata that has passed."""
    async with proxied() as (cluster, proxy, world):
        topic = (await metadata(world, fronts(proxy)[1])).topics[0]
        message = wire.FetchRequest(
            max_bytes=1000, session_epoch=0,
            topics=(
                wire.FetchTopic(
                    topic_id=topic.topic_id,
                    partitions=tuple(wire.FetchPartition(partition=p, partition_max_bytes=1000) for p in range(3)),
                ),
            ),
        )  # fmt: skip
        error = ErrorCode.KAFKA_STORAGE_ERROR
        other_address = cluster.member(2).addresses["DATA"].rpartition(":")
        for place, address in ((proxy, fronts(proxy)[2]), (cluster, (other_address[0], int(other_address[2])))):
            rule = Rule(api="Fetch", topic="t", partition=1, error=error)
            async with place.faults(rule, must_fire=False), client(world, address) as connected:
                response = await connected.request(message, 17)
            assert rule.fired == 1
            assert isinstance(response, wire.FetchResponse)
            codes = {p.partition_index: p.error_code for t in response.responses for p in t.partitions}
            assert codes == {0: 0, 1: error, 2: 0}
            assert [t.topic_id for t in response.responses] == [topic.topic_id]
            assert response.session_id == 0  # the broker's lacks a partition


async def test_a_client_learns_late_that_the_broker_has_closed() -> None:
    async with proxied() as (cluster, proxy, world):
        await proxy.add_rule(Rule(is_request=False, slow_close=50))
        link = await NodeLinks(world.observer(), Links(), -1).dial(*fronts(proxy)[2], to=-1, listener="")
        await NodeClient(link, "test").request(METADATA, 12)
        await cluster.kill(2)
        killed = trio.current_time()
        with pytest.raises(ConnectionLost):
            await link.receive_frame()
        assert 50 <= trio.current_time() - killed < 51
        await link.aclose()


async def test_a_rule_that_does_not_fire_fails() -> None:
    async with proxied() as (_, proxy, _):
        with pytest.raises(AssertionError, match="did not fire"):
            async with proxy.faults(Rule(api="Produce", drop=True)):
                pass


async def test_rules_see_responses_with_the_listeners_addresses() -> None:
    async with proxied() as (_, proxy, world):
        await metadata(world, fronts(proxy)[1])
        (response,) = proxy.history.messages(api="Metadata", is_request=False)
        assert isinstance(response, wire.MetadataResponse)
        assert {(b.host, b.port) for b in response.brokers} == set(fronts(proxy).values())


async def test_a_broker_gets_its_listener_when_it_is_first_named() -> None:
    world = memory(1)
    async with Cluster(3, world=world) as cluster:
        await cluster.wait_for_controller()
        await cluster.kill(3)
        await cluster.wait_until(lambda: _registered(cluster, {1, 2}), "broker 3 to be gone")
        host, _, port = cluster.member(1).addresses["DATA"].rpartition(":")

        async def is_known() -> bool:
            return {b.node_id for b in (await metadata(world, (host, int(port)))).brokers} == {1, 2}

        await cluster.wait_until(is_known, "broker 1 to know the brokers")
        async with Proxy(cluster.member(1).addresses["DATA"], world=world.observer()) as proxy:
            assert set(fronts(proxy)) == {1, 2}
            await cluster.restart(3)
            await cluster.wait_until(lambda: _registered(cluster, {1, 2, 3}), "broker 3")

            async def named() -> bool:
                return 3 in {b.node_id for b in (await metadata(world, fronts(proxy)[1])).brokers}

            await cluster.wait_until(named, "broker 1 to know broker 3")
            response = await metadata(world, fronts(proxy)[3])
            assert {b.node_id: (b.host, b.port) for b in response.brokers} == fronts(proxy)


async def _registered(cluster: Cluster, brokers: set[int]) -> bool:
    return set(await cluster.zk.get_brokers(watch=False)) == brokers


async def test_a_dead_brokers_connections_end_and_a_new_one_serves_again() -> None:
    async with proxied() as (cluster, proxy, world):
        async with client(world, fronts(proxy)[2]) as connected:
            await connected.request(METADATA, 12)
            await cluster.kill(2)
            with pytest.raises(ConnectionLost):
                await connected.request(METADATA, 12)
        with pytest.raises(ConnectionLost):
            await metadata(world, fronts(proxy)[2])
        await cluster.restart(2)

        async def knows_brokers() -> bool:  # it has had an UpdateMetadata
            return bool((await metadata(world, fronts(proxy)[2])).brokers)

        await cluster.wait_until(knows_brokers, "node 2 to know the brokers")


async def test_the_traffic_is_recorded(tmp_path: Path) -> None:
    record = tmp_path / "proxy.pcapng"
    async with proxied(record) as (_, proxy, world):
        await metadata(world, fronts(proxy)[2])
        server = fronts(proxy)[2]
    with CaptureFile(record) as capture:
        (request,) = [message for message in Decoder(capture).messages() if isinstance(message, Request)]
    assert (request.api_name, request.version) == ("Metadata", 12)
    assert request.peers.server == (ipaddress.ip_address(server[0]).packed, server[1])


async def test_several_listeners_of_a_cluster() -> None:
    """Each client stays on the addresses of the listener that it came by."""
    async with proxied() as (cluster, _proxy, world):
        control, data = (cluster.member(1).addresses[name] for name in ("CONTROL", "DATA"))
        async with Proxy(data, control, world=world.observer()) as both:
            first, second = both.bootstrap_servers.split(",")
            found = []
            for text in (first, second):
                host, port = text.rsplit(":", 1)
                found.append({(b.host, b.port) for b in (await metadata(world, (host, int(port)))).brokers})
            assert len(found[0]) == len(found[1]) == 3
            assert not found[0] & found[1]


async def test_a_broker_that_advertises_its_listener_here() -> None:
    """As an author of a proxy has it: its address is no other broker's, which would get a listener of its own."""
    async with proxied() as (cluster, proxy, world):
        host, port = fronts(proxy)[2]
        assert host == "127.0.0.1"
        await cluster.proxy(2, port)
        await cluster.wait_until(lambda: _registered(cluster, {1, 2, 3}), "broker 2 to be back")

        async def named() -> bool:
            response = await metadata(world, fronts(proxy)[1])
            return {b.node_id: (b.host, b.port) for b in response.brokers}.get(2) == (host, port)

        await cluster.wait_until(named, "broker 1 to know broker 2's new address")
        assert len(proxy.brokers) == 3


@asynccontextmanager
async def a_server(world: MemoryClusterWorld, answer: bytes | None) -> AsyncIterator[str]:
    """Answers every frame with ``answer``, or closes the connection."""

    async def serve() -> None:
        while True:
            link = await listener.accept()
            while (await link.receive()) is not None and answer is not None:
                await link.send(answer)
            await link.aclose()

    async with trio.open_nursery() as nursery:
        links = NodeLinks(world.observer(), Links(), 7)
        listener = await links.bind("127.0.0.1", 0, listener="", max_frame_bytes=1000)
        listener.listen(5)
        nursery.start_soon(serve)
        yield "{}:{}".format(*listener.address)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [None, b"", b"no header"])
async def test_a_broker_that_does_not_describe_its_cluster(
    answer: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It wants authentication first, for example. Frames that are not Kafka's pass, both ways."""
    world = memory(1)
    async with (
        world.running(None, None),
        a_server(world, answer) as address,
        Proxy(address, world=world.observer()) as proxy,
    ):
        assert set(fronts(proxy)) == {-1}
        assert "does not describe its cluster" in caplog.text
        link = await NodeLinks(world.observer(), Links(), -1).dial(*fronts(proxy)[-1], to=-1, listener="")
        await link.send_frame(b"token")
        if answer is None:
            with pytest.raises(ConnectionLost):
                await link.receive_frame()
        else:
            assert await link.receive_frame() == answer
        await link.aclose()


async def test_a_broker_with_tls_says_which_setting_is_missing() -> None:
    world = memory(1)
    async with world.running(None, None), trio.open_nursery() as nursery:
        listener = await world.observer().bind("127.0.0.1", 0)
        listener.listen(5)

        async def alert() -> None:
            connected = await listener.accept()
            await connected.stream.receive_some(1000)
            await connected.stream.send_all(b"\x15\x03\x03\0\x02\x02\x46")

        nursery.start_soon(alert)
        with pytest.raises(HarnessError, match=r"has TLS: set security\.protocol to SSL or SASL_SSL"):
            async with Proxy("{}:{}".format(*listener.address), world=world.observer()):
                pass


async def test_a_broker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    world = memory(1)
    async with world.running(None, None):
        listener = await NodeLinks(world.observer(), Links(), 7).bind("127.0.0.1", 0, listener="", max_frame_bytes=1000)
        listener.listen(5)
        async with Proxy("{}:{}".format(*listener.address), world=world.observer()) as proxy:
            assert set(fronts(proxy)) == {-1}
            assert "does not describe its cluster: no answer in time. Brokers are found" in caplog.text


async def test_a_response_that_cannot_be_decoded_passes() -> None:
    world = memory(1)
    response = b"\0\0\0\1garbage"
    async with (
        world.running(None, None),
        a_server(world, response) as address,
        Proxy(address, world=world.observer()) as proxy,
    ):
        link = await NodeLinks(world.observer(), Links(), -1).dial(*fronts(proxy)[-1], to=-1, listener="")
        await link.send_frame(wire.encode_request(METADATA, api_version=12, correlation_id=1, client_id=None))
        assert await link.receive_frame() == response
        await link.aclose()


@pytest.mark.parametrize("to", ["", "host", ":9092", "host:", "host:http", "host:0", "host:65536"])
def test_an_address_that_is_none(to: str) -> None:
    with pytest.raises(HarnessError, match="not host:port"):
        Proxy(to)


async def test_nobody_listens_there() -> None:
    world = memory(1)
    async with world.running(None, None):
        with pytest.raises(HarnessError, match=r"no broker at 127\.0\.0\.1:9"):
            async with Proxy("127.0.0.1:9", world=world.observer()):
                pass


async def test_given_ports_and_one_that_is_taken() -> None:
    async with proxied() as (cluster, proxy, world):
        bootstrap, taken = cluster.member(1).addresses["DATA"], fronts(proxy)[1][1]
        async with Proxy(bootstrap, ports=[7001, 7002, 7003], world=world.observer()) as second:
            assert fronts(second) == {n: ("127.0.0.1", 7000 + n) for n in (1, 2, 3)}
        with pytest.raises(HarnessError, match=f"port {taken} "):
            async with Proxy(bootstrap, ports=[taken], world=world.observer()):
                pass


# addresses in responses


def other(broker: int, address: tuple[str, int]) -> tuple[str, int]:
    return f"{address[0]}.proxy", address[1] + broker


@pytest.mark.parametrize("version", range(7))
def test_coordinators(version: int) -> None:
    if version < 4:
        response = wire.FindCoordinatorResponse(node_id=2, host="b", port=9)
        none = wire.FindCoordinatorResponse(error_code=15, node_id=-1, host="", port=-1)
    else:
        found = wire.Coordinator(key="g", node_id=2, host="b", port=9)
        missing = wire.Coordinator(key="g", node_id=-1, host="", port=-1, error_code=15)
        response = wire.FindCoordinatorResponse(coordinators=(found, missing))
        none = wire.FindCoordinatorResponse(coordinators=(missing,))
    assert list(addresses.brokers(10, response)) == [(2, ("b", 9))]
    changed = addresses.replaced(10, response, other)
    assert list(addresses.brokers(10, changed)) == [(2, ("b.proxy", 11))]
    assert addresses.replaced(10, changed, lambda broker, address: ("b", 9)) == response
    assert list(addresses.brokers(10, none)) == []
    assert addresses.replaced(10, none, other) == none


@pytest.mark.parametrize(
    ("key", "response"),
    [
        (0, wire.ProduceResponse(node_endpoints=(wire.ProduceResponseNodeEndpoint(node_id=2, host="b", port=9),))),
        (1, wire.FetchResponse(node_endpoints=(wire.FetchResponseNodeEndpoint(node_id=2, host="b", port=9),))),
        (60, wire.DescribeClusterResponse(brokers=(wire.DescribeClusterBroker(broker_id=2, host="b", port=9),))),
    ],
)
def test_brokers_in_other_responses(key: int, response: wire.Message) -> None:
    assert list(addresses.brokers(key, response)) == [(2, ("b", 9))]
    assert list(addresses.brokers(key, addresses.replaced(key, response, other))) == [(2, ("b.proxy", 11))]


@pytest.mark.parametrize(
    ("key", "version", "expected"),
    [(0, 9, False), (0, 10, True), (1, 15, False), (1, 16, True), (3, 0, True), (60, 0, True), (4, 7, False)],
)
def test_which_responses_name_brokers(key: int, version: int, expected: bool) -> None:
    assert addresses.names_brokers(wire.Header(key, version, 1, None)) == expected


async def correlation_ids(link: Link, count: int) -> list[int]:
    frames = [await link.receive_frame() for _ in range(count)]
    return [int.from_bytes(frame[:4], "big") for frame in frames]


def metadata_frame(correlation_id: int) -> bytes:
    return wire.encode_request(METADATA, api_version=12, correlation_id=correlation_id, client_id="test")


async def test_a_rules_response_comes_after_those_to_earlier_requests() -> None:
    """Requests 2, 4 and 7 are refused at once, while the response to 1 is held; 6 is lost."""
    acks_0 = wire.ProduceRequest(acks=0, timeout_ms=0, topic_data=())
    unacknowledged = wire.encode_request(acks_0, api_version=9, correlation_id=0, client_id="test")
    versions = wire.encode_request(wire.ApiVersionsRequest(), api_version=0, correlation_id=6, client_id="test")
    async with proxied() as (_, proxy, world):
        refused = Rule(api="Metadata", is_request=True, every=2, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        lost = Rule(api="ApiVersions", drop=True)
        held = Rule(api="Metadata", is_request=False, nth=1, hold=True)
        async with proxy.faults(refused, lost, held):
            link = await NodeLinks(world.observer(), Links(), -1).dial(*fronts(proxy)[1], to=-1, listener="")
            await link.send(metadata_frame(1))
            while not held.fired:  # noqa: ASYNC110
                await trio.sleep(0.1)
            await link.send(unacknowledged, *map(metadata_frame, (2, 3, 4, 5)), versions, metadata_frame(7))
            with trio.move_on_after(10):  # of the simulated clock
                await correlation_ids(link, 1)
                raise AssertionError("a response overtook another")
            held.release()
            with trio.fail_after(60):
                assert await correlation_ids(link, 6) == [1, 2, 3, 4, 5, 7]
            await link.aclose()


async def test_the_response_to_a_request_from_before_the_rules_hides_no_other() -> None:
    slow = Rule(api="Metadata", is_request=True, delay=5)
    async with proxied(history=False) as (cluster, proxy, world), cluster.faults(slow):  # behind the proxy
        link = await NodeLinks(world.observer(), Links(), -1).dial(*fronts(proxy)[1], to=-1, listener="")
        await link.send(metadata_frame(1))
        while not slow.matched:  # noqa: ASYNC110
            await trio.sleep(0.1)
        async with proxy.faults(Rule(api="Metadata", is_request=False, delay=1)) as fault:
            await link.send(metadata_frame(2))
            assert await correlation_ids(link, 2) == [1, 2]
        assert fault.fired == 1  # the request of the other response was not observed
        await link.aclose()
