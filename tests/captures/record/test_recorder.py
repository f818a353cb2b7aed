"""What the recorder writes, judged by programs that know nothing of it: tshark and dpkt.

Covers: kce.captures.files.pcapng_writer
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import uuid

import dpkt
import pytest
import trio
import trio.testing

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import MAX_SEGMENT_BYTES, Recorder, TappedStream, merge, record_accepted
from tests.tools import require

CLIENT, SERVER = ("127.0.0.1", 40001), ("127.0.0.1", 9093)
TOPIC_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def clock():
    return itertools.count(1_795_229_115_000_000_000, 1_000_000).__next__


def control_exchanges():
    """(request, response, version) of every control API in every version."""
    for version in range(8):
        state = wire.LeaderAndIsrPartitionState(
            topic_name="orders" if version < 2 else "", partition_index=3, controller_epoch=7, leader=1, leader_epoch=2,
            isr=(1, 2), partition_epoch=4, replicas=(1, 2, 3), is_new=version > 0,
        )  # fmt: skip
        topic = wire.LeaderAndIsrTopicState(
            topic_name="orders", topic_id=TOPIC_ID if version >= 5 else uuid.UUID(int=0), partition_states=(state,)
        )
        live = (wire.LeaderAndIsrLiveLeader(broker_id=1, host_name="127.0.0.1", port=9092),)
        request = wire.LeaderAndIsrRequest(
            controller_id=2, controller_epoch=7, broker_epoch=57 if version >= 2 else -1, live_leaders=live,
            **({"topic_states": (topic,)} if version >= 2 else {"ungrouped_partition_states": (state,)}),
        )  # fmt: skip
        yield request, wire.LeaderAndIsrResponse(), version
    for version in range(9):
        state = wire.UpdateMetadataPartitionState(
            topic_name="orders" if version < 5 else "", partition_index=3, controller_epoch=7, leader=1, leader_epoch=2,
            isr=(1, 2), zk_version=4, replicas=(1, 2, 3),
        )  # fmt: skip
        topic = wire.UpdateMetadataTopicState(
            topic_name="orders", topic_id=TOPIC_ID if version >= 7 else uuid.UUID(int=0), partition_states=(state,)
        )
        endpoint = wire.UpdateMetadataEndpoint(port=9093, host="127.0.0.1", listener="CONTROL" if version >= 3 else "")
        broker = (
            wire.UpdateMetadataBroker(id=1, endpoints=(endpoint,), **({"rack": "r1"} if version >= 2 else {}))
            if version
            else wire.UpdateMetadataBroker(id=1, v0_host="127.0.0.1", v0_port=9093)
        )
        request = wire.UpdateMetadataRequest(
            controller_id=2, controller_epoch=7, broker_epoch=57 if version >= 5 else -1, live_brokers=(broker,),
            **({"topic_states": (topic,)} if version >= 5 else {"ungrouped_partition_states": (state,)}),
        )  # fmt: skip
        yield request, wire.UpdateMetadataResponse(), version
    for version in range(5):
        topics = {
            0: {"ungrouped_partitions": (wire.StopReplicaPartitionV0(topic_name="orders", partition_index=3),)},
            1: {"topics": (wire.StopReplicaTopicV1(name="orders", partition_indexes=(3,)),)},
            3: {
                "topic_states": (
                    wire.StopReplicaTopicState(
                        topic_name="orders",
                        partition_states=(wire.StopReplicaPartitionState(partition_index=3, leader_epoch=2),),
                    ),
                )
            },
        }
        request = wire.StopReplicaRequest(
            controller_id=2, controller_epoch=7, broker_epoch=57 if version >= 1 else -1,
            **topics[0 if version == 0 else 1 if version < 3 else 3],
        )  # fmt: skip
        error = wire.StopReplicaPartitionError(topic_name="orders", partition_index=3)
        yield request, wire.StopReplicaResponse(partition_errors=(error,)), version


#: what tshark 4.0 can decode
TSHARK_VERSIONS = {"LeaderAndIsr": range(5), "UpdateMetadata": range(4, 7), "StopReplica": range(3)}


def tshark(path, *arguments):
    command = [
        require("tshark"), "-r", str(path), "-d", f"tcp.port=={SERVER[1]},kafka",
        "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", *arguments,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return ran.stdout


def record_exchanges(path, exchanges):
    recorder = Recorder(path, "node 1: control 127.0.0.1:9093, data 127.0.0.1:9092", clock=clock())
    tap = recorder.connection(CLIENT, SERVER)
    for correlation_id, (request, response, version) in enumerate(exchanges):
        frame = wire.encode_request(request, api_version=version, correlation_id=correlation_id, client_id="2")
        tap.sent("client", wire.frame(frame))
        tap.sent(
            "server", wire.frame(wire.encode_response(response, api_version=version, correlation_id=correlation_id))
        )
    tap.close()
    recorder.close()


@pytest.mark.slow
def test_tshark_names_every_frame_and_finds_nothing_wrong(tmp_path):
    path = tmp_path / "control.pcapng"
    exchanges = [
        (request, response, version)
        for request, response, version in control_exchanges()
        if version in TSHARK_VERSIONS[type(request).__name__.removesuffix("Request")]
    ]
    record_exchanges(path, exchanges)

    shown = tshark(path, "-Y", "kafka", "-T", "fields", "-e", "kafka.correlation_id", "-e", "_ws.col.Info")
    named = [re.match(r"(\d+)\tKafka (\w+ v\d+ (?:Request|Response))", line).groups() for line in shown.splitlines()]
    wanted = []
    for correlation_id, (request, _, version) in enumerate(exchanges):
        name = f"{type(request).__name__.removesuffix('Request')} v{version}"
        wanted += [(str(correlation_id), f"{name} Request"), (str(correlation_id), f"{name} Response")]
    assert named == wanted

    assert tshark(path, "-Y", "_ws.malformed") == ""
    assert tshark(path, "-Y", "_ws.expert.severity >= 0x600000") == ""  # warnings and errors
    assert tshark(path, "-Y", "tcp.analysis.flags") == ""
    bad = "tcp.checksum.status != 1 || ip.checksum.status != 1"  # 1 is good
    assert tshark(path, "-Y", bad) == ""


@pytest.mark.slow
def test_tshark_shows_the_comment(tmp_path):
    path = tmp_path / "control.pcapng"
    record_exchanges(path, [])
    shown = subprocess.run(
        [require("capinfos"), "-k", str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "node 1: control 127.0.0.1:9093, data 127.0.0.1:9092" in shown.stdout


def test_decode_reads_back_every_version_of_every_control_request(tmp_path):
    path = tmp_path / "control.pcapng"
    exchanges = list(control_exchanges())
    record_exchanges(path, exchanges)
    with CaptureFile(path) as capture:
        decoder = Decoder(capture)
        messages = list(decoder.messages())
        assert capture.comments == ["node 1: control 127.0.0.1:9093, data 127.0.0.1:9092"]
    assert [message.error for message in messages] == [None] * 2 * len(exchanges)
    assert [(m.version, m.body) for m in messages if isinstance(m, Request)] == [(v, r) for r, _, v in exchanges]
    assert decoder.quality.lines() == []


def segments(path):
    """(source port, TCP segment, good IP checksum) of each packet, by dpkt."""
    with path.open("rb") as file:
        for _, data in dpkt.pcapng.Reader(file):
            packet = dpkt.ip.IP(data) if data[0] >> 4 == 4 else dpkt.ip6.IP6(data)
            yield packet, packet.data


def streams(path):
    """What each side sent, put together by dpkt's reading and nothing but sequence numbers."""
    sent, start = {}, {}
    for _, tcp in segments(path):
        if tcp.flags & dpkt.tcp.TH_SYN:
            start[tcp.sport] = tcp.seq + 1
            sent[tcp.sport] = bytearray()
        at = (tcp.seq - start[tcp.sport]) % 2**32
        if tcp.data:
            assert at == len(sent[tcp.sport])
            sent[tcp.sport] += tcp.data
    return {port: bytes(data) for port, data in sent.items()}


