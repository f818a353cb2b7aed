"""Findings as JSON and Markdown, evidence in the page, and what `kce analyze` prints and exits with."""

from __future__ import annotations

import dataclasses
import errno
import json
import resource

import pytest

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges.quality import Quality
from kce.captures.record.recorder import Recorder
from kce.captures.spark import analyze, job
from kce.captures.spark.exports import to_json, to_markdown, write_report, write_text
from kce.captures.spark.findings import ROWS, Exchange
from kce.captures.spark.report import render
from kce.harness.cli import main
from kce.harness.cli.analyze import _removed_if_new
from tests.captures.samples import CAPTURES
from tests.captures.spark.test_report import EMPTY, FULL, START, change, found

ZOMBIE = str(CAPTURES["kafka-3.9.1-zombie"])
SEEN = Exchange(
    file="incident.pcapng", packet=386, time=START, api="UpdateMetadata", version=8, client_id="2", broker="1",
    listener="CONTROL", error="STALE_CONTROLLER_EPOCH", latency_ms=13.4, response_packet=392,
    bodies='{"controller_id":2}\n{"error_code":11}',
)  # fmt: skip


def test_json_has_quality_findings_tables_and_evidence():
    document = json.loads(to_json(dataclasses.replace(FULL, exchanges=(SEEN,))))
    assert list(document) == ["schema_version", "files", "quality", "findings", "tables", "evidence"]
    assert (document["quality"]["requests"], document["quality"]["sound"]) == (100, FULL.quality.sound)
    alarm = document["findings"][0]
    assert (alarm["analysis"], alarm["severity"], alarm["text"]) == ("zombies", "alarm", FULL.findings()[0].text)
    assert alarm["evidence"] == [{"file": "incident.pcapng", "packet": packet} for packet in (386, 388)]
    assert document["tables"]["leadership"][0]["time"] == "2026-11-21T02:45:01+00:00"
    assert document["tables"]["zombies"][0]["packets"] == [386, 388]
    assert document["evidence"][0]["bodies"] == SEEN.bodies


def test_analyses_that_did_not_run_are_left_out():
    only = dataclasses.replace(FULL, ran=frozenset({"zombies"}))
    assert set(json.loads(to_json(only))["tables"]) == {"zombies"}
    assert {finding.analysis for finding in only.findings()} == {"zombies"}


def test_markdown_is_for_a_ticket():
    page = to_markdown(FULL)
    assert page.startswith("# Control plane report\n")
    assert page.index("Capture quality") < page.index("## Findings") < page.index("## controllers")
    assert "- **alarm**: Controller 2 (epoch 1) acted as a zombie" in page
    rows = page.split("## zombies\n\n")[1].split("\n\n")[0].splitlines()
    assert rows[0].startswith("| controller\\_id |") or rows[0].startswith("| controller_id |")
    assert len({row.count("|") for row in rows}) == 1


def test_markdown_shows_names_as_they_are():
    findings = found(Quality(requests=1), leadership=(change(1, 0, 1, 2, topic="a|b*<i>\n#"),))
    (row,) = [line for line in to_markdown(findings).splitlines() if "02:45:01" in line]
    assert r"a\|b\*\<i\>\\n\#" in row


def test_a_long_table_is_cut_and_said_to_be_in_markdown():
    many = tuple(change(i, i % 50, 1, 2) for i in range(1000))
    page = to_markdown(found(Quality(requests=1), leadership=many))
    assert "The first 50 of 1,000." in page


def test_a_click_on_a_packet_leads_to_the_decoded_request():
    page = render(dataclasses.replace(FULL, exchanges=(SEEN,)))
    assert '<a href="#packet-1">386</a>' in page
    shown = page.split('<article id="packet-1">')[1].split("</article>")[0]
    assert "UpdateMetadata v8 to broker 1 (CONTROL)" in shown
    assert "{&#34;error_code&#34;:11}" in shown
    assert '<a href="#packet-2">388</a>' not in page  # it is named, but not shown


# the command


@pytest.fixture
def analysed(monkeypatch):
    """Let a test set the findings and see the options of the analysis."""
    given = {}

    def use(findings):
        monkeypatch.setattr(job, "analyze", lambda files, **more: given.update(more, files=files) or findings)
        return given

    return use


SOUND = dataclasses.replace(FULL, quality=Quality(packets=9, connections=1, requests=1, responses=1))
CUT = dataclasses.replace(SOUND, quality=Quality(requests=1, problems=["x.pcapng: ends inside packet 9"]))
NOTES = dataclasses.replace(SOUND, tables={**FULL.tables, "zombies": (), "leadership": ()})
GONE = ROWS["departures"](broker_id=3, last_time=START, shutdown_time=None, gone_time=START, file="x.pcapng", packet=7)
WARNING = dataclasses.replace(NOTES, tables={**NOTES.tables, "departures": (GONE,)})


