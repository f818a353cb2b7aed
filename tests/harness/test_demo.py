"""`kce demo` from start to end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kce.captures.exchanges.decode import Decoder
from kce.captures.files.pcap import CaptureFile
from tests.harness.cli.support import kce, up
from tests.harness.conftest import Here


@pytest.mark.slow
def test_the_demo_tells_its_story_and_leaves_its_files_which_can_be_replayed(
    env: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = kce("demo", "--out", str(out), env=env, timeout=300)
    assert ran.returncode == 0, ran.stderr
    story = ran.stdout
    failovers = re.findall(
        r"failover: (\d+) ms from the deletion of /controller to the last of (\d+) control responses", story
    )
    assert len(failovers) == 3
    assert all(0 < int(ms) < 10_000 and int(responses) >= 3 for ms, responses in failovers)
    assert len(re.findall(r"controller: node \d of epoch \d -> node \d of epoch \d", story)) == 3
    fenced = re.search(r"(\d+) of them are fenced with STALE_CONTROLLER_EPOCH", story)
    assert fenced is not None
    assert int(fenced[1]) >= 1
    assert re.search(r"Controller \d \(epoch 2\) acted as a zombie", story)
    assert "<svg" in (out / "report.html").read_text()
    with CaptureFile(out / "capture.pcapng") as capture:
        decoder = Decoder(capture)
        assert sum(1 for _ in decoder.messages()) > 100
        assert capture.problems == []
        assert sum("control" in text for text in capture.comments) >= 3

    with up(tmp_path, env, "--set", "controlled.shutdown.enable=false"):
        (command,) = re.findall(r"Again +kce (replay .*? --restart)", story)
        again = kce(*command.split(), "--no-wait", env=env, timeout=180)
    assert again.returncode == 0, again.stderr
    assert re.fullmatch(r"(\d+) requests replayed: (\d+) same(, \d+ no response recorded)?\n", again.stdout)
    assert int(again.stdout.split()[0]) > 80
    assert re.findall(r"node \d is restarted", again.stderr)


def test_an_unwritable_folder_is_reported(here: Here, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = here("demo", "--out", str(tmp_path / "file" / "out"))
    assert failed.code == 1
    assert "is not writable" in failed.err
