"""What can go wrong while deciding, as exceptions that the event loop tells apart."""

from __future__ import annotations


class ControllerMoved(Exception):
    """Another controller has been elected: a write under our epoch was refused, or we are not active (rule 1.47)."""


class StateChangeFailed(Exception):
    """A partition or replica could not make the transition; its state is unchanged (rules 6.14, 6.15)."""


class IllegalState(Exception):
    """An invariant of the controller does not hold; it gives up the role (rule 2.20)."""


class StaleBrokerEpoch(Exception):
    """The request names an earlier incarnation of the broker (rule 11.41)."""


class BrokerNotAvailable(Exception):
    """The broker is not registered (rule 11.41)."""
