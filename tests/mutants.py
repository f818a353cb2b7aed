"""`make mutants`: changes one place at a time, and runs the tests that call the function, until one fails.

It inverts decisions: comparisons (of epochs and versions also their boundaries), `and` and `or`, membership, negations,
conditions, results of predicates, `any` and `all`, boolean arguments. In functions it also deletes statements, swaps
neighbours, drops arguments and changes numbers. Modules are all of controller, election, zookeeper and broker_stub,
but for those in `NOT_MUTATED`; `--sample` mutants of them are chosen by `--seed`. Which tests call a function is
observed first, in one run of the fast tests (callers.py).

Nothing is written to disk: a forked process imports the mutated module instead of the real one. A mutant that runs four
times as long as the unchanged tests counts as noticed. At least 95% must be noticed; the others are listed.
mutants_equivalent.toml lists mutants without any effect, with reasons.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

# imported once for all forked processes; none of it is mutated
import hypothesis  # noqa: F401
import kazoo.client  # noqa: F401
import pytest
import trio.testing  # noqa: F401

import kce.wire.protocol  # noqa: F401
from tests import callers
from tests.callers import ROOT

K = TypeVar("K")

REQUIRED = 0.95
ROOMS = ("controller", "election", "zookeeper", "broker_stub")
#: folders below tests/
TESTS = ("controller", "broker_stub", "zookeeper", "election", "wire/conformance")
#: of a function that many tests call, the quickest are run, for so long in sum
BUDGET_S = 15.0
#: the longest time for the tests of one folder, observed
OBSERVED_IN_S = 3600.0
#: modules that only tests with a server or a JVM exercise, which would have to start for every mutant
NOT_MUTATED = (
    "zookeeper/store/kazoo.py", "zookeeper/store/buffered_socket.py", "zookeeper/client_config.py",
    "broker_stub/reactor/acceptor.py",
)  # fmt: skip

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """``name`` says function, decision and what became of it; it is the same wherever the lines are."""

    name: str
    line: int
    code: Callable[[], CodeType]

    @property
    def function(self) -> str:
        return self.name.partition(": ")[0]


# finding them


#: of each changed node: the node, and what it becomes
Changes = Sequence[tuple[ast.AST, ast.AST]]


def mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    times: Counter[str] = Counter()
    found: list[tuple[str, Changes]] = [(owner, [(old, new)]) for owner, old, new in _mutations(tree, "")]
    for owner, changes in [*found, *_statement_mutations(tree, "")]:
        name = f"{owner}: {' & '.join(f'{_line(old)} -> {_line(new)}' for old, new in changes)}"
        times[name] += 1
        if times[name] > 1:
            name = f"{name} ({times[name]})"
        yield Mutant(name, changes[0][0].lineno, functools.partial(_compiled, tree, path, changes))  # type: ignore[attr-defined]


def _compiled(tree: ast.AST, path: Path, changes: Changes) -> CodeType:
    before = [(old, old.__class__, old.__dict__) for old, _ in changes]
    replacements = [(new.__class__, {**old.__dict__, **new.__dict__}) for old, new in changes]
    for (old, _), (kind, content) in zip(changes, replacements, strict=True):
        old.__class__, old.__dict__ = kind, content
    try:
        return compile(ast.fix_missing_locations(tree), str(path), "exec")  # type: ignore[arg-type]
    finally:
        for old, kind, content in before:
            old.__class__, old.__dict__ = kind, content


def _line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


#: statements that are deleted and swapped
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)


def _statement_mutations(node: ast.AST, owner: str) -> Iterator[tuple[str, Changes]]:
    """In functions: statements deleted, neighbours swapped, arguments dropped, numbers changed."""
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Raise)) or _is_log(node):
        if isinstance(node, ast.Raise):
            yield owner, [(node, ast.Pass())]
        return
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if is_function or isinstance(node, ast.ClassDef):
        owner = f"{owner}.{node.name}" if owner else node.name  # type: ignore[attr-defined]
    if owner and not isinstance(node, ast.ClassDef):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield from ((owner, changes) for changes in _block_changes(block))
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in ("cast", "TypeVar")):
            for i in range(len(node.keywords)):
                yield owner, [(node, ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]]))]
            if len(node.args) > 1:
                yield owner, [(node, ast.Call(node.func, node.args[:-1], node.keywords))]
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield owner, [(node, ast.Constant(node.value + 1))]  # type: ignore[operator]
    for name, value in ast.iter_fields(node):
        if name not in ("decorator_list", "annotation", "returns", "defaults", "kw_defaults"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _statement_mutations(child, owner)


def _block_changes(block: Sequence[ast.stmt]) -> Iterator[Changes]:
    simple = [isinstance(s, _SIMPLE) and not _is_log(s) and not _is_docstring(s) for s in block]
    for statement, is_simple in zip(block, simple, strict=True):
        if is_simple and not isinstance(statement, ast.Raise):
            yield [(statement, ast.Pass())]
    for (first, is_simple), (second, next_is_simple) in itertools.pairwise(zip(block, simple, strict=True)):
        both_act = is_simple and next_is_simple and _acts(first) and _acts(second)
        if both_act and ast.dump(first) != ast.dump(second):  # the order of mere assignments rarely matters
            yield [(first, copy.copy(second)), (second, copy.copy(first))]


def _acts(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def targets() -> list[str]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    names = (str(path.relative_to(ROOT)) for path in paths)
    return [name for name in names if name not in NOT_MUTATED]


def _mutations(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """(function, decision, what it becomes); nothing of logs, texts and assertions."""
    if isinstance(node, (ast.Assert, ast.JoinedStr)) or _is_log(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        owner = f"{owner}.{node.name}" if owner else node.name
    for condition in _conditions(node):
        if not isinstance(condition, (ast.Compare, ast.BoolOp, ast.Constant)) and not _is_negation(condition):
            yield owner, condition, ast.UnaryOp(ast.Not(), copy.copy(condition))
    if isinstance(node, ast.expr):
        for changed in _changes(node):
            yield owner, node, changed
    decorators = getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        if child not in decorators:
            yield from _mutations(child, owner)


def _is_log(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(called := node.value.func, ast.Attribute)
        and _is_name(called.value, "log", "logger", "state_change_log")
    )


def _is_name(node: ast.expr | None, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_negation(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Expressions that are used as booleans."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    if isinstance(node, ast.BoolOp):  # what stands last in `x or y` may be a value instead of a condition
        return node.values if isinstance(node.op, ast.And) else node.values[:-1]
    if (
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.returns
        and ast.unparse(node.returns) == "bool"
    ):
        returns = (statement for statement in ast.walk(node) if isinstance(statement, ast.Return))
        return [statement.value for statement in returns if statement.value is not None]
    return []


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        about_epochs = any(word in ast.unparse(node) for word in ("epoch", "version"))
        for i, op in enumerate(node.ops):
            for table in (OPPOSITE, BOUNDARY) if about_epochs else (OPPOSITE,):
                if type(op) in table:
                    yield ast.Compare(
                        node.left, [*node.ops[:i], table[type(op)](), *node.ops[i + 1 :]], node.comparators
                    )
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
    elif isinstance(node, ast.Call):
        if _is_name(node.func, "any", "all"):
            other = "all" if _is_name(node.func, "any") else "any"
            yield ast.Call(ast.Name(other, ast.Load()), node.args, node.keywords)
        for i, keyword in enumerate(node.keywords):
            if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
                flipped = ast.keyword(keyword.arg, ast.Constant(not keyword.value.value))
                yield ast.Call(node.func, node.args, [*node.keywords[:i], flipped, *node.keywords[i + 1 :]])


# running them


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


def fork(function: Callable[[], int]) -> int:
    """The id of a silent process that exits with what ``function`` returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        os._exit(function())
    finally:
        os._exit(99)


