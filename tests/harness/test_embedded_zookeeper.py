"""The embedded ZooKeeper: its folder, its port, its archive, and what is reported when it does not start.

Covers: harness/embedded_zookeeper.py, harness/archive_classes.py, harness/class_archive.py.
"""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

from kce.harness import archive_classes, class_archive
from kce.harness.embedded_zookeeper import embedded_zookeeper, four_letter_word, free_port
from kce.harness.errors import HarnessError


@pytest.mark.slow
async def test_data_survives_a_restart_on_the_same_port(tmp_path: Path) -> None:
    port = free_port()
    for _ in range(2):
        async with embedded_zookeeper(tmp_path, port=port, settings={"maxSessionTimeout": "77777"}) as address:
            assert address == f"127.0.0.1:{port}"
            assert "maxSessionTimeout=77777" in await four_letter_word("127.0.0.1", port, "conf")
    assert await four_letter_word("127.0.0.1", port, "ruok") == ""
    assert list((tmp_path / "data").glob("version-2/snapshot.*"))


@pytest.mark.slow
async def test_a_port_in_use_is_one_line_that_names_the_option(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HarnessError, match=f"^port {port} for ZooKeeper is in use.*--zookeeper-port$"):
            async with embedded_zookeeper(tmp_path, port=port):
                pass


@pytest.mark.slow
async def test_the_last_error_of_a_zookeeper_that_does_not_start_is_shown(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=rf"^ZooKeeper did not start, see {tmp_path}/zookeeper\.log: .*ERROR.*\S$"):
        async with embedded_zookeeper(tmp_path, settings={"tickTime": "soon"}):
            pass


@pytest.mark.slow
async def test_a_zookeeper_without_memory_ends(tmp_path: Path) -> None:
    """It would answer ever more slowly, and sessions would expire, with nothing that says why."""

    def create(client: KazooClient) -> None:
        for i in range(100):
            client.create(f"/{i}", bytes(1_000_000))

    def fill(address: str) -> None:
        client = KazooClient(address)
        client.start()
        try:
            with pytest.raises((ConnectionLoss, SessionExpiredError)):
                create(client)
        finally:
            client.stop()
            client.close()

    async with embedded_zookeeper(tmp_path, jvm=["-Xmx24m"]) as address:
        await trio.to_thread.run_sync(fill, address)
    assert "Terminating due to java.lang.OutOfMemoryError" in (tmp_path / "zookeeper.log").read_text()


async def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HarnessError, match=r"data folder .*file/zookeeper/data cannot be"):
        async with embedded_zookeeper(tmp_path / "file" / "zookeeper"):
            pass


@pytest.mark.slow
async def test_zookeeper_maps_the_archive_of_its_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = set(psutil.Process().children())

    async def mapped() -> set[str]:
        async with embedded_zookeeper(tmp_path / "folder"):
            started = set(psutil.Process().children()) - before
            return {file.path for process in started for file in process.memory_maps()}

    assert not [path for path in await mapped() if path.startswith(str(tmp_path))]  # there is none
    await trio.to_thread.run_sync(archive_classes.main)
    archives = list((tmp_path / "cache").rglob("*.jsa"))
    assert len(archives) == class_archive.can_be_written()
    assert set(map(str, archives)) <= await mapped()
    await trio.to_thread.run_sync(archive_classes.main)  # `make setup` again
    assert list((tmp_path / "cache").rglob("*.jsa")) == archives
