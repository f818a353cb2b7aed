"""Bad requests on a real socket close only their connection, without a response, and log the reason (rules B1.34-B1.36,
B1.42)."""

from __future__ import annotations

import logging
import struct

import pytest
import trio

from kce import wire
from tests.broker_stub.support import (
    config,
    connect,
    lai_state,
    leader_and_isr,
    listener,
    running_broker,
    until,
    update_metadata,
)

LAI = wire.encode_request(leader_and_isr(lai_state()), api_version=7, correlation_id=1, client_id="c")
HUGE_COUNT = LAI[:-2] + b"\xff\xff\xff\xff\x07" + LAI[-1:]  # live_leaders: 2^31 - 1 of them, less one

BAD = [
    pytest.param(struct.pack(">i", 2**31 - 1), "frame length 2147483647 is outside", id="length 2^31-1"),
    pytest.param(struct.pack(">i", -1), "frame length -1 is outside", id="length -1"),
    pytest.param(struct.pack(">i", -(2**31)), "frame length -2147483648 is outside", id="length -2^31"),
    pytest.param(
        struct.pack(">i", 5001), "frame length 5001 is outside", id="too long", marks=pytest.mark.kafka("SS-8")
    ),
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", "frame length 1195725856 is outside", id="not Kafka"),
    pytest.param(wire.frame(b""), "request header: 8 bytes needed, 0 there", id="empty"),
    pytest.param(wire.frame(b"\0"), "request header: 8 bytes needed, 1 there", id="one byte"),
    pytest.param(wire.frame(LAI[:6]), "request header: 8 bytes needed, 6 there", id="half a header"),
    pytest.param(
        wire.frame(LAI[:8]), "LeaderAndIsr 7: request header", id="header only", marks=pytest.mark.kafka("EDGE-2")
    ),
    pytest.param(
        wire.frame(struct.pack(">hhih", 9999, 0, 1, -1)),
        "API 9999 0: no API has key 9999",
        id="unknown API",
        marks=pytest.mark.kafka("EDGE-3"),
    ),
    pytest.param(
        wire.frame(struct.pack(">hhih", 4, 8, 1, -1) + b"\0"),
        "LeaderAndIsr 8: only versions 0-7 are served",
        id="unknown version",
        marks=pytest.mark.kafka("EDGE-4"),
    ),
    pytest.param(
        wire.frame(struct.pack(">hhih", 52, 0, 1, -1)),
        "Vote 0: Vote is not served",
        id="KRaft",
        marks=pytest.mark.kafka("SS-7"),
    ),
    pytest.param(
        wire.frame(struct.pack(">hhih", 52, 0, 1, -1)),
        "Vote 0: Vote is not served",
        id="not served",
    ),
    pytest.param(
        wire.frame(struct.pack(">hhih", 3, 0, 1, -7)),
        "Metadata 0: request header of Metadata 0: negative length -7",
        id="malformed header",
        marks=pytest.mark.kafka("EDGE-5"),
    ),
    pytest.param(wire.frame(LAI[:-1]), "LeaderAndIsr 7: LeaderAndIsrRequest 7:", id="truncated body"),
    pytest.param(wire.frame(HUGE_COUNT), "elements announced, at most", id="array count 2^31-1"),
    pytest.param(
        wire.frame(struct.pack(">hhihi", 3, 0, 1, -1, 2**31 - 1)),
        "2147483647 elements announced",
        id="array count 2^31-1, not compact",
    ),
]


@pytest.mark.parametrize("listener_name", ["CONTROL", "DATA"])
@pytest.mark.parametrize(("sent", "reason"), BAD)
async def test_a_bad_request_closes_only_its_connection(caplog, sent, reason, listener_name) -> None:
    caplog.set_level(logging.WARNING, "kce.broker_stub.reactor")
    configuration = config(socket_request_max_bytes="5000")
    async with running_broker(configuration) as broker:
        endpoint = listener(broker.socket_server, listener_name)
        async with connect(endpoint) as other, connect(endpoint) as bad:
            await other.ask(update_metadata(controller_epoch=3))
            await bad.stream.send_all(sent)
            assert await bad.closed()
            (record,) = caplog.records
            assert record.name == "kce.broker_stub.reactor.connection"
            port = bad.stream.socket.getsockname()[1]  # type: ignore[attr-defined]
            assert f"{endpoint.host}:{endpoint.port}-127.0.0.1:{port}-" in record.getMessage()
            assert reason in record.getMessage()
            assert broker.socket_server.metrics.connections_closed_for_bad_requests == 1
            assert not broker.replica_manager.partitions
            assert broker.replica_manager.controller_epoch == 3
            assert (await other.ask(wire.ApiVersionsRequest(), 0)).error_code == 0


async def test_requests_before_a_bad_one_are_answered() -> None:
    async with running_broker() as broker, connect(broker.endpoints[1]) as client:
        await client.stream.send_all(client.encoded(wire.ApiVersionsRequest(), 0) + wire.frame(b"bad"))
        assert (await client.receive()).error_code == 0
        assert await client.closed()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_close_within_a_frame(caplog, how) -> None:
    caplog.set_level(logging.INFO, "kce.broker_stub.reactor")
    async with running_broker() as broker:
        async with connect(broker.endpoints[1]) as client:
            await client.stream.send_all(client.encoded(wire.ApiVersionsRequest(), 0)[:-3])
            if how == "reset":
                linger = struct.pack("ii", 1, 0)
                client.stream.setsockopt(  # type: ignore[attr-defined]
                    trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger
                )
        metrics = broker.socket_server.metrics
        await until(lambda: metrics.connections_accepted == 1 and metrics.connections_open == 0)
        assert ("the client closed the connection within a request" in caplog.text) is (how == "close")
        async with connect(broker.endpoints[1]) as other:
            assert (await other.ask(wire.ApiVersionsRequest(), 0)).error_code == 0


async def test_a_null_client_id_is_accepted() -> None:  # rule B1.42
    async with running_broker() as broker, connect(broker.endpoints[1]) as client:
        for version in (0, 12):
            message = wire.MetadataRequest(topics=())
            await client.stream.send_all(
                wire.frame(wire.encode_request(message, api_version=version, correlation_id=9, client_id=None))
            )
            header, _ = wire.decode_response(await client.receive_frame(), api_key=3, api_version=version)
            assert header.correlation_id == 9


@pytest.mark.parametrize("version", [99, -1])
async def test_an_unknown_version_of_api_versions_leaves_the_connection_usable(version: int) -> None:  # rule B1.37
    async with running_broker() as broker, connect(broker.endpoints[0]) as client:
        frame = struct.pack(">hhih", 18, version, 7, 1) + b"c\0\xff\xff\xff the body of the future"
        await client.stream.send_all(wire.frame(frame))
        answer = await client.receive_frame()
        assert answer == struct.pack(">ihihhh", 7, 35, 1, 18, 0, 4)
        assert (await client.ask(wire.ApiVersionsRequest(), 2)).error_code == 0


async def test_controlled_shutdown_0_has_no_client_id() -> None:  # rules B1.42, 13.4
    async with running_broker() as broker, connect(broker.endpoints[1]) as client:
        await client.stream.send_all(wire.frame(struct.pack(">hhii", 7, 0, 6, 2)))
        assert await client.receive_frame() == struct.pack(">ihi", 6, 11, 0)
