"""What a Fetch asks of the data plane, by its version and its sender (rules B2.18, B4.1, B4.9, B4.15, B4.37)."""

from __future__ import annotations

from typing import Any

import pytest

from kce import wire
from kce.broker_stub.handlers.fetch import _Denied
from kce.broker_stub.log import Isolation
from kce.broker_stub.log.producer_state import Origin
from kce.broker_stub.replication.read_replica import Consumer
from kce.broker_stub.replication.reading import FetchParams
from kce.wire import Codec, ErrorCode, down_conversion
from tests.broker_stub.log.support import batch, marker
from tests.broker_stub.replication.support import RecordNode, a_node, fetch_request, values_of
from tests.broker_stub.replication.test_read_replica import SELECTOR

RACKS = {"replica_selector_class": SELECTOR, "fetch_max_bytes": "5000"}


def asked(node: RecordNode, monkeypatch: pytest.MonkeyPatch, message: wire.FetchRequest, version: int) -> FetchParams:
    """Nothing is answered."""
    found: list[FetchParams] = []
    plane: Any = node.replication.data_plane
    monkeypatch.setattr(plane, "fetch", lambda params, *rest: found.append(params), raising=False)
    request, _ = node.request(message, version)
    node.apis.handle(request)
    (params,) = found
    return params


@pytest.mark.parametrize("version", [0, 2, 3, 10, 11, 12])
@pytest.mark.parametrize("replica", [-1, 0, 2])
async def test_what_is_asked(version: int, replica: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(**RACKS) as node:
        await node.lead()
        message = fetch_request(
            version=version, replica=replica, max_wait_ms=70, min_bytes=9000, max_bytes=6000, isolation=1, rack_id="r"
        )
        is_consumer = replica < 0
        max_bytes = 6000 if version >= 3 else wire.FetchRequest().max_bytes
        limit = min(max_bytes, 5000)  # rule B4.5
        level = Isolation.HIGH_WATERMARK if version < 4 else Isolation.COMMITTED
        assert asked(node, monkeypatch, message, version) == FetchParams(
            replica_id=replica, max_wait_ms=70, min_bytes=min(9000, limit), max_bytes=limit,
            isolation=level if is_consumer else Isolation.LOG_END, leader_only=not is_consumer or version < 11,
            hard_limit=version < 3, consumer=Consumer("r", "DATA") if is_consumer and version >= 11 else None,
        )  # fmt: skip


async def test_who_is_sent_to_no_other_replica(monkeypatch: pytest.MonkeyPatch) -> None:  # rule B4.37
    async with a_node(**RACKS) as node:
        await node.lead()
        assert asked(node, monkeypatch, fetch_request(version=12, rack_id=""), 12).consumer is None
    async with a_node() as node:
        await node.lead()
        assert asked(node, monkeypatch, fetch_request(version=12, rack_id="r"), 12).consumer is None


async def test_a_throttled_consumer_is_one_nevertheless() -> None:  # rule B4.20
    async with a_node({"message.downconversion.enable": "false"}) as node:
        await node.lead()
        await node.produce(batch(b"x"))
        for limits in ({}, {"consumer_byte_rate": "1000000"}):
            node.quotas.changed("users", "ANONYMOUS", limits)
            assert (await node.fetch(0, version=3)).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_what_is_converted_at_once_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:  # rule B4.20
    """The rest is left for the next fetch; a batch that is too large is no reason to withhold what is before it."""
    monkeypatch.setattr(down_conversion, "MAX_OPENED_ELEMENTS", 3)
    async with a_node() as node:
        await node.lead()
        for count in (2, 1, 100):
            await node.produce(batch(*[b"x"] * count, codec=Codec.GZIP))
        for offset, found in ((0, 3), (2, 1)):
            assert len(values_of(await node.fetch(offset, version=3))) == found
        assert (await node.fetch(3, version=3)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert len(values_of(await node.fetch(3, version=4))) == 100


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_an_old_consumer_sees_that_a_marker_is_not_the_end(version: int) -> None:  # rule B4.20
    """What begins there is longer than the answer, so it fails or asks for more, as with Kafka."""
    end = marker(9, committed=True)
    async with a_node() as node:
        await node.lead()
        node.log.append_as_leader(end, 0, origin=Origin.COORDINATOR)
        await node.produce(batch(b"x"))
        found = await node.fetch(0, version=version, partition_max_bytes=len(end), max_bytes=len(end))
        assert found.records == bytes.fromhex("ffffffffffffffff0000003d")
        assert values_of(await node.fetch(0, version=version)) == [b"x"]
        assert (await node.fetch(2, version=version)).records == b""


@pytest.mark.parametrize(("is_on", "is_follower"), [(True, False), (True, True), (False, False), (False, True)])
def test_each_topic_is_judged_once(is_on: bool, is_follower: bool) -> None:
    judged: list[str] = []

    class Authorization:
        def __init__(self) -> None:
            self.is_on = is_on

        def allows(self, context: object, operation: object, kind: object, name: str) -> bool:
            judged.append(name)
            return name == "a"

        def allows_on_cluster(self, context: object, operation: object) -> bool:
            return False

    authorization: Any = Authorization()
    context: Any = None
    denied = _Denied(context, authorization, is_follower=is_follower)
    assert (denied.whole, denied.by_topic) == (is_on and is_follower, is_on and not is_follower)
    assert [denied(topic) for topic in "abab"] == [False, True] * 2
    assert judged == ["a", "b"]
