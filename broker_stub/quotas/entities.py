"""Who a quota is for: a user, a client id, both, or a default (rule B8.9)."""

from __future__ import annotations

import enum
import urllib.parse
from typing import Final, NamedTuple

from kce.zookeeper.znodes import DEFAULT_ENTITY


class Default(enum.Enum):
    """Everyone without a quota of their own. No name: a client may be called `<default>`."""

    DEFAULT = DEFAULT_ENTITY


DEFAULT: Final = Default.DEFAULT
Name = str | Default | None


class Entity(NamedTuple):
    """None matches everyone."""

    user: Name
    client_id: Name


class Client(NamedTuple):
    """Who shares a limit, and so what they use: all connections of a user, a client id, or both. "" is everyone."""

    user: str
    client_id: str


def sanitize(name: str) -> str:
    """As part of a path in ZooKeeper."""
    return urllib.parse.quote(name, safe="")


def desanitize(name: str) -> str:
    return urllib.parse.unquote(name)


def entity(kind: str, name: str) -> Entity:
    """``kind`` and ``name`` as in `/config/<kind>/<name>`: ("clients", "c"), ("users", "u/clients/c"). Raises
    ValueError."""
    if kind == "clients":
        return Entity(None, _named(name))
    parts = name.split("/")
    if len(parts) == 1:
        return Entity(_named(name), None)
    if len(parts) == 3 and parts[1] == "clients":
        return Entity(_named(parts[0]), _named(parts[2]))
    raise ValueError(f"/config/users/{name} is neither a user nor the client of one")


def _named(name: str) -> str | Default:
    return DEFAULT if name == DEFAULT_ENTITY else desanitize(name)
