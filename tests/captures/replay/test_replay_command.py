"""`kce replay`: wrong arguments, and a live cluster as controller, client and broker.

Covers: harness/cli/replay.py, harness/cli/impersonate.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from kce import wire
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder, TappedStream
from kce.captures.replay.impersonation import Impersonator
from kce.captures.replay.recording import Recording
from kce.harness import Cluster
from kce.harness.cli import cli, impersonate
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import Endpoint
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, RegisteredBroker
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.captures.made_files import pcap
from tests.captures.replay.test_impersonation import ask
from tests.captures.samples import CAPTURES

ZOMBIE, TOUR = CAPTURES["kafka-3.9.1-zombie"], CAPTURES["kafka-3.9.1-tour"]


def kce(*arguments):
    result = CliRunner().invoke(cli, ["replay", *map(str, arguments)])
    return result.exit_code, result.stdout, f"{result.stderr}{result.exception or ''}"


def test_dry_run_shows_what_would_be_sent_and_where():
    result = CliRunner().invoke(
        cli,
        ["replay", str(ZOMBIE), "--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--dry-run",
         "--controller-epoch", "+10", "--broker-epoch", "500"],
        standalone_mode=False, catch_exceptions=False,
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert result.return_value == 0
    assert f"{len(lines)} requests would be sent; 0 cannot be" in result.stderr
    assert all(line.endswith("=> 127.0.0.1:1") for line in lines)
    (zombie,) = [line for line in lines if " 386 " in line]
    assert "controller 2 epoch 11 broker epoch 500" in zombie
    epochs = {line.partition("controller ")[2].split()[2] for line in lines}
    assert epochs == {"11", "12", "13"}


def test_dry_run_shows_the_topics_that_would_be_created():
    arguments = ("--as", "client", "--connection", "98", "--to", "127.0.0.1:1", "--dry-run")
    code, sent, err = kce(TOUR, *arguments, "--create-topics")
    assert code == 0
    expected = "kce: topic orders would be created if it is missing; partitions led: 0 by 1, 1 by 2, 2 by 3, 3 by 1\n"
    assert err.startswith(expected)
    assert kce(TOUR, *arguments) == (0, sent, err.removeprefix(expected))


def test_what_was_read_of_files_in_a_wrong_order_is_not_replayed_without_a_word(tmp_path):
    with CaptureFile(TOUR) as capture:
        packets = [(packet.time_ns, packet.data) for packet in capture]
    joined = tmp_path / "joined.pcap"
    joined.write_bytes(pcap(packets[1500:] + packets[:1500], nanoseconds=True))
    code, _, err = kce(joined, "--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--dry-run")
    assert code == 0
    assert f"kce: {joined}: time goes back once by 29" in err


def test_what_a_capture_lacks_is_not_left_out_without_a_word(tmp_path):
    with CaptureFile(ZOMBIE) as capture:
        packets = [(packet.time_ns, packet.data) for packet in capture]
    lossy = tmp_path / "lossy.pcap"
    lossy.write_bytes(pcap([packet for i, packet in enumerate(packets) if i % 20], nanoseconds=True))
    for file, is_told in ((lossy, True), (ZOMBIE, False)):
        code, _, err = kce(file, "--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--dry-run")
        assert code == 0
        assert (" bytes missing\n" in err, "to requests that were not captured" in err) == (is_told, is_told)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--as", "controller", "--to", "127.0.0.1:1"], "the requests went to brokers 1, 2, 3: choose one"),
        (["--as", "controller", "--to", "1=127.0.0.1:1"], "for which there is no --to"),
        (["--as", "controller", "--broker", "2"], "--to HOST:PORT is missing"),
        (["--as", "controller", "--broker", "9", "--to", "127.0.0.1:1"], "; the ids of those asked are 1, 2, 3"),
        (["--as", "broker", "--broker", "9", "--zookeeper", "127.0.0.1:1"], "no request went to a broker 9"),
        (["--as", "controller", "--broker", "2", "--api", "Fetch", "--to", "127.0.0.1:1"], "no request matches --as"),
        (["--as", "controller", "--to", "nowhere"], "--to nowhere: not HOST:PORT or ID=HOST:PORT"),
        (
            ["--as", "controller", "--broker", "2", "--to", "127.0.0.1:1", "--broker-epoch", "x"],
            "--broker-epoch x: neither a number nor current",
        ),
        (
            ["--as", "controller", "--broker", "2", "--to", "127.0.0.1:1", "--controller-epoch", "1.5"],
            "--controller-epoch 1.5: neither a number, +number nor current",
        ),
        (
            ["--as", "client", "--to", "127.0.0.1:1"],
            "connections; choose a client by --client-id or --connection. The first",
        ),
        (["--as", "client", "--to", "127.0.0.1:1"], "('tour-producer' to 127.0.0.1:"),
        (
            ["--as", "client", "--client-id", "no", "--to", "127.0.0.1:1"],
            "no request matches --as client and the filters",
        ),
        (["--as", "broker"], "--as broker needs --broker ID"),
        (["--as", "controller", "--record", ZOMBIE], "would overwrite the recording"),
        (["--as", "client", "--connection", "93", "--restart"], "--restart needs --as controller"),
        (["--as", "controller", "--create-topics"], "--create-topics needs --as client"),
        (["--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--controller-epoch", "0"], "would be below 0"),
        (
            ["--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--controller-epoch", "+9999999999"],
            "--controller-epoch +9999999999: controller epoch 1 shifted by 9999999999 would have more than 32 bits",
        ),
        *(
            (
                ["--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--broker-epoch", epoch],
                f"--broker-epoch {epoch}: must be from 0 to 9223372036854775807",
            )
            for epoch in ("-1", str(2**63))
        ),
        (["--as", "controller", "--broker", "3", "--to", "127.0.0.1:70000"], "--to 127.0.0.1:70000: not HOST:PORT"),
        (["--as", "client", "--connection", "93", "--to", "127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
    ],
)
def test_wrong_arguments(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # other running clusters are not found
    code, _, err = kce(ZOMBIE, *arguments)
    assert code != 0
    assert expected in err


def test_where_restarts_cannot_be_found_it_says_so():
    told = "restarts are not found in a recording without broker epochs"
    for name, is_told in (("kafka-1.1.1-tour", True), ("kafka-2.3.1-tour", False)):
        _, _, err = kce(CAPTURES[name], "--as", "controller", "--broker", "1", "--to", "127.0.0.1:1")
        assert (told in err) == is_told


def test_an_interrupted_replay_says_so_and_what_it_has_sent():
    """Of one whose first request is never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def interrupt():
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                os.kill(os.getpid(), signal.SIGINT)
                while connection.recv(1 << 16):
                    pass

        with ThreadPoolExecutor(1) as pool:
            interrupting = pool.submit(interrupt)
            result = CliRunner().invoke(
                cli,
                ["replay", str(ZOMBIE), "--as", "controller", "--broker", "3", "--no-wait",
                 "--to", f"127.0.0.1:{server.getsockname()[1]}"],
                standalone_mode=False, catch_exceptions=False,
            )  # fmt: skip
            interrupting.result(60)
    assert result.return_value == 130
    assert "requests replayed: " in result.stdout
    assert result.stderr.splitlines()[-1] == "kce: interrupted"


