"""The report: complete in itself, sensible with little or much or nothing to tell, and drawn by a real browser.

Covers: kce.captures.spark.drawing, kce.captures.spark.text, kce.captures.spark.timeline
"""

from __future__ import annotations

import dataclasses
import datetime
import html.parser
import io
import json
import re
import subprocess

import pytest
from PIL import Image
from rich.console import Console

from kce.captures.errors import CaptureError
from kce.captures.exchanges.quality import Quality
from kce.captures.spark.analyses import ANALYSES
from kce.captures.spark.exports import write_report
from kce.captures.spark.findings import ROWS, Exchange, Findings
from kce.captures.spark.report import render
from kce.captures.spark.text import print_findings
from kce.captures.spark.timeline import Axis, chart_html
from tests.tools import require

START = datetime.datetime(2026, 11, 21, 2, 45, tzinfo=datetime.UTC)


def at(seconds):
    return START + datetime.timedelta(seconds=seconds)


def change(seconds, partition, before, after, **more):
    values = {
        "time": at(seconds), "file": "x", "packet": 7, "topic": "orders", "topic_id": None, "partition": partition,
        "from_leader": before, "to_leader": after, "from_epoch": None if before is None else 0, "to_epoch": 1,
        "isr": (1, 2), "decision_epoch": 1, **more,
    }  # fmt: skip
    return ROWS["leadership"](**values)


def found(quality, files=("x",), **tables):
    return Findings(files=files, quality=quality, tables=tables)


def rows(table, *values):
    return tuple(ROWS[table](*each) for each in values)


FULL = found(
    files=("some/folder/incident.pcapng",),
    quality=Quality(
        packets=1234, connections=3, requests=100, responses=99, unanswered=1, gaps=2, gap_bytes=3000, gap_connections=1
    ),
    requests=rows("requests", (6, "UpdateMetadata", 8, 90, 89, 2, 1000, 2000), (1, "Fetch", 17, 10, 10, 0, 1, 1)),
    controllers=rows(
        "controllers",
        (1, 2, False, at(0), at(30), 40, ("1", "2"), 3, 2, (1, 2), ("x", "x")),
        (2, 1, False, at(20), at(50), 50, ("1", "2"), 4, 0, (3, 4), ("x", "x")),
    ),
    leadership=(
        change(1, 0, None, 1), change(1, 1, None, 2), change(21, 0, 1, -1), change(22, 0, -1, 2),
        change(40, 1, 2, -2, to_epoch=None),
    ),
    latency=rows("latency", (6, "UpdateMetadata", 8, "CONTROL", 89, 2.5, 9.75, 12.0, 4200.0)),
    latency_counts=rows(
        "latency_counts", *(("UpdateMetadata", 8, "CONTROL", 1.5**i, 89 - i) for i in range(12))
    ),
    fenced=rows(
        "fenced", ("STALE_CONTROLLER_EPOCH", 2, 1, None, "1", "UpdateMetadata", 2, at(25), at(30), (386, 388))
    ),
    stale_partitions=rows("stale_partitions", (1, 2, "2", 1, 3, (7,), ("x",))),
    zombies=rows("zombies", (2, 1, 2, 2, at(25), at(30), ("1",), (386, 388), ("incident.pcapng",) * 2)),
    ticks=rows(
        "ticks",
        (1, 2, "LeaderAndIsr", False, at(1), 3),
        (1, 2, "UpdateMetadata", True, at(25), 2),
        (2, 1, "StopReplica", False, at(30), 1),
    ),
)  # fmt: skip
EMPTY = found(Quality(), files=("x.pcap",))


