"""Clusters in this process and in their own processes, on real sockets with a real ZooKeeper.

Covers: kce.harness.cluster, kce.harness.topics, kce.harness.waiting
"""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest
import trio

import kce
from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Response
from kce.captures.files.pcap import CaptureFile
from kce.harness import Cluster, HarnessError
from kce.harness.embedded_zookeeper import free_port
from kce.harness.faults import Rule
from kce.harness.members import InProcessMember
from kce.harness.node import METRICS_PORT
from kce.harness.waiting import KNOWN_TIMEOUT_S
from tests.clusters import is_registered, leaders_and_isrs, node
from tests.tools import require

pytestmark = pytest.mark.slow

FAST = {"zookeeper.session.timeout.ms": "4000"}


async def test_a_cluster_without_a_control_plane(zookeeper: str) -> None:
    """As for brokers before 2.2 (KIP-291): None removes a default of the cluster."""
    properties = {
        **FAST,
        "listeners": "DATA://127.0.0.1:0",
        "listener.security.protocol.map": "DATA:PLAINTEXT",
        "control.plane.listener.name": None,
    }
    async with Cluster(2, zookeeper=f"{zookeeper}/one-plane", properties=properties) as cluster:
        await cluster.create_topic("t", assignment={0: [1, 2]})
        assert [set(member.addresses) for member in cluster.members] == [{"DATA"}, {"DATA"}]
        assert await leaders_and_isrs(cluster, "t") == {0: (1, {1, 2})}


@pytest.mark.parametrize("processes", [False, True])
async def test_a_client_may_ask_any_node_once_the_cluster_has_started(zookeeper: str, processes: bool) -> None:
    """A broker that knows of no broker sends librdkafka's AdminClient into an endless wait (rule B7.1)."""
    where = f"{zookeeper}/known-{processes}"
    async with Cluster(2, zookeeper=where, processes=processes, properties=FAST) as cluster:
        assert all([await member.knows([1, 2]) for member in cluster.members])
        assert not any([await member.knows([1, 2, 3]) for member in cluster.members])
        for number in range(10):
            topic = f"t{number}"
            await cluster.create_topic(topic, assignment={0: [1], 1: [2]})
            assert all([await member.knows([1, 2], topic, 2) for member in cluster.members])
            assert not any([await member.knows([1, 2], topic, 3) for member in cluster.members])


async def test_waiting_outlives_the_session_of_the_cluster_itself(zookeeper: str) -> None:
    """ZooKeeper may be gone for longer; nodes register again, and so does who waits for them."""
    async with Cluster(1, zookeeper=f"{zookeeper}/own-session", properties=FAST) as cluster:
        session = cluster.store.session_id
        await cluster.world.expire(0, session, cluster.zookeeper_config.tls)

        async def is_read_in_the_next_session() -> bool:
            return await cluster.registered() == {1} and cluster.store.session_id != session

        await cluster.wait_until(is_read_in_the_next_session, "the node")


async def test_a_topic_that_nobody_could_lead_is_refused_at_once() -> None:
    async with Cluster(2, world=kce.memory(seed=1), properties=FAST) as cluster:
        with pytest.raises(HarnessError, match=r"topic t: partition 1 .*there is no broker 7, 8; brokers are 1, 2"):
            await cluster.create_topic("t", assignment={0: [1, 7], 1: [7, 8]})
        assert await cluster.describe_topics() == []
        await cluster.create_topic("t", assignment={0: [7]}, wait=False)  # rule 10.4
        await cluster.create_topic("u", assignment={0: [7, 2]})
        await cluster.kill(1)
        await cluster.expire_session(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: cluster.create_topic("v", assignment={0: [1]}))
            await cluster.wait_until(lambda: cluster.exists("/brokers/topics/v"), "the topic")
            await cluster.start(1)


