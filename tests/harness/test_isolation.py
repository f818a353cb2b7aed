"""What the data plane does costs no session, and no control request (rules B1.5, B1.65)."""

from __future__ import annotations

import multiprocessing

import pytest
import trio

from benchmarks import broker_load as load
from kce.harness.cluster import Cluster

SECONDS = 20


def _address(text: str) -> load.Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


@pytest.mark.slow
async def test_a_saturated_data_plane_costs_no_session() -> None:
    """Saturated by 64 connections, and then by a request that takes seconds, with a session of 4 s."""
    settings = {"zookeeper.session.timeout.ms": "4000"}
    async with Cluster(brokers=1, processes=True, log_level="ERROR", properties=settings) as cluster:
        first = await cluster.wait_for_controller()
        await cluster.create_topic(load.TOPIC, partitions=500, replication_factor=1)
        control, data = (_address(cluster.member(1).addresses[name]) for name in ("CONTROL", "DATA"))
        with load.in_background(load.hammer, data, 64, 4, 1e9, load.METADATA):
            answered = await trio.to_thread.run_sync(load.probe, control, SECONDS)
        context = multiprocessing.get_context("spawn")
        sent, done = context.Event(), context.Event()
        process = context.Process(target=load.send_hostile, args=(data, "100,000 topics", sent, done))
        process.start()
        await trio.to_thread.run_sync(sent.wait)
        beside = await trio.to_thread.run_sync(load.probe, control, 60, 0.001, done)
        process.join()
        assert await cluster.controller() == first
        assert (await cluster.node_status(1)).believes_active
    # generous: the machine that runs the suite does other things, too; benchmarks.broker measures
    assert load.quantile(answered, 0.5) < 0.02
    assert load.quantile(beside, 0.5) < 0.02
