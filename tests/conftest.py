"""Options of the suite, fixtures for several rooms, and the summary at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kce.harness.embedded_zookeeper import embedded_zookeeper
from tests import sampling
from tests.background import InBackground

#: called with (operation, type of failure, number of points at which the controller was struck)
Struck = Callable[[str, str, int], None]
_PROPERTY = "struck"

#: rooms whose tests, except slow ones, start neither nodes nor servers
_PURE = tuple(Path(__file__).parent / room for room in ("captures", "controller", "election", "wire", "zookeeper"))
#: slow tests, too; one JVM with Spark serves both kinds
_SPARK = Path(__file__).parent / "captures" / "spark"


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
    parser.addoption(
        "--part", choices=("pure", "rest"), help="tests that only compute, or the rest (tests/__main__.py)"
    )
    parser.addoption("--fast", action="store_true", help="leave out slow tests, sample inputs (tests/sampling.py)")


def pytest_configure(config: pytest.Config) -> None:
    sampling.fast = config.getoption("--fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if sampling.fast:
        chosen = sampling.in_fast_runs(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    part = config.getoption("--part")
    if part is None:
        return
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        is_pure = any(item.path.is_relative_to(room) for room in _PURE)
        parts[item.path.is_relative_to(_SPARK) or (is_pure and not is_slow)].append(item)
    config.hook.pytest_deselected(items=parts[part != "pure"])
    items[:] = parts[part == "pure"]


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
