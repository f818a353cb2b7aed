"""Extracts control and Metadata requests with their responses from a recording of a real cluster:

    python tests/broker_stub/vectors/make.py NAME.pcap NAME.scenario.json > NAME.jsonl.gz

One line for each LeaderAndIsr, StopReplica, UpdateMetadata and Metadata in the order of the responses: broker,
listener, packet of the request, whether the broker was restarted since its last line, and the bytes of request and
response (without length prefixes). Supports only recordings on loopback without reordering and retransmission.
"""

from __future__ import annotations

import base64
import collections
import gzip
import json
import struct
import sys
from collections.abc import Iterator
from typing import BinaryIO

import dpkt

from kce import wire

KEPT = {3, 4, 5, 6}


def frames(file: BinaryIO) -> Iterator[tuple[int, float, tuple[int, int], bytes]]:
    """(packet number, time, (source port, destination port), frame)"""
    buffers: dict[tuple[int, int], wire.FrameBuffer] = collections.defaultdict(wire.FrameBuffer)
    for number, (time, packet) in enumerate(dpkt.pcap.UniversalReader(file), 1):
        tcp = dpkt.ethernet.Ethernet(packet).data.data
        flow = (tcp.sport, tcp.dport)
        if tcp.flags & dpkt.tcp.TH_SYN:
            buffers.pop(flow, None)
        buffer = buffers[flow]
        buffer.receive_data(tcp.data)
        try:
            while (frame := buffer.next_frame()) is not None:
                yield number, float(time), flow, frame
        except wire.WireError:  # not Kafka, but ZooKeeper for example
            continue


def records(capture: str, scenario: dict) -> Iterator[dict]:
    names = ("data", "control")
    at = {
        ports[name]: (int(b), name.upper()) for b, ports in scenario["brokers"].items() for name in names if ports[name]
    }
    starts = [
        (step["at"], step.get("broker", step.get("old")))
        for step in scenario["steps"]
        if step["step"].startswith(("killed", "controlled shutdown"))
    ]
    requests: dict[tuple[tuple[int, int], bytes], tuple[int, float, bytes]] = {}
    found = []
    with gzip.open(capture) if capture.endswith(".gz") else open(capture, "rb") as file:
        for number, time, flow, frame in frames(file):
            if flow[1] in at:
                requests[flow, frame[4:8]] = number, time, frame  # by correlation id
            elif flow[0] in at and (flow[::-1], frame[:4]) in requests:
                number, time, request = requests.pop((flow[::-1], frame[:4]))
                if struct.unpack(">h", request[:2])[0] in KEPT:
                    found.append((number, time, *at[flow[0]], request, frame))
    last: dict[int, float] = {}
    for number, time, broker, listener, request, response in found:
        restarted = any(b == broker and last.get(broker, time) < at <= time for at, b in starts)
        last[broker] = time
        yield {
            "broker": broker,
            "listener": listener,
            "packet": number,
            "restarted": restarted,
            "request": base64.b64encode(request).decode(),
            "response": base64.b64encode(response).decode(),
        }


def main(capture: str, scenario_file: str) -> None:
    with open(scenario_file) as file:
        scenario = json.load(file)
    lines = "".join(json.dumps(record) + "\n" for record in records(capture, scenario))
    sys.stdout.buffer.write(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
