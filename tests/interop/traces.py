"""The same script under our controller and under Kafka's, and the differences of their traces.

Node 100 is the controller; it takes no replicas, because no assignment names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import trio

from kce.harness import Cluster
from kce.harness.cli.options import connected_store
from kce.harness.guard import Guard
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from kce.zookeeper.store import MetadataStore
from tests.interop.kafka_jars import kafka_jars
from tests.interop.real_kafka import RealBroker
from tests.interop.recording_brokers import RecordingBroker
from tests.interop.trace_diff import Comparison, Normaliser, StepTrace, compare
from tests.interop.trace_operations import Operations
from tests.interop.trace_scripts import BROKERS, Step

NODE = 100
LATEST = "3.9"
#: of the driver and of the controllers: none may expire because the machine is busy
SESSION_TIMEOUT_MS = 60_000
START_TIMEOUT_S = 120
_SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "auto.leader.rebalance.enable": "false",
    "broker.rack": "a",
}


async def trace(
    zookeeper: str, folder: Path, script: Sequence[Step], *, ours: bool, ibp: str = LATEST
) -> list[StepTrace]:
    """The trace of a script under one controller. ``zookeeper`` with a chroot that is not used yet; ``ibp``: the
    inter-broker protocol of the controller."""
    settings = _SETTINGS | {"inter.broker.protocol.version": ibp}
    async with (
        _node(zookeeper, folder, settings, ours=ours) as (control_port, data_port),
        connected_store(zookeeper, None, session_timeout_ms=SESSION_TIMEOUT_MS) as store,
    ):
        await _up(store)
        brokers = {i: RecordingBroker(i, NODE, rack="ab"[i % 2]) for i in BROKERS}
        async with trio.open_nursery() as nursery:
            for broker in brokers.values():
                await nursery.start(broker.serve)
            ports = {broker.control_port: f"<control port of {i}>" for i, broker in brokers.items()}
            ports |= {control_port: f"<control port of {NODE}>", data_port: f"<data port of {NODE}>"}
            driver = Operations(store, brokers, f"127.0.0.1:{data_port}", MetadataVersion.parse(ibp))
            traces = [one async for one in driver.run(script, Normaliser(ports))]
            nursery.cancel_scope.cancel()
    return traces


async def _up(store: MetadataStore) -> None:
    """Wait until node 100 is registered, and the controller."""
    with trio.fail_after(START_TIMEOUT_S):
        while not all(await store.exists([znodes.CONTROLLER, znodes.broker_path(NODE)])):  # noqa: ASYNC110
            await trio.sleep(0.05)


@asynccontextmanager
async def _node(
    zookeeper: str, folder: Path, settings: dict[str, str], *, ours: bool
) -> AsyncIterator[tuple[int, int]]:
    """Node 100, ours or real; yields its control and data ports."""
    if ours:
        async with Cluster(1, first_id=NODE, zookeeper=zookeeper, properties=settings) as cluster:
            control, data = (cluster.member(NODE).addresses[name] for name in ("CONTROL", "DATA"))
            yield int(control.rpartition(":")[2]), int(data.rpartition(":")[2])
        return
    await trio.to_thread.run_sync(kafka_jars)
    with closing(Guard()) as guard:
        broker = RealBroker(NODE, zookeeper, folder, guard, settings)
        try:
            await broker.start()
            yield broker.control_port, broker.data_port
        finally:
            broker.kill()


async def traces_of_both(
    zookeeper: str, folder: Path, script: Sequence[Step], *, control: bool = False, ibp: str = LATEST
) -> Comparison:
    """Runs both at the same time; with ``control``, Kafka's twice. ``zookeeper`` with a chroot that is not used yet."""
    found: dict[str, list[StepTrace]] = {}

    async def run(name: str, ours: bool) -> None:
        found[name] = await trace(f"{zookeeper}/{name}", folder / name, script, ours=ours, ibp=ibp)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "ours", not control)
        nursery.start_soon(run, "kafkas", False)
    return compare(found["ours"], found["kafkas"])
