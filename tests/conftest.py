"""Options of the suite, fixtures for several rooms, and the summary at the end of a run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from kce.harness.embedded_zookeeper import embedded_zookeeper
from tests import sampling
from tests.background import InBackground

#: called with (operation, type of failure, number of points at which the controller was struck)
Struck = Callable[[str, str, int], None]
_PROPERTY = "struck"

_TESTS = Path(__file__).parent
#: rooms whose tests, except slow ones, start no nodes, and no server that comes back to its old port
_PURE = tuple(_TESTS / room for room in ("broker_stub", "captures", "controller", "election", "wire", "zookeeper"))
#: slow tests, too; one JVM with Spark serves all
_SPARK = _TESTS / "captures" / "spark"
#: folders whose other tests need nothing but loopback
_NODES = (*(_TESTS / room for room in ("controller", "election", "harness")), _TESTS.parent / "examples")
PARTS = ("pure", "spark", "nodes", "clients")


class NoBareRooms:
    """An import hook that rejects the bare name of a room, because it would load a second copy of its modules.

    pytest puts the top of the checkout, where the rooms are, on sys.path. Lint only sees import statements.
    """

    rooms = frozenset(("wire", "zookeeper", "controller", "broker_stub", "election", "captures", "harness"))

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name in cls.rooms:
            raise ModuleNotFoundError(f"import kce.{name}, not {name}", name=name)


sys.meta_path.insert(0, NoBareRooms)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="tests that only compute, with Spark, that start nodes, or the rest")
    parser.addoption("--fast", action="store_true", help="leave out slow tests, sample inputs (tests/sampling.py)")


def pytest_configure(config: pytest.Config) -> None:
    sampling.fast = config.getoption("--fast")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from all that was collected: on busy cores it would stop nodes for a second.

    Tests make many objects and few cycles, so that it need not run every 700 objects: that takes a tenth of the time.
    """
    gc.set_threshold(20_000, 10, 10)
    if session.config.getoption("--part") is not None:
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of which every test belongs to another part."""
    part = config.getoption("--part")
    if part is None or collection_path.is_dir():
        return None
    of_nodes, may_be_pure = (_is_in(collection_path, folders) for folders in (_NODES, _PURE))
    of_spark = _SPARK in collection_path.parents
    elsewhere = {
        "pure": not may_be_pure or of_spark,
        "spark": not of_spark,
        "nodes": not of_nodes,
        "clients": of_nodes or of_spark,
    }
    return True if elsewhere[part] else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if sampling.fast:
        chosen = sampling.in_fast_runs(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    part = config.getoption("--part")
    if part is None:
        return
    config.hook.pytest_deselected(items=[item for item in items if _part(item) != part])
    items[:] = [item for item in items if _part(item) == part]


def _part(item: pytest.Item) -> str:
    is_slow = item.get_closest_marker("slow") is not None
    if item.path.is_relative_to(_SPARK):
        return "spark"
    if not is_slow and _is_in(item.path, _PURE):
        return "pure"
    return "nodes" if _is_in(item.path, _NODES) else "clients"


def _is_in(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real ZooKeeper for the session; each test uses its own chroot."""
    with InBackground(lambda: embedded_zookeeper(tmp_path_factory.mktemp("zookeeper"))) as running:
        yield running.value


@pytest.fixture
def struck(record_property: Callable[[str, object], None]) -> Struck:
    """Reports the points of a crash test: as a property of its report, which crosses process boundaries."""
    return lambda operation, strike, points: record_property(_PROPERTY, (operation, strike, points))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    points = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if points:
        terminalreporter.section(f"no decision lost: the controller was struck at {sum(n for *_, n in points)} points")
        for operation, strike, number in points:
            terminalreporter.write_line(f"{operation:<20}{strike:<30}{number:>5}")