@pytest.mark.parametrize(
    ("findings", "fail_on", "code"),
    [
        (SOUND, [], 0),
        (SOUND, ["--fail-on", "alarm"], 3),
        (SOUND, ["--fail-on", "finding"], 3),
        (WARNING, ["--fail-on", "alarm"], 0),
        (WARNING, ["--fail-on", "finding"], 3),
        (NOTES, ["--fail-on", "finding"], 0),
        (CUT, ["--fail-on", "finding"], 1),  # what could not be read comes first
    ],
)
def test_the_exit_code(analysed, capfd, findings, fail_on, code):
    analysed(findings)
    assert main(["analyze", "x.pcapng", *fail_on]) == code
    assert "# findings" in capfd.readouterr().out


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_without_a_report_the_format_is_printed(analysed, capfd, form):
    given = analysed(SOUND)
    assert main(["analyze", "x.pcapng", "--format", form, "--only", "zombies", "--only", "latency"]) == 0
    out = capfd.readouterr().out
    assert {"json": "{", "markdown": "# Control plane", "html": "<!DOCTYPE html>"}[form] in out[:20]
    assert given["only"] == ("zombies", "latency")
    assert given["evidence"] == (form != "markdown")
    assert not given["payloads"]


def test_parquet_needs_a_folder(analysed, capfd):
    given = analysed(SOUND)
    assert main(["analyze", "x.pcapng", "--format", "parquet"]) == 2
    assert "--report or --out" in capfd.readouterr().err
    assert main(["analyze", "x.pcapng", "--format", "parquet", "--report", "tables"]) == 0
    assert (given["out"], given["report"]) == ("tables", None)


def test_an_analysis_that_there_is_not():
    with pytest.raises(CaptureError, match="no analysis 'zombie'; there are requests, controllers, "):
        analyze([ZOMBIE], only=["zombie"])


@pytest.mark.parametrize("form", ["html", "json", "markdown"])
def test_a_report_of_nothing_can_be_written(tmp_path, form):
    write_report(EMPTY, tmp_path / "report", form)
    assert (tmp_path / "report").stat().st_size > 100


# what nobody is to see

SECRETS = (b"card-4711-0815", b"\0admin\0hunter2-hunter2")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """A capture of a record and of a password; neither request is answered, so that a finding is about them."""
    path = tmp_path_factory.mktemp("secrets") / "secrets.pcapng"
    recorder = Recorder(path)
    tap = recorder.connection(("127.0.0.1", 40001), ("127.0.0.1", 9093))
    update = wire.UpdateMetadataRequest(controller_id=1, controller_epoch=1)
    records = wire.PartitionProduceData(index=0, records=bytes(61) + SECRETS[0])
    requests = (
        (update, 5),
        (wire.SaslAuthenticateRequest(auth_bytes=SECRETS[1]), 1),
        (wire.ProduceRequest(acks=1, topic_data=(wire.TopicProduceData(name="t", partition_data=(records,)),)), 8),
    )
    for correlation_id, (body, version) in enumerate(requests):
        frame = wire.encode_request(body, api_version=version, correlation_id=correlation_id, client_id="c")
        tap.sent("client", wire.frame(frame))
    recorder.close()
    return path


def shown(text):
    return [secret for secret in SECRETS if secret.hex() in text or secret.decode().strip("\0").split("\0")[-1] in text]


def test_decode_shows_payloads_only_when_requested(secrets, capfd):
    for arguments, wanted in (([], []), (["--json"], []), (["--json", "--show-payloads"], list(SECRETS))):
        main(["decode", str(secrets), *arguments])
        out = capfd.readouterr().out
        assert "SaslAuthenticate" in out
        assert shown(out) == wanted, arguments


@pytest.mark.slow
@pytest.mark.parametrize("payloads", [False, True])
def test_reports_show_payloads_only_when_requested(spark, secrets, tmp_path, payloads):
    out = tmp_path / "out"
    findings = analyze([secrets], spark=spark, only=["unanswered"], evidence=True, payloads=payloads, out=out)
    assert {exchange.api for exchange in findings.exchanges} >= {"SaslAuthenticate", "Produce"}
    for form in (render, to_json):
        assert shown(form(findings)) == (list(SECRETS) if payloads else [])
    assert shown(to_markdown(findings)) == []
    for file in out.rglob("*.parquet"):
        assert not [secret for secret in SECRETS if secret in file.read_bytes()]


@pytest.mark.slow
def test_frames_have_payloads_only_when_requested(spark, secrets):
    for option, wanted in ((None, []), ("bodies", []), ("payloads", list(SECRETS))):
        read = spark.read.format("kafka-capture").option("level", "frames")
        if option:
            read = read.option(option, "true")
        assert shown(" ".join(row["body"] or "" for row in read.load(str(secrets)).collect())) == wanted


def test_a_disk_that_is_full_leaves_no_half_of_a_report(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(CaptureError, match=r"report: cannot be written \(File too large\)"):
            write_text("x" * 20_000, tmp_path / "report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def write_some(folder):
    (folder / "requests").mkdir(parents=True)
    raise OSError(errno.ENOSPC, "No space left on device")


def test_tables_of_a_failure_are_removed_if_their_folder_is_new(tmp_path):
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(OSError, match="No space left"), _removed_if_new(str(folder)):
            write_some(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["requests"]
