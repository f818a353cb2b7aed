"""Errors of fenced operations, besides those of the store."""

from __future__ import annotations


class ControllerMoved(Exception):
    """Another controller was elected: ZooKeeper refused a write under our epoch (rule 1.47)."""


class IllegalState(Exception):
    """An invariant of the controller does not hold."""