COMMAND = [sys.executable, "-m", "kce.harness", "replay"]


@pytest.mark.slow
async def test_at_a_live_cluster_as_controller_as_client_and_as_broker(zookeeper, tmp_path):
    where = f"{zookeeper}/replay"
    async with Cluster(1, zookeeper=where) as cluster:
        await cluster.wait_for_controller()
        (node,) = cluster.members

        async def run(*arguments):
            done = await trio.run_process(
                [*COMMAND, *map(str, arguments)], capture_stdout=True, capture_stderr=True, check=False
            )
            return done.returncode, done.stdout.decode(), done.stderr.decode()

        new = tmp_path / "new.pcapng"
        code, out, err = await run(
            TOUR, "--as", "controller", "--broker", 1, "--api", "UpdateMetadata", "--to", node.addresses["CONTROL"],
            "--controller-epoch", "current", "--broker-epoch", "current", "--zookeeper", where, "--no-wait",
            "--until", "2026-11-21T02:44:28", "--record", new,
        )  # fmt: skip
        assert code == 0, (out, err)
        sent = int(out.split()[0])
        assert sent > 3
        assert f"{sent} same" in out
        with CaptureFile(new) as capture:
            recorded = Recording.read(capture).steps
        assert len(recorded) == sent
        assert all(step.response.body.error_code == 0 for step in recorded)

        # what was just recorded, as a client
        code, out, err = await run(new, "--as", "client", "--to", node.addresses["CONTROL"], "--speed", 100)
        assert (code, out) == (0, f"{sent} requests replayed: {sent} same\n"), err

        broker = await trio.lowlevel.open_process(
            [*COMMAND, str(TOUR), "--as", "broker", "--broker", "2", "--zookeeper", where], stdout=subprocess.PIPE
        )

        async def registered():
            return await cluster.registered() == {1, 2}

        await cluster.wait_until(registered, "the recorded broker to register")
        await cluster.create_topic("orders", assignment={0: [1, 2]})  # the controller sends it the new partition

        async def has_answered():
            unanswered = (await cluster.node_status(node.id)).unanswered
            return 2 in unanswered and not any(unanswered.values())

        await cluster.wait_until(has_answered, "the recorded broker to answer")
        broker.send_signal(signal.SIGINT)
        output = b"".join([data async for data in broker.stdout]).decode()
        await broker.wait()
        assert "UpdateMetadata v8 #0: answered" in output
        assert "LeaderAndIsr v7" in output
        assert "0 of them without a recorded response" in output


