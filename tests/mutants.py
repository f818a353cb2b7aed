"""`make mutants`: changes one place at a time, and runs the module's tests until one fails.

It inverts decisions: comparisons (of epochs and versions also their boundaries), `and` and `or`, membership, negations,
conditions, results of predicates, `any` and `all`, boolean arguments. In functions it also deletes statements, swaps
neighbours, drops arguments and changes numbers. Modules are all of controller, election, zookeeper and broker_stub,
but for those in `NOT_MUTATED`; `--sample` mutants of them are chosen by `--seed`.

Nothing is written to disk: a forked process imports the mutated module instead of the real one. A mutant that runs four
times as long as the unchanged tests counts as detected. At least 95% must be detected; the others are listed.
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
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, ModuleType

# imported once for all forked processes; none of it is mutated
import hypothesis  # noqa: F401
import kazoo.client  # noqa: F401
import pytest
import trio.testing  # noqa: F401

import kce.wire.protocol  # noqa: F401
from tests.test_mirror import covers, mirrored

ROOT = Path(__file__).parent.parent
REQUIRED = 0.95
ROOMS = ("controller", "election", "zookeeper", "broker_stub")
#: modules that only tests with a server or a JVM exercise, which would have to start for every mutant
NOT_MUTATED = (
    "zookeeper/store/kazoo.py", "zookeeper/store/buffered_socket.py", "zookeeper/client_config.py",
    "broker_stub/reactor/acceptor.py",
)  # fmt: skip

#: module -> its tests, fastest first: modules and folders below tests/; other modules: `tests_of`
TARGETS: dict[str, Sequence[str]] = {
    "controller/leader_selection.py": [
        "controller/conformance/test_partition_leader_election_algorithms",
        "controller/conformance/test_partition_state_machine", "controller/test_leader_selection",
    ],
    "controller/partition_state_machine.py": [
        "controller/conformance/test_partition_state_machine",
        "controller/conformance/test_partition_leader_election_algorithms",
        "controller/conformance/test_unclean_leader_election", "controller/conformance/test_leader_election_command",
        "controller/conformance/test_reassign_partitions_command", "controller/test_partition_state_machine",
        "controller/test_kafka_controller",
    ],
    "controller/replica_state_machine.py": [
        "controller/conformance/test_replica_state_machine", "controller/test_replica_state_machine",
        "controller/test_brokers", "controller/conformance/test_delete_topic",
    ],
    "controller/context.py": [
        "controller/test_context", "controller/conformance/test_controller_context",
        "controller/conformance/test_partition_state_machine", "controller/test_request_batch",
    ],
    "controller/request_batch.py": [
        "controller/conformance/test_controller_channel_manager", "controller/conformance/test_replica_state_machine",
        "controller/test_request_batch", "controller/test_brokers",
    ],
    "controller/topic_deletion.py": [
        "controller/conformance/test_topic_deletion_manager", "controller/conformance/test_delete_topic",
        "controller/test_topic_deletion", "controller/test_reassignment",
    ],
    "controller/isr_changes.py": [
        "controller/conformance/test_controller_integration_alter_partition", "controller/test_isr_changes",
        "controller/test_reassignment",
    ],
    "controller/controlled_shutdown.py": [
        "controller/conformance/test_controller_integration", "controller/test_brokers",
    ],
    "controller/reassignment.py": [
        "controller/conformance/test_controller_integration_reassignment", "controller/test_reassignment",
    ],
    "controller/brokers.py": [
        "controller/test_brokers", "controller/conformance/test_controller_integration",
        "controller/conformance/test_broker_epoch_integration", "controller/test_replica_leader_election",
        "controller/test_features", "controller/test_kafka_controller", "controller/conformance/test_delete_topic",
        "controller/test_topics", "controller/test_topic_deletion",
    ],
    "controller/topics.py": [
        "controller/test_topics", "controller/test_topic_deletion",
        "controller/conformance/test_controller_integration_topic_ids", "controller/conformance/test_delete_topic",
        "controller/test_kafka_controller",
    ],
    "controller/replica_leader_election.py": [
        "controller/conformance/test_controller_integration_reassignment", "controller/test_replica_leader_election",
    ],
    "controller/features.py": ["controller/conformance/test_update_features", "controller/test_features"],
    "controller/dispatch.py": [
        "controller/test_dispatch", "controller/test_event_loop", "controller/test_producer_ids",
        "controller/test_brokers", "controller/test_isr_changes", "controller/test_kafka_controller",
        "controller/conformance/test_controller_integration_reassignment",
    ],
    "controller/elector.py": [
        "controller/test_kafka_controller", "controller/conformance/test_controller_integration",
        "controller/test_elector",
    ],
    "zookeeper/client.py": ["zookeeper/conformance/test_kafka_zk_client", "controller/test_kafka_controller"],
    "broker_stub/replica_manager.py": [
        "broker_stub/test_fencing", "broker_stub/test_leader_and_isr", "broker_stub/test_stop_replica",
        "broker_stub/test_properties", "broker_stub/test_isr",
    ],
    "broker_stub/partition.py": [
        "broker_stub/test_leader_and_isr", "broker_stub/test_isr", "broker_stub/test_stop_replica",
    ],
    "broker_stub/control_requests.py": [
        "wire/conformance", "broker_stub/test_metadata_cache", "broker_stub/test_fencing",
        "broker_stub/test_leader_and_isr",
    ],
    "broker_stub/handlers/base.py": [
        "broker_stub/test_fencing", "broker_stub/test_client_quotas", "broker_stub/test_admin_handlers",
    ],
    "broker_stub/handlers/leader_and_isr.py": ["broker_stub/test_fencing", "wire/conformance"],
    "broker_stub/handlers/stop_replica.py": ["broker_stub/test_fencing"],
    "broker_stub/handlers/update_metadata.py": ["broker_stub/test_fencing"],
    "controller/scheduler.py": ["controller/test_decisions", "controller/test_replica_leader_election"],
    "election/serial_calls.py": ["election/test_service"],
    "zookeeper/admin_nodes.py": [
        "controller/test_producer_ids", "zookeeper/conformance/test_reassign_partitions_znode",
        "zookeeper/conformance/test_kafka_zk_client", "controller/test_reassignment",
    ],
    "zookeeper/store/metered.py": ["controller/test_metrics"],
    **dict.fromkeys(
        (
            f"broker_stub/handlers/{name}.py"
            for name in (
                "admin", "create_partitions", "delete_topics", "describe_cluster", "forwarded", "update_features",
            )
        ),
        ("broker_stub/test_admin_handlers",),
    ),
    "broker_stub/handlers/api_versions.py": ["broker_stub/test_api_versions"],
    "broker_stub/handlers/served_apis.py": ["broker_stub/test_api_versions"],
    "broker_stub/handlers/incremental_alter_configs.py": ["broker_stub/test_config_requests"],
    "broker_stub/handlers/init_producer_id.py": ["broker_stub/test_coordinator_requests"],
    "broker_stub/producer_ids.py": ["broker_stub/test_coordinator_requests"],
    "broker_stub/node_client.py": ["broker_stub/test_node_to_controller"],
    "broker_stub/reactor/metrics.py": ["broker_stub/test_metrics"],
    "controller/event_loop.py": [
        "controller/test_event_loop", "controller/conformance/test_controller_event_manager",
        "controller/test_metrics",
    ],
}  # fmt: skip

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


# their tests


def tests_of(target: str) -> Sequence[str]:
    """The test file of the module's name, those that cover it, or those that import it; without ``.py``."""
    if target in TARGETS:
        return TARGETS[target]
    found = [path for path in [ROOT / mirrored(Path(target))] if path.exists()]
    found += [path for pattern, path in covers().items() if fnmatch(target, pattern)]
    if not found:
        module = target.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        room = ROOT / "tests" / target.partition("/")[0]
        found = [p for p in sorted(room.rglob("test_*.py")) if f"kce.{module} " in p.read_text(encoding="utf-8")]
    tests = dict.fromkeys(str(path.relative_to(ROOT / "tests")).removesuffix(".py") for path in found)
    return list(tests)[:6]


