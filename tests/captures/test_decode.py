"""`kce decode` on captures of real Kafka, judged by truths that another program made."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harness.cli import cli
from tests.captures.check import compare
from tests.captures.samples import CAPTURES, truth


def decode(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `kce decode`."""
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; from harness.cli import main; sys.exit(main())", "decode", *arguments],
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


def test_all_seven_captures_are_there():
    assert len(CAPTURES) == 7


def test_the_check_finds_what_is_wrong():
    name = "kafka-3.9.1-zombie"
    lines = in_process(str(CAPTURES[name]))
    missing = compare(truth(name), lines[1:])
    assert any("missing" in difference for difference in missing)
    changed = [dict(line, body=dict(line["body"], controller_epoch=9)) if line["body"] else line for line in lines]
    assert any(".controllerepoch: 1 expected, 9 found" in difference for difference in compare(truth(name), changed))