async def test_a_second_signal_does_not_lose_what_a_recorded_broker_answered(monkeypatch):
    said = []

    def say(text, err=False):
        said.append(text)
        signal.raise_signal(signal.SIGINT)  # as `timeout` does, which signals its child and its group

    @contextlib.asynccontextmanager
    async def registered(*_):
        yield

    monkeypatch.setattr(impersonate, "_registered", registered)
    monkeypatch.setattr(impersonate.click, "echo", say)
    assert await impersonate.be_broker(Impersonator([]), 2, None, ["DATA"], (None, None), None) == 0
    assert said[1:] == ["0 requests, 0 of them without a recorded response"]


async def memory_registry(monkeypatch):
    """(server, store, client, messages) of the ZooKeeper of a cluster; commands connect to it."""
    server = MemoryZooKeeper()
    store = server.connect()
    zk = KafkaZkClient(store, now_ms=lambda: 0, new_uuid=uuid.uuid4)
    await zk.create_top_level_paths()

    @contextlib.asynccontextmanager
    async def connected(*_):
        yield zk

    say, said = trio.open_memory_channel(10)
    monkeypatch.setattr(impersonate, "connected", connected)
    monkeypatch.setattr(impersonate.click, "echo", lambda text, err=False: say.send_nowait(text))
    return server, store, zk, said


async def test_a_recorded_broker_registers_again_when_its_session_has_expired(monkeypatch):
    server, store, _, said = await memory_registry(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(impersonate.be_broker, Impersonator([]), 2, None, ["DATA"], (None, None), None)
        with trio.fail_after(10):
            assert (await said.receive()).startswith("kce: registered with DATA://")
            server.expire(store)
            assert server.peek("/brokers/ids/2") is None
            assert await said.receive() == "kce: registered again: the ZooKeeper session had expired"
        assert server.peek("/brokers/ids/2") is not None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("offered", "is_told"), [(["DATA"], True), (["CONTROL", "DATA"], False)])
