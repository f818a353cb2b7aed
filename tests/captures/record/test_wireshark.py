"""The Lua script beside a capture: tshark decodes with it what it would not recognise."""

from __future__ import annotations

import json
import subprocess

import pytest

from kce.captures.errors import CaptureError
from kce.captures.record.wireshark import write_beside
from tests.captures.samples import CAPTURES, unzipped
from tests.tools import require

NAME = "kafka-2.3.1-tour"


@pytest.mark.slow
def test_tshark_decodes_ephemeral_ports_with_it(tmp_path):
    capture = tmp_path / "tour.pcap"
    capture.write_bytes(unzipped(NAME))
    brokers = json.loads((CAPTURES[NAME].parent / f"{NAME}.scenario.json").read_text())["brokers"]
    ports = [port for broker in brokers.values() for plane, port in broker.items() if plane in ("data", "control")]
    script = write_beside(capture, ports)
    assert script == tmp_path / "tour.pcap.lua"

    def decoded(*arguments):
        command = [require("tshark"), "-r", str(capture), *arguments, "-Y", "kafka"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.count("\n")

    assert decoded() < 50 < 500 < decoded("-X", f"lua_script:{script}")


def test_a_script_names_each_port_once(tmp_path):
    assert "ipairs({9092, 9093})" in write_beside(tmp_path / "x.pcapng", [9093, 9092, 9093]).read_text()
    with pytest.raises(CaptureError, match="cannot be written"):
        write_beside(tmp_path / "nowhere" / "x.pcapng", [1])
