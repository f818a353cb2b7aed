"""Which address is which broker's listener."""

from __future__ import annotations

import dataclasses

import pytest

from kce import wire
from kce.captures.exchanges.cluster import Cluster, announced_listeners


def test_listeners_by_name_are_found_by_their_port():
    cluster = Cluster()
    broker = wire.UpdateMetadataBroker(
        id=7, endpoints=(wire.UpdateMetadataEndpoint(port=9092, host="kafka-7", listener="DATA"),)
    )
    cluster.learn(wire.UpdateMetadataRequest(live_brokers=(broker,)))
    assert cluster.listener_at((b"\x0a\x00\x00\x07", 9092)).broker_id == 7
    cluster.learn(wire.UpdateMetadataRequest(live_brokers=(dataclasses.replace(broker, id=8),)))
    assert cluster.listener_at((b"\x0a\x00\x00\x07", 9092)) is None


@pytest.mark.parametrize(("protocol", "name"), [(0, "PLAINTEXT"), (3, "SASL_SSL"), (9, "")])
def test_old_versions_name_the_listener_after_its_protocol(protocol, name):  # rule 13.21
    endpoint = wire.UpdateMetadataEndpoint(port=9092, host="h", security_protocol=protocol)
    body = wire.UpdateMetadataRequest(live_brokers=(wire.UpdateMetadataBroker(id=1, endpoints=(endpoint,)),))
    assert announced_listeners(body)[0].name == name
    old = wire.UpdateMetadataRequest(live_brokers=(wire.UpdateMetadataBroker(id=1, v0_host="h", v0_port=9092),))
    assert announced_listeners(old)[0].name == "PLAINTEXT"