async def test_a_recorded_broker_without_the_listener_of_the_controller_says_so(offered, is_told, monkeypatch):
    _, _, zk, said = await memory_registry(monkeypatch)
    endpoints = tuple(Endpoint(name, "PLAINTEXT", "127.0.0.1", 9092) for name in ("CONTROL", "DATA"))
    await zk.register_broker(RegisteredBroker(BrokerId(1), endpoints), MetadataVersion.parse("3.9"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(impersonate.be_broker, Impersonator([]), 2, None, offered, (None, None), None)
        with trio.fail_after(10):
            assert (await said.receive()).startswith("kce: registered with ")
        nursery.cancel_scope.cancel()
    told = [] if said.statistics().current_buffer_used == 0 else [said.receive_nowait()]
    assert told == is_told * [
        "kce: the other brokers also have CONTROL, and it may not be reached without: "
        "--listener CONTROL --listener DATA offers these"
    ]


#: What a new cluster has of its own: what it made up when it was formed, which node was elected, which ports were free.
OF_THE_CLUSTER = ("cluster_id", "controller_id", "topic_id", "port", "v0_port")


@pytest.mark.slow
async def test_a_recorded_cluster_against_a_fresh_one_of_the_same_ids(zookeeper, tmp_path):
    """The same steps give the same answers, but for the fields that are listed."""

    async def settled(cluster):
        """The controller, once its broker knows the finalized features: its ApiVersions responses include them."""
        active = await cluster.wait_for_controller()
        features = cluster.member(active.id).node.broker.finalized_features
        await cluster.wait_until(lambda: is_known(features), "finalized features")
        return active

    async def is_known(features):
        return features.current is not None

    async def steps(cluster, recorder):
        """What an administrator asks the controller's node."""
        active = await settled(cluster)
        host, _, port = cluster.member(active.id).addresses["DATA"].partition(":")
        topics = tuple(
            wire.CreatableTopic(name=name, num_partitions=partitions, replication_factor=2)
            for name, partitions in (("orders", 3), ("audit", 1))
        )
        assigned = tuple(
            wire.CreatableReplicaAssignment(partition_index=i, broker_ids=(1 + i % 3, 1 + (i + 1) % 3))
            for i in range(2)
        )
        chosen = wire.CreatableTopic(
            name="chosen", num_partitions=-1, replication_factor=-1, assignments=assigned
        )  # fmt: skip
        names = tuple(wire.MetadataRequestTopic(name=name) for name in ("chosen", "nowhere"))
        stream = await trio.open_tcp_stream(host, int(port))
        async with TappedStream(
            stream, recorder.connection(("127.0.0.1", 40001), (host, int(port))), "client"
        ) as tapped:
            for number, (version, message) in enumerate([
                (3, wire.ApiVersionsRequest(client_software_name="test", client_software_version="1")),
                (7, wire.CreateTopicsRequest(topics=(chosen,), timeout_ms=10_000)),
                (7, wire.CreateTopicsRequest(topics=(chosen,), timeout_ms=10_000)),  # is there already
                (7, wire.CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)),
                (12, wire.MetadataRequest(topics=names, allow_auto_topic_creation=False)),
                (6, wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="nowhere"),), timeout_ms=10_000)),
            ]):  # fmt: skip
                assert await ask(tapped, message, version, number) is not None

    capture, traffic = tmp_path / "client.pcapng", tmp_path / "traffic.pcapng"
    recorder = Recorder(capture)
    async with Cluster(3, zookeeper=f"{zookeeper}/recorded", record=traffic) as cluster:
        await steps(cluster, recorder)
    recorder.close()
    volatile = [f"--volatile={name}" for name in OF_THE_CLUSTER]
    async with Cluster(3, zookeeper=f"{zookeeper}/for-the-client") as cluster:
        active = await settled(cluster)
        output = await replayed(capture, "client", f"--to={cluster.member(active.id).addresses['DATA']}", *volatile)
        assert output == "6 requests replayed: 6 same\n"
    where = f"{zookeeper}/for-the-controller"
    async with Cluster(3, zookeeper=where) as cluster:
        await cluster.wait_for_controller()
        output = await replayed(
            traffic, "controller", "--controller-epoch=+5", "--broker-epoch=current", f"--zookeeper={where}",
            "--no-wait",
            *(f"--to={member.id}={member.addresses['CONTROL']}" for member in cluster.members),
        )  # fmt: skip
    sent = int(output.split()[0])
    assert sent >= 9
    assert output == f"{sent} requests replayed: {sent} same\n"


async def replayed(file, role, *arguments):
    done = await trio.run_process(
        [*COMMAND, str(file), "--as", role, *arguments], capture_stdout=True, capture_stderr=True, check=False
    )
    return done.stdout.decode() + done.stderr.decode()
