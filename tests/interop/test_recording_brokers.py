"""Who may talk to a broker that records what a controller sends."""

from __future__ import annotations

import trio

from kce import wire
from kce.wire.framing import frame
from tests.interop.recording_brokers import RecordingBroker


async def _answered(port: int, client_id: str, message: wire.Message) -> bool:
    request = wire.encode_request(message, api_version=3, correlation_id=1, client_id=client_id)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(frame(request))
        return bool(await stream.receive_some())


async def test_strangers_are_turned_away() -> None:
    """The client of an earlier test, whose broker had this port, and another controller."""
    broker = RecordingBroker(1, controller=100)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.serve)
        with trio.fail_after(60):
            for client_id in ("rdkafka", "101"):
                assert not await _answered(broker.control_port, client_id, wire.ApiVersionsRequest())
            assert broker.received == []
            assert await _answered(broker.control_port, "100", wire.UpdateMetadataRequest())
        assert [recorded.header.client_id for recorded in broker.received] == ["100"]
        nursery.cancel_scope.cancel()
