"""Reads a server.properties file, in the format of java.util.Properties."""

from __future__ import annotations

import re

from kce.wire.configuration.definitions import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of the file; the last of several equal keys counts. Raises ConfigError."""
    found = {}
    for number, line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ConfigError(f"line {number} is not KEY=VALUE: {line[:80]!r}")
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments; a line that ends with an odd number of backslashes continues on the next one."""
    found = []
    begun: tuple[int, str] | None = None
    for number, physical in enumerate(text.splitlines(), start=1):
        line = physical.lstrip()
        if begun is None and (not line or line[0] in "#!"):
            continue
        first, before = begun or (number, "")
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun = first, before + line[:-1]
        else:
            found.append((first, before + line))
            begun = None
    return [*found, begun] if begun is not None else found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPES.get(m[1], m[1]), text)