def start_tests(tests: Sequence[str], target: str, mutant: Mutant) -> int:
    def run() -> int:
        sys.meta_path.insert(0, Mutated(target, mutant.code()))
        return callers.run(tests)

    return fork(run)


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
        time.sleep(0.01)


def observed(folders: Sequence[str], parallel: int) -> callers.Callers:
    """Which tests of the folders call which functions."""
    found = callers.Callers()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, str(i)) for i, name in enumerate(folders)}
        jobs = {}
        for name, file in files.items():
            observe = functools.partial(callers.observe, [str(ROOT / name)], ROOMS, file)
            jobs[name] = Job(functools.partial(fork, observe), OBSERVED_IN_S)
        for name, code in exit_codes(jobs, parallel):
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                raise SystemExit(f"{name}: its tests do not run (exit code {code})")
            found.add(files[name])
    for test in found.failed:
        print(f"  fails without any mutant, and so judges none: {test}", flush=True)
    return found


def judge(sample: Sequence[tuple[str, Mutant]], by: callers.Callers, parallel: int) -> set[tuple[str, str]]:
    """(module, name) of the mutants that no test notices; prints a line for each."""
    jobs = {}
    lines = {(target, mutant.name): mutant.line for target, mutant in sample}
    survivors = set(lines)
    for target, mutant in sample:
        if tests := by.tests(target, mutant.function, BUDGET_S):
            start = functools.partial(start_tests, tests, target, mutant)
            jobs[target, mutant.name] = Job(start, 20 + 4 * sum(by.seconds[test] for test in tests))
    for key in survivors - jobs.keys():
        print(f"  not noticed: {key[0]}:{lines[key]}, which no test runs, {key[1]}", flush=True)
    for number, (key, code) in enumerate(exit_codes(jobs, parallel), start=1):
        if code != 0:
            survivors.remove(key)
        else:
            print(f"  not noticed: {key[0]}:{lines[key]}, {key[1]}  ({number} of {len(jobs)} are judged)", flush=True)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="parts of the paths of modules; all modules if there are none")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders and modules of tests, below tests/")
    parser.add_argument("--parallel", type=int, default=2, help="processes at a time")
    parser.add_argument("--sample", type=int, default=500, help="number of mutants, 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample")
    options = parser.parse_args()
    started = time.monotonic()
    equivalent = tomllib.loads((ROOT / "tests/mutants_equivalent.toml").read_text(encoding="utf-8"))
    every = {target: list(mutants(ROOT / target)) for target in targets()}
    listed = {(target, name) for target, reasons in equivalent.items() for name in reasons}
    for target, name in listed - {(target, mutant.name) for target, found in every.items() for mutant in found}:
        raise SystemExit(f"mutants_equivalent.toml, {target}: there is no {name!r}")
    modules = [target for target in every if not options.only or any(part in target for part in options.only)]
    population = [(target, mutant) for target in modules for mutant in every[target]]
    sample = random.Random(options.seed).sample(population, min(options.sample or len(population), len(population)))
    print(f"{len(sample)} of {len(population)} mutants of {len(modules)} modules, seed {options.seed}", flush=True)
    by = observed([f"tests/{name}" for name in options.tests], options.parallel)
    functions = set().union(*by.calls.values())
    print(f"{len(by.calls)} tests call {len(functions)} functions, {time.monotonic() - started:.0f} s", flush=True)
    survivors = judge(sample, by, options.parallel)
    chosen = {(target, mutant.name) for target, mutant in sample}
    for target, name in sorted((chosen & listed) - survivors):
        print(f"  noticed, though listed as equivalent: {target}, {name}")
    total, noticed = len(chosen - listed), len(chosen - listed - survivors)
    print(
        f"{noticed} of {total} mutants are noticed: {100 * noticed / total:.1f}%; {len(chosen & listed)} others are "
        f"equivalent; {time.monotonic() - started:.0f} s"
    )
    return 0 if noticed >= REQUIRED * total else 1


if __name__ == "__main__":
    sys.exit(main())