def targets() -> list[str]:
    """Modules that have tests."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    names = (str(path.relative_to(ROOT)) for path in paths)
    return [name for name in names if name not in NOT_MUTATED and tests_of(name)]


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

    def __init__(self, module: str, path: Path, code: CodeType) -> None:
        self._module, self._path, self._code = module, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def start_tests(tests: Sequence[str], mutated: Mutated | None) -> int:
    """The id of a process that exits as pytest does."""
    pid = os.fork()
    if pid:
        return pid
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        if mutated is not None:
            sys.meta_path.insert(0, mutated)
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--assert=plain", "--rootdir", str(ROOT)]
        code = pytest.main([*options, *(str(ROOT / test) for test in tests)])
        os._exit(int(code))
    finally:
        os._exit(99)


def exit_codes(
    jobs: Iterator[tuple[str, int]], parallel: int, limit_seconds: float
) -> Iterator[tuple[str, int | None]]:
    """(name, exit code) of processes as they end, None for one that had to be killed; ``jobs`` starts them."""
    running: dict[int, tuple[str, float]] = {}
    while True:
        while len(running) < parallel and (job := next(jobs, None)) is not None:
            running[job[1]] = job[0], time.monotonic()
        if not running:
            return
        for pid, (name, started) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                yield name, os.waitstatus_to_exitcode(status)
            elif time.monotonic() - started > limit_seconds:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                yield name, None
        time.sleep(0.01)


def _test_path(test: str) -> str:
    path = f"tests/{test}"
    return path if (ROOT / path).is_dir() else f"{path}.py"


def judge(target: str, chosen: set[str], equivalent: dict[str, str], parallel: int) -> tuple[int, int]:
    """(noticed, all) of the ``chosen`` mutants; prints a line for each that was not noticed, and for the module."""
    path, tests = ROOT / target, [_test_path(test) for test in tests_of(target)]
    started = time.monotonic()
    ((_, code),) = exit_codes(iter([("", start_tests(tests, None))]), 1, 120)
    if code != 0:
        raise SystemExit(f"{target}: the tests fail without any mutant (exit code {code}): {' '.join(tests)}")
    limit_seconds = 10 + 4 * (time.monotonic() - started)
    found = {mutant.name: mutant for mutant in mutants(path)}
    if unknown := equivalent.keys() - found.keys():
        raise SystemExit(f"mutants_equivalent.toml, {target}: there is no {sorted(unknown)[0]!r}")
    found = {name: mutant for name, mutant in found.items() if name in chosen}
    equivalent = {name: reason for name, reason in equivalent.items() if name in chosen}
    module = f"kce.{target.removesuffix('.py').replace('/', '.')}"
    jobs = ((m.name, start_tests(tests, Mutated(module, path, m.code()))) for m in found.values())
    survivors = set()
    for name, code in exit_codes(jobs, parallel, limit_seconds):
        if code == 0:
            survivors.add(name)
            if name not in equivalent:
                print(f"  not noticed: line {found[name].line}, {name}", flush=True)
        elif name in equivalent:
            print(f"  noticed, though listed as equivalent: {name}", flush=True)
    total, noticed = len(found) - len(equivalent), len(found) - len(survivors | equivalent.keys())
    left_out = f"{len(equivalent)} equivalent" if equivalent else ""
    print(f"{target:<42}{noticed:>5} of {total:<5}{left_out:<14}{time.monotonic() - started:>6.0f} s", flush=True)
    return noticed, total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="parts of the paths of modules; all modules if there are none")
    parser.add_argument("--parallel", type=int, default=2, help="processes at a time")
    parser.add_argument("--sample", type=int, default=1000, help="number of mutants, 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample")
    options = parser.parse_args()
    equivalent = tomllib.loads((ROOT / "tests/mutants_equivalent.toml").read_text(encoding="utf-8"))
    every = targets()
    if unknown := equivalent.keys() - set(every):
        raise SystemExit(f"mutants_equivalent.toml: no such module: {', '.join(unknown)}")
    modules = [t for t in every if not options.only or any(part in t for part in options.only)]
    population = [(target, mutant.name) for target in modules for mutant in mutants(ROOT / target)]
    size = min(options.sample or len(population), len(population))
    sample: dict[str, set[str]] = {}
    for target, name in random.Random(options.seed).sample(population, size):
        sample.setdefault(target, set()).add(name)
    print(f"{size} of {len(population)} mutants of {len(modules)} modules, seed {options.seed}", flush=True)
    counts = [judge(t, sample[t], equivalent.get(t, {}), options.parallel) for t in modules if t in sample]
    noticed, total = (sum(column) for column in zip(*counts, strict=True))
    print(f"{noticed} of {total} mutants are noticed: {100 * noticed / total:.1f}%")
    return 0 if noticed >= REQUIRED * total else 1


if __name__ == "__main__":
    sys.exit(main())