async def test_a_recording_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: a file can be made, but not be written."""
    cluster = Cluster(2, world=kce.memory(seed=1), record=tmp_path / "x.pcapng")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(HarnessError, match=rf"{tmp_path}/x\.pcapng cannot be written: File too large"):
            async with cluster:
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_node_whose_recording_cannot_be_begun_says_so(tmp_path: Path) -> None:
    async with Cluster(2, world=kce.memory(seed=1), record=tmp_path / "x.pcapng") as cluster:
        await cluster.kill(2)
        in_the_way = tmp_path / "x.pcapng.parts" / "002-node-2.pcapng"
        in_the_way.mkdir()
        with pytest.raises(HarnessError, match=f"{in_the_way}: cannot be written"):
            await cluster.start(2)
        in_the_way.rmdir()


async def test_nodes_that_never_hear_of_each_other_cost_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def knows_nobody(*_: object) -> bool:
        return False

    monkeypatch.setattr(InProcessMember, "knows", knows_nobody)
    async with Cluster(2, world=kce.memory(seed=1)) as cluster:
        assert trio.current_time() >= KNOWN_TIMEOUT_S
        await cluster.create_topic("t")
        assert trio.current_time() >= 2 * KNOWN_TIMEOUT_S
    assert "waiting for all nodes to know each other" in caplog.text
    assert "waiting for all nodes to know the leaders of topic t" in caplog.text


async def test_whoever_drops_metadata_does_not_wait_for_it() -> None:
    cluster = Cluster(2, world=kce.memory(seed=1))
    cluster.links.add(Rule(api="UpdateMetadata", drop=True))
    async with cluster:
        await cluster.create_topic("t")
        assert trio.current_time() < KNOWN_TIMEOUT_S
        assert not any([await member.knows([1]) for member in cluster.members])


@pytest.mark.parametrize("ibp", ["2.6", "3.9"])  # ISRs by ZooKeeper, and by AlterPartition
async def test_death_and_return_of_the_controllers_node(zookeeper: str, ibp: str) -> None:
    properties = FAST | {"inter.broker.protocol.version": ibp}
    async with Cluster(3, zookeeper=f"{zookeeper}/death-{ibp}", properties=properties) as cluster:
        await cluster.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
        old = await cluster.wait_for_controller()
        await cluster.kill(old.id)
        new = await cluster.wait_for_controller(other_than=old)
        assert new.epoch == old.epoch + 1

        async def moved() -> bool:
            return all(leader not in (old.id, -1) for leader, _ in (await leaders_and_isrs(cluster, "t")).values())

        await cluster.wait_until(moved, "leaders to move")
        await cluster.start(old.id)

        async def rejoined() -> bool:
            return all(members == {1, 2, 3} for _, members in (await leaders_and_isrs(cluster, "t")).values())

        await cluster.wait_until(rejoined, f"node {old.id} to rejoin the ISRs")


async def test_restart_with_controlled_shutdown_and_deletion(zookeeper: str) -> None:
    async with Cluster(3, zookeeper=f"{zookeeper}/restart", properties=FAST) as cluster:
        await cluster.create_topic("t", partitions=6, replication_factor=3)
        active = await cluster.wait_for_controller()
        other = next(m.id for m in cluster.members if m.id != active.id)
        before = cluster.member(other).addresses
        await cluster.restart(other)
        assert cluster.member(other).addresses == before
        await cluster.delete_topic("t")
        assert await cluster.describe_topics() == []


async def scraped(cluster: Cluster, node_id: int) -> str:
    """The metrics of a node of this process."""
    port = node(cluster, node_id).metrics_port
    assert port is not None
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join([chunk async for chunk in stream]).decode()


async def test_a_port_for_metrics_that_is_taken_is_said_in_one_line(zookeeper: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster(1, zookeeper=f"{zookeeper}/metrics", properties={METRICS_PORT: str(port)})
        with pytest.raises(HarnessError, match=f"metrics cannot be served on port {port}: Address already in use$"):
            async with cluster:
                pass


async def test_deleting_controller_by_hand(zookeeper: str) -> None:
    properties = {METRICS_PORT: "0"}
    async with Cluster(2, zookeeper=f"{zookeeper}/delete", properties=properties) as cluster:
        old = await cluster.wait_for_controller()
        active = [
            "kafka_controller_kafkacontroller_activecontrollercount 1.0" in await scraped(cluster, m.id)
            for m in cluster.members
        ]
        assert active == [m.id == old.id for m in cluster.members]
        await cluster.delete_controller()
        new = await cluster.wait_for_controller(other_than=old)
        assert new.epoch == old.epoch + 1
        assert cluster.controller_gone_ns > 0


async def test_a_zombie_is_fenced_and_its_cluster_recovers(zookeeper: str, tmp_path: Path) -> None:
    record = tmp_path / "zombie.pcapng"
    async with Cluster(3, zookeeper=f"{zookeeper}/zombie", properties=FAST, record=record) as cluster:
        old = await cluster.wait_for_controller()
        await cluster.hold_control_requests(old.id)
        await cluster.create_topic("t", replication_factor=3)

        async def under_way() -> bool:  # what is persisted is not sent at once
            return all((await cluster.node_status(old.id)).unanswered.values())

        await cluster.wait_until(under_way, "requests to be under way")
        await cluster.cut_from_zookeeper(old.id)
        new = await cluster.wait_for_controller(other_than=old)

        async def has_no_pending_requests() -> bool:
            status = await cluster.node_status(new.id)
            return status.controller_epoch == new.epoch and not any(status.unanswered.values())

        await cluster.wait_until(has_no_pending_requests, "responses to the new controller")
        zombie = await cluster.node_status(old.id)
        assert (zombie.believes_active, zombie.controller_epoch) == (True, old.epoch)
        await cluster.release_control_requests(old.id)

        async def answered() -> bool:
            return not any((await cluster.node_status(old.id)).unanswered.values())

        await cluster.wait_until(answered, "the zombie's requests to be answered")
        await cluster.heal(old.id)
        await cluster.wait_until(lambda: is_registered(cluster, old.id), "the former zombie to return")
    fenced = []
    with CaptureFile(record) as capture:
        for message in Decoder(capture).messages():
            if isinstance(message, Response) and getattr(message.body, "error_code", 0) == 11:
                request = message.request.body
                assert isinstance(request, (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest))
                fenced.append((request.controller_id, request.controller_epoch))
    assert set(fenced) == {(old.id, old.epoch)}
    assert len(fenced) >= 3


async def test_recorded_traffic_is_well_formed_to_tshark(zookeeper: str, tmp_path: Path) -> None:
    tshark = require("tshark")
    record = tmp_path / "traffic.pcapng"
    old_kafka = {**FAST, "inter.broker.protocol.version": "2.6"}  # LeaderAndIsr 4, UpdateMetadata 6: tshark knows them
    async with Cluster(2, zookeeper=f"{zookeeper}/tshark", properties=old_kafka, record=record) as cluster:
        await cluster.create_topic("t", partitions=2, replication_factor=2)
        ports = [where.rpartition(":")[2] for m in cluster.members for where in m.addresses.values()]
        comments = [f"control {m.addresses['CONTROL']}" for m in cluster.members]
    dissect = [x for port in ports for x in ("-d", f"tcp.port=={port},kafka")]
    fields = ["-T", "fields", "-e", "kafka.api_key", "-e", "kafka.api_version", "-e", "kafka.correlation_id"]
    shown = await trio.run_process(
        [tshark, "-r", str(record), *dissect, "-Y", "kafka", *fields], capture_stdout=True, capture_stderr=True
    )
    rows = [line.split("\t") for line in shown.stdout.decode().splitlines()]
    # a response has no key on the wire: tshark infers it, and shows nothing if it could not pair the two
    assert {(key, version) for key, version, _ in rows} >= {("4", "4"), ("6", "6")}
    assert all(correlation_id for _, _, correlation_id in rows)
    bad = await trio.run_process(
        [tshark, "-r", str(record), *dissect, "-Y", "_ws.malformed || tcp.analysis.flags"],
        capture_stdout=True, capture_stderr=True,
    )  # fmt: skip
    assert bad.stdout == b""
    with CaptureFile(record) as capture:
        for _ in capture:
            pass
        text = " ".join(capture.comments)
    for comment in comments:
        assert comment in text


# refusals


async def test_a_port_in_use(zookeeper: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HarnessError, match=rf"127\.0\.0\.1.*{port}"):
            async with Cluster(1, zookeeper=f"{zookeeper}/port", data_port=port):
                pass


async def test_two_nodes_with_one_id(zookeeper: str) -> None:
    async with Cluster(1, zookeeper=f"{zookeeper}/twins"):
        with pytest.raises(HarnessError, match=r"broker id 1 is already registered in /brokers/ids/1 by another"):
            async with Cluster(1, zookeeper=f"{zookeeper}/twins"):
                pass


async def test_a_zookeeper_that_is_not_there() -> None:
    port = free_port()
    with pytest.raises(HarnessError, match=f"no ZooKeeper answers at 127.0.0.1:{port}"):
        async with Cluster(1, zookeeper=f"127.0.0.1:{port}", properties={"zookeeper.connection.timeout.ms": "300"}):
            pass


async def test_settings_that_cannot_be(zookeeper: str) -> None:
    for key, value, why in (
        ("num.io.threads", "many", "num.io.threads"),
        ("inter.broker.protocol.version", "7.0", "inter.broker.protocol.version"),
        ("zookeeper.session.timeout.ms", "-5", "zookeeper.session.timeout.ms"),
        ("delete.topic.enable", "maybe", "must be true or false"),
    ):
        with pytest.raises(HarnessError, match=why):
            async with Cluster(1, zookeeper=f"{zookeeper}/settings", properties={key: value}):
                pass


async def test_an_unknown_node_is_named(zookeeper: str) -> None:
    async with Cluster(2, zookeeper=f"{zookeeper}/unknown") as cluster:
        with pytest.raises(HarnessError, match="there is no node 9 in this cluster; there are 1, 2"):
            await cluster.kill(9)
        with pytest.raises(HarnessError, match="use processes=True"):
            await cluster.pause(1)
        with pytest.raises(HarnessError, match="The topic 'nope' does not exist"):
            await cluster.delete_topic("nope")


async def test_an_error_in_the_body_comes_out_as_it_is(zookeeper: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Cluster(1, zookeeper=f"{zookeeper}/body"):
            raise ZeroDivisionError
