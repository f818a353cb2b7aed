"""Sockets, folders and ZooKeeper addresses of the real world.

Covers: harness/world/port.py.
"""

from __future__ import annotations

import errno
import fcntl
import resource
import socket
from pathlib import Path

import pytest
import trio

from kce.harness.errors import HarnessError
from kce.harness.world import Connected, RealWorld, real, real_world
from kce.harness.world.real_world import allow_open_files
from kce.harness.world.tcp_stream import TcpStream


async def test_both_ends_of_a_connection_know_each_other() -> None:
    world = RealWorld()
    listener = await world.bind("127.0.0.1", 0)
    listener.listen(1)
    address = listener.address
    dialled = await world.connect(*address)
    accepted = await listener.accept()
    assert (dialled.local, dialled.remote) == (accepted.remote, accepted.local)
    assert accepted.local == address
    await dialled.stream.send_all(b"x")
    assert await accepted.stream.receive_some() == b"x"
    for stream in (dialled.stream, accepted.stream):
        await stream.aclose()
    listener.close()
    listener.close()
    with pytest.raises(OSError, match="connect"):
        await world.connect(*address)


def test_a_client_of_ipv4_has_its_own_name_on_a_listener_of_ipv6() -> None:
    assert real_world._named(("::ffff:127.0.0.1", 5, 0, 0)) == ("127.0.0.1", 5)
    assert real_world._named(("::1", 5, 0, 0)) == ("::1", 5)
    assert real_world._named(("127.0.0.1", 5)) == ("127.0.0.1", 5)


async def test_a_zone_has_the_name_of_its_interface() -> None:
    world = RealWorld()
    try:
        listener = await world.bind(f"::1%{socket.if_indextoname(1)}", 0)
    except OSError as e:
        if e.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip("no IPv6")
        raise
    listener.listen(1)
    dialled = await world.connect(f"::1%{socket.if_indextoname(1)}", listener.address[1])
    accepted = await listener.accept()
    for each in (dialled, accepted):
        await each.stream.aclose()
    listener.close()
    with pytest.raises(OSError, match="not known"):
        await world.bind("::1%nowhere", 0)


async def test_accepted_sockets_keep_alive_and_do_not_delay() -> None:  # rule B1.14
    world = RealWorld()
    listener = await world.bind("127.0.0.1", 0)
    listener.listen(1)
    dialled = await world.connect(*listener.address)
    stream = (await listener.accept()).stream
    assert isinstance(stream, TcpStream)
    assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    for each in (stream, dialled.stream):
        await each.aclose()
    listener.close()


async def test_a_port_in_use_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await RealWorld().bind("127.0.0.1", taken.getsockname()[1])


async def test_a_data_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(HarnessError, match=f"the data folder {in_the_way / 'data'} is not writable"):
        async with real("127.0.0.1:1").running(in_the_way / "data", None):
            pass


async def test_a_data_folder_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: a file can be made, but not be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(HarnessError, match=f"the data folder {tmp_path} is not writable: File too large"):
            async with real("127.0.0.1:1").running(tmp_path, None):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "logs").iterdir()) == []


async def test_two_clusters_do_not_share_the_data_of_a_zookeeper(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a cluster that runs
        with pytest.raises(HarnessError, match=f"the data folder {tmp_path} is in use by another cluster"):
            async with real().running(tmp_path, None):
                pass
        async with real("127.0.0.1:1").running(tmp_path, None) as folder:  # its nodes lock what is theirs
            assert folder == tmp_path
    assert not (tmp_path / "zookeeper").exists()


async def test_a_temporary_data_folder_is_removed_and_a_given_one_is_kept(tmp_path: Path) -> None:
    async with real("127.0.0.1:1").running(None, None) as temporary:
        assert (temporary / "logs").is_dir()
    assert not temporary.exists()
    async with real("127.0.0.1:1").running(tmp_path / "data", None) as given:
        assert given == tmp_path / "data"
    assert (given / "logs").is_dir()


@pytest.mark.parametrize("connect", ["127.0.0.1:{port},127.0.0.2:1/a/b", "127.0.0.1:{port}/a/b"])
async def test_a_node_reaches_zookeeper_through_its_proxy(connect: str, nursery: trio.Nursery, tmp_path: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    world = real(connect.format(port=listener.socket.getsockname()[1]))
    async with listener, world.running(tmp_path, None):
        _, through = await world.node(1, nursery)
        address, _, chroot = through.partition("/")
        assert chroot == "a/b"
        assert len(address.split(",")) == len(world.servers())
        proxy = "127.0.0.1", int(address.split(",")[0].rpartition(":")[2])
        async with await trio.open_tcp_stream(*proxy) as stream, await listener.accept() as accepted:
            await accepted.send_all(b"x")
            assert await stream.receive_some() == b"x"
            assert not world.is_cut(1)
            world.cut(1)
            assert await stream.receive_some() == b""
            assert world.is_cut(1)
        world.heal(1)
        assert not world.is_cut(1)


@pytest.mark.parametrize(
    ("connect", "address"),
    [("zk:9", [("zk", 9)]), ("zk", [("zk", 2181)]), ("zk,other:9/x", [("zk", 2181), ("other", 9)]),
     ("[::1]:9", [("::1", 9)])],
)  # fmt: skip
def test_the_servers_of_zookeeper(connect: str, address: list[tuple[str, int]]) -> None:
    assert real(connect).servers() == address


def test_a_zookeeper_port_that_is_no_number_is_an_error() -> None:
    with pytest.raises(HarnessError, match="zk:x"):
        real("zk:x/a").servers()


@pytest.mark.parametrize(
    ("limits", "raised"), [((64, 4096), (256, 4096)), ((1024, 4096), None), ((-1, -1), None), ((64, -1), (256, -1))]
)
def test_the_limit_of_open_files_is_raised(
    limits: tuple[int, int], raised: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    monkeypatch.setattr("resource.setrlimit", lambda _, wanted: calls.append(wanted))
    allow_open_files()
    assert calls == ([] if raised is None else [raised])


def test_a_limit_of_open_files_that_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    error = r"limit of open files is 64, .* at least 256: raise it with `ulimit -n 1024`"
    with pytest.raises(HarnessError, match=error):
        allow_open_files()


async def test_a_connection_that_the_peer_resets_at_once_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[socket.socket] = []

    def reset(connected: socket.socket) -> Connected:
        seen.append(connected)
        raise OSError(errno.ENOTCONN, "the peer has reset it")

    monkeypatch.setattr(real_world, "_connected", reset)
    listener = await RealWorld().bind("127.0.0.1", 0)
    try:
        listener.listen(1)
        with pytest.raises(OSError, match="reset it"):
            await RealWorld().connect(*listener.address)
    finally:
        listener.close()
    assert [each.fileno() for each in seen] == [-1]
