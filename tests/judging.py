"""Runs tests on changed code, for `make mutants`, in forked processes.

One pytest session imports and collects all tests once. Each process forked from it either observes which functions the
tests of a file call, or changes functions where they are and runs the tests that call them, until one fails. What this
cannot judge (code of classes and modules, and of functions that run on import) ``run_from_start`` judges, in a process
that imports the changed module instead of the real one.

A test that takes four times the processor time of the unchanged code, or eight times its time, counts as failed. The
time for which a process waits for a processor does not count, so that a busy machine makes no test fail.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import math
import os
import resource
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TextIO, TypeVar

import pytest

from tests import callers
from tests.callers import QUIET, ROOT, Callers, named, with_calls_noted

K = TypeVar("K")

#: of a function that many tests call, the quickest and most specific are run, for so long in sum
BUDGET_S = 15.0
#: the longest time for the tests of one file, observed
OBSERVED_IN_S = 1800.0
#: what a changed function may take of memory
MEMORY_BYTES = 8 << 30
#: exit codes of forked processes, beside pytest's
TOO_LONG = 97
NOT_CHANGED = 98
BROKEN = 99


@dataclass(frozen=True)
class Mutant:
    """``name`` says function, decision and what became of it; it is the same wherever the lines are.

    ``module`` is its path below ROOT.
    """

    module: str
    name: str
    line: int
    code: Callable[[], CodeType]

    @property
    def function(self) -> str:
        return self.name.partition(": ")[0]

    @property
    def key(self) -> tuple[str, str]:
        return self.module, self.name


# processes


def fork(function: Callable[[], int]) -> int:
    """The id of a silent process that exits with what ``function`` returns."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        os._exit(function())
    finally:
        os._exit(BROKEN)


@dataclass(frozen=True)
class Job:
    start: Callable[[], int]
    limit_s: float


def exit_codes(jobs: Mapping[K, Job], parallel: int) -> Iterator[tuple[K, int | None]]:
    """(key, exit code) of processes as they end, None for one that had to be killed."""
    waiting = iter(jobs.items())
    running: dict[int, tuple[K, float]] = {}
    while True:
        while len(running) < parallel and (job := next(waiting, None)) is not None:
            running[job[1].start()] = job[0], time.monotonic() + job[1].limit_s
        if not running:
            return
        for pid, (key, deadline) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                yield key, os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                yield key, None
        time.sleep(0.005)


# changed where it is


class Live:
    """The functions of this process, and how to give them other code."""

    def __init__(self) -> None:
        self._functions: defaultdict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        paths: dict[str, str] = {}
        for function in gc.get_objects():
            if type(function) is FunctionType:
                code = function.__code__
                path = paths.setdefault(code.co_filename, os.path.realpath(code.co_filename))
                self._functions[path, code.co_qualname, code.co_firstlineno].append(function)

    def change(self, path: Path, code: CodeType) -> bool:
        """Give the functions of a module what differs in ``code``; whether that is all that differs."""
        real = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        before, after = dict(_parts(real)), dict(_parts(code))
        if before.keys() != after.keys():
            return False
        changed = [key for key in before if before[key] != after[key]]
        given = [self._give((str(path), *key[:2]), after[key], (*key[:2], 1) in after) for key in changed]
        return all(given)

    def _give(self, key: tuple[str, str, int], code: object, is_ambiguous: bool) -> bool:
        functions = self._functions.get(key, [])
        if is_ambiguous or not isinstance(code, CodeType) or not functions:
            return False
        if any(function.__code__.co_freevars != code.co_freevars for function in functions):
            return False
        for function in functions:
            function.__code__ = code
        return True


def _parts(code: CodeType) -> Iterator[tuple[tuple[str, int, int], object]]:
    """(qualified name, line, how many before it have both) of functions that are in no other: their code.

    Of the module and its classes: what is in no function.
    """
    times: Counter[tuple[str, int]] = Counter()
    bodies = [code]
    while bodies:
        body = bodies.pop()
        inner = [constant for constant in body.co_consts if isinstance(constant, CodeType)]
        others = [repr(constant) for constant in body.co_consts if not isinstance(constant, CodeType)]
        yield (body.co_qualname, -body.co_firstlineno, len(bodies)), (body.co_code, body.co_names, others)
        for part in inner:
            if part.co_flags & inspect.CO_OPTIMIZED:
                key = part.co_qualname, part.co_firstlineno
                yield (*key, times[key]), part
                times[key] += 1
            else:
                bodies.append(part)


# changed on import


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that loads ``code`` instead of one module."""

    def __init__(self, target: str, code: CodeType) -> None:
        self._path = ROOT / target
        self._is_package = self._path.stem == "__init__"
        self._module = "kce." + target.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        modules = [str(self._path.parent)] if self._is_package else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=modules
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _limit_time(processor_s: float, real_s: float, unchanged_s: float) -> None:
    """End this process unless it is limited anew in time. Real time spent waiting for a processor does not count."""
    waited = _waited_for_processor_s()

    def end(*_: object) -> None:
        nonlocal waited
        before, waited = waited, _waited_for_processor_s()
        if waited - before < 1:
            os._exit(TOO_LONG)
        signal.setitimer(signal.ITIMER_REAL, waited - before)

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_PROF, processor_s + 4 * unchanged_s)
    signal.setitimer(signal.ITIMER_REAL, real_s + 8 * unchanged_s)


def _waited_for_processor_s() -> float:
    """Of this thread; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def run_from_start(mutant: Mutant, tests: Sequence[str], seconds: float) -> int:
    """pytest's exit code. For a process that has imported none of the rooms. ``seconds``: of the unchanged tests."""
    _limit_time(60, 60, seconds)
    sys.meta_path.insert(0, Mutated(mutant.module, mutant.code()))
    return callers.run(tests)


