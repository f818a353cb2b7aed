"""The replayable content of a capture: requests with their recorded responses.

recording = Recording.read(CaptureFile("incident.pcapng"))
steps = recording.of_controllers()                       # or .of_connection(12)
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.decode import Decoder, Source
from kce.captures.exchanges.pairing import Peers, Request, Response
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.exchanges.quality import Quality
from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.identities import topic_names
from kce.wire.registry import CONTROL_REQUESTS


@dataclass(slots=True, eq=False)
class Step:
    """One recorded request, its response if there was one, and the id of the receiving broker."""

    request: Request
    broker_id: int | None
    response: Response | None = None


class Recording(NamedTuple):
    """The replayable content of a capture. ``left_out`` are requests without a decoded body."""

    steps: list[Step]
    left_out: list[Request]
    cluster: Cluster
    quality: Quality

    @classmethod
    def read(cls, source: CaptureFile | Source, ports: Ports = NO_PORTS) -> Recording:
        decoder = Decoder(source, ports)
        steps: dict[Request, Step] = {}
        left_out: list[Request] = []
        for message in decoder.messages():
            if isinstance(message, Response):
                if message.request in steps:
                    steps[message.request].response = message
            elif message.body is None or message.left_over:
                left_out.append(message)
            else:
                steps[message] = Step(message, None)
        for step in steps.values():  # listeners may be announced after the first request to them
            listener = decoder.cluster.listener_at(step.request.peers.server)
            step.broker_id = None if listener is None else listener.broker_id
        return cls(list(steps.values()), left_out, decoder.cluster, decoder.quality)

    def of_controllers(self) -> list[Step]:
        """Control requests of controllers to brokers."""
        return [step for step in self.steps if step.request.api_key in CONTROL_REQUESTS]

    def of_connection(self, number: int) -> list[Step]:
        return [step for step in self.steps if step.request.peers.connection == number]

    def connections(self) -> dict[Peers, int]:
        """Connections with their number of requests."""
        counts: dict[Peers, int] = {}
        for step in self.steps:
            counts[step.request.peers] = counts.get(step.request.peers, 0) + 1
        return counts

    def topic_names(self) -> dict[uuid.UUID, str]:
        """Names of topics by their ids: many messages have only the ids."""
        return topic_names(message.body for step in self.steps for message in (step.request, step.response) if message)
