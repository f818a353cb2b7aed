"""The tool behind `make mutants`: its list of equivalents is true, and it chooses tests that can notice.

Covers: tests/mutants.py, tests/callers.py, tests/judging.py.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import signal
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kce.election.paths import SinglePaths
from tests import callers
from tests.callers import ROOT, Callers, named, with_calls_noted
from tests.judging import TOO_LONG, Judge, Live, Mutant, _limit_time, fork, runs_on_import
from tests.mutants import mutants

EQUIVALENT = tomllib.loads((ROOT / "tests/mutants_equivalent.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", EQUIVALENT)
def test_listed_equivalents_exist(module: str) -> None:
    assert EQUIVALENT[module].keys() - {mutant.name for mutant in mutants(ROOT / module)} == set()


def test_code_is_named_by_module_and_function() -> None:
    def outer() -> object:
        return next(iter([lambda: 5]))

    here = "test_code_is_named_by_module_and_function.outer"
    inner = outer()
    assert named(outer.__code__) == named(inner.__code__) == ("tests/test_mutants.py", here)  # type: ignore[attr-defined]
    assert named(SinglePaths.latch_path.__code__) == ("election/paths.py", "SinglePaths.latch_path")


def test_specific_and_quick_tests_are_chosen_within_the_budget() -> None:
    f, g = ("m.py", "f"), ("m.py", "g")
    others = {("m.py", str(i)) for i in range(9)}
    by = Callers(
        calls={"specific": {f}, "quick": {f, *others}, "slow": {f, *others}, "of g": {g}},
        seconds={"specific": 2.0, "quick": 0.1, "slow": 50.0, "of g": 0.1},
    )
    assert by.tests("m.py", "f", 3.0) == ["quick", "specific"]
    assert by.tests("m.py", "f", 99.0) == ["quick", "specific", "slow"]
    assert by.tests("m.py", "f", 0.0) == ["specific"]
    assert by.tests("m.py", "Class", 99.0) == ["of g", "quick", "specific", "slow"]  # nothing calls it
    assert by.tests("other.py", "f", 99.0) == []


def test_a_modules_own_tests_come_first() -> None:
    f = ("broker_stub/log/segment.py", "Segment.read")
    own, covering = "tests/broker_stub/log/test_segment.py::test", "tests/broker_stub/log/test_log.py::test"
    by = Callers(
        calls={"specific": {f}, covering: {f, ("m.py", "1")}, own: {f, ("m.py", "1")}, "other": {("m.py", "1")}},
        seconds={"specific": 0.1, covering: 2.0, own: 3.0, "other": 0.1},
    )
    assert by.tests(*f, 5.0) == [covering, own]
    assert by.tests(*f, 6.0) == ["specific", covering, own]
    transcript = "tests/broker_stub/test_transcripts.py::test"
    by.calls[transcript], by.seconds[transcript] = {f}, 1.0
    assert by.tests(*f, 3.0) == [transcript, covering]
    del by.calls[transcript]
    by.calls[own] = set()  # it reads a table of the module, say
    by.calls["specific"].add((f[0], ""))
    assert by.tests("broker_stub/log/segment.py", "", 9.0) == ["specific", covering, own]


MODULE = """
from __future__ import annotations
import contextlib
import dataclasses
import logging
log = logging.getLogger(__name__)
LIMIT = 2

def plain(x):
    if x < 0:
        log.info("negative")
    return x < LIMIT

def outer(x):
    def inner():
        return x < LIMIT
    return inner

made = outer(1)

@contextlib.contextmanager
def decorated(x):
    yield x < LIMIT

@dataclasses.dataclass(slots=True)
class Class:
    x: int
    first = LIMIT < 3

    def method(self):
        return self.x < LIMIT

    def __repr__(self):
        return "low" if self.x < LIMIT else "high"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "example.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "example", module)
    spec.loader.exec_module(module)
    return module


def test_functions_are_changed_where_they_are(module: ModuleType) -> None:
    assert module.__file__ is not None
    path = Path(module.__file__)
    changed = compile(MODULE.replace("x < LIMIT", "x > LIMIT"), str(path), "exec", dont_inherit=True)
    with module.decorated(1) as before:
        assert (module.plain(1), module.outer(1)(), module.Class(1).method(), before) == (True,) * 4
    assert Live().change(path, changed)
    with module.decorated(1) as after:
        assert (module.plain(1), module.outer(1)(), module.Class(1).method(), after) == (False,) * 4


