"""Clients written in Python, unchanged, while leaders move: kafka-python and aiokafka.

What they do is in python_clients.py, which is not imported here: kafka-python warns while it is imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster

pytestmark = pytest.mark.slow

CLIENTS = Path(__file__).parent / "python_clients.py"
TOPIC = "records"
LIMIT_S = 240
PROPERTIES = {"zookeeper.session.timeout.ms": "2000", "min.insync.replicas": "2", "replica.lag.time.max.ms": "2000"}


async def kill_leader(cluster: Cluster) -> int:
    (topic,) = await cluster.describe_topics([TOPIC])
    leadership = topic.partitions[0].leadership
    assert leadership is not None
    leader = leadership.leader_and_isr.leader
    await cluster.kill(leader)
    return leader


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
async def test_a_client_loses_nothing_while_a_leader_dies(client: str, tmp_path: Path) -> None:
    async with Cluster(3, properties=PROPERTIES) as cluster:
        await cluster.wait_for_controller()
        command = [sys.executable, str(CLIENTS), client, TOPIC, cluster.bootstrap_servers()]
        errors = tmp_path / "stderr"
        with trio.fail_after(LIMIT_S), errors.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                said = b""
                while not said.endswith(b"\n") and (part := await process.stdout.receive_some()):
                    said += part
                if said == b"moving\n":
                    leader = await kill_leader(cluster)
                    await process.stdin.send_all(b"\n")
                    await cluster.start(leader)
                code = await process.wait()
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
                for stream in (process.stdin, process.stdout):
                    await trio.aclose_forcefully(stream)
        assert (said, code) == (b"moving\n", 0), errors.read_text()
