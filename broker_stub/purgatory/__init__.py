"""Requests that wait: until enough replicas have a record, until there is something to fetch, until their timeout.

purgatory      delayed operations, and who watches what
timing_wheel   their timeouts
"""

from __future__ import annotations

from kce.broker_stub.purgatory.purgatory import DelayedOperation, Purgatory
from kce.broker_stub.purgatory.timing_wheel import Timer, TimerTask

__all__ = ["DelayedOperation", "Purgatory", "Timer", "TimerTask"]
