"""The sender of ControlledShutdown (rules 11.48, B11.11-B11.14, 8.18). The controller is broker 2, on listener DATA."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.controlled_shutdown import ControlledShutdown
from kce.broker_stub.metadata_cache import MetadataCache
from kce.wire.transport import ConnectionLost
from tests.broker_stub.fake_nodes import FakeNodes, answering
from tests.broker_stub.support import config, update_metadata

REMAINING = wire.ControlledShutdownResponse(remaining_partitions=(wire.RemainingPartition(topic_name="a"),))
DONE = wire.ControlledShutdownResponse()
REFUSED = wire.ControlledShutdownResponse(error_code=77)
ADDRESS = {2: ("host2", 9021), 3: ("host3", 9031)}


class Fixture:
    def __init__(self, *answers: wire.Message | Exception | None, **properties: str) -> None:
        self.cache = MetadataCache(1)
        self.cache.update(update_metadata(controller_id=2))
        self.nodes = FakeNodes()
        self.nodes.nodes[ADDRESS[2]] = answering(*answers)
        self.sender = ControlledShutdown(config(1, **properties), self.cache, self.nodes.dial)

    async def run(self) -> tuple[bool, float]:
        begin = trio.current_time()
        return await self.sender.run(broker_epoch=70), trio.current_time() - begin


async def test_one_request_to_the_inter_broker_listener_without_api_versions(autojump_clock) -> None:
    f = Fixture(DONE)
    assert await f.run() == (True, 0)
    assert f.nodes.dialled == [ADDRESS[2]]
    ((_, header, message),) = f.nodes.requests
    assert message == wire.ControlledShutdownRequest(broker_id=1, broker_epoch=70)
    assert (header.api_version, header.client_id) == (3, "1")
    assert f.nodes.open == 0


@pytest.mark.parametrize("answer", [REMAINING, REFUSED])
async def test_remaining_partitions_and_errors_are_retried_on_the_same_connection(autojump_clock, answer) -> None:
    f = Fixture(answer, DONE)
    assert await f.run() == (True, 5)
    assert f.nodes.dialled == [ADDRESS[2]]


async def test_no_backoff_follows_the_last_attempt(autojump_clock) -> None:
    f = Fixture(*[REMAINING] * 9)
    assert await f.run() == (False, 10)
    assert len(f.nodes.requests) == 3


async def test_it_is_given_up_while_it_waits(autojump_clock) -> None:
    f = Fixture(*[REMAINING] * 9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(f.run)
        await trio.sleep(7)
        f.sender.give_up()
    assert trio.current_time() == 7
    assert (len(f.nodes.requests), f.nodes.open) == (2, 0)


async def test_it_is_given_up_before_it_begins(autojump_clock) -> None:
    f = Fixture(DONE)
    f.sender.give_up()
    assert await f.run() == (False, 0)
    assert f.nodes.requests == []


async def test_a_lost_connection_is_reopened(autojump_clock) -> None:
    f = Fixture(ConnectionLost("gone"), DONE)
    assert await f.run() == (True, 5)
    assert (len(f.nodes.dialled), f.nodes.open) == (2, 0)


async def test_the_request_timeout_fails_an_attempt(autojump_clock) -> None:
    f = Fixture(None, DONE, request_timeout_ms="2000")
    assert await f.run() == (True, 7)
    assert len(f.nodes.dialled) == 2


async def test_a_hanging_dial_fails_after_the_socket_timeout(autojump_clock) -> None:
    f = Fixture(DONE, controller_socket_timeout_ms="3000", controlled_shutdown_max_retries="1")

    async def hang(host: str, port: int, **target: Any):
        await trio.sleep_forever()

    f.sender._dial = hang
    assert await f.run() == (False, 3)


async def test_an_unknown_controller_uses_up_an_attempt(autojump_clock) -> None:  # rule B11.12
    f = Fixture(DONE)
    f.cache.update(update_metadata(controller_id=-1))
    assert await f.run() == (False, 10)
    assert f.nodes.dialled == []


async def test_a_new_controller_gets_a_new_connection(autojump_clock) -> None:  # rule B11.11
    f = Fixture(REMAINING)
    f.nodes.nodes[ADDRESS[3]] = answering(DONE)

    async def move() -> None:
        await trio.sleep(1)
        f.cache.update(update_metadata(controller_id=3))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        assert await f.run() == (True, 5)
    assert f.nodes.dialled == [ADDRESS[2], ADDRESS[3]]
    assert f.nodes.open == 0


async def test_retries_and_backoff_are_configurable(autojump_clock) -> None:
    f = Fixture(*[REMAINING] * 9, controlled_shutdown_max_retries="5", controlled_shutdown_retry_backoff_ms="100")
    succeeded, seconds = await f.run()
    assert (succeeded, seconds) == (False, pytest.approx(0.4))
    assert len(f.nodes.requests) == 5
