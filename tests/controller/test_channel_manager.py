"""Channels to brokers (section 8c of docs/controller-semantics.md)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller.channel_manager import ChannelConfig
from kce.controller.config import ControllerConfig
from kce.zookeeper.model import BrokerId
from tests.controller.support import Sent, texts, world


async def test_one_request_in_flight_and_in_order(autojump_clock: MockClock) -> None:  # rules 8.12, 8.29, 8.32
    async with world() as w:
        await w.start_controller(1)
        w.take()
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2, 3]})
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2, 3]new"]  # the UpdateMetadata behind it waits
        w.brokers[2].mute = False
        w.brokers[2].break_connections()
        await trio.sleep(1)
        await w.settle()
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2, 3]new", "UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]


async def test_correlation_ids_count_the_requests_of_a_channel(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        of_2 = [s.header.correlation_id for s in w.take() if s.broker == 2]
        assert len(of_2) >= 3
        assert of_2 == list(range(len(of_2)))


def test_timeouts_are_kafkas() -> None:  # rule 8.29
    config = ChannelConfig(broker_id=BrokerId(1), inter_broker_listener="DATA")
    assert (config.request_timeout_ms, config.socket_timeout_ms) == (30_000, 30_000)


def test_settings_of_channels() -> None:
    of_controller = ControllerConfig(
        broker_id=BrokerId(7), inter_broker_listener_name="DATA", control_plane_listener_name="CONTROL",
        request_timeout_ms=5, controller_socket_timeout_ms=6,
    )  # fmt: skip
    assert of_controller.channels == ChannelConfig(
        broker_id=BrokerId(7), inter_broker_listener="DATA", control_plane_listener="CONTROL",
        request_timeout_ms=5, socket_timeout_ms=6,
    )  # fmt: skip
    assert (of_controller.channels.client_id, of_controller.channels.listener) == ("7", "CONTROL")
    assert ChannelConfig(broker_id=BrokerId(7), inter_broker_listener="DATA").listener == "DATA"


async def test_a_broker_is_removed_when_its_connection_is_closed(autojump_clock: MockClock) -> None:  # rule 8.36
    async with world() as w:
        controller = await w.start_controller(1)
        (connection,) = w.brokers[2].connections
        closed = []

        async def aclose() -> None:
            await trio.sleep(0.5)
            closed.append(True)

        connection.aclose = aclose  # type: ignore[method-assign]
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2]})
        channel = controller.channels._channels[BrokerId(2)]
        assert channel.queue
        await controller.channels.remove_brokers([BrokerId(2)])
        assert closed == [True]
        assert not channel.queue  # rule 8.31


async def test_resent_unchanged_until_answered(autojump_clock: MockClock) -> None:  # rules 8.31, 8.35
    async with world() as w:
        await w.start_controller(1)
        w.take()
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2]})
        start = trio.current_time()
        for _ in range(3):
            w.brokers[2].break_connections()
            await trio.sleep(0.2)
        sent: list[Sent] = [s for s in w.take() if s.broker == 2]
        assert len(sent) == 4
        assert {s.message for s in sent} == {sent[0].message}
        assert trio.current_time() - start < 1
        w.brokers[2].down = True
        w.brokers[2].break_connections()
        await trio.sleep(5)
        w.brokers[2].down = w.brokers[2].mute = False
        await trio.sleep(1)
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2]new", "UMR alive=[1, 2, 3] t-0:2@0[2]"]


async def test_a_request_times_out_and_is_sent_again(autojump_clock: MockClock) -> None:  # rule 8.29
    async with world() as w:
        await w.start_controller(1, request_timeout_ms=700)
        w.take()
        w.brokers[3].mute = True
        await w.create_topic("t", {0: [3]})
        await trio.sleep(2)
        assert len(texts(w.take(), 3)) >= 3
        w.brokers[3].mute = False


@pytest.mark.parametrize("fault", ["garbage", "another correlation id"])
async def test_an_answer_that_is_none_closes_the_connection(autojump_clock: MockClock, fault: str) -> None:
    async with world() as w:
        await w.start_controller(1)
        w.take()
        faults = [fault]
        plain = w.brokers[2].answer

        def answer(request: object, header: wire.Header) -> wire.Message:
            if faults:
                faults.pop()
                broken = w.brokers[2].connections[-1]
                frame = b"\0\0" if fault == "garbage" else wire.encode_response(
                    plain(request, header), api_version=header.api_version, correlation_id=header.correlation_id + 9
                )  # fmt: skip
                broken._answers.append(frame)
            return plain(request, header)

        w.brokers[2].answer = answer
        await w.create_topic("t", {0: [2]})
        await trio.sleep(1)
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2]new"] * 2 + ["UMR alive=[1, 2, 3] t-0:2@0[2]"]


async def test_a_removed_broker_is_not_sent_to_again(autojump_clock: MockClock) -> None:  # rule 8.36
    async with world() as w:
        controller = await w.start_controller(1)
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2, 3]})
        assert controller.channels.queue_sizes()[BrokerId(2)] == 2
        await w.stop_broker(2)
        await w.settle()
        assert BrokerId(2) not in controller.channels.queue_sizes()


async def test_an_unknown_broker_is_removed_without_a_failure(autojump_clock: MockClock) -> None:  # rule 8.36
    """Kafka throws, and so on every later change of the brokers, because the dead one stays known."""
    async with world() as w:
        controller = await w.start_controller(1)
        await controller.channels.remove_brokers([BrokerId(2), BrokerId(9)])
        assert BrokerId(2) not in controller.channels.queue_sizes()
        await w.stop_broker(2)
        await w.settle()
        assert set(controller.context.broker_epochs) == {1, 3}


async def test_refusals_are_never_retried(autojump_clock: MockClock) -> None:  # rules 8.40, 8.41
    async with world() as w:
        controller = await w.start_controller(1)
        w.take()

        def stale(request: object, header: wire.Header) -> wire.Message:
            code = wire.ErrorCode.STALE_BROKER_EPOCH
            if isinstance(request, wire.LeaderAndIsrRequest):
                return wire.LeaderAndIsrResponse(error_code=code)
            return wire.UpdateMetadataResponse(error_code=code)

        w.brokers[2].answer = stale
        await w.create_topic("t", {0: [2, 3]})
        await trio.sleep(10)
        assert len(texts(w.take(), 2)) == 2
        assert controller.is_active
        assert await w.state("t") == (2, 0, (2, 3))
