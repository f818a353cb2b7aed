"""BID and CID: broker ids that are configured, found or generated, and the cluster's (section 14; 1.31, B11.7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from broker_stub.config import BrokerConfig, ConfigError
from controller.admin_nodes import generate_broker_id
from controller.kafka_zk_client import KafkaZkClient
from controller.store import Data
from controller.store.memory import MemoryZooKeeper
from harness.broker_metadata import (
    FILE_NAME,
    BrokerMetadata,
    check_cluster_id,
    choose_broker_id,
    read_metadata,
    write_metadata,
)
from harness.errors import HarnessError
from harness.node import Node
from tests.controller.support import broker
from wire.metadata_version import LATEST

CLUSTER = "cluster-A"


class Cluster:
    """ZooKeeper in memory, and brokers that start as nodes do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = MemoryZooKeeper()

    async def start(self, *log_dirs: str, cluster_id: str = CLUSTER, **properties: str) -> int:
        """The id that the broker has, once it is registered. Raises HarnessError."""
        directories = ",".join(str(self.folder / log_dir) for log_dir in log_dirs)
        given = {key.replace("_", "."): text for key, text in properties.items()}
        config = BrokerConfig.from_properties({"log.dirs": directories, **given})
        zk = KafkaZkClient(self.server.connect(), now_ms=lambda: 0)
        await zk.make_top_level_paths()
        known = read_metadata(config.log_dirs)
        check_cluster_id(config, cluster_id, known)
        broker_id = await choose_broker_id(zk, config, known)
        await zk.register_broker(broker(broker_id), LATEST)
        write_metadata(config.log_dirs, BrokerMetadata(cluster_id, broker_id))
        await zk.store.aclose()
        return broker_id

    def known(self, *log_dirs: str) -> list[BrokerMetadata]:
        return [read_metadata([str(self.folder / log_dir)]) for log_dir in log_dirs]

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
    assert await cluster.start("b", reserved_broker_max_id="5") == 7  # the second that is drawn


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
    assert await cluster.start("a", broker_id="3", broker_id_generation_enable="false") == 3
    with pytest.raises(ConfigError, match="an id is needed"):
        await cluster.start("b", broker_id_generation_enable="false")


@pytest.mark.kafka("BID-4")
async def test_every_directory_knows_the_id(cluster: Cluster) -> None:
    assert await cluster.start("a", "b") == 1001
    assert cluster.known("a", "b") == [BrokerMetadata(CLUSTER, 1001)] * 2
    assert await cluster.start("a", "b", "c/new") == 1001
    assert cluster.known("c/new") == [BrokerMetadata(CLUSTER, 1001)]


@pytest.mark.kafka("BID-5")
async def test_a_configured_id_that_is_not_the_known_one(cluster: Cluster) -> None:
    await cluster.start("a", broker_id="1")
    with pytest.raises(HarnessError, match=r"broker\.id=2: meta\.properties in .*a says 1"):
        await cluster.start("a", broker_id="2")
    assert await cluster.start("a", broker_id="1") == 1
    assert await cluster.start("a") == 1


@pytest.mark.slow
@pytest.mark.kafka("BID-6")
async def test_a_registration_that_fails_leaves_nothing_behind(zookeeper: str, tmp_path: Path) -> None:
    def node(log_dir: str) -> Node:
        return Node(
            {
                "zookeeper.connect": f"{zookeeper}/colliding-ids",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "broker.id": "1",
                "log.dirs": str(tmp_path / log_dir),
            }
        )

    first = node("a")
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run)
        with pytest.raises(HarnessError, match="broker id 1 is already registered"):
            await node("b").run()
        assert not (tmp_path / "b").exists()
        await first.shutdown(controlled=False)
    assert read_metadata([str(tmp_path / "a")]).broker_id == 1


@pytest.mark.kafka("CID-4")
async def test_a_cluster_id_that_is_the_known_one(cluster: Cluster) -> None:
    for log_dir in "ab":
        cluster.write(log_dir, f"version=0\ncluster.id={CLUSTER}\n")
    assert await cluster.start("a", "b", broker_id="1") == 1


@pytest.mark.kafka("CID-5")
async def test_a_cluster_id_that_is_another(cluster: Cluster) -> None:
    await cluster.start("a", broker_id="1", cluster_id="cluster-B")
    with pytest.raises(HarnessError, match=r"has id cluster-A, meta\.properties in .*a says cluster-B"):
        await cluster.start("a", broker_id="1")


@pytest.mark.kafka("CID-6")
@pytest.mark.parametrize(("key", "values"), [("cluster.id", ("A", "B")), ("broker.id", ("1", "2"))])
async def test_directories_that_do_not_agree(cluster: Cluster, key: str, values: Sequence[str]) -> None:
    for log_dir, value in zip("ab", values, strict=True):
        cluster.write(log_dir, f"version=0\n{key}={value}\n")
    with pytest.raises(HarnessError, match=rf"do not agree on {key}: {values[0]} in .*a/.*, {values[1]} in .*b/"):
        await cluster.start("a", "b", broker_id="1")


@pytest.mark.kafka("ZKCT-49")
async def test_the_sequence_of_broker_ids() -> None:  # rule 1.31
    zk = KafkaZkClient(MemoryZooKeeper().connect(), now_ms=lambda: 0)
    assert [await generate_broker_id(zk, 0) for _ in range(3)] == [1, 2, 3]
    (node,) = await zk.get_data(["/brokers/seqid"])
    assert isinstance(node, Data)
    assert node.stat.version == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version=1\nnode.id=1\n", "version=1: only 0 is of a ZooKeeper cluster"),
        ("# nothing\n", "version=: only 0"),
        ("version=0\nbroker.id=one\n", "broker.id=one, which is no id"),
        ("version=0\nbroker.id=-3\n", "broker.id=-3, which is no id"),
    ],
)
def test_files_that_are_no_meta_properties(cluster: Cluster, text: str, told: str) -> None:
    cluster.write("a", text)
    with pytest.raises(HarnessError, match=f"a/{FILE_NAME} has {told}"):
        cluster.known("a")


def test_files_that_cannot_be_read_or_written(cluster: Cluster) -> None:
    (cluster.folder / "a" / FILE_NAME).mkdir(parents=True)
    with pytest.raises(HarnessError, match="cannot be read"):
        cluster.known("a")
    (cluster.folder / "b").write_text("a file")
    with pytest.raises(HarnessError, match="cannot be written"):
        write_metadata([str(cluster.folder / "b")], BrokerMetadata(CLUSTER, 1))


def test_a_file_of_kafkas(cluster: Cluster) -> None:
    cluster.write(
        "a", "#\n#Sat Nov 21 10:00:00 UTC 2026\nbroker.id=1002\nversion=0\ncluster.id=v1-qzQ6_RaqbqfkuCPaBGQ\n"
    )
    assert cluster.known("a") == [BrokerMetadata("v1-qzQ6_RaqbqfkuCPaBGQ", 1002)]


@pytest.mark.slow
async def test_nodes_without_an_id(zookeeper: str, tmp_path: Path) -> None:
    """They draw one from a real ZooKeeper, and have it again when they come back."""
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
    assert read_metadata([str(tmp_path / "logs")]).broker_id == 1001
