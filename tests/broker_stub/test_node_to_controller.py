"""Requests to the controller (rules 9.56, 9.57, 8.20). Controllers are brokers 1 and 2, on listener CONTROL."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.node_to_controller import NodeToControllerChannel
from kce.wire import ErrorCode
from kce.wire.transport import ConnectionLost
from tests.broker_stub.fake_nodes import FakeNodes, answering, serves
from tests.broker_stub.support import umr_broker, update_metadata

ADDRESS = {1: ("host1", 9010), 2: ("host2", 9020)}
NOT_CONTROLLER = wire.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)


class Fixture:
    def __init__(self) -> None:
        self.cache = MetadataCache(3)
        self.nodes = FakeNodes()
        self.channel = NodeToControllerChannel(
            self.cache, "CONTROL", self.nodes.dial, client_id="3", request_timeout_seconds=30
        )

    def controller_is(self, broker_id: int) -> None:
        self.cache.update(update_metadata(alive=(1, 2), controller_id=broker_id))

    def node(self, broker_id: int, *answers: wire.Message | Exception | None) -> None:
        self.nodes.nodes[ADDRESS[broker_id]] = answering(*answers)

    async def ask(self, max_version: int = 3) -> wire.Message:
        return await self.channel.request(
            56, max_version, lambda version: wire.AlterPartitionRequest(broker_id=3), _error_codes
        )

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        return [(host, type(message).__name__, header.api_version) for host, header, message in self.nodes.requests]


def _error_codes(response: wire.Message) -> list[int]:
    assert isinstance(response, wire.AlterPartitionResponse)
    return [response.error_code, *(p.error_code for t in response.topics for p in t.partitions)]


async def test_api_versions_precedes_the_request_on_one_connection() -> None:
    f = Fixture()
    f.controller_is(1)
    f.node(1, wire.AlterPartitionResponse(), wire.AlterPartitionResponse(error_code=77))
    assert await f.ask() == wire.AlterPartitionResponse()
    assert await f.ask() == wire.AlterPartitionResponse(error_code=77)  # the caller handles any other error
    assert f.nodes.dialled == [ADDRESS[1]]
    alter = ("host1", "AlterPartitionRequest", 3)
    assert f.requests == [("host1", "ApiVersionsRequest", 4), alter, alter]
    headers = [header for _, header, _ in f.nodes.requests]
    assert [header.correlation_id for header in headers] == [1, 2, 3]
    assert {header.client_id for header in headers} == {"3"}


def refusing(*supported: wire.ApiVersion) -> wire.ApiVersionsResponse:
    return wire.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=supported)


@pytest.mark.parametrize(
    ("refusal", "asked"),
    [
        (refusing(wire.ApiVersion(api_key=18, min_version=0, max_version=3)), [4, 3]),  # since Kafka 2.4
        (refusing(wire.ApiVersion(api_key=18, min_version=0, max_version=1)), [4, 1]),
        (refusing(), [4, 0]),
        (refusing(wire.ApiVersion(api_key=3, min_version=0, max_version=3)), [4, 0]),
    ],
)
async def test_an_old_controller_is_asked_with_a_version_that_it_has(refusal, asked) -> None:  # rule 8.20
    f = Fixture()
    f.controller_is(1)

    async def behave(header: wire.Header, message: wire.Message) -> wire.Message:
        if not isinstance(message, wire.ApiVersionsRequest):
            return wire.AlterPartitionResponse()
        return serves(56, 0, 3) if header.api_version == asked[-1] else refusal

    f.nodes.nodes[ADDRESS[1]] = behave
    assert await f.ask() == wire.AlterPartitionResponse()
    assert [version for _, name, version in f.requests if name == "ApiVersionsRequest"] == asked
    assert len(f.nodes.dialled) == 1


@pytest.mark.parametrize(
    "answer",
    [
        refusing(wire.ApiVersion(api_key=18, min_version=0, max_version=4)),
        refusing(wire.ApiVersion(api_key=18, min_version=0, max_version=-1)),
        wire.ApiVersionsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_controller_that_refuses_every_version_is_asked_again_later(autojump_clock, answer) -> None:
    f = Fixture()
    f.controller_is(1)

    async def behave(header: wire.Header, message: wire.Message) -> wire.Message:
        return answer

    f.nodes.nodes[ADDRESS[1]] = behave
    with trio.move_on_after(1.05):
        await f.ask()
    assert [version for _, _, version in f.requests] == [4] * len(f.nodes.dialled)
    assert 9 <= len(f.nodes.dialled) <= 11


@pytest.mark.parametrize(
    ("controller_has", "wanted", "expected"),
    [((0, 3), 1, 1), ((0, 2), 3, 2), ((0, 1), 3, 1), ((2, 3), 3, 3), ((1, 1), 3, 1)],
)
async def test_the_highest_common_version_is_used(controller_has, wanted, expected) -> None:  # rule 8.20
    f = Fixture()
    f.controller_is(1)

    async def behave(header: wire.Header, message: wire.Message) -> wire.Message:
        ask = isinstance(message, wire.ApiVersionsRequest)
        return serves(56, *controller_has) if ask else wire.AlterPartitionResponse()

    f.nodes.nodes[ADDRESS[1]] = behave
    await f.ask(wanted)
    assert f.requests[-1][-1] == expected


@pytest.mark.parametrize("served", [serves(56, 2, 3), serves(4, 0, 7)])
async def test_no_common_version_raises(served) -> None:  # rule 9.54
    f = Fixture()
    f.controller_is(1)

    async def behave(header: wire.Header, message: wire.Message) -> wire.Message:
        return served

    f.nodes.nodes[ADDRESS[1]] = behave
    with pytest.raises(wire.UnsupportedVersion):
        await f.ask(1)


async def test_an_unknown_controller_is_looked_up_every_100_ms(autojump_clock) -> None:  # rule 9.56
    f = Fixture()
    f.node(1, wire.AlterPartitionResponse())
    f.cache.update(update_metadata(alive=(umr_broker(1, ("DATA",)),), controller_id=1))  # it lacks the listener
    async with trio.open_nursery() as nursery:
        nursery.start_soon(f.ask)
        await trio.sleep(5)
        assert f.nodes.dialled == []
        f.controller_is(1)
        await trio.sleep(0.101)
        assert f.nodes.dialled == [ADDRESS[1]]


WRONG = wire.AlterPartitionResponsePartitionData(error_code=ErrorCode.NOT_CONTROLLER)
RIGHT = wire.AlterPartitionResponsePartitionData(partition_index=1)
IN_A_PARTITION = wire.AlterPartitionResponse(topics=(wire.AlterPartitionResponseTopicData(partitions=(RIGHT, WRONG)),))


@pytest.mark.parametrize(
    ("answer", "seconds"), [(NOT_CONTROLLER, 0.1), (IN_A_PARTITION, 0.1), (ConnectionLost("gone"), 0.1), (None, 30.1)]
)
async def test_errors_disconnects_and_timeouts_move_on_to_the_next_controller(
    autojump_clock, answer, seconds
) -> None:  # rules 9.56, 3.38
    f = Fixture()
    f.controller_is(1)
    first = answering(answer)

    async def move_on_request(header: wire.Header, message: wire.Message) -> wire.Message | None:
        if isinstance(message, wire.AlterPartitionRequest):
            f.controller_is(2)
        return await first(header, message)

    f.nodes.nodes[ADDRESS[1]] = move_on_request
    f.node(2, wire.AlterPartitionResponse(error_code=77))
    begin = trio.current_time()
    assert await f.ask() == wire.AlterPartitionResponse(error_code=77)
    assert f.nodes.dialled == [ADDRESS[1], ADDRESS[2]]
    assert f.nodes.open == 1  # the first was closed
    assert trio.current_time() - begin == pytest.approx(seconds, abs=0.01)


async def test_a_refused_connection_moves_on_to_the_next_controller(autojump_clock) -> None:  # rule 9.56
    f = Fixture()
    f.controller_is(1)
    f.node(2, wire.AlterPartitionResponse())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(f.ask)
        await trio.sleep(0.25)
        f.controller_is(2)
    assert f.nodes.dialled == [ADDRESS[1]] * 3 + [ADDRESS[2]]


async def test_a_former_controller_is_retried_after_a_pause(autojump_clock) -> None:
    f = Fixture()
    f.controller_is(1)
    f.node(1, *[NOT_CONTROLLER] * 5, wire.AlterPartitionResponse())
    begin, open_meanwhile = trio.current_time(), list[int]()

    async def look() -> None:
        await trio.sleep(0.05)
        open_meanwhile.append(f.nodes.open)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        assert await f.ask() == wire.AlterPartitionResponse()
    assert trio.current_time() - begin == pytest.approx(0.5, abs=0.01)
    assert len(f.nodes.dialled) == 6
    assert open_meanwhile == [0]  # it is closed before the pause


async def test_an_invalid_response_closes_the_connection(autojump_clock) -> None:
    f = Fixture()
    f.controller_is(1)
    spoilt = [b"\0\0\0\x02\0garbage", wire.encode_response(NOT_CONTROLLER, api_version=3, correlation_id=99)]
    good = answering(wire.AlterPartitionResponse(), wire.AlterPartitionResponse(), wire.AlterPartitionResponse())
    f.nodes.nodes[ADDRESS[1]] = good
    dial = f.nodes.dial

    async def spoiling_dial(host: str, port: int, **target: Any):
        connection = await dial(host, port, **target)
        receive, count = connection.receive_frame, 0

        async def receive_frame() -> bytes:
            nonlocal count
            frame, count = await receive(), count + 1
            return spoilt.pop() if count == 2 and spoilt else frame

        connection.receive_frame = receive_frame  # type: ignore[method-assign]
        return connection

    f.channel._dial = spoiling_dial
    assert await f.ask() == wire.AlterPartitionResponse()
    assert (len(f.nodes.dialled), f.nodes.open) == (3, 1)


async def test_disconnect_closes_even_when_cancelled() -> None:
    f = Fixture()
    f.controller_is(1)
    f.node(1, wire.AlterPartitionResponse())
    await f.ask()
    with trio.CancelScope() as scope:
        scope.cancel()
        await f.channel.disconnect()
    assert f.nodes.open == 0
