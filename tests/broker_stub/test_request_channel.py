"""How many requests are handled at once when `num.io.threads` changes (rule B1.10)."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request_channel import RequestChannel


class Waiting:
    """A request that waits in its handler until ``end``."""

    def __init__(self) -> None:
        self.end = trio.Event()
        self.waits: Any = self.end.wait()
        self.is_handled = False
        self.clock = trio.current_time

    def dequeued(self) -> None:
        self.is_handled = True

    def release(self) -> None: ...


async def test_handlers_come_at_once_and_go_with_their_requests() -> None:
    channel = RequestChannel(10, 2, None, RequestMetrics())  # type: ignore[arg-type]
    requests = [Waiting() for _ in range(6)]

    def under_way() -> list[int]:
        return [number for number, request in enumerate(requests) if request.is_handled and not request.end.is_set()]

    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(channel.handle, request, None)
            await trio.testing.wait_all_tasks_blocked()
        assert under_way() == [0, 1]
        channel.resize(4)
        await trio.testing.wait_all_tasks_blocked()
        assert under_way() == [0, 1, 2, 3]
        channel.resize(1)
        for ended, left in ((0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [4]), (4, [5]), (5, [])):
            requests[ended].end.set()
            await trio.testing.wait_all_tasks_blocked()
            assert under_way() == left
    channel.resize(2)
    assert channel.free == 2
