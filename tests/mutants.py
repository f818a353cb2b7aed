"""`make mutants`: changes one place at a time, and runs the tests that call the function, until one fails.

It inverts decisions: comparisons (of epochs and versions also their boundaries), `and` and `or`, membership, negations,
conditions, results of predicates, `any` and `all`, boolean arguments. In functions it also deletes statements, swaps
neighbours, drops arguments and changes numbers. Modules are all of controller, election, zookeeper and broker_stub,
but for those in `NOT_MUTATED`; `--sample` mutants of them are chosen by `--seed`. What decides nothing is not changed:
logs, `__repr__`, assertions, what only type checkers see. Which tests call a function is observed first, in one run of
the fast tests (callers.py); judging.py runs them.

Nothing is written to disk, and a run during which files are changed is void. A mutant that takes four times the time
of the unchanged tests counts as noticed. At least 95% must be noticed; the others are listed. mutants_equivalent.toml
lists mutants without any effect, with reasons. Examples of hypothesis are the same in every run.

`make mutants-sample`, which CI runs, judges the mutants whose names have a low hash: it stays the same while other code
changes. All of them must be noticed, or be listed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import hashlib
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType

# imported once for all forked processes; none of it is mutated
import hypothesis
import kazoo.client  # noqa: F401
import pytest
import trio.testing  # noqa: F401

import kce.wire.protocol  # noqa: F401
from tests import callers, judging
from tests.callers import ROOT
from tests.judging import Mutant

REQUIRED = 0.95
ROOMS = ("controller", "election", "zookeeper", "broker_stub")
#: folders below tests/
TESTS = ("controller", "broker_stub", "zookeeper", "election", "wire/conformance")
#: modules that only tests with a server or a JVM exercise, which would have to start for every mutant
NOT_MUTATED = (
    "zookeeper/store/kazoo.py", "zookeeper/store/kazoo_session.py", "zookeeper/store/kazoo_handler.py",
    "zookeeper/store/buffered_socket.py", "zookeeper/client_config.py",
    "broker_stub/reactor/acceptor.py",
)  # fmt: skip

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


# finding them


#: of each changed node: the node, and what it becomes
Changes = Sequence[tuple[ast.AST, ast.AST]]


def mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    _mark_logs(tree)
    times: Counter[str] = Counter()
    found: list[tuple[str, Changes]] = [(owner, [(old, new)]) for owner, old, new in _mutations(tree, "")]
    for owner, changes in [*found, *_statement_mutations(tree, "")]:
        name = f"{owner}: {' & '.join(f'{_line(old)} -> {_line(new)}' for old, new in changes)}"
        times[name] += 1
        if times[name] > 1:
            name = f"{name} ({times[name]})"
        line = changes[0][0].lineno  # type: ignore[attr-defined]
        yield Mutant(str(path.relative_to(ROOT)), name, line, functools.partial(_compiled, tree, path, changes))


def _compiled(tree: ast.Module, path: Path, changes: Changes) -> CodeType:
    before = [(old, old.__class__, old.__dict__) for old, _ in changes]
    replacements = [(new.__class__, {**old.__dict__, **new.__dict__}) for old, new in changes]
    for (old, _), (kind, content) in zip(changes, replacements, strict=True):
        old.__class__, old.__dict__ = kind, content
    try:
        return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    finally:
        for old, kind, content in before:
            old.__class__, old.__dict__ = kind, content


def _line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


#: what makes a value and does nothing else
_NEW = frozenset(
    ("array", "bool", "dict", "float", "int", "len", "list", "max", "min", "partial", "set", "sorted", "str", "tuple")
)
#: statements that are deleted and swapped
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)


def _statement_mutations(node: ast.AST, owner: str) -> Iterator[tuple[str, Changes]]:
    """In functions: statements deleted, neighbours swapped, arguments dropped, numbers changed."""
    if isinstance(node, ast.Raise):
        yield owner, [(node, ast.Pass())]
    if isinstance(node, ast.Raise) or _decides_nothing(node):
        return
    if owner and _is_minus_one(node):  # which says "none": any other number below 0 would say the same
        yield owner, [(node, ast.Constant(0))]
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
                if not _is_assertion(node.keywords[i]):
                    yield owner, [(node, ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]]))]
            if len(node.args) > 1:
                yield owner, [(node, ast.Call(node.func, node.args[:-1], node.keywords))]
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            yield owner, [(node, ast.Constant(_other(node.value)))]
    for name, value in ast.iter_fields(node):
        if name not in ("decorator_list", "annotation", "returns", "defaults", "kw_defaults"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _statement_mutations(child, owner)


def _is_minus_one(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and node.operand.value == 1
    )


def _other(number: float) -> float:
    """One more; twice as much of a large one, of which one more is rarely another behaviour."""
    return number + 1 if abs(number) < 1000 else 2 * number


def _block_changes(block: Sequence[ast.stmt]) -> Iterator[Changes]:
    simple = [isinstance(s, _SIMPLE) and not _is_log(s) and not _is_docstring(s) for s in block]
    for statement, is_simple in zip(block, simple, strict=True):
        if is_simple and not isinstance(statement, ast.Raise):
            yield [(statement, ast.Pass())]
    for (first, is_simple), (second, next_is_simple) in itertools.pairwise(zip(block, simple, strict=True)):
        both_act = is_simple and next_is_simple and _acts(first) and _acts(second)
        # the order of mere assignments, and of reads, rarely matters
        if (
            both_act
            and ast.dump(first) != ast.dump(second)
            and not _only_reads(first, second)
            and not _compute_apart(first, second)
            and not _begins_later(first, second)
            and not _begins_later(second, first)
            and not _are_apart(first, second)
        ):
            yield [(first, copy.copy(second)), (second, copy.copy(first))]


def _acts(statement: ast.stmt) -> bool:
    """Not if it only assigns values, or new objects."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(not _makes_object(call) for call in calls) or (isinstance(statement, ast.Expr) and bool(calls))


