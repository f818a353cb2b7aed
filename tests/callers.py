"""Which tests call which functions, for `make mutants`: from one observed run of the fast tests of some folders."""

from __future__ import annotations

import ast
import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType

import pytest

from tests.test_mirror import covers, mirrored

ROOT = Path(__file__).parent.parent
#: tests.judging limits the time, by the same timer as pytest-timeout
QUIET = (
    "-q", "--fast", "--tb=no", "-p", "no:cacheprovider", "--assert=plain", "--timeout=0", "--rootdir", str(ROOT)
)  # fmt: skip


def named(code: CodeType) -> tuple[str, str]:
    """(module's path, `Class.function.inner`). A comprehension or a lambda belongs to the function around it."""
    parts = code.co_qualname.split(".")
    module = Path(code.co_filename).resolve().relative_to(ROOT)
    return str(module), ".".join(part for part in parts if not part.startswith("<"))


@functools.cache
def own_tests(module: str) -> set[str]:
    """The test files of the module's name, those that say that they cover it, and the transcripts of its room."""
    covering = {str(path.relative_to(ROOT)) for pattern, path in covers().items() if fnmatch(module, pattern)}
    transcripts = (ROOT / "tests" / Path(module).parts[0]).rglob("test_*transcript*.py")
    return covering | {str(mirrored(Path(module)))} | {str(path.relative_to(ROOT)) for path in transcripts}


@dataclass
class Callers:
    """Of each test: ``calls``, what it calls, as (module's path, function), and ``seconds``, how long it took."""

    calls: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    #: tests that fail without any mutant: they judge none
    failed: list[str] = field(default_factory=list)

    def tests(self, module: str, function: str, budget_s: float) -> list[str]:
        """Those that call the function, for ``budget_s`` in sum. If none does, those that call anything of the module,
        and its own.

        If there is no time for all, they are the module's own tests (test_mirror.py), then the most specific ones, that
        call the fewest functions, and the quickest.
        What a class or a module executes runs on import: nothing calls it.
        """
        found = [test for test, calls in self.calls.items() if (module, function) in calls]
        own = own_tests(module)
        if not found or not function:  # lambdas of the module itself belong to no function
            found += [
                test
                for test, calls in self.calls.items()
                if test.partition("::")[0] in own or any(path == module for path, _ in calls)
            ]
        specific = sorted(found, key=lambda test: (len(self.calls[test]), test))
        quick = sorted(found, key=lambda test: (self.seconds[test], test))
        first = [test for test in quick if test.partition("::")[0] in own]
        chosen: dict[str, float] = {}
        for test in dict.fromkeys([*first, *itertools.chain.from_iterable(zip(specific, quick, strict=True))]):
            if not chosen or sum(chosen.values()) + self.seconds[test] <= budget_s:
                chosen[test] = self.seconds[test]
        return sorted(chosen, key=lambda test: (chosen[test], test))

    def write(self, file: Path) -> None:
        passed = {test: (self.seconds[test], sorted(calls)) for test, calls in self.calls.items()}
        file.write_text(json.dumps({"passed": passed, "failed": self.failed}))

    def add(self, file: Path) -> None:
        """What ``write`` has written."""
        content = json.loads(file.read_text())
        self.failed += content["failed"]
        for test, (seconds, functions) in content["passed"].items():
            self.seconds[test] = seconds
            self.calls[test] = {(module, function) for module, function in functions}


def with_calls_noted(path: Path, functions: list[tuple[str, str]]) -> CodeType:
    """A module's code in which each function first calls ``__called__`` with its place in ``functions``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = str(path.relative_to(ROOT))

    def note(node: ast.AST, owner: str) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            owner = f"{owner}.{node.name}" if owner else node.name
        for child in ast.iter_child_nodes(node):
            note(child, owner)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            called = ast.Expr(ast.Call(ast.Name("__called__", ast.Load()), [ast.Constant(len(functions))], []))
            functions.append((module, owner))
            node.body.insert(0, ast.copy_location(called, node.body[0]))

    note(tree, "")
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


class Only:
    """A pytest plugin that runs these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: i for i, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda item: self._order[item.nodeid])


def run(tests: Sequence[str]) -> int:
    """pytest's exit code of these tests, up to the first that fails."""
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return int(pytest.main([*QUIET, "-x", *(str(ROOT / file) for file in files)], [Only(tests)]))
