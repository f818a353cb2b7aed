"""A twin that is asked on many connections, and the requests that may wait there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kce import wire
from tests.interop.fetching import FOLLOWER, FetchingTwin
from tests.interop.played_controller import CONTROLLER, PlayedController
from tests.interop.random_requests import Given

Partition = tuple[str, int]

SELF: Final = 1
#: of the follower, at which nobody listens
_NOWHERE: Final = 1
LONG_MS, SHORT_MS = 600_000, 150
_NO_ANSWER: Final = "nothing"


class WaitingTwin(FetchingTwin):
    """Is asked on many connections."""

    def __init__(self, name: str, address: str, path: str, broker_epoch: int = -1) -> None:
        super().__init__(name, address, path, broker_epoch)
        self.epoch = broker_epoch
        self.controller = PlayedController()
        self.controller.names = self._names
        #: answers that were not compared yet, by step
        self.answers: dict[int, Any] = {}

    def knows(self, topic: str, topic_id: uuid.UUID) -> None:
        self._given[Given("topic", topic)] = topic_id

    def alive(self) -> dict[int, int]:
        return {SELF: self._address[1], FOLLOWER: _NOWHERE, CONTROLLER: self.controller.port}

    async def wait_for(self, number: int, step: Step) -> None:
        """Put the answer to a request on a connection of its own into ``answers``."""
        connection = self.another()
        message = step.made(self)
        try:
            if isinstance(message, wire.ProduceRequest) and not message.acks:
                await connection.tell(message, step.version)
                answer = await connection.ask(wire.ApiVersionsRequest(), 0)
                self.answers[number] = answer if isinstance(answer, str) else _NO_ANSWER
                return
            answer = await connection.ask(message, step.version, limit_s=LONG_MS / 1000)
            if isinstance(answer, wire.FetchResponse):
                self.answers[number] = self.fetched(answer, step.asking, number)
            else:
                self.answers[number] = self.comparable(answer)
        finally:
            await connection.disconnect()


@dataclass
class Step:
    """A request, which each twin makes with what it knows."""

    version: int
    made: Callable[[WaitingTwin], wire.Message]
    #: whether it may be answered some steps later
    waits: bool = False
    #: the session of a Fetch, and its epoch
    asking: str = ""
    epoch: int = 0
    #: what it writes markers to
    ends: Sequence[Partition] = ()
    pause_s: float = 0
