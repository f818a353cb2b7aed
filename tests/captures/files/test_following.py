"""A capture that grows is read as it is written, to the end that its recorder gave it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import BinaryIO, cast

import pytest

from kce.captures.errors import CaptureError
from kce.captures.files.following import Following
from kce.captures.files.pcap import CaptureFile
from tests.captures.samples import unzipped

WHOLE = unzipped("kafka-3.9.1-zombie")


def packets_of(data, tmp_path):
    (tmp_path / "whole.pcap").write_bytes(data)
    with CaptureFile(tmp_path / "whole.pcap") as capture:
        return [(packet.number, packet.data) for packet in capture]


def test_packets_are_read_as_they_are_appended_until_the_file_is_renamed(tmp_path):
    path = tmp_path / "growing.pcap.part"
    path.write_bytes(WHOLE[:50_001])  # inside a packet
    read, some = [], threading.Event()

    def follow():
        with Following(path, poll_s=0.001) as growing, CaptureFile(cast("BinaryIO", growing), "growing") as capture:
            for packet in capture:
                read.append((packet.number, packet.data))
                some.set()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    assert some.wait(60)
    with path.open("ab") as file:
        for at in range(50_001, len(WHOLE), 9973):
            file.write(WHOLE[at : at + 9973])
            file.flush()
    path.rename(tmp_path / "growing.pcap")
    reader.join(60)
    assert not reader.is_alive()
    assert read == packets_of(WHOLE, tmp_path)


def test_stop_ends_it_at_what_is_there(tmp_path):
    path = tmp_path / "a.pcap"
    path.write_bytes(b"abc")
    with Following(path) as growing:
        assert not growing.seekable()
        assert growing.read1(2) == b"ab"
        growing.stop()
        assert (growing.read1(9), growing.read1(9)) == (b"c", b"")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CaptureError, match="cannot be opened") as caught:
        Following(tmp_path / "nowhere")
    assert caught.traceback[-1].frame.f_locals["self"].closed  # else Python 3.13 closes it, and prints an error


@pytest.mark.slow
def test_kce_decode_follows_a_recorder_until_ctrl_c(tmp_path):
    path = tmp_path / "growing.pcap"
    path.write_bytes(WHOLE[:70_000])
    command = "import sys; from kce.harness.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "decode", str(path), "--follow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert " request  UpdateMetadata v8 " in process.stdout.readline()
        with path.open("ab") as file:
            file.write(WHOLE[70_000:])
        line = ""
        while " STALE_CONTROLLER_EPOCH, 13" not in line:  # of packet 392, behind what was there
            line = process.stdout.readline()
            assert line, "the output ended"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (0, 1), errors
    assert "Traceback" not in errors
