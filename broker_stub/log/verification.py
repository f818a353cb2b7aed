"""Who may begin a transaction in a log: the verifications of its producers (rules T10.5, T10.15 to T10.18).

They are neither persisted nor replicated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


class VerificationGuard:
    """Equal to itself only."""

    __slots__ = ()


#: presented where none is demanded: with `transaction.partition.verification.enable` off
EXEMPT: Final = VerificationGuard()


@dataclass(slots=True)
class Verification:
    """``lowest_sequence``: of what waited for it in ``epoch``."""

    guard: VerificationGuard
    epoch: int
    lowest_sequence: int
    started_ms: int


class Verifications:
    """Each begins when a coordinator is to be asked, and ends when a transactional batch is appended."""

    __slots__ = ("_of_producers",)

    def __init__(self) -> None:
        self._of_producers: dict[int, Verification] = {}

    def start(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> VerificationGuard:
        """The guard of the producer, which may have one already."""
        entry = self._of_producers.get(producer_id)
        if entry is None:
            entry = self._of_producers[producer_id] = Verification(VerificationGuard(), epoch, sequence, now_ms)
        elif epoch > entry.epoch:
            entry.epoch, entry.lowest_sequence = epoch, sequence
        elif epoch == entry.epoch:
            entry.lowest_sequence = min(entry.lowest_sequence, sequence)
        return entry.guard

    def get(self, producer_id: int) -> Verification | None:
        return self._of_producers.get(producer_id)

    def accepts(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        entry = self._of_producers.get(producer_id)
        return guard is EXEMPT or (entry is not None and entry.guard is guard)

    def end(self, producer_id: int) -> None:
        self._of_producers.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Rule T10.18."""
        self._of_producers = {
            producer_id: entry
            for producer_id, entry in self._of_producers.items()
            if now_ms - entry.started_ms < expiration_ms
        }