@pytest.mark.parametrize(("client", "server"), [(CLIENT, SERVER), (("::1", 40001), ("::1", 9093))])
@pytest.mark.parametrize("first", [0, 2**32 - 70_000, 2**32 - 1])
def test_dpkt_reads_what_was_sent(tmp_path, client, server, first):
    path = tmp_path / "x.pcapng"
    recorder = Recorder(path, clock=clock())
    tap = recorder.connection(client, server, sequence_numbers=(first, first))
    question, answer = os.urandom(3 * MAX_SEGMENT_BYTES + 17), os.urandom(1)
    tap.sent("client", question)
    tap.sent("server", memoryview(answer))
    tap.sent("client", b"")
    tap.close()
    recorder.close()

    assert streams(path) == {40001: question, 9093: answer}
    for packet, tcp in segments(path):
        tcp_sum, tcp.sum = tcp.sum, 0
        if isinstance(packet, dpkt.ip.IP):
            ip_sum, packet.sum = packet.sum, 0
            pseudo = packet.src + packet.dst + bytes((0, 6)) + len(bytes(tcp)).to_bytes(2, "big")
            assert dpkt.in_cksum(packet.pack_hdr() + packet.opts) == ip_sum
        else:
            pseudo = packet.src + packet.dst + len(bytes(tcp)).to_bytes(4, "big") + bytes((0, 0, 0, 6))
        assert dpkt.in_cksum(pseudo + bytes(tcp)) == tcp_sum
    flags = [tcp.flags for _, tcp in segments(path)]
    assert flags[:3] == [0x02, 0x12, 0x10]
    assert flags[-3:] == [0x11, 0x11, 0x10]


