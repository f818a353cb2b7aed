"""`kce decode` on captures of real Kafka, judged by truths that another program made.

Covers: kce.captures.exchanges.render, kce.captures.exchanges.quality, kce.captures.exchanges.summary
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kce import wire
from kce.captures.record.recorder import Recorder
from kce.harness.cli import cli
from tests.captures.check import compare
from tests.captures.exchanges.dialogue import METADATA, Talk
from tests.captures.made_files import START_NS, ethernet, ipv4, pcap, record_kraft
from tests.captures.samples import CAPTURES, SAMPLES, scenario, truth, unzipped


def decode(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `kce decode`."""
    ran = subprocess.run(
        [sys.executable, "-m", "kce.harness", "decode", *arguments],
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def in_process(*arguments: str) -> list[dict]:
    result = CliRunner().invoke(cli, ["decode", "--json", *arguments], catch_exceptions=False, standalone_mode=False)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("name", CAPTURES)
def test_equals_the_truth(name):
    lines = in_process(str(CAPTURES[name]))
    assert compare(truth(name), lines) == []
    assert [line["packet"] for line in lines] == sorted(line["packet"] for line in lines)
    assert [line for line in lines if line["body"] is None or line["error"] or line["left_over"]] == []


def test_all_seven_captures_are_there():
    assert len(CAPTURES) == 7


def test_the_check_finds_what_is_wrong():
    name = "kafka-3.9.1-zombie"
    lines = in_process(str(CAPTURES[name]))
    missing = compare(truth(name), lines[1:])
    assert any("missing" in difference for difference in missing)
    changed = [dict(line, body=dict(line["body"], controller_epoch=9)) if line["body"] else line for line in lines]
    assert any(".controllerepoch: 1 expected, 9 found" in difference for difference in compare(truth(name), changed))


def test_a_line_of_text_says_what_there_is_to_say():
    code, out, err = decode(str(CAPTURES["kafka-3.9.1-zombie"]))
    lines = {int(line.split()[1]): " ".join(line.split()) for line in out.splitlines()}
    assert lines[386] == (
        "2026-11-21T02:45:22.724476Z 386 127.0.0.1:37360 -> 127.0.0.1:41875 (broker 3 CONTROL) request"
        " UpdateMetadata v8 #2 client '2', controller 2 epoch 1 broker epoch 64, brokers 1,2,3,"
        " orders-0 leader 1 epoch 0 isr 1,2,3;"
        " orders-1 leader 2 epoch 0 isr 2,3,1; orders-2 leader 3 epoch 0 isr 3,1,2"
    )
    assert lines[392] == (
        "2026-11-21T02:45:22.737847Z 392 127.0.0.1:37360 <- 127.0.0.1:41875 (broker 3 CONTROL) response"
        " UpdateMetadata v8 #2 STALE_CONTROLLER_EPOCH, 13.371 ms"
    )
    assert lines[328].endswith("orders-2 STALE_CONTROLLER_EPOCH")
    assert "\x1b" not in out
    assert (code, err) == (
        0,
        "kce: 983 packets, 217 requests, 213 responses; 0 gaps (0 bytes), 0 bytes skipped, 0 cut short, "
        "0 incomplete, 0 not decoded\n"
        "kce: 4 requests without an answer in the capture\n",
    )


@pytest.mark.parametrize("name", CAPTURES)
def test_every_message_has_its_line(name):
    result = CliRunner().invoke(cli, ["decode", str(CAPTURES[name])], catch_exceptions=False, standalone_mode=False)
    lines = result.stdout.splitlines()
    assert len(lines) == truth(name)["requests_total"] + truth(name)["responses_total"]
    assert not [line for line in lines if "not decoded" in line]


def test_planes_are_inferred_from_the_requests():
    for name, planes in (("kafka-3.9.1-zombie", {"CONTROL": "control", "DATA": "data"}), ("kafka-1.1.1-tour", {})):
        last = {}
        for line in in_process(str(CAPTURES[name])):
            last[line["connection"]["listener"], line["connection"]["server"]] = line["connection"]["plane"]
        assert {plane for (listener, _), plane in last.items() if listener in planes} == set(planes.values())
        assert all(planes.get(listener, "both") == plane for (listener, _), plane in last.items())


def test_a_json_line_has_the_documented_fields():
    line = next(line for line in in_process(str(CAPTURES["kafka-3.9.1-zombie"])) if line["packet"] == 392)
    assert line == {
        "kind": "response", "file": str(CAPTURES["kafka-3.9.1-zombie"]), "packet": 392, "time": 1795229122.737847,
        "connection": {
            "number": 93, "client": "127.0.0.1:37360", "server": "127.0.0.1:41875", "broker": 3, "listener": "CONTROL",
            "plane": "control",
        },
        "api": "UpdateMetadata", "api_key": 6, "version": 8, "correlation_id": 2, "client_id": "2", "bytes": 8,
        "body": {"error_code": 11}, "error": None, "left_over": 0, "request_packet": 386, "latency_ms": 13.371,
    }  # fmt: skip
    documented = (SAMPLES.parents[1] / "docs" / "decode.md").read_text()
    assert all(f"`{field}`" in documented for field in line)


def test_api_filter():
    path = str(CAPTURES["kafka-3.9.1-zombie"])
    wanted = {"LeaderAndIsr", "AlterPartition"}
    lines = in_process(path, "--api", "leaderandisr", "--api", "56")
    assert lines == [line for line in in_process(path) if line["api"] in wanted]
    assert {line["api"] for line in lines} == wanted


def test_an_unknown_api_is_refused_with_suggestions():
    code, out, err = decode(str(CAPTURES["kafka-3.9.1-zombie"]), "--api", "LeaderIsr")
    assert (code, out) == (2, "")
    assert "Kafka has no API 'LeaderIsr'; did you mean LeaderAndIsr or" in err


def test_broker_filter_by_id_and_by_address():
    path = str(CAPTURES["kafka-3.9.1-zombie"])
    ports = set(scenario("kafka-3.9.1-zombie")["brokers"]["3"].values())
    everything = in_process(path)
    of_3 = [line for line in everything if int(line["connection"]["server"].rpartition(":")[2]) in ports]
    assert 0 < len(of_3) < len(everything)
    # brokers seen before they were announced are found, too: the file is read twice
    assert in_process(path, "--broker", "3") == of_3
    port = scenario("kafka-3.9.1-zombie")["brokers"]["3"]["data"]
    assert in_process(path, "--broker", f"127.0.0.1:{port}") == [
        line for line in everything if line["connection"]["server"] == f"127.0.0.1:{port}"
    ]


def test_broker_filter_on_standard_input():
    arguments = ("--json", "--broker", "3", "-")
    _, out, _ = decode(*arguments, stdin=CAPTURES["kafka-3.9.1-zombie"].read_bytes())
    wanted = in_process(str(CAPTURES["kafka-3.9.1-zombie"]), "--broker", "3")
    assert [dict(json.loads(line), file="") for line in out.splitlines()] == [dict(line, file="") for line in wanted]


def test_a_broker_that_is_not_announced():
    code, out, err = decode(str(CAPTURES["kafka-3.9.1-zombie"]), "--broker", "9")
    assert (code, out) == (2, "")
    assert err.endswith("no UpdateMetadata request announces a broker 9: announced are 1, 2, 3\n")


@pytest.mark.parametrize("broker", ["abc", "127.0.0.1:", ":9092", "127.0.0.1:99999", "-1"])
def test_what_is_no_broker(broker):
    code, out, err = decode(str(CAPTURES["kafka-3.9.1-zombie"]), "--broker", broker)
    assert (code, out) == (2, "")
    assert err.endswith(f"{broker!r} is neither a broker's id nor HOST:PORT\n")


def test_ports_that_are_given():
    path = str(CAPTURES["kafka-3.9.1-zombie"])
    of_3 = scenario("kafka-3.9.1-zombie")["brokers"]["3"]
    ports = {plane: of_3[plane] for plane in ("control", "data")}

    def outline(lines):
        return [(line["packet"], line["kind"], line["api"], line["correlation_id"]) for line in lines]

    found = in_process(path, "--ports", f"{ports['control']}=data,{ports['data']}")
    server_of = {line["packet"]: int(line["connection"]["server"].rpartition(":")[2]) for line in found}
    assert set(server_of.values()) == set(ports.values())
    assert outline(found) == outline(
        line for line in in_process(path) if int(line["connection"]["server"].rpartition(":")[2]) in ports.values()
    )
    # the given plane of a listener holds, whatever its requests are
    of_control = {line["connection"]["plane"] for line in found if server_of[line["packet"]] == ports["control"]}
    assert of_control == {"data"}


def test_time_filter_includes_its_beginning_and_not_its_end():
    path = str(CAPTURES["kafka-3.9.1-zombie"])
    begin, end = "2026-11-21T02:45:22.724476", "2026-11-21T03:45:22.737847+01:00"
    packets = [line["packet"] for line in in_process(path, "--since", begin, "--until", end)]
    assert packets[0] == 386
    assert packets[-1] == 390
    assert packets == [line["packet"] for line in in_process(path) if 386 <= line["packet"] < 392]


def test_a_time_that_is_none():
    code, _, err = decode(str(CAPTURES["kafka-3.9.1-zombie"]), "--since", "yesterday")
    assert code == 2
    assert "'yesterday' is no ISO 8601 time" in err


@pytest.mark.parametrize("command", ["decode", "analyze", "replay --as controller"])
def test_no_time_between_since_and_until_is_wrong_usage(command):
    ran = subprocess.run(
        [sys.executable, "-m", "kce.harness", *command.split(), str(CAPTURES["kafka-3.9.1-zombie"]),
         "--since", "2026-11-21T02:46", "--until", "2026-11-21T02:45"],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert b"--since must be before --until" in ran.stderr


@pytest.mark.parametrize("packed", [True, False])
def test_standard_input(packed):
    name = "kafka-2.8.2-tour"
    code, out, _ = decode("--json", "-", stdin=CAPTURES[name].read_bytes() if packed else unzipped(name))
    assert code == 0
    assert compare(truth(name), [json.loads(line) for line in out.splitlines()]) == []


@pytest.mark.parametrize("setting", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                                     {"PYTHONIOENCODING": "latin-1"}], ids=str)  # fmt: skip
def test_what_the_encoding_of_stdout_lacks_is_escaped(tmp_path, setting):
    """JSON is in UTF-8 whatever the locale says."""
    talk = Talk()
    talk.ask(METADATA, 12, 1, client_id="日本")
    path = tmp_path / "x.pcapng"
    path.write_bytes(talk.target.getvalue())
    command = [sys.executable, "-m", "kce.harness", "decode", str(path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | setting
    ran = subprocess.run(command, capture_output=True, env=env, timeout=120, check=False)
    assert (ran.returncode, rb"client '\u65e5\u672c'" in ran.stdout) == (0, True), ran.stderr
    ran = subprocess.run([*command, "--json"], capture_output=True, env=env, timeout=120, check=False)
    assert (ran.returncode, json.loads(ran.stdout)["client_id"]) == (0, "日本"), ran.stderr


def test_a_reader_that_has_enough_is_no_failure():
    with subprocess.Popen(
        [sys.executable, "-m", "kce.harness", "decode",
         str(CAPTURES["kafka-3.9.1-load"])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("command", ["decode", "decode --summary", "analyze --only requests"])
def test_a_full_disk_is_one_line(command):
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "kce.harness", *command.split(), str(CAPTURES["kafka-3.9.1-zombie"])],
            stdout=full, stderr=subprocess.PIPE, timeout=120, check=False,
        )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, b"kce: cannot write: No space left on device\n")


def test_a_truncated_capture_is_printed_as_far_as_it_goes_and_fails(tmp_path):
    whole = unzipped("kafka-3.9.1-zombie")
    path = tmp_path / "cut.pcap"
    path.write_bytes(whole[:100_000])
    code, out, err = decode("--json", str(path))
    lines = [json.loads(line) for line in out.splitlines()]
    complete = in_process(str(CAPTURES["kafka-3.9.1-zombie"]))
    last = lines[-1]["packet"]
    assert last > 600
    assert [(m["packet"], m["api"]) for m in lines] == [
        (m["packet"], m["api"]) for m in complete if m["packet"] <= last
    ]
    assert code == 1
    assert "cut.pcap: ends inside packet" in err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "not a capture: the file is empty"),
        (b"hello, world", "not a capture: it is text"),
        (None, "there is no such file"),
    ],
)
def test_what_is_no_capture_fails_in_one_line(tmp_path, content, error):
    path = tmp_path / "x.pcap"
    if content is not None:
        path.write_bytes(content)
    code, out, err = decode(str(path))
    assert (code, out, err) == (1, "", f"kce: {path}: {error}\n")


