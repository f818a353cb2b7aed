"""What a task of the data source is given."""

from __future__ import annotations

from typing import Literal, NamedTuple


class File(NamedTuple):
    """A capture: ``name`` is what rows call it."""

    name: str
    path: str


#: Whether frames come with their decoded bodies, and those with the payloads and secrets in them.
Bodies = Literal["none", "redacted", "payloads"]


class Share(NamedTuple):
    """One of ``of`` shares of all connections."""

    number: int
    of: int