# one session


class Judge:
    """A pytest plugin that, instead of running the tests, observes those that ``by`` lacks, and judges ``sample``."""

    def __init__(
        self, sample: Sequence[Mutant], rooms: Sequence[str], by: Callers, parallel: int, progress: TextIO
    ) -> None:
        self._progress = progress
        self._sample = sample
        self._rooms = rooms
        self._parallel = parallel
        self.by = by
        self.unnoticed: list[Mutant] = []
        #: their code is in no function, or runs on import
        self.unjudged: list[Mutant] = []
        self._on_import: dict[int, CodeType] = {}
        self._items: dict[str, pytest.Item] = {}
        self._seconds = 0.0
        self._failed = self._skipped = False

    def note_call(self, frame: FrameType, event: str, arg: object) -> None:
        """For sys.settrace while modules are imported."""
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no body of a module or a class
            self._on_import[id(frame.f_code)] = frame.f_code

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        self._failed |= report.failed
        self._skipped |= report.skipped

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        sys.settrace(None)
        on_import = {named(code) for code in self._on_import.values() if code.co_filename.startswith(str(ROOT))}
        gc.collect()
        live = Live()
        gc.freeze()  # after which Live would find nothing
        self._observe(live)
        self._judge(live, on_import)
        return True

    def _observe(self, live: Live) -> None:
        by_file: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        known = self.by.calls.keys() | set(self.by.failed)
        for nodeid, item in self._items.items():
            if nodeid not in known:
                by_file[nodeid.partition("::")[0]].append(item)
        folder = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])
        files = {name: folder / f"observed-{i}" for i, name in enumerate(by_file)}
        jobs = {}
        for name, items in by_file.items():
            observe = functools.partial(self._observe_file, live, items, files[name])
            jobs[name] = Job(functools.partial(fork, observe), OBSERVED_IN_S)
        for name, code in exit_codes(jobs, self._parallel):
            if code != 0:
                raise SystemExit(f"{name}: its tests do not run (exit code {code})")
            self.by.add(files[name])

    def _observe_file(self, live: Live, items: Sequence[pytest.Item], file: Path) -> int:
        functions: list[tuple[str, str]] = []
        for room in self._rooms:
            for path in sorted((ROOT / room).rglob("*.py")):
                live.change(path, with_calls_noted(path, functions))
        called: set[int] = set()
        builtins.__dict__["__called__"] = called.add
        observed = Callers()
        for i, item in enumerate(items):
            called.clear()
            self._run(item, items[i + 1] if i + 1 < len(items) else None)
            if self._failed:
                observed.failed.append(item.nodeid)
            elif not self._skipped:
                observed.calls[item.nodeid] = {functions[n] for n in called}
                observed.seconds[item.nodeid] = self._seconds
        observed.write(file)
        return 0

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._seconds, self._failed, self._skipped = _waited_for_processor_s(), False, False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._seconds = max(0.0, self._seconds - _waited_for_processor_s())

    def _judge(self, live: Live, on_import: Set[tuple[str, str]]) -> None:
        jobs = {}
        mutants = {mutant.key: mutant for mutant in self._sample}
        for mutant in self._sample:
            if tests := self.by.tests(mutant.module, mutant.function, BUDGET_S):
                start = functools.partial(fork, functools.partial(self._run_changed, live, mutant, tests))
                jobs[mutant.key] = Job(start, math.inf)
            else:
                self.unnoticed.append(mutant)
                print(
                    f"  not noticed, no test runs it: {mutant.module}:{mutant.line}, {mutant.name}", file=self._progress
                )
        for number, (key, code) in enumerate(exit_codes(jobs, self._parallel), start=1):
            if number % 50 == 0:
                print(f"  {number} of {len(jobs)} are judged", file=self._progress)
            if code in (NOT_CHANGED, BROKEN) or (code == 0 and runs_on_import(mutants[key], on_import)):
                self.unjudged.append(mutants[key])
            elif code == 0:
                self.unnoticed.append(mutants[key])

    def _run_changed(self, live: Live, mutant: Mutant, tests: Sequence[str]) -> int:
        if not live.change(ROOT / mutant.module, mutant.code()):
            return NOT_CHANGED
        items = [self._items[test] for test in tests if test in self._items]
        for i, item in enumerate(items):
            _limit_time(4, 15, self.by.seconds[item.nodeid])
            self._run(item, items[i + 1] if i + 1 < len(items) else None)
            if self._failed:
                return 1
        return 0


def runs_on_import(mutant: Mutant, on_import: Set[tuple[str, str]]) -> bool:
    """Whether its function, or one around it, is called when modules are imported."""
    parts = mutant.function.split(".")
    return any((mutant.module, ".".join(parts[: i + 1])) in on_import for i in range(len(parts)))


def run_session(folders: Sequence[str], judge: Judge, file: Path) -> int:
    """Let ``judge`` observe and judge; write to ``file`` what it found."""
    arguments = [*QUIET, "-q", "--capture=no", *(str(ROOT / folder) for folder in folders)]
    sys.settrace(judge.note_call)
    code = pytest.main(arguments, [judge])
    judge.by.write(file)
    found = json.loads(file.read_text())
    for name in ("unnoticed", "unjudged"):
        found[name] = [mutant.key for mutant in getattr(judge, name)]
    file.write_text(json.dumps(found))
    return int(code)
