"""Connections without sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from kce.wire.transport import ConnectionLost


class TaskConnection:
    """The part of wire.transport.DirectConnection of a connection that only tasks use."""

    is_unsent = has_ended = False

    def send_nowait(self, payload: bytes) -> bool:
        return False

    async def flush(self) -> None:
        pass

    def receive_nowait(self) -> bytes | None:
        return None

    async def wait_for_input(self, on_input: Callable[[], bool]) -> None:
        pass

    def stop_waiting(self) -> None:
        pass


class DirectConnection(TaskConnection):
    """Receives frames with and without a task; sends none without."""

    def __init__(self) -> None:
        self.came: deque[bytes] = deque()
        self.has_ended = False
        self._on_input: Callable[[], bool] | None = None
        self._ended = trio.Event()
        self._has_come = trio.Event()

    def open(self) -> None:
        self.came.clear()
        self.has_ended = False

    def arrive(self, frame: bytes) -> None:
        """The peer sends a frame."""
        self.came.append(frame)
        self._arrived()

    def close(self) -> None:
        """The peer closes the connection."""
        self.has_ended = True
        self._arrived()

    def _arrived(self) -> None:
        self._has_come.set()
        self._call()

    def receive_nowait(self) -> bytes | None:
        return self.came.popleft() if self.came else None

    async def receive_frame(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.came:
            if self.has_ended:
                raise ConnectionLost("closed")
            self._has_come = trio.Event()
            await self._has_come.wait()
        return self.came.popleft()

    async def wait_for_input(self, on_input: Callable[[], bool]) -> None:
        self._on_input, self._ended = on_input, trio.Event()
        try:
            self._call()
            await self._ended.wait()
        finally:
            self._on_input = None

    def _call(self) -> None:
        has_come = self.has_ended or self.came
        if self._on_input is not None and has_come and (not self._on_input() or self.has_ended):
            self.stop_waiting()

    def stop_waiting(self) -> None:
        self._ended.set()
