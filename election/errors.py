"""What can go wrong in an election.

ElectionException           base
  LeaderElectionException   told to contenders; its cause is what the driver met
  LeaderRetrievalException  told to listeners
  IllegalElectionState      a call that the state does not allow: our caller's mistake
  LeadershipLost            the work was not done, for we do not lead (any more)
  ConfigurationError        a setting names what does not exist; the text says which
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
    """Raise the first, the others attached as notes; nothing if there is none (rules E3.9, E10.5)."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other!r}")
        raise errors[0]
