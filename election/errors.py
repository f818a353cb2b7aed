"""The exceptions of elections.

ElectionException           base
  LeaderElectionException   contenders get it; its cause is the driver's error
  LeaderRetrievalException  listeners get it
  IllegalElectionState      a call that the state does not allow: the caller's mistake
  LeadershipLost            the work was not done: the contender does not lead
  ConfigurationError        an invalid setting; the text names it
"""

from __future__ import annotations


class ElectionException(Exception):
    pass


class LeaderElectionException(ElectionException):
    pass


class LeaderRetrievalException(ElectionException):
    pass


class IllegalElectionState(ElectionException):
    pass


class LeadershipLost(ElectionException):
    pass


class ConfigurationError(ElectionException):
    pass


def raise_first(errors: list[Exception]) -> None:
    """Raise the first error with the others as notes. Does nothing without errors (rules E3.9, E10.5)."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other!r}")
        raise errors[0]
