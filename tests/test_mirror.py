"""Tests mirror the rooms: a module of more than 100 lines has a test file of its name, or a test file that covers it.

`wire/codec.py` is tested by `tests/wire/test_codec.py`, a package's `__init__.py` by `test_<package>.py`. A test file
that covers other modules lists them at the end of a paragraph of its docstring, after "Covers" and a colon: by path
(wire/codegen.py), pattern (wire/messages/*.py) or name (kce.wire.codegen).
"""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES_UNTESTED = 100

#: rooms that are held to it
ROOMS = ("broker_stub", "captures", "controller", "election", "harness", "wire", "zookeeper")


def modules(room: str) -> list[Path]:
    """The modules of a room that are long enough to need a test file, by their paths in the repository."""
    found = (path for path in (ROOT / room).rglob("*.py") if len(path.read_text().splitlines()) > MAX_LINES_UNTESTED)
    return sorted(path.relative_to(ROOT) for path in found)


def mirrored(module: Path) -> Path:
    """The test file of a module's own name."""
    name = module.parent.name if module.stem == "__init__" else module.stem
    return Path("tests") / module.parent / f"test_{name}.py"


def path_of(name: str) -> str:
    """The path of a module, given as such or as ``kce.room.module``."""
    if name.endswith(".py"):
        return name
    path = name.removeprefix("kce.").replace(".", "/")
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


@cache
def covers() -> dict[str, Path]:
    """Path or pattern -> the test file whose docstring lists it."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        for names in re.findall(r"\bCovers:\s*(.*?)\.?\s*(?:\n\n|\Z)", text, re.DOTALL):
            found.update(dict.fromkeys(map(path_of, re.split(r"[,\s]+", names)), path))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_every_long_module_has_tests(room: str) -> None:
    untested = [
        str(module)
        for module in modules(room)
        if not (ROOT / mirrored(module)).exists() and not any(fnmatch(str(module), pattern) for pattern in covers())
    ]
    assert not untested


@pytest.mark.parametrize("pattern", sorted(covers()))
def test_what_is_covered_exists(pattern: str) -> None:
    assert list(ROOT.glob(pattern)), f"{covers()[pattern]} covers {pattern}, which does not exist"
