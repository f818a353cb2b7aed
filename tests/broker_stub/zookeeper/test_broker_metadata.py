"""BID and CID: configured, stored and generated broker ids, and the cluster id (section 14; 1.31, B11.7)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.errors import BrokerFailure
from kce.broker_stub.zookeeper.broker_metadata import (
    FILE_NAME,
    BrokerMetadata,
    check_cluster_id,
    choose_broker_id,
    read_metadata,
    write_metadata,
)
from kce.harness.errors import HarnessError
from kce.harness.node import Node
from kce.harness.world.real_disk import RealDisk
from kce.wire.configuration import ConfigError
from kce.wire.metadata_version import LATEST
from kce.zookeeper.admin_nodes import generate_broker_id
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import NodeData
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.controller.support import broker

CLUSTER = "cluster-A"
DISK = RealDisk()


class Cluster:
    """ZooKeeper in memory, and brokers that start like nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = MemoryZooKeeper()

    async def start(self, *log_dirs: str, cluster_id: str = CLUSTER, **properties: str) -> int:
        """Start a broker and return its id. Raises BrokerFailure."""
        directories = ",".join(str(self.folder / log_dir) for log_dir in log_dirs)
        given = {key.replace("_", "."): text for key, text in properties.items()}
        config = BrokerConfig.from_properties({"log.dirs": directories, **given})
        zk = KafkaZkClient(self.server.connect(), now_ms=lambda: 0)
        await zk.create_top_level_paths()
        known = read_metadata(DISK, config.log_dirs, {})
        check_cluster_id(config, cluster_id, known)
        broker_id = await choose_broker_id(zk, config, known)
        write_metadata(DISK, config.log_dirs, BrokerMetadata(cluster_id, broker_id), {})
        await zk.register_broker(broker(broker_id), LATEST)
        await zk.store.aclose()
        return broker_id

    def known(self, *log_dirs: str) -> list[BrokerMetadata]:
        return [read_metadata(DISK, [str(self.folder / log_dir)], {}) for log_dir in log_dirs]

    def write(self, log_dir: str, text: str) -> None:
        (self.folder / log_dir).mkdir(exist_ok=True)
        (self.folder / log_dir / FILE_NAME).write_text(text)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.kafka("BID-1")
async def test_a_generated_id_is_kept(cluster: Cluster) -> None:  # rule 1.31
    assert await cluster.start("a") == 1001
    assert cluster.known("a") == [BrokerMetadata(CLUSTER, 1001)]
    assert await cluster.start("a") == 1001
    assert await cluster.start("b", reserved_broker_max_id="5") == 7  # the second generated id


@pytest.mark.kafka("BID-2")
async def test_generated_ids_beside_a_configured_one(cluster: Cluster) -> None:
    assert [await cluster.start("a"), await cluster.start("b", broker_id="0"), await cluster.start("c")] == [
        1001,
        0,
        1002,
    ]
    assert [known.broker_id for known in cluster.known("a", "b", "c")] == [1001, 0, 1002]


@pytest.mark.kafka("BID-3")
async def test_without_generation_an_id_must_be_configured(cluster: Cluster) -> None:
    disabled = {"broker_id_generation_enable": "false", "reserved_broker_max_id": "0"}
    assert await cluster.start("a", broker_id="3", **disabled) == 3
    assert cluster.known("a") == [BrokerMetadata(CLUSTER, 3)]
    with pytest.raises(ConfigError, match=r"broker\.id\.generation\.enable is false"):
        await cluster.start("b", broker_id_generation_enable="false")


@pytest.mark.kafka("BID-4")
async def test_every_directory_stores_the_id(cluster: Cluster) -> None:
    assert await cluster.start("a", "b") == 1001
    assert cluster.known("a", "b") == [BrokerMetadata(CLUSTER, 1001)] * 2
    assert await cluster.start("a", "b", "c/new") == 1001
    assert cluster.known("a", "b", "c/new") == [BrokerMetadata(CLUSTER, 1001)] * 3


@pytest.mark.kafka("BID-5")
async def test_a_configured_id_that_differs_from_the_stored_one_is_refused(cluster: Cluster) -> None:
    assert await cluster.start("generated") == 1001
    assert await cluster.start("a", broker_id="1") == 1
    with pytest.raises(BrokerFailure, match=r"broker\.id=2: meta\.properties in .*a has 1"):
        await cluster.start("a", broker_id="2")
    assert await cluster.start("a", broker_id="1") == 1
    assert await cluster.start("a") == 1


@pytest.mark.slow
@pytest.mark.kafka("BID-6")
async def test_an_id_that_could_not_be_registered_is_stored(zookeeper: str, tmp_path: Path) -> None:  # rule B11.1
    def node(log_dir: str, broker_id: int) -> Node:
        return Node(
            {
                "zookeeper.connect": f"{zookeeper}/colliding-ids",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "broker.id": str(broker_id),
                "log.dirs": str(tmp_path / log_dir),
            }
        )

    def stored(log_dir: str) -> int | None:
        return read_metadata(DISK, [str(tmp_path / log_dir)], {}).broker_id

    first, third = node("a", 1), node("b", 3)
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run)
        with pytest.raises(HarnessError, match="broker id 1 is already registered"):
            await node("b", 1).run()
        assert stored("b") == 1
        with pytest.raises(HarnessError, match=r"broker\.id=2: meta\.properties in .*b has 1"):
            await node("b", 2).run()
        shutil.rmtree(tmp_path / "b")
        await nursery.start(third.run)
        await first.shutdown(controlled=False)
        await third.shutdown(controlled=False)
    assert (stored("a"), stored("b")) == (1, 3)


