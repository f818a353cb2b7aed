"""BEPT: what a registration says of a broker (section 14 of docs/controller-semantics.md; rules 1.16-1.19)."""

from __future__ import annotations

import json

import pytest

from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, Endpoint, RegisteredBroker

CLIENT = Endpoint("CLIENT", "SSL", "broker.example", 9093)
REPLICATION = Endpoint("REPLICATION", "PLAINTEXT", "10.0.0.1", 9094)
V4 = {
    "version": 4,
    "host": "10.0.0.1",
    "port": 9094,
    "jmx_port": -1,
    "timestamp": "1",
    "endpoints": ["CLIENT://broker.example:9093", "REPLICATION://10.0.0.1:9094"],
    "listener_security_protocol_map": {"CLIENT": "SSL", "REPLICATION": "PLAINTEXT"},
}


def decoded(**node: object) -> RegisteredBroker:
    return znodes.decode_broker(5, json.dumps(node).encode())


@pytest.mark.kafka("BEPT-1")
def test_equality_is_by_value() -> None:
    def made(port: int = 9, host: str = "h", listener: str = "A") -> Endpoint:
        return Endpoint(listener, "PLAINTEXT", host, port)

    assert made() == made()
    assert hash(made()) == hash(made())
    for other in (made(port=8), made(host="g"), made(listener="B")):
        assert other != made()
        assert hash(other) != hash(made())
    assert {made(): "found"}[made()] == "found"
    assert RegisteredBroker(BrokerId(1), (made(),)) == RegisteredBroker(BrokerId(1), (made(),))
    assert RegisteredBroker(BrokerId(1), (made(),)) != RegisteredBroker(BrokerId(2), (made(),))


@pytest.mark.kafka("BEPT-2")
def test_a_version_of_the_future() -> None:
    assert decoded(**{**V4, "version": 100, "rack": "r", "novelty": {"a": 1}}) == RegisteredBroker(
        BrokerId(5), (CLIENT, REPLICATION), "r"
    )
    without_map = decoded(
        foo="bar", version=100, host="h", port=9092, jmx_port=9999, timestamp="1", endpoints=["SSL://h:9093"]
    )
    assert without_map == RegisteredBroker(BrokerId(5), (Endpoint("SSL", "SSL", "h", 9093),))


@pytest.mark.kafka("BEPT-3")
def test_version_2() -> None:
    node = decoded(
        version=2, host="h", port=9092, jmx_port=-1, timestamp="1", endpoints=["PLAINTEXT://h:9092", "SSL://h:9093"]
    )
    assert node == RegisteredBroker(
        BrokerId(5), (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092), Endpoint("SSL", "SSL", "h", 9093))
    )


@pytest.mark.kafka("BEPT-4")
def test_version_1() -> None:
    node = decoded(version=1, host="h", port=9092, jmx_port=9999, timestamp="1")
    assert node == RegisteredBroker(BrokerId(5), (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),))


@pytest.mark.kafka("BEPT-5")
def test_version_3() -> None:
    node = decoded(
        version=3, host="localhost", port=9092, jmx_port=-1, timestamp="1",
        endpoints=["PLAINTEXT://h:9092", "SSL://h:9093"], rack="east",
    )  # fmt: skip
    assert node == RegisteredBroker(
        BrokerId(5), (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092), Endpoint("SSL", "SSL", "h", 9093)), "east"
    )


@pytest.mark.kafka("BEPT-6")
def test_version_4_with_null_rack() -> None:
    assert decoded(**V4, rack=None) == RegisteredBroker(BrokerId(5), (CLIENT, REPLICATION), None)


@pytest.mark.kafka("BEPT-7")
def test_version_4_without_rack() -> None:
    assert "rack" not in V4
    assert decoded(**V4) == RegisteredBroker(BrokerId(5), (CLIENT, REPLICATION), None)


@pytest.mark.kafka("BEPT-8")
def test_version_4_without_features() -> None:
    assert decoded(**V4, rack="west") == RegisteredBroker(BrokerId(5), (CLIENT, REPLICATION), "west", {})


@pytest.mark.kafka("BEPT-9")
def test_version_5() -> None:
    features = {"f1": {"min_version": 1, "max_version": 2}, "f2": {"min_version": 2, "max_version": 4}}
    assert decoded(**{**V4, "version": 5, "rack": "west", "features": features}) == RegisteredBroker(
        BrokerId(5), (CLIENT, REPLICATION), "west", {"f1": (1, 2), "f2": (2, 4)}
    )
