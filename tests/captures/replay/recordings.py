"""Recordings made message by message."""

from __future__ import annotations

from kce import wire
from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.recording import Recording
from tests.captures.exchanges.dialogue import Talk

SECOND = 10**9


class Conversation(Talk):
    """A recording whose packets have the times that ``at`` sets."""

    def __init__(self):
        self.now = 10**18
        super().__init__()
        self.recorder._clock = lambda: self.now

    def at(self, seconds):
        self.now = 10**18 + round(seconds * SECOND)
        return self

    def recording(self):
        self.target.seek(0)
        return Recording.read(CaptureFile(self.target, "x"))


def update(epoch, broker_epoch=25, controller=1):
    return wire.UpdateMetadataRequest(controller_id=controller, controller_epoch=epoch, broker_epoch=broker_epoch)
