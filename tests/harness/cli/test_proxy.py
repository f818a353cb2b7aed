"""`kce proxy`, and `kce fault` on it from another process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.admin import AdminClient

from kce.captures.exchanges import messages
from kce.captures.exchanges.decode import Decoder
from kce.captures.files.pcap import CaptureFile
from tests.harness.cli.support import background, kce, up
from tests.harness.conftest import Here
from tests.harness.processes import family, wait_gone


def bearer(ready: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {ready['http']['token']}"}


@pytest.mark.slow
def test_a_proxy_in_front_of_a_cluster(env: dict[str, str], here: Here, tmp_path: Path) -> None:
    record, ready_file = tmp_path / "proxy.pcapng", tmp_path / "proxy.json"
    with up(tmp_path, env, "--brokers", "2") as (_, cluster):
        arguments = ("--record", str(record), "--wireshark", "--name", "front", "--ready-file", str(ready_file),
                     "--http-port", "0")  # fmt: skip
        command = ["proxy", "--to", cluster["nodes"][0]["listeners"]["DATA"], *arguments]
        with background(env, command, "Ctrl-C stops the proxy") as process:
            ready = json.loads(ready_file.read_text())
            assert (ready["kind"], ready["name"]) == ("proxy", "front")
            assert {n["id"]: n["address"] for n in ready["nodes"]} == {
                n["id"]: n["listeners"]["DATA"] for n in cluster["nodes"]
            }
            found = AdminClient({"bootstrap.servers": ready["bootstrap_servers"]}).list_topics(timeout=30).brokers
            assert {b.id: f"{b.host}:{b.port}" for b in found.values()} == {
                n["id"]: n["listener"] for n in ready["nodes"]
            }

            assert here("topic", "list").code == 0  # the cluster is the only one of its kind
            several = here("fault", "list")
            assert (several.code, "proxy to" in several.err) == (1, True)
            added = here("fault", "add", "--api", "Metadata", "--delay", "0.01", "--cluster", "front")
            assert added.out.startswith("fault 1 is added: ")
            AdminClient({"bootstrap.servers": ready["bootstrap_servers"]}).list_topics(timeout=30)
            removed = here("fault", "remove", "1", "--cluster", "front").out
            assert "acted on 0" not in removed
            with urlopen(
                Request(f"{ready['http']['url']}/faults", b'{"api": "Fetch", "drop": true}', bearer(ready))
            ) as r:
                assert json.load(r)["number"] == 2
            assert here("fault", "list", "--cluster", "front").out == "2  requests api='Fetch' drop=True\n"
            no_cluster = here("kill", "1", "--cluster", "front")
            assert no_cluster.err == "kce: front is a proxy: this command needs a cluster of `kce up`\n"
            taken = kce("proxy", "--to", ready["bootstrap_servers"], "--name", "front", env=env)
            assert (taken.returncode, "has the name front already" in taken.stderr) == (1, True)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        used_by_a_script(env, cluster["nodes"][1]["listeners"]["DATA"])
    assert not ready_file.exists()
    assert Path(f"{record}.lua").exists()
    with CaptureFile(record) as capture:
        assert "Metadata" in {m.api_name for m in Decoder(capture).messages() if isinstance(m, messages.Request)}


def used_by_a_script(env: dict[str, str], broker: str) -> None:
    """`kce proxy --wait` returns when clients can connect, and `kce down` ends it."""
    begun = kce("proxy", "--wait", "--json", "--to", broker, "--name", "behind", env=env)
    assert begun.returncode == 0, begun.stderr
    assert "`kce down` stops the proxy." in begun.stderr
    ready = json.loads(begun.stdout)
    everyone = family(ready["pid"])
    try:
        assert AdminClient({"bootstrap.servers": ready["bootstrap_servers"]}).list_topics(timeout=30).brokers
        ended = kce("down", "--cluster", "behind", env=env)
        assert (ended.returncode, ended.stdout) == (0, "behind has ended\n")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ready["pid"], signal.SIGKILL)
    assert wait_gone(everyone) == []
    assert not Path(ready["output"]).parent.exists()
    failed = kce("proxy", "--wait", "--to", "127.0.0.1:1", env=env)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("kce: no broker at 127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--to", "nowhere"], 2, "kce: 'nowhere' is not host:port, as in 127.0.0.1:9092\n"),
        (["--to", "127.0.0.1:1"], 1, "kce: no broker at 127.0.0.1:1: "),
        (["--to", "nowhere.invalid:1"], 1, "kce: no broker at nowhere.invalid:1: "),
        ([], 2, "Missing option '--to'"),
        (["--to", "127.0.0.1:1", "--wireshark"], 2, "--wireshark needs --record"),
    ],
)
def test_wrong_usage(here: Here, arguments: list[str], code: int, error: str) -> None:
    found = here("proxy", *arguments)
    assert found.code == code
    assert error in found.err
    assert "Traceback" not in found.err
    assert "Errno" not in found.err
