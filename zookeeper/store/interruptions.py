"""When to stop resending requests that connections break under (rule 1.52). Pure.

Kafka resends without end. A request that the server does not accept, because it is larger than its jute.maxbuffer,
then breaks every connection, and the client never recovers.
"""

from __future__ import annotations

import enum

#: interruptions after which a large request is the likely cause
_SUSPECT_AFTER = 2
#: interruptions after which the session ends, if they have lasted for the session timeout
_GIVE_UP_AFTER = 3


class Verdict(enum.Enum):
    RESEND = enum.auto()
    #: fail large requests, resend the others
    REFUSE_LARGE = enum.auto()
    #: end the session
    GIVE_UP = enum.auto()


class Interruptions:
    """The interruptions of one batch of requests. A connection that answered some of them does not count."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_s = session_timeout_ms / 1000
        self.count = 0
        self._unanswered = 0
        self._since = 0.0

    def add(self, unanswered: int, now: float) -> Verdict:
        """A connection broke, at time ``now`` in seconds, with so many requests unanswered."""
        if not self.count or unanswered < self._unanswered:
            self.count, self._since = 0, now
        self.count += 1
        self._unanswered = unanswered
        if self.count >= _GIVE_UP_AFTER and now - self._since >= self._session_timeout_s:
            return Verdict.GIVE_UP
        return Verdict.REFUSE_LARGE if self.count >= _SUSPECT_AFTER else Verdict.RESEND