def _makes_object(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.lstrip("_")[:1].isupper() or name in _NEW


def _only_reads(first: ast.stmt, second: ast.stmt) -> bool:
    """Two assignments of what is read from ZooKeeper, neither from the other."""
    return all(
        isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Await)
        and isinstance(call := s.value.value, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith("get_")
        for s in (first, second)
    )


#: what reads lists, dicts, sets, strings and the clock, and changes nothing
_READS = _NEW | frozenset(
    ("all", "any", "current_time", "endswith", "fromkeys", "get", "isdisjoint", "items", "keys", "lower",
     "partition", "range", "reversed", "rpartition", "startswith", "strip", "sum", "upper", "values", "zip")
)  # fmt: skip


def _computes(statement: ast.stmt) -> set[str] | None:
    """The local variables that the statement assigns, if it does nothing else: it awaits nothing, and calls nobody who
    may change anything."""
    if not isinstance(statement, ast.Assign):
        return None
    targets = [node for target in statement.targets for node in ast.walk(target)]
    if any(isinstance(node, (ast.Attribute, ast.Subscript)) for node in targets):
        return None
    for node in ast.walk(statement.value):
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return None
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in _READS and not _makes_object(node):
                return None
    return {node.id for node in targets if isinstance(node, ast.Name)}


def _compute_apart(first: ast.stmt, second: ast.stmt) -> bool:
    """Each only computes local variables, without those of the other."""
    variables = [_computes(statement) for statement in (first, second)]
    if variables[0] is None or variables[1] is None:
        return False
    named = [{node.id for node in ast.walk(s) if isinstance(node, ast.Name)} for s in (first, second)]
    return variables[0].isdisjoint(named[1]) and variables[1].isdisjoint(named[0])


def _begins_later(statement: ast.stmt, other: ast.stmt) -> bool:
    """A task is started, which runs at the next await at the earliest. ``other`` awaits and assigns nothing of it."""
    if not isinstance(statement, ast.Expr) or not isinstance(call := statement.value, ast.Call):
        return False
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("spawn_system_task", "start_soon"):
        return False
    if any(isinstance(node, ast.Call) for argument in call.args for node in ast.walk(argument)):
        return False
    assigned = {_last_name(node) for node in ast.walk(other) if not isinstance(getattr(node, "ctx", _LOAD), ast.Load)}
    if isinstance(other, ast.Raise) or any(isinstance(node, ast.Await) for node in ast.walk(other)):
        return False
    return assigned.isdisjoint(_last_name(node) for node in ast.walk(call))


_LOAD = ast.Load()


def _last_name(node: ast.AST) -> str | None:
    """``c`` of ``c`` and of ``a.b.c``; None of what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


#: methods of lists, dicts, sets, events and scopes that call nobody and never fail, `pop` with a default only
_IN_PLACE = frozenset(("add", "append", "cancel", "clear", "discard", "pop", "set"))


def _are_apart(first: ast.stmt, second: ast.stmt) -> bool:
    """Each changes a container, an event or a scope in place, and says nothing of the other's."""
    changed = [_changed_in_place(statement) for statement in (first, second)]
    if changed[0] is None or changed[1] is None or changed[0] == changed[1]:
        return False
    named = [{node.attr for node in ast.walk(s) if isinstance(node, ast.Attribute)} for s in (first, second)]
    return changed[0] not in named[1] and changed[1] not in named[0]


def _changed_in_place(statement: ast.stmt) -> str | None:
    """The name of the attribute that the statement changes, if it does nothing else and calls nobody."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if not isinstance(statement, ast.Expr) or len(calls) != 1 or calls[0] is not statement.value:
        return None
    called = calls[0].func
    if (
        not isinstance(called, ast.Attribute)
        or called.attr not in _IN_PLACE
        or not isinstance(called.value, ast.Attribute)
    ):
        return None
    return None if called.attr == "pop" and len(calls[0].args) < 2 else called.value.attr


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def targets() -> list[str]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    names = (str(path.relative_to(ROOT)) for path in paths)
    return [name for name in names if name not in NOT_MUTATED]


def _mutations(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """(function, decision, what it becomes); nothing of logs, texts and assertions."""
    if _decides_nothing(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        owner = f"{owner}.{node.name}" if owner else node.name
    for condition in _conditions(node):
        is_changed_below = isinstance(condition, (ast.Compare, ast.BoolOp, ast.Constant)) or _is_negation(condition)
        if not is_changed_below and not _decides_nothing(condition):
            yield owner, condition, ast.UnaryOp(ast.Not(), copy.copy(condition))
    if isinstance(node, ast.expr):
        for changed in _changes(node):
            yield owner, node, changed
    decorators = getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        if child not in decorators:
            yield from _mutations(child, owner)


def _decides_nothing(node: ast.AST) -> bool:
    """Assertions, texts, and what is only for logs and debuggers, or for type checkers."""
    if isinstance(node, ast.If):
        is_only_log = all(_decides_nothing(statement) for statement in [*node.body, *node.orelse])
        return _is_name(node.test, "TYPE_CHECKING") or (is_only_log and not _has_effect(node.test))
    return (
        isinstance(node, (ast.Assert, ast.JoinedStr))
        or (isinstance(node, ast.FunctionDef) and (node.name == "__repr__" or _only_logs(node)))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "isEnabledFor")
        or _is_log(node)
    )


def _only_logs(function: ast.FunctionDef) -> bool:
    inside = list(ast.walk(function))[1:]
    logs = any(_is_log(node) for node in inside)
    return logs and not any(
        isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.FunctionDef, ast.Delete))
        or (isinstance(node, ast.Expr) and not _is_log(node) and not _is_docstring(node))
        or (isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load))
        for node in inside
    )


def _mark_logs(tree: ast.Module) -> None:
    """Mark the calls of the module's own functions that only log: they are logs, too."""
    names = {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and _only_logs(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) and _is_name(called.value, "self") else None
            node.is_log = name in names  # type: ignore[attr-defined]


def _has_effect(expression: ast.expr) -> bool:
    return any(isinstance(node, (ast.NamedExpr, ast.Await)) for node in ast.walk(expression))


def _is_assertion(keyword: ast.keyword) -> bool:
    """zip(..., strict=True)"""
    return keyword.arg == "strict"


def _is_log(node: ast.AST) -> bool:
    is_marked = getattr(node, "is_log", False)
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(called := node.value.func, ast.Attribute)
        and (_is_name(called.value, "log", "logger", "state_change_log", "state_change_logger") or is_marked)
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
            if (
                isinstance(keyword.value, ast.Constant)
                and isinstance(keyword.value.value, bool)
                and not _is_assertion(keyword)
            ):
                flipped = ast.keyword(keyword.arg, ast.Constant(not keyword.value.value))
                yield ast.Call(node.func, node.args, [*node.keywords[:i], flipped, *node.keywords[i + 1 :]])


# running them


def judged(
    sample: Sequence[Mutant], by: callers.Callers, tests: Sequence[str], parallel: int
) -> tuple[callers.Callers, set[tuple[str, str]]]:
    """Which tests call which functions, and (module, name) of the mutants that no test notices; prints progress."""
    mutants = {mutant.key: mutant for mutant in sample}
    with tempfile.TemporaryDirectory() as folder, os.fdopen(os.dup(1), "w", buffering=1) as progress:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        file = Path(folder, "found")
        judge = judging.Judge(sample, ROOMS, by, parallel, progress)
        start = functools.partial(judging.fork, lambda: judging.run_session(tests, judge, file))
        for _, code in judging.exit_codes({"session": judging.Job(start, math.inf)}, 1):
            if not file.exists():
                raise SystemExit(f"the tests do not run (exit code {code})")
        by = callers.Callers()
        by.add(file)
        found = json.loads(file.read_text())
        survivors = {tuple(key) for key in [*found["unnoticed"], *found["unjudged"]]}
        jobs = {}
        for key in map(tuple, found["unjudged"]):
            if chosen := by.tests(key[0], mutants[key].function, judging.BUDGET_S):
                seconds = sum(by.seconds[test] for test in chosen)
                run = functools.partial(judging.run_from_start, mutants[key], chosen, seconds)
                jobs[key] = judging.Job(functools.partial(judging.fork, run), math.inf)
        for key, code in judging.exit_codes(jobs, parallel):
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                survivors.remove(key)
    return by, survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="parts of the paths of modules; all modules if there are none")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders and modules of tests, below tests/")
    parser.add_argument("--parallel", type=int, default=2, help="processes at a time")
    parser.add_argument("--sample", type=int, default=500, help="number of mutants, 0 for all")
    parser.add_argument("--stable", type=float, help="so many of 1,000 instead, chosen by name")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample")
    parser.add_argument(
        "--callers", type=Path, help="a file that keeps what was observed; the next run observes only new tests"
    )
    options = parser.parse_args()
    started, files = time.monotonic(), _files()
    # the same examples in every run, and none made smaller
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine is no reason to fail
    )  # fmt: skip
    hypothesis.settings.load_profile("mutants")
    equivalent = tomllib.loads((ROOT / "tests/mutants_equivalent.toml").read_text(encoding="utf-8"))
    every = {target: list(mutants(ROOT / target)) for target in targets()}
    listed = {(target, name) for target, reasons in equivalent.items() for name in reasons}
    for target, name in listed - {(target, mutant.name) for target, found in every.items() for mutant in found}:
        raise SystemExit(f"mutants_equivalent.toml, {target}: there is no {name!r}")
    modules = [target for target in every if not options.only or any(part in target for part in options.only)]
    population = [mutant for target in modules for mutant in every[target]]
    if options.stable:
        sample = [mutant for mutant in population if _hash(mutant) < options.stable]
    else:
        number = min(options.sample or len(population), len(population))
        sample = random.Random(options.seed).sample(population, number)
    chosen_by = "chosen by their names" if options.stable else f"seed {options.seed}"
    print(f"{len(sample)} of {len(population)} mutants of {len(modules)} modules, {chosen_by}", flush=True)
    by = callers.Callers()
    if options.callers and options.callers.exists():
        by.add(options.callers)
    by, survivors = judged(sample, by, [f"tests/{name}" for name in options.tests], options.parallel)
    if options.callers:
        by.write(options.callers)
    for test in by.failed:
        print(f"  fails without any mutant, and so judges none: {test}")
    chosen = {mutant.key for mutant in sample}
    lines = {mutant.key: mutant.line for mutant in sample}
    for target, name in sorted(survivors - listed):
        print(f"  not noticed: {target}:{lines[target, name]}, {name}")
    for target, name in sorted((chosen & listed) - survivors):
        print(f"  noticed, though listed as equivalent: {target}, {name}")
    if changed := {path for path, _, _ in files ^ _files()}:
        raise SystemExit(f"void, since they were changed meanwhile: {', '.join(sorted(map(str, changed)))}")
    total, noticed = len(chosen - listed), len(chosen - listed - survivors)
    print(
        f"{noticed} of {total} mutants are noticed: {100 * noticed / total:.1f}%; {len(chosen & listed)} others are "
        f"equivalent; {time.monotonic() - started:.0f} s"
    )
    return 0 if noticed >= REQUIRED * total else 1


def _files() -> set[tuple[Path, int, int]]:
    """(path, when it was changed, its size) of what is mutated, and of the tests."""
    paths = [path for folder in (*ROOMS, "tests") for path in (ROOT / folder).rglob("*.py")]
    return {(path.relative_to(ROOT), path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def _hash(mutant: Mutant) -> float:
    """0..1000, evenly distributed."""
    digest = hashlib.sha256("\0".join(mutant.key).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * 1000


if __name__ == "__main__":
    sys.exit(main())
