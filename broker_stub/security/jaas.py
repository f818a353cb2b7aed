"""JAAS entries as `sasl.jaas.config` holds them (rule B9.15)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_CONTROL_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
#: a comment, a quoted text, a word, or one other character; what begins like a number is no word, as for Java
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)"""
    r"""|"(?P<double>(?:\\.|[^"\\\n])*)"|'(?P<single>(?:\\.|[^'\\\n])*)'"""
    r"""|(?P<word>[A-Za-z_$\x80-\U0010ffff][A-Za-z0-9_$.\x80-\U0010ffff-]*)|(?P<other>.)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class LoginModule(NamedTuple):
    """One entry: the class of the module, and its options."""

    name: str
    options: Mapping[str, str]


class _Token(NamedTuple):
    """``text`` of a word or a quoted text; else ``symbol``."""

    text: str | None
    symbol: str


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "word":
            yield _Token(match["word"], "")
        elif kind in ("double", "single"):
            yield _Token(_ESCAPE.sub(_unescaped, match[kind]), "")
        elif kind == "other":
            yield _Token(None, match["other"])


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)


def parse_jaas(text: str) -> LoginModule:
    """The one login module of a JAAS configuration. Raises ValueError, whose text holds no value of an option."""
    modules = list(_modules(list(_tokens(text))))
    if not modules:
        raise ValueError("no login module is specified")
    if len(modules) > 1:
        raise ValueError(f"there are {len(modules)} login modules, but there must be 1")
    return modules[0]


def _modules(tokens: list[_Token]) -> Iterator[LoginModule]:
    position = 0

    def take() -> _Token | None:
        nonlocal position
        position += 1
        return tokens[position - 1] if position <= len(tokens) else None

    while (token := take()) is not None:
        name, flag = token.text, take()
        if name is None:
            raise ValueError("the name of a login module is missing")
        if flag is None or (flag.text or "").upper() not in _CONTROL_FLAGS:
            raise ValueError(f"after {name} one of {', '.join(_CONTROL_FLAGS).lower()} is missing")
        options: dict[str, str] = {}
        while (token := take()) is not None and token.symbol != ";":
            equals, value = take(), take()
            if token.text is None or equals is None or equals.symbol != "=" or value is None or value.text is None:
                raise ValueError(f"option {token.text or token.symbol} of {name} has no value")
            options[token.text] = value.text
        if token is None:
            raise ValueError(f"the entry of {name} does not end with a semicolon")
        yield LoginModule(name, options)