def test_what_is_no_capture_among_others_is_said_and_they_are_printed(tmp_path):
    zombie = str(CAPTURES["kafka-3.9.1-zombie"])
    (tmp_path / "empty.pcap").touch()
    _, wanted, _ = decode(zombie)
    code, out, err = decode(str(tmp_path / "empty.pcap"), zombie)
    assert (code, out) == (1, wanted)
    assert f"kce: {tmp_path}/empty.pcap: not a capture: the file is empty\n" in err
    _, summary, _ = decode("--summary", str(tmp_path / "empty.pcap"), zombie)
    assert f"\n{tmp_path}/empty.pcap: not a capture" in summary
    (tmp_path / "other.pcap").touch()
    code, out, err = decode(str(tmp_path / "empty.pcap"), str(tmp_path / "other.pcap"))
    assert (code, out, err.count("the file is empty")) == (1, "", 2)
    assert decode(zombie, str(tmp_path / "nowhere.pcap"))[:2] == (1, "")


def test_a_directory_is_no_capture(tmp_path):
    code, _, err = decode(str(tmp_path))
    assert (code, err) == (1, f"kce: {tmp_path}: a directory, not a capture\n")


def test_a_capture_of_something_else_says_so(tmp_path):
    dns = ethernet(ipv4(b"\x12\x34\x00\x35\x00\x14\x00\x00" + bytes(12), protocol=17))
    recorder = Recorder(tmp_path / "http.pcapng")
    tap = recorder.connection(("127.0.0.1", 1), ("127.0.0.1", 80))
    tap.sent("client", b"GET / HTTP/1.1\r\n\r\n")
    tap.close()
    recorder.close()
    (tmp_path / "dns.pcap").write_bytes(pcap([(START_NS, dns)] * 3))
    code, out, err = decode(str(tmp_path / "dns.pcap"))
    assert (code, out, err.splitlines()[1:]) == (1, "", ["kce: no Kafka traffic was found, but 3 packets of UDP"])
    code, out, err = decode(str(tmp_path / "http.pcapng"))
    assert (code, out, err.splitlines()[1:]) == (1, "", ["kce: no Kafka traffic was found, but 1 connection of HTTP"])


