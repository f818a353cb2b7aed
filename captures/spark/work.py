"""The input of a task of the data source."""

from __future__ import annotations

from typing import Literal, NamedTuple


class File(NamedTuple):
    """A capture; rows have its ``name``."""

    name: str
    path: str


#: Whether frames have decoded bodies, and these their payloads and secrets.
Bodies = Literal["none", "redacted", "payloads"]


class Share(NamedTuple):
    """One of ``of`` shares of all connections."""

    number: int
    of: int
