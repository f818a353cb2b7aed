"""The protocol of a node's process: JSON lines in and out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.scheduler import HAS_SLICES, attributes

NODE = [sys.executable, "-m", "kce.harness.node_process"]


def begin(**properties: str) -> str:
    """The first line for a node with these properties; underscores stand for dots."""
    given = {key.replace("_", "."): value for key, value in properties.items()}
    message = {
        "properties": given, "record": None, "log_level": "INFO", "log_folder": None, "members": [1], "rules": {},
        "subscribed": False, "lags": [], "machine": {},
    }  # fmt: skip
    return json.dumps(message) + "\n"


def run(lines: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, messages, and log of a node whose stdin ends after ``lines``."""
    ran = subprocess.run(NODE, input=lines, capture_output=True, text=True, timeout=60, check=False)
    return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()], ran.stderr


def test_a_bad_setting_is_one_message_and_one_line_in_the_log() -> None:
    code, messages, log = run(begin(broker_id="1", zookeeper_connect="127.0.0.1:1", num_io_threads="many"))
    assert code == 1
    ((message),) = messages
    assert message["event"] == "failed"
    assert message["error"].startswith("num.io.threads=many")
    assert log.count("\n") == 1
    assert message["error"] in log


def test_the_end_of_stdin_ends_the_process() -> None:
    assert run("") == (1, [], "")


@pytest.mark.slow
def test_a_node_answers_commands_until_it_quits(zookeeper: str) -> None:
    process = subprocess.Popen(NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def send(line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()

    def receive() -> dict[str, Any]:
        assert process.stdout is not None
        message: dict[str, Any] = json.loads(process.stdout.readline())
        return message

    try:
        send(begin(broker_id="1", zookeeper_connect=f"{zookeeper}/node-process", listeners="PLAINTEXT://127.0.0.1:0"))
        ready = receive()
        assert ready["event"] == "ready"
        assert ready["addresses"]["PLAINTEXT"].startswith("127.0.0.1:")
        if HAS_SLICES:
            assert attributes(process.pid)["slice"] == 100_000
        send(json.dumps({"command": "status"}) + "\n")
        status = receive()
        assert status["event"] == "status"
        assert status.keys() == {"event", "believes_active", "controller_epoch", "unanswered"}
        send(json.dumps({"command": "quit"}) + "\n")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