def test_long_one_way_traffic_is_acknowledged(tmp_path):
    path = tmp_path / "x.pcapng"
    recorder = Recorder(path, clock=clock())
    tap = recorder.connection(CLIENT, SERVER)
    for _ in range(40):
        tap.sent("client", bytes(MAX_SEGMENT_BYTES))
    recorder.close()
    acknowledged = [tcp.ack for _, tcp in segments(path) if tcp.sport == 9093 and not tcp.flags & 0x02]
    assert len(acknowledged) == 2


def test_abort_is_a_reset_and_the_end(tmp_path):
    path = tmp_path / "x.pcapng"
    recorder = Recorder(path, clock=clock())
    tap = recorder.connection(CLIENT, SERVER)
    tap.sent("client", b"abc")
    tap.abort("server")
    tap.sent("client", b"never sent")
    tap.abort()
    tap.close()
    recorder.close()
    last = [(tcp.sport, tcp.flags, bytes(tcp.data)) for _, tcp in segments(path)][3:]
    assert last == [(40001, 0x18, b"abc"), (9093, 0x14, b"")]


def test_half_close_then_close(tmp_path):
    path = tmp_path / "x.pcapng"
    recorder = Recorder(path, clock=clock())
    tap = recorder.connection(CLIENT, SERVER)
    tap.finish("client")
    tap.sent("client", b"too late")
    tap.sent("server", b"still there")
    tap.close("server")
    recorder.close()
    last = [(tcp.sport, tcp.flags, bytes(tcp.data)) for _, tcp in segments(path)][3:]
    assert last == [(40001, 0x11, b""), (9093, 0x18, b"still there"), (9093, 0x11, b""), (40001, 0x10, b"")]


def test_connections_between_the_same_ports_differ(tmp_path):
    recorder = Recorder(tmp_path / "x.pcapng", clock=lambda: 0)
    for _ in range(2):
        recorder.connection(CLIENT, SERVER).close()
    recorder.close()
    first = [tcp.seq for _, tcp in segments(tmp_path / "x.pcapng") if tcp.flags == 0x02]
    assert len(set(first)) == 2


