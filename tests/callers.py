"""Which tests call which functions, for `make mutants`: from one observed run of the fast tests of some folders."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest

ROOT = Path(__file__).parent.parent
QUIET = ("-q", "--fast", "-p", "no:cacheprovider", "--assert=plain", "--rootdir", str(ROOT))


def named(code: CodeType) -> tuple[str, str]:
    """(module's path, `Class.function.inner`). A comprehension or a lambda belongs to the function around it."""
    parts = code.co_qualname.split(".")
    module = Path(code.co_filename).resolve().relative_to(ROOT)
    return str(module), ".".join(part for part in parts if not part.startswith("<"))


@dataclass
class Callers:
    """Of each test: ``calls``, what it calls, as (module's path, function), and ``seconds``, how long it took."""

    calls: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    #: tests that fail without any mutant: they judge none
    failed: list[str] = field(default_factory=list)

    def tests(self, module: str, function: str, budget_s: float) -> list[str]:
        """Those that call the function, for ``budget_s`` in sum; the module's tests if none calls it.

        If there is no time for all, they are the most specific ones, that call the fewest functions, and the quickest.
        What a class or a module executes runs on import: nothing calls it.
        """
        found = [test for test, calls in self.calls.items() if (module, function) in calls]
        found = found or [test for test, calls in self.calls.items() if any(path == module for path, _ in calls)]
        specific = sorted(found, key=lambda test: (len(self.calls[test]), test))
        quick = sorted(found, key=lambda test: (self.seconds[test], test))
        chosen: dict[str, float] = {}
        for test in itertools.chain.from_iterable(zip(specific, quick, strict=True)):
            if chosen and sum(chosen.values()) + self.seconds[test] > budget_s:
                break
            chosen[test] = self.seconds[test]
        return sorted(chosen, key=lambda test: (chosen[test], test))

    def add(self, file: Path) -> None:
        """What ``observe`` has written."""
        content = json.loads(file.read_text())
        self.failed += content["failed"]
        for test, (seconds, functions) in content["passed"].items():
            self.seconds[test] = seconds
            self.calls[test] = {(module, function) for module, function in functions}


class Observer:
    """A pytest plugin that notes the functions that each passed test calls, with its fixtures."""

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = tuple(f"{path}{os.sep}" for room in rooms for path in (ROOT / room, ROOT / "kce" / room))
        self._codes: dict[int, CodeType] = {}
        self.failed: set[str] = set()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.tests: dict[str, tuple[float, list[tuple[str, str]]]] = {}

    def _trace(self, frame: FrameType, event: str, arg: object) -> None:
        self._codes[id(frame.f_code)] = frame.f_code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        self._codes.clear()
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            if item.nodeid not in self.failed:
                called = [code for code in self._codes.values() if code.co_filename.startswith(self._rooms)]
                self.tests[item.nodeid] = self._seconds[item.nodeid], sorted({named(code) for code in called})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def observe(folders: Sequence[str], rooms: Sequence[str], file: Path) -> int:
    """Run the tests of ``folders``; write to ``file`` what each called. Returns pytest's exit code."""
    observer = Observer(rooms)
    code = pytest.main([*QUIET, *folders], [observer])
    file.write_text(json.dumps({"passed": observer.tests, "failed": sorted(observer.failed)}))
    return int(code)


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
