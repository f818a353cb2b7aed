"""Wrong arguments and odd names of `kce decode` and `kce analyze`; tests/captures runs them on captures.

Covers: kce.harness.cli.analyze, kce.harness.cli.capture
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.captures.samples import CAPTURES
from tests.harness.cli.support import kce
from tests.harness.conftest import Here

TOUR = str(CAPTURES["kafka-3.9.1-tour"])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["decode", "nowhere.pcapng"], 1, "nowhere.pcapng"),
        (["decode", "-", TOUR], 1, "standard input"),
        (["decode", TOUR, TOUR, "--tls-keys", "keys"], 1, "TLS"),
        (["decode", TOUR, "--api", "Nonsense"], 2, "Nonsense"),
        (["decode", TOUR, "--since", "yesterday"], 2, "yesterday"),
        (["decode", TOUR, "--ports", "x"], 2, "x"),
        (["decode", TOUR, "--summary", "--json"], 2, "leave out --json"),
        (["decode", TOUR, "--show-payloads"], 2, "--show-payloads needs --json"),
        (["decode", ""], 1, "the name of a file is empty"),
        (["analyze", ""], 1, "the name of a file is empty"),
        (["analyze", TOUR, "--report", "r", "--format", "text"], 2, "--report"),
        (["analyze", TOUR, "--format", "parquet"], 2, "--format parquet"),
        (["analyze", TOUR, "--format", "parquet", "--report", "a", "--out", "b"], 2, "--format parquet"),
        (["analyze", TOUR, "--fail-on", "nothing"], 2, "nothing"),
        (["analyze", TOUR, "--compare"], 2, "two FILES"),
        (["analyze", TOUR, "--threshold", "outage_ms=-1"], 2, "outage_ms=-1: not a number from 0 on"),
        (["analyze", TOUR, "--threshold", "outage_ms=nan"], 2, "outage_ms=nan: not a number from 0 on"),
        (["analyze", TOUR, "--threshold", "x=1", "--threshold", "outage_ms=1"], 2, "x=1: there are outage_ms"),
        (["analyze", TOUR, TOUR, "--compare", "--out", "x"], 2, "--out"),
        (["analyze", TOUR, "--each", "--out", "x"], 2, "--each"),
        (["analyze", TOUR, "--each", "--format", "json"], 2, "--report"),
        (["analyze", TOUR, TOUR.replace("/", "//"), "--each", "--report", "."], 2, "same name"),
        (["analyze", TOUR, "nowhere.pcapng", "--each"], 1, "nowhere.pcapng"),
        (
            ["analyze", TOUR, "--each", "--report", "no/reports"],
            1,
            "no/reports: the folder cannot be made (No such file",
        ),
        (["decode", TOUR, TOUR, "--follow"], 2, "one file"),
        (["decode", "nowhere.pcap", "--follow"], 1, "cannot be opened"),
        (["capture", "x.pcapng", "--wireshark"], 2, "--ports"),
        (["capture", "-", "--rotate-mb", "1"], 2, "standard output takes neither"),
        (["capture", "x.pcapng", "--seconds", "nan"], 2, "nan is not a finite number."),
        (["capture", "x.pcapng", "--rotate-seconds", "inf"], 2, "inf is not a finite number."),
        (["capture", "x.pcapng", "--buffer-mb", "2048"], 2, "2048 is not in the range 1<=x<=2047."),
        (["replay", TOUR, "--as", "controller", "--speed", "nan"], 2, "nan is not a finite number."),
        (["up", "--wireshark"], 2, "--record"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], code: int, text: str, here: Here) -> None:
    failed = here(*arguments)
    assert (failed.code, failed.out) == (code, "")
    assert text in failed.err.splitlines()[-1]
    assert "Traceback" not in failed.err


def test_json_has_the_name_of_a_file_that_is_not_utf_8(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.pcap.gz")
    path.symlink_to(TOUR)
    shown = kce("decode", str(path), "--json", env=env)
    assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)
    assert json.loads(shown.stdout.splitlines()[0])["file"] == str(path)