def test_mapped_and_scoped_addresses():
    recorder = Recorder(io.BytesIO())
    recorder.connection(("::ffff:127.0.0.1", 1), ("127.0.0.1", 2))
    recorder.connection(("fe80::1%eth0", 1), ("fe80::2", 2))
    with pytest.raises(ValueError, match="two kinds"):
        recorder.connection(("::1", 1), ("127.0.0.1", 2))


def test_a_file_that_cannot_be_created(tmp_path):
    with pytest.raises(CaptureError, match=r"nowhere/x\.pcapng: cannot be written \(No such file or directory\)"):
        Recorder(tmp_path / "nowhere" / "x.pcapng")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_file_that_cannot_be_begun():
    with pytest.raises(CaptureError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        Recorder("/dev/full")


class Full(io.BytesIO):
    """A disk that is full after so many bytes."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def write(self, data):
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_stops_the_recording_and_not_the_traffic(caplog):
    target = Full(400)
    recorder = Recorder(target)
    tap = recorder.connection(CLIENT, SERVER)
    for _ in range(3):
        tap.sent("client", bytes(200))
    recorder.connection(CLIENT, SERVER).close()
    recorder.close()
    assert recorder.failure == "No space left on device"
    assert [record.message for record in caplog.records] == [
        "stream: recording stops, writing failed: No space left on device"
    ]
    capture = CaptureFile(io.BytesIO(target.getvalue()))
    assert len(list(capture)) == 3
    assert capture.problems == []


def test_killed_in_the_middle_loses_nothing_that_was_recorded(tmp_path):
    path = tmp_path / "x.pcapng"
    script = (
        "import sys, itertools\n"
        "from kce.captures.record.recorder import Recorder\n"
        "recorder = Recorder(sys.argv[1])\n"
        "tap = recorder.connection(('127.0.0.1', 1), ('127.0.0.1', 2))\n"
        "for n in itertools.count():\n"
        "    tap.sent('client', n.to_bytes(4, 'big'))\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 200:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    with CaptureFile(path) as capture:
        numbers = [int.from_bytes(packet.data[-4:], "big") for packet in capture][3:]
    assert numbers[:201] == list(range(201))
    assert numbers == list(range(len(numbers)))


# Trio streams


async def test_tapped_stream_records_both_directions_of_a_real_socket(tmp_path):
    path = tmp_path / "x.pcapng"
    recorder = Recorder(path)
    ports = {}

    async def serve(stream):
        ports["client"] = stream.socket.getpeername()[1]
        tapped = record_accepted(recorder, stream)
        async with tapped:
            assert await tapped.receive_some() == b"question"
            await tapped.send_all(b"answer")
            assert await tapped.receive_some() == b""

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        ports["server"] = listener.socket.getsockname()[1]

        async def accept_one():
            await serve(await listener.accept())
            await listener.aclose()

        nursery.start_soon(accept_one)
        client = await trio.open_tcp_stream("127.0.0.1", ports["server"])
        await client.send_all(b"question")
        assert await client.receive_some() == b"answer"
        await client.aclose()
    recorder.close()
    assert streams(path) == {ports["client"]: b"question", ports["server"]: b"answer"}
    assert [tcp.flags for _, tcp in segments(path)][-3:] == [0x11, 0x11, 0x10]


def tapped_pair(side="client"):
    near, far = trio.testing.lockstep_stream_pair()
    target = io.BytesIO()
    recorder = Recorder(target, clock=clock())
    return TappedStream(near, recorder.connection(CLIENT, SERVER), side), far, target


def recorded(target, tmp_path):
    path = tmp_path / "recorded.pcapng"
    path.write_bytes(target.getvalue())
    return [(tcp.sport, tcp.flags, bytes(tcp.data)) for _, tcp in segments(path)][3:]


async def test_what_is_sent_is_recorded_before_it_is_sent(tmp_path):
    tapped, far, target = tapped_pair("server")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tapped.send_all, b"abc")
        await trio.testing.wait_all_tasks_blocked()  # lockstep: nobody has received it yet
        assert recorded(target, tmp_path) == [(9093, 0x18, b"abc")]
        assert await far.receive_some(10) == b"abc"


async def test_a_cancelled_send_ends_the_record_with_a_reset(tmp_path):
    tapped, _, target = tapped_pair()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tapped.send_all, b"abc")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    await trio.aclose_forcefully(tapped)
    assert recorded(target, tmp_path) == [(40001, 0x18, b"abc"), (40001, 0x14, b"")]


async def test_two_tasks_that_send_at_once_get_an_error_and_only_one_is_recorded(tmp_path):
    tapped, far, target = tapped_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tapped.send_all, b"abc")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await tapped.send_all(b"def")
        await far.receive_some(10)
    assert recorded(target, tmp_path) == [(40001, 0x18, b"abc")]


async def test_end_of_file_and_half_close(tmp_path):
    tapped, far, target = tapped_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.send_eof)
        assert await tapped.receive_some() == b""
    await tapped.send_eof()
    await tapped.aclose()
    await far.aclose()
    assert recorded(target, tmp_path) == [(9093, 0x11, b""), (40001, 0x11, b""), (9093, 0x10, b"")]


async def test_a_broken_peer_is_recorded_as_a_reset(tmp_path):
    tapped, far, target = tapped_pair()
    await far.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await tapped.send_all(b"abc")
    assert recorded(target, tmp_path)[-1] == (40001, 0x14, b"")


# merging


def test_merge_orders_by_time_and_keeps_comments(tmp_path):
    for node, start in ((1, 0), (2, 5)):
        times = itertools.count(1_000_000_000 + start, 10)
        recorder = Recorder(tmp_path / f"{node}.pcapng", f"node {node}", clock=times.__next__)
        recorder.connection(("127.0.0.1", 40000 + node), SERVER).sent("client", b"x")
        recorder.close()
    whole = (tmp_path / "2.pcapng").read_bytes()
    (tmp_path / "2.pcapng").write_bytes(whole[:-7])  # killed while it wrote its last packet
    problems = merge([tmp_path / "1.pcapng", tmp_path / "2.pcapng"], tmp_path / "all.pcapng", "three nodes")
    with CaptureFile(tmp_path / "all.pcapng") as capture:
        packets = list(capture)
    assert capture.comments == ["three nodes", "node 1", "node 2"]
    assert [packet.time_ns for packet in packets] == sorted(packet.time_ns for packet in packets)
    assert len(packets) == 7
    assert len(problems) == 1
    assert "2.pcapng: ends inside" in problems[0]
    assert not (tmp_path / "all.pcapng.part").exists()


def test_merge_says_which_file_is_bad(tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("not a capture at all")
    with pytest.raises(CaptureError, match="bad: not a capture: it is text"):
        merge([bad], tmp_path / "all.pcapng")


@pytest.mark.slow
def test_tshark_reads_a_merged_file(tmp_path):
    for node in (1, 2):
        recorder = Recorder(tmp_path / f"{node}.pcapng", f"node {node}")
        tap = recorder.connection(("127.0.0.1", 40000 + node), SERVER)
        frame = wire.encode_request(
            wire.UpdateMetadataRequest(controller_id=node), api_version=6, correlation_id=node, client_id="1"
        )
        tap.sent("client", wire.frame(frame))
        tap.close()
        recorder.close()
    merge([tmp_path / "1.pcapng", tmp_path / "2.pcapng"], tmp_path / "all.pcapng")
    shown = json.loads(tshark(tmp_path / "all.pcapng", "-Y", "kafka", "-T", "json", "-e", "kafka.correlation_id"))
    assert [packet["_source"]["layers"]["kafka.correlation_id"] for packet in shown] == [["1"], ["2"]]