class Page(html.parser.HTMLParser):
    """What a page says, and what it would load."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "use", "path", "rect"})

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.loads, self.ids, self.text = [], set(), [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and not (value or "").startswith("#"):
                self.loads.append(value)
            if name == "id":
                self.ids.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self.open):
            self.text.append(data)

    def words(self):
        return " ".join(" ".join(self.text).split()).replace(" ,", ",")


@pytest.mark.parametrize("findings", [FULL, EMPTY], ids=["full", "empty"])
def test_the_page_needs_nothing_else(findings):
    page = render(findings)
    read = Page(page)
    assert read.loads == []
    assert page.count("<script") == page.count('<script>\n"use strict"') <= 1  # its own
    assert "link" not in read.tags
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(read.ids) == len(set(read.ids))


def test_incidents_come_first_then_findings_and_the_rest():
    page = Page(re.sub(r"<nav.*?</nav>", "", render(FULL), flags=re.DOTALL)).words()
    headings = [
        "Incidents", "Findings", "Capture quality", "Controllers by epoch", "Refused for a stale epoch", "Leadership",
        "Requests by API", "Latency", "Brokers and their listeners",
    ]  # fmt: skip
    assert [page.index(heading) for heading in headings] == sorted(page.index(heading) for heading in headings)
    assert "1,234 packets" in page
    assert "2 gaps in 1 of 3 connections, 3,000 bytes missing" in page
    assert "incident.pcapng Control requests from 2026-11-21 02:45:00 to 02:45:50 UTC" in page
    assert "some/folder" not in page
    assert FULL.findings()[0].text.removesuffix(" (packets 386, 388).") in page
    assert "386, 388" in page
    assert "orders-1 2 deleted" in page


def test_only_zombies_alarm():
    assert render(FULL).count('class="box alarm"') == 1
    assert 'class="box alarm"' not in render(EMPTY)


def test_a_page_about_nothing_is_a_page():
    page = Page(render(EMPTY)).words()
    assert "no control requests" in page
    assert "No Kafka traffic was found" in page or "no Kafka traffic was found" in page


def picture(name, findings):
    return ANALYSES[name].section.picture(findings)


def chart(name, findings):
    return ANALYSES[name].section.chart(findings)


def test_pictures_and_charts_of_nothing_are_none():
    sections = {name: analysis.section for name, analysis in ANALYSES.items() if analysis.section}
    drawn = [name for name, section in sections.items() if section.picture]
    charts = [name for name, section in sections.items() if section.chart]
    assert (drawn, charts) == (["requests", "latency"], ["controllers", "leadership", "errors", "isr_changes"])
    assert [picture(name, EMPTY) for name in drawn] + [chart(name, EMPTY) for name in charts] == [None] * 6
    assert chart("leadership", found(Quality(), leadership=(change(1, 0, None, 1),))) is None  # nothing changed


def test_charts_say_what_they_are_of():
    timeline = chart("controllers", FULL)
    assert [lane.label for lane in timeline.lanes] == ["epoch 1: controller 2", "epoch 2: controller 1"]
    assert [(mark.look, mark.begin) for mark in timeline.lanes[0].marks] == [
        ("bar", at(0)), ("LeaderAndIsr", at(1)), ("refused", at(25)),
    ]  # fmt: skip
    assert timeline.legend[-1] == ("refused", "refused as stale")
    (leaders,) = chart("leadership", FULL).lanes  # the other was deleted, but never changed its leader
    assert leaders.label == "orders-0"
    assert [(mark.look, mark.begin, mark.end) for mark in leaders.marks] == [
        ("leader-0", at(1), at(21)), ("none", at(21), at(22)), ("leader-1", at(22), at(50)),
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", [0, 0.01, 3, 600, 86400 * 3])
def test_any_span_of_time_can_be_drawn(seconds):
    controllers = rows("controllers", (1, 2, False, at(0), at(seconds), 1, ("1",), 0, 0, (1, 1), ("x", "x")))
    ticks = rows("ticks", (1, 2, "LeaderAndIsr", False, at(0), 1))
    page = render(found(Quality(), controllers=controllers, ticks=ticks))
    end = "1" if seconds else "0"
    assert f'class="m bar span" style="--t:0.000000;--u:{end}.000000"' in page


def test_marks_link_to_the_packets_that_are_shown():
    cited = Exchange("x", 7, at(21), "LeaderAndIsr", 7, "1", "2", "CONTROL", "NONE", 1.0, 8, "{}")
    page = render(dataclasses.replace(FULL, exchanges=(cited,)))
    assert page.count('href="#packet-1"') >= 3  # the leaders of orders-0
    assert "href" not in chart_html(chart("leadership", FULL), Axis([at(0), at(50)]), lambda place: None)


def test_stale_epochs_of_single_partitions_are_not_among_the_errors():
    """They are no failures; they have a section of their own."""

    def failed(api, error, topic, count):
        span = at(1), at(2)
        return ROWS["errors"](api, error, 11, "1", "c", None, topic, 0, True, count, 1.0, *span, (7,), ("x",))

    stale = "STALE_CONTROLLER_EPOCH"
    errors = (
        failed("LeaderAndIsr", stale, "t", 71), failed("LeaderAndIsr", stale, None, 72), failed("Fetch", "X", "t", 73),
    )  # fmt: skip
    burst = ROWS["error_bursts"]("LeaderAndIsr", "t", 0, stale, 9, at(1), at(2), "x", 7)
    page = render(found(Quality(), errors=errors, error_bursts=(burst,)))
    section = page[page.index('<section id="errors">') :]
    section = section[: section.index("</section>")]
    assert [number for number in ("71", "72", "73") if f">{number}<" in section] == ["72", "73"]
    assert 'class="lane"' not in section
    terminal = io.StringIO()
    print_findings(found(Quality(), errors=errors), Console(file=terminal, force_terminal=True, width=200))
    assert [number for number in ("71", "72", "73") if f" {number} " in terminal.getvalue()] == ["72", "73"]


def test_the_same_findings_give_the_same_page():
    assert render(FULL) == render(FULL)


def test_a_long_history_is_cut_and_said_to_be():
    many = tuple(change(i, i % 50, 1, 2) for i in range(1000))
    page = Page(render(found(Quality(requests=1), leadership=many))).words()
    assert "The first 200 of 1,000" in page


def test_a_report_that_cannot_be_written(tmp_path):
    with pytest.raises(CaptureError, match="cannot be written"):
        write_report(EMPTY, tmp_path)


#: Says in the page's title how wide it is, and what a click and a key do to the shares of the axis that are shown.
PROBE = """<script>
const story = document.getElementById("story"), shown = () => ["--a", "--w"].map(v => +story.style.getPropertyValue(v));
const said = [document.documentElement.scrollWidth <= innerWidth, shown()];
document.querySelector("[data-zoom=in]").click(); said.push(shown());
const chart = document.querySelector(".chart");
for (const key of ["+", "ArrowRight", "0"]) {
  chart.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); said.push(shown());
}
said.push(chart.tabIndex, document.querySelectorAll(".axis").length, document.querySelector(".axis span").textContent);
document.title = JSON.stringify(said);
</script></body>"""


@pytest.mark.slow
def test_all_charts_zoom_together_and_a_phone_need_not_scroll_sideways(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render(FULL).replace("</body>", PROBE))
    command = [
        require("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}", "--allow-file-access-from-files", "--dump-dom",
    ]  # fmt: skip
    # the least width of a window of Chromium is 500; a frame of 390 is what a phone shows
    inner = 'onload="document.title = this.contentDocument.title"'
    (tmp_path / "phone.html").write_text(f'<iframe src="report.html" width="390" height="800" {inner}></iframe>')
    for name in ("report.html", "phone.html"):
        out = subprocess.run(
            [*command, (tmp_path / name).as_uri()], check=True, capture_output=True, text=True, timeout=120
        ).stdout
        said = json.loads(re.search(r"<title>(\[.*?\])</title>", out)[1])
        assert said == [
            True, [0, 1], [0.25, 0.5], [0.375, 0.25], [0.4375, 0.25], [0, 1], 0, 2, said[-1],
        ], name  # fmt: skip
        assert said[-1].startswith("02:45:")


@pytest.mark.slow
@pytest.mark.parametrize("findings", [FULL, EMPTY], ids=["full", "empty"])
def test_a_browser_draws_it(tmp_path, findings):
    write_report(findings, tmp_path / "report.html")
    picture = tmp_path / "report.png"
    subprocess.run(
        [require("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", "--window-size=1280,3000",
         "--hide-scrollbars", (tmp_path / "report.html").as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with Image.open(picture) as image:
        colours = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 24) or []}
    assert colours[255, 255, 255] > 1280 * 3000 / 2  # dark on light
    alarm, control = (0xB3, 0x26, 0x1E), (0x1F, 0x5F, 0xA8)
    assert (alarm in colours, control in colours) == (bool(findings.zombies), bool(findings.controllers))


# as text


def printed(findings, **options):
    console = Console(file=io.StringIO(), **options)
    print_findings(findings, console)
    return console.file.getvalue()


def test_on_a_terminal_tables_fit_eighty_columns():
    out = printed(FULL, force_terminal=True, width=80, color_system=None)
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"1 +2 +02:45:00\.000 +02:45:30\.000 +40 +1,2 +3 +2", out)
    assert re.search(r"02:45:40\.000 +7 +orders-1 +2 +deleted", out)
    assert "Controller 2 (epoch 1) acted as a zombie" in " ".join(out.split())
    assert "…" not in out


def test_off_a_terminal_nothing_is_cut_and_nothing_is_missing():
    out = printed(FULL, width=80)
    tables = dict(re.findall(r"^# (\w+)\n(.*?)(?=^# |\Z)", out, re.DOTALL | re.MULTILINE))
    names, row, *_ = (re.split(r"\s{2,}", line) for line in tables["leadership"].strip().splitlines())
    assert dict(zip(names, row, strict=True)) == {
        "time": "2026-11-21T02:45:01.000000Z", "packet": "7", "topic": "orders", "topic_id": "-",
        "partition": "0", "from_leader": "-", "to_leader": "1", "from_epoch": "-", "to_epoch": "1", "isr": "1,2",
        "decision_epoch": "1",
    }  # fmt: skip
    assert tables["endpoints"].strip() == "(none)"


def test_names_are_printed_as_they_are():
    findings = found(Quality(requests=1), leadership=(change(1, 0, None, 1, topic="[red]\x1bx"),))
    assert r"[red]\x1bx-0" in printed(findings, force_terminal=True, width=80, color_system=None)
    assert r"[red]\x1bx " in printed(findings)


def test_nothing_can_be_printed_too():
    assert "no Kafka traffic was found" in printed(EMPTY)
    assert "no Kafka traffic was found" in printed(EMPTY, force_terminal=True, width=80)


def test_control_characters_of_names_are_written_out():
    change_of_leader = dataclasses.replace(FULL.leadership[0], topic="evil\x1b[31m\x00\u202egnp\u2066")
    page = render(dataclasses.replace(FULL, tables={**FULL.tables, "leadership": (change_of_leader,)}))
    assert "\x1b" not in page
    assert "\x00" not in page
    assert "evil\\x1b[31m\\x00\\u202egnp\\u2066" in page
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069]", page)


def test_all_packets_of_findings_and_tables_lead_to_the_evidence():
    """Also those that are no shown requests."""
    reset = ("r", 9, 1, 0, 1, at(1), at(2), (411,), ("x",), (410,), ("x",))
    request = Exchange("x", 7, at(1), "LeaderAndIsr", 7, "1", "2", "CONTROL", "NONE", 1.0, 31, "{}")
    page = render(
        dataclasses.replace(
            FULL, tables={**FULL.tables, "transport": rows("transport", reset)}, files=("x",), exchanges=(request,)
        )
    )
    headings = dict(re.findall(r'<article id="(\S+)">\s*<h3>Packet (\d+)', page))
    links = re.findall(r'<a href="#(\S+)">(\d+)</a>', page)
    assert {packet for _, packet in links} >= {"7", "386", "388", "410", "411"}
    assert all(headings[anchor] == packet for anchor, packet in links)
    for table in ("leadership", "tables"):
        section = page[page.index(f'<section id="{table}">') :]
        assert '<td><a href="#' in section[: section.index("</section>")], table


def test_a_finding_lists_its_packets_once():
    text = Page(render(FULL)).words()
    assert "was fenced by broker 1 with STALE_CONTROLLER_EPOCH. Seen in packets 386, 388" in text