@pytest.mark.kafka("CID-4")
async def test_a_matching_cluster_id_is_accepted(cluster: Cluster) -> None:
    for log_dir in "ab":
        cluster.write(log_dir, f"version=0\ncluster.id={CLUSTER}\n")
    for _ in range(2):
        assert await cluster.start("a", "b", broker_id="1") == 1
        assert cluster.known("a", "b") == [BrokerMetadata(CLUSTER, 1)] * 2


@pytest.mark.kafka("CID-5")
async def test_a_different_cluster_id_is_refused(cluster: Cluster) -> None:
    await cluster.start("a", broker_id="1", cluster_id="cluster-B")
    with pytest.raises(BrokerFailure, match=r"has id cluster-A, but meta\.properties in .*a has cluster-B"):
        await cluster.start("a", broker_id="1")


@pytest.mark.kafka("CID-6")
@pytest.mark.parametrize(("key", "values"), [("cluster.id", ("A", "B")), ("broker.id", ("1", "2"))])
async def test_directories_with_different_ids_are_refused(cluster: Cluster, key: str, values: Sequence[str]) -> None:
    for log_dir, value in zip("ab", values, strict=True):
        cluster.write(log_dir, f"version=0\n{key}={value}\n")
    with pytest.raises(BrokerFailure, match=rf"disagree on {key}: {values[0]} in .*a/.*, {values[1]} in .*b/"):
        await cluster.start("a", "b", broker_id="1")


@pytest.mark.kafka("ZKCT-49")
async def test_the_sequence_of_broker_ids() -> None:  # rule 1.31
    zk = KafkaZkClient(MemoryZooKeeper().connect(), now_ms=lambda: 0)
    assert [await generate_broker_id(zk, 0) for _ in range(3)] == [1, 2, 3]
    (node,) = await zk.get_data(["/brokers/seqid"])
    assert isinstance(node, NodeData)
    assert node.stat.version == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version=1\nnode.id=1\n", "version=1: a ZooKeeper cluster has 0"),
        ("version=\n", "version=: a ZooKeeper cluster has 0"),
        ("version=0\nbroker.id=one\n", "broker.id=one, which is not a valid id"),
        ("version=0\nbroker.id=-3\n", "broker.id=-3, which is not a valid id"),
    ],
)
def test_invalid_meta_properties_are_refused(cluster: Cluster, text: str, problem: str) -> None:
    cluster.write("a", text)
    with pytest.raises(BrokerFailure, match=f"a/{FILE_NAME} has {problem}"):
        cluster.known("a")


def test_directories_whose_file_cannot_be_read_or_written_have_failed(cluster: Cluster) -> None:  # B11.9, B11.10
    (cluster.folder / "a" / FILE_NAME).mkdir(parents=True)
    (cluster.folder / "b" / f"{FILE_NAME}.tmp").mkdir(parents=True)
    cluster.write("c", f"version=0\nbroker.id=1\ncluster.id={CLUSTER}\n")
    log_dirs = [str(cluster.folder / name) for name in "abcd"]
    failed: dict[str, OSError] = {}
    metadata = read_metadata(DISK, log_dirs, failed)
    assert (metadata, [*failed]) == (BrokerMetadata(CLUSTER, 1), log_dirs[:1])
    write_metadata(DISK, log_dirs, metadata, failed)
    assert [*failed] == log_dirs[:2]
    assert cluster.known("d") == [metadata]


@pytest.mark.parametrize("text", ["", "# nothing\n", f"cluster.id={CLUSTER}\n"])
async def test_a_file_without_a_version_has_the_first_one(cluster: Cluster, text: str) -> None:
    """A full disk may have left an empty one."""
    await cluster.start("a", broker_id="1")
    cluster.write("b", text)
    assert await cluster.start("a", "b", broker_id="1") == 1
    assert cluster.known("b") == [BrokerMetadata(CLUSTER, 1)]


@pytest.mark.parametrize(
    "text", ["broker.id: 7\n", "broker.id 7\n", "broker\\.id=\\u0037\n", "broker.\\\n  id=7\n", "a=\xff\nbroker.id=7\n"]
)
def test_the_file_is_read_as_java_reads_properties(cluster: Cluster, text: str) -> None:
    """So the directory of another broker is not taken for a new one. Measured with Kafka."""
    cluster.write("a", "")
    (cluster.folder / "a" / FILE_NAME).write_bytes(text.encode("latin-1"))
    assert cluster.known("a") == [BrokerMetadata(None, 7)]


def test_kafkas_meta_properties_is_read(cluster: Cluster) -> None:
    cluster.write(
        "a", "#\n#Sat Nov 21 10:00:00 UTC 2026\nbroker.id=1002\nversion=0\ncluster.id=v1-qzQ6_RaqbqfkuCPaBGQ\n"
    )
    assert cluster.known("a") == [BrokerMetadata("v1-qzQ6_RaqbqfkuCPaBGQ", 1002)]


@pytest.mark.slow
async def test_nodes_without_a_configured_id_generate_one(zookeeper: str, tmp_path: Path) -> None:
    """The id comes from a real ZooKeeper and survives a restart."""
    properties = {
        "zookeeper.connect": f"{zookeeper}/generated-ids",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "logs"),
    }
    for _ in range(2):
        node = Node(properties)
        assert node.id == -1
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            assert node.id == 1001
            assert node.controller.config.broker_id == 1001
            assert await node._zk.get_broker(1001) is not None
            await node.shutdown(controlled=False)
    assert read_metadata(DISK, [str(tmp_path / "logs")], {}).broker_id == 1001