@pytest.mark.parametrize(("old", "new"), [("LIMIT = 2", "LIMIT = 1"), ("LIMIT < 3", "LIMIT > 3"), ("inner", "within")])
def test_what_runs_on_import_is_not_judged_there(module: ModuleType, old: str, new: str) -> None:
    assert module.__file__ is not None
    path = Path(module.__file__)
    changed = compile(MODULE.replace(old, new), str(path), "exec", dont_inherit=True)
    assert Live().change(path, changed) == (
        old == "inner"
    )  # the name of an inner function is its outer function's code


def test_calls_are_noted(module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(callers, "ROOT", tmp_path)
    assert module.__file__ is not None
    functions: list[tuple[str, str]] = []
    called: set[int] = set()
    monkeypatch.setattr(builtins, "__called__", called.add, raising=False)
    assert Live().change(Path(module.__file__), with_calls_noted(Path(module.__file__), functions))
    assert module.outer(1)()
    assert module.Class(1).method()
    assert {functions[i] for i in called} == {("example.py", f) for f in ("outer", "outer.inner", "Class.method")}


def test_no_mutant_of_what_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    (tmp_path / "example.py").write_text(MODULE)
    names = {mutant.name for mutant in mutants(tmp_path / "example.py")}
    assert "plain: x < LIMIT -> x >= LIMIT" in names
    assert "Class.method: self.x < LIMIT -> self.x >= LIMIT" in names
    assert not any("__repr__" in name or "x < 0" in name for name in names)
    (tmp_path / "example.py").write_text(
        "def f(a, b):\n    if TYPE_CHECKING:\n        g(1)\n    h(zip(a, b, strict=True))\n"
    )
    assert {mutant.name for mutant in mutants(tmp_path / "example.py")} == {
        "f: h(zip(a, b, strict=True)) -> pass", "f: zip(a, b, strict=True) -> zip(a, strict=True)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statements", "are_swapped"),
    [
        (("self.a.add(x)", "self.b.pop(x, None)"), False),
        (("self.a.clear()", "self.b.set()"), False),
        (("self.a.add(x)", "self.b.pop(x)"), True),  # which may fail
        (("self.a.add(x)", "self.b.add(self.a.pop(x, None))"), True),
        (("self.a.add(x)", "self.a.clear()"), True),
        (("self.a.add(x)", "other.a.clear()"), True),  # may be the same one
        (("self.a.add(x)", "self.b.append(self.a)"), True),
        (("self.a.add(x)", "self.b.add(f(x))"), True),
        (("self.a.add(x)", "self.b.close()"), True),
        (("a.add(x)", "self.b.clear()"), True),
    ],
)
def test_changes_of_two_containers_are_not_swapped(
    statements: tuple[str, str], are_swapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    first, second = statements
    (tmp_path / "example.py").write_text(f"def f(self, x, a):\n    {first}\n    {second}\n")
    names = {mutant.name for mutant in mutants(tmp_path / "example.py")}
    assert (f"f: {first} -> {second} & {second} -> {first}" in names) == are_swapped


@pytest.mark.parametrize(
    ("statements", "are_swapped"),
    [
        (("self.a(x)", "self.b.start_soon(self.c)"), False),
        (("self.b.start_soon(self.c, x)", "y = self.d(x)"), False),
        (("self.b.start_soon(self.c)", "self.b.start_soon(self.d)"), False),
        (("self.b.start_soon(self.c)", "await self.d()"), True),
        (("self.b.start_soon(self.c, f(x))", "self.d(x)"), True),
        (("x = self.d(y)", "self.b.start_soon(self.c, x)"), True),
        (("self.c = self.d(y)", "self.b.start_soon(self.c)"), True),
        (("self.b.start_soon(self.c)", "raise f(x)"), True),
    ],
)
def test_tasks_begin_later_than_the_next_statement(
    statements: tuple[str, str], are_swapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    first, second = statements
    (tmp_path / "example.py").write_text(f"async def f(self, x, y):\n    {first}\n    {second}\n")
    names = {mutant.name for mutant in mutants(tmp_path / "example.py")}
    assert (f"f: {first} -> {second} & {second} -> {first}" in names) == are_swapped


@pytest.mark.parametrize(
    ("statements", "are_swapped"),
    [
        (("a = x.get(x)", "b = {k: v for k, v in self.c.items() if v}"), False),
        (("a = self.c.get(x)", "b, c = any(x), all(x)"), False),
        (("a = x.get(x)", "b = any(a)"), True),
        (("a = x.get(x)", "a = x.get(y)"), True),
        (("a = x.get(b)", "b = x.get(x)"), True),
        (("a = x.get(x)", "b = f(x)"), True),  # f may change anything
        (("a = x.get(x)", "self.b = x.get(y)"), True),
        (("self.a = g(x)", "b = f(x)"), True),
        (("a = await f(x)", "b = await g(x)"), True),
    ],
)
def test_what_only_computes_is_not_swapped(
    statements: tuple[str, str], are_swapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    first, second = statements
    (tmp_path / "example.py").write_text(f"async def f(self, x, y):\n    {first}\n    {second}\n")
    names = {mutant.name for mutant in mutants(tmp_path / "example.py")}
    assert (f"f: {first} -> {second} & {second} -> {first}" in names) == are_swapped


def test_minus_one_becomes_the_nearest_number_that_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    (tmp_path / "example.py").write_text("def f(x):\n    return x.find(-1) + 1 - 1 + x[-2]\n")
    names = [mutant.name for mutant in mutants(tmp_path / "example.py")]
    assert sorted(names) == ["f: -1 -> 0", "f: 1 -> 2", "f: 1 -> 2 (2)", "f: 2 -> 3"]


def test_calls_of_what_only_logs_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    (tmp_path / "example.py").write_text(
        "class A:\n    def _note(self, text, *values):\n        log.info(text, *values)\n"
        "    def _act(self, value):\n        self.last = value\n"
        "    def f(self):\n        self._note('x', 5)\n        self._act(6)\n"
    )
    names = {mutant.name for mutant in mutants(tmp_path / "example.py")}
    assert names == {"A._act: self.last = value -> pass", "A.f: self._act(6) -> pass", "A.f: 6 -> 7"}


def _ended(process: int) -> int:
    ended, status = os.waitpid(process, 0)
    assert ended == process
    return os.waitstatus_to_exitcode(status)


def test_a_process_that_waits_too_long_ends() -> None:
    def waits() -> int:
        _limit_time(60, 0.1, 0)
        threading.Event().wait()
        return 0

    assert _ended(fork(waits)) == TOO_LONG


def test_a_process_that_works_too_long_ends() -> None:
    def works() -> int:
        _limit_time(0.1, 60, 0)
        while True:
            pass

    assert _ended(fork(works)) == -signal.SIGPROF


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter((0.0, 2.0, 2.0))  # at the start, after 0.1 s, after 2 s more
    monkeypatch.setattr("tests.judging._waited_for_processor_s", lambda: next(waited))

    def waits() -> int:
        started = time.monotonic()
        _limit_time(60, 0.1, 0)
        threading.Event().wait(1)
        return 0 if time.monotonic() - started >= 1 else 1

    assert _ended(fork(waits)) == 0


def test_a_test_takes_no_time_without_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise fewer tests would be chosen on a busy machine."""
    waited = iter((10.0, 13.0))
    monkeypatch.setattr("tests.judging._waited_for_processor_s", lambda: next(waited))
    judge = Judge((), (), Callers(), 1, sys.stdout)
    report = SimpleNamespace(duration=5.0, failed=False, skipped=False)
    hook = SimpleNamespace(pytest_runtest_protocol=lambda **_: judge.pytest_runtest_logreport(report))  # type: ignore[arg-type]
    judge._run(SimpleNamespace(config=SimpleNamespace(hook=hook)), None)  # type: ignore[arg-type]
    assert judge._seconds == 2


def test_what_is_made_on_import_is_judged_anew() -> None:
    mutant = Mutant("m.py", "forwarded.handle: submit() -> pass", 1, lambda: compile("", "m.py", "exec"))
    assert runs_on_import(mutant, {("m.py", "forwarded")})
    assert runs_on_import(mutant, {("m.py", "forwarded.handle")})
    assert not runs_on_import(mutant, {("m.py", "handle"), ("n.py", "forwarded"), ("m.py", "forwarded.other")})