def test_kraft_traffic_is_listed_and_said_to_be_that(tmp_path):
    record_kraft(tmp_path / "kraft.pcapng")
    code, out, err = decode(str(tmp_path / "kraft.pcapng"))
    assert "BrokerRegistration v4" in out
    assert "BrokerHeartbeat v1" in out
    assert "KRaft traffic (BrokerHeartbeat, BrokerRegistration): there is no ZooKeeper-mode controller in it" in err
    assert code == 1


def test_a_frame_of_impossible_length_is_named_with_its_place(tmp_path):
    recorder = Recorder(tmp_path / "x.pcapng")
    tap = recorder.connection(("127.0.0.1", 1), ("127.0.0.1", 9092))
    frame = wire.encode_request(wire.MetadataRequest(), api_version=9, correlation_id=1, client_id="x")
    tap.sent("client", wire.frame(frame))
    tap.sent("client", b"\x7f\xff\xff\xff")
    recorder.close()
    code, out, err = decode(str(tmp_path / "x.pcapng"))
    assert len(out.splitlines()) == 1
    assert f"packet 5 of {tmp_path}/x.pcapng: a frame that announces 2147483647 bytes" in err
    assert code == 1


def test_a_summary_counts_what_was_said_and_who_was_fenced():
    code, out, _ = decode(str(CAPTURES["kafka-3.9.1-zombie"]), "--summary")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("983 packets, 217 requests, 213 responses; 0 gaps")
    assert "broker 1: CONTROL 127.0.0.1:39235" in lines
    of_controller = [line for line in lines if line.startswith("controller ")]
    assert [line.split(":")[0] for line in of_controller] == [
        "controller 2 in epoch 1", "controller 1 in epoch 2", "controller 2 in epoch 3",
    ]  # fmt: skip
    assert of_controller[0].endswith("10 control requests, 2 fenced")
    (fetch,) = [line for line in lines if line.startswith("Fetch v17")]
    assert fetch.startswith("Fetch v17: 109 requests, 105 responses, slowest 6,090.4 ms; 10 UNKNOWN_TOPIC_ID, 4 FENCED")
    only = decode(str(CAPTURES["kafka-3.9.1-zombie"]), "--summary", "--api", "Produce")[1]
    assert "Produce v10: 3 requests, 3 responses" in only
    assert "Fetch v17" not in only
