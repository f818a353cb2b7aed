"""Every one of Kafka's command-line tools against a cluster of ours prints what it prints against real Kafka 3.9.1, and
ApiVersions says what it says there (rules B1.37 to B1.40).

ReplicaVerificationTool, which does not end, is in test_records_beside_real_brokers.py. Tools that ask no broker are not
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster
from tests.interop.api_versions import api_versions
from tests.interop.real_kafka import real_brokers
from tests.interop.tool_scripts import ACLS, API_VERSIONS, SCRIPTS, SERVERS, TOKENS, Run, comparable
from tests.interop.tools import TOPICS, Tools

pytestmark = pytest.mark.slow

BROKERS = [1, 2, 3]
#: of both clusters
SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "200",
    "offsets.topic.num.partitions": "5", "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "5", "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1", "replica.lag.time.max.ms": "30000",
}  # fmt: skip


def run_all(tools: Tools, addresses: Mapping[int, str], folder: Path) -> dict[tuple[Run, int], tuple[int, list[str]]]:
    """The exit status and the lines of each run, which is numbered."""
    folder.mkdir()
    empty = folder / "empty.properties"
    empty.touch()
    servers = ",".join(addresses.values())
    found: dict[tuple[Run, int], tuple[int, list[str]]] = {}
    for script in SCRIPTS:
        for run in script(folder):
            known = {"{empty}": str(empty), SERVERS: servers}
            given = [known.get(argument, argument) for argument in run.arguments]
            if SERVERS not in run.arguments:
                given = [run.bootstrap, servers, *given] if run.bootstrap else [*given, f"bootstrap.servers={servers}"]
            if "--list" in given or "--describe" in given:  # brokers learn of a change a moment after the answer to it
                if run.tool in (TOPICS, ACLS):  # each broker answers from what it knows itself
                    wait_until_brokers_agree(tools, run, addresses.values())
                tools.try_run(run.tool, *given)
            status, printed = tools.try_run(run.tool, *given, standard_input=run.reads)
            found[run, len(found)] = status, comparable(run, printed.replace(str(folder), "<folder>"), addresses)
    return found


def wait_until_brokers_agree(tools: Tools, run: Run, addresses: Iterable[str]) -> None:
    """The broker that answered a change knows of it by then, so all of them do. Raises AssertionError."""
    for _ in range(50):
        said = set()
        for address in addresses:
            status, printed = tools.try_run(run.tool, run.bootstrap, address, *run.arguments)
            said.add((status, *comparable(run, printed, {})))
        if len(said) == 1:
            return
    raise AssertionError(f"{run}: the brokers do not agree: {said}")


async def test_tools_and_api_versions_say_what_they_say_with_kafka(
    zookeeper: str, tmp_path: Path, tools: Tools
) -> None:
    async with Cluster(brokers=len(BROKERS), zookeeper=f"{zookeeper}/ours", properties=SETTINGS) as cluster:
        await cluster.wait_for_controller()
        addresses = {broker: cluster.member(broker).addresses["DATA"] for broker in BROKERS}
        ours = await trio.to_thread.run_sync(run_all, tools, addresses, tmp_path / "with-ours")
        # by now each broker has read /feature, whose epoch it tells
        our_versions = {name: await api_versions(text) for name, text in cluster.member(1).addresses.items()}
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    async with real_brokers(BROKERS, f"{zookeeper}/theirs", tmp_path, **settings) as brokers:
        addresses = {broker: brokers[broker].address for broker in BROKERS}
        theirs = await trio.to_thread.run_sync(run_all, tools, addresses, tmp_path / "with-theirs")
        control = f"127.0.0.1:{brokers[1].control_port}"
        their_versions = {"CONTROL": await api_versions(control), "DATA": await api_versions(brokers[1].address)}
    assert our_versions == their_versions
    assert {run.tool for run, _ in ours} >= {API_VERSIONS, TOKENS}
    differences = [
        f"{run}:\n  ours {mine}\n  Kafka {its}"
        for ((run, _), mine), its in zip(ours.items(), theirs.values(), strict=True)
        if mine != its
    ]
    assert not differences, "\n".join([f"{len(differences)} of {len(ours)} runs differ", *differences])
