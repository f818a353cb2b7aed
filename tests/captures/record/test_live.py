"""Live capture: on the loopback interface where that is allowed, and in memory what does not need it."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kce.captures.errors import CaptureError
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.quality import Quality
from kce.captures.files.pcap import CaptureFile
from kce.captures.record import live
from kce.captures.record.live import LivePacket, LiveSource, RotatingWriter, record
from kce.captures.record.packet_filter import MAX_PORTS, port_filter
from kce.captures.tcp.directions import Data
from kce.captures.tcp.segments import SYN, Dissector, Segment
from kce.captures.tcp.streams import Streams
from tests.captures.made_files import SECOND, START_NS, ethernet, ipv4, tcp
from tests.tools import require


@pytest.fixture
def privileged():
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except (PermissionError, AttributeError):
        lacking("no CAP_NET_RAW: live capture is NOT checked")


def lacking(reason):
    if os.environ.get("KCE_REQUIRE_TOOLS"):
        pytest.fail(reason)
    pytest.skip(reason)


def listen(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family)
    server.bind((host, 0))
    server.listen()
    return server


@contextmanager
def recording(path, interface, ports=(), **settings):
    """Capture while the block runs: all that was sent in it is in the file afterwards."""
    stop, stopper = os.pipe()
    with LiveSource(interface, ports) as source:
        thread = threading.Thread(target=record, args=(source, RotatingWriter(path, **settings)), kwargs={"stop": stop})
        thread.start()
        try:
            yield source
        finally:
            os.write(stopper, b"x")
            thread.join()
            os.close(stop)
            os.close(stopper)


def talk(server, sent, answered):
    with socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            writer = threading.Thread(target=client.sendall, args=(sent,))
            writer.start()
            got = b""
            while len(got) < len(sent):
                got += accepted.recv(65536)
            writer.join()
            accepted.sendall(answered)
            accepted.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass


def streams_of(paths, host="127.0.0.1"):
    """Server port -> (what the client sent, what the server sent).

    Only between ends on that host: in the other family other processes may have the same port.
    """
    streams, found, address = Streams(), {}, ipaddress.ip_address(host).packed

    def take(happened):
        for connection, events in happened:
            if connection.endpoints[0][0] != address:
                continue
            port = connection.endpoints[1 - (connection.client or 0)][1]
            both = found.setdefault(port, (bytearray(), bytearray()))
            for event in events:
                if isinstance(event, Data):
                    both[0 if event.side == connection.client else 1].extend(event.data)

    for path in paths:
        with CaptureFile(path) as capture:
            dissector = Dissector()
            for packet in capture:
                segment = dissector.dissect(packet)
                if isinstance(segment, Segment):
                    take(streams.receive(segment))
            assert not capture.problems
    take(streams.finish())
    return {port: tuple(map(bytes, both)) for port, both in found.items()}


@pytest.mark.parametrize("interface", ["lo", "any"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.usefixtures("privileged")
def test_what_goes_over_chosen_ports_is_in_the_file_and_nothing_else(tmp_path, interface, host):
    sent, answered = random.Random(1).randbytes(300_000), random.Random(2).randbytes(100_000)
    wanted, other = listen(host), listen(host)
    port = wanted.getsockname()[1]
    with wanted, other, recording(tmp_path / "x.pcapng", interface, [port]) as source:
        talk(other, b"other", b"traffic")
        talk(wanted, sent, answered)
    assert streams_of([tmp_path / "x.pcapng"], host) == {port: (sent, answered)}
    assert source.dropped == 0


@pytest.mark.usefixtures("privileged")
def test_rotated_files_hold_the_whole_together(tmp_path):
    sent = random.Random(1).randbytes(2_000_000)
    with listen("127.0.0.1") as server:
        port = server.getsockname()[1]
        with recording(tmp_path / "x.pcapng", "lo", [port], max_bytes=300_000):
            talk(server, sent, b"done")
    files = sorted(tmp_path.iterdir())
    assert len(files) > 4
    assert [file.name for file in files] == [f"x-{number:05}.pcapng" for number in range(1, len(files) + 1)]
    assert streams_of(files) == {port: (sent, b"done")}
    out = subprocess.run(
        [require("tshark"), "-r", files[0], "-T", "fields", "-e", "tcp.port"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(port) in out


@pytest.mark.usefixtures("privileged")
def test_what_the_kernel_drops_is_counted_and_in_the_file(tmp_path):
    stop, stopper = os.pipe()
    with listen("127.0.0.1") as server, LiveSource("lo", [server.getsockname()[1]], buffer_bytes=1) as source:
        for _ in range(20):
            talk(server, bytes(100_000), b"")  # nobody fetches
        os.write(stopper, b"x")
        written = record(source, RotatingWriter(tmp_path / "x.pcapng"), stop=stop)
    os.close(stop)
    os.close(stopper)
    assert written > 0
    assert source.dropped > 20
    with CaptureFile(tmp_path / "x.pcapng") as capture:
        decoder = Decoder(capture)
        list(decoder.messages())
    assert decoder.quality.dropped == source.dropped
    assert any("dropped while capturing" in line for line in decoder.quality.lines())
    assert Quality.from_json(decoder.quality.to_json()) == decoder.quality


@pytest.mark.usefixtures("privileged")
def test_an_interface_that_is_not_there():
    with pytest.raises(CaptureError, match=r"no interface nope; there are .*lo"):
        LiveSource("nope")


_NEW_NETWORK = 0x40000000
_SET_FLAGS, _UP = 0x8914, 1


def in_own_network(test):
    """Run ``test`` in a network namespace that ends with it."""
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except AttributeError:
        lacking("no network namespaces: an interface that goes down is NOT checked")

    def run():
        if unshare(_NEW_NETWORK) != 0:
            return False
        test()
        return True

    with ThreadPoolExecutor(1) as thread:
        if not thread.submit(run).result():
            lacking("no CAP_SYS_ADMIN: an interface that goes down is NOT checked")


def set_loopback(flags):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags))


@pytest.mark.usefixtures("privileged")
def test_an_interface_that_goes_down_and_up_again_is_captured_on():
    """A flapping link is an incident worth a recording."""

    def ports_of(packets):
        return [int.from_bytes(packet.data[36:38]) for packet in packets if packet.data[23] == socket.IPPROTO_UDP]

    def send(port):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"x", ("127.0.0.1", port))

    def check():
        with pytest.raises(CaptureError, match="lo is down"):
            LiveSource("lo")
        set_loopback(_UP)
        with LiveSource("lo") as source:
            send(1)
            assert ports_of(source.waiting()) == [1]
            set_loopback(0)
            assert ports_of(source.waiting()) == []
            set_loopback(_UP)
            send(2)
            assert ports_of(source.waiting()) == [2]
            assert source.went_down == 1

    in_own_network(check)


def test_without_the_privilege_the_error_says_what_to_do(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(live.socket, "socket", refuse)
    with pytest.raises(CaptureError, match="capturing on lo needs a privilege: run as root, or with CAP_NET_RAW"):
        LiveSource("lo")


@pytest.mark.usefixtures("privileged")
def test_kce_capture_ends_with_a_signal_and_tells_what_it_did(tmp_path):
    file = tmp_path / "x.pcapng"
    with listen("127.0.0.1") as server:
        port = server.getsockname()[1]
        arguments = ["capture", str(file), "-i", "lo", "--ports", str(port), "--seconds", "1e300"]
        with subprocess.Popen(
            [sys.executable, "-m", "kce.harness", *arguments], stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stderr is not None
            assert "capturing on lo" in running.stderr.readline()
            talk(server, b"question", b"answer")
            running.send_signal(signal.SIGINT)
            output = running.stderr.read()
    assert running.returncode == 0
    assert "0 dropped by the kernel" in output
    assert streams_of([file]) == {port: (b"question", b"answer")}


@pytest.mark.usefixtures("privileged")
@pytest.mark.parametrize("leaves", [False, True])
def test_kce_capture_writes_to_a_pipe(leaves, tmp_path):
    with listen("127.0.0.1") as server:
        port = server.getsockname()[1]
        arguments = ["capture", "-", "-i", "lo", "--ports", str(port)]
        with subprocess.Popen(
            [sys.executable, "-m", "kce.harness", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert b"capturing on lo" in running.stderr.readline()
            if leaves:
                running.stdout.close()
            talk(server, b"question", b"answer")
            if leaves:
                assert (running.wait(30), running.stderr.read()) == (0, b"")
                return
            running.send_signal(signal.SIGINT)
            written, told = running.communicate(timeout=30)
    assert running.returncode == 0
    assert b"0 dropped by the kernel; in standard output" in told
    file = tmp_path / "x.pcapng"
    file.write_bytes(written)
    assert streams_of([file]) == {port: (b"question", b"answer")}


def live_packet(seconds, size=100):
    data = ethernet(ipv4(tcp(bytes(size), flags=SYN)))
    return LivePacket(START_NS + round(seconds * SECOND), 1, data, len(data))


def test_a_file_may_be_open_for_longer_than_the_world(tmp_path):
    with RotatingWriter(tmp_path / "x.pcapng", max_seconds=1e300) as writer:
        for second in range(0, 10**9, 10**8):
            writer.packet(live_packet(second), (0, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["x-00001.pcapng"]


def test_rotation_by_time_and_what_is_kept(tmp_path):
    with RotatingWriter(tmp_path / "x.pcapng", max_seconds=10, keep=2) as writer:
        for second in range(0, 60, 2):
            writer.packet(live_packet(second), (second, second // 2))
            parts = [path.name for path in tmp_path.iterdir() if path.suffix == ".part"]
            assert parts == [f"x-{second // 10 + 1:05}.pcapng.part"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-00005.pcapng", "x-00006.pcapng"]
    with CaptureFile(tmp_path / "x-00005.pcapng") as capture:
        assert len(list(capture)) == 5
        assert capture.dropped == 5


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_reported(tmp_path):
    with pytest.raises(CaptureError, match="/dev/full: cannot be written"):
        RotatingWriter("/dev/full")


def test_more_ports_than_the_kernel_takes():
    assert len(port_filter(range(1, MAX_PORTS + 1))) % 8 == 0
    with pytest.raises(ValueError, match="51 ports"):
        port_filter(range(1, MAX_PORTS + 2))
