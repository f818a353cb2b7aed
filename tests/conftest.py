"""Fixtures that several rooms share, and what is said at the end of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.guard import Guard
from harness.zookeeper import embedded_zookeeper
from tests.background import InBackground

#: told of an operation, what struck the controller in it, and at how many points
Struck = Callable[[str, str, int], None]
_PROPERTY = "struck"


#: rooms whose tests, but for slow ones, start neither nodes nor programs that serve
_PURE = tuple(Path(__file__).parent / room for room in ("captures", "controller", "wire"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=("pure", "rest"), help="what only computes, or all else (see tests/__main__.py)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if part is None:
        return
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        is_pure = any(item.path.is_relative_to(room) for room in _PURE) and item.get_closest_marker("slow") is None
        parts[is_pure].append(item)
    config.hook.pytest_deselected(items=parts[part != "pure"])
    items[:] = parts[part == "pure"]


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real ZooKeeper for the whole session; each test takes a chroot of its own."""
    with InBackground(lambda: running_zookeeper(tmp_path_factory.mktemp("zookeeper"))) as running:
        yield running.value


@asynccontextmanager
async def running_zookeeper(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """A ZooKeeper that outlives no test: host:port."""
    guard = Guard()
    try:
        async with embedded_zookeeper(folder, guard, settings=settings) as address:
            yield address
    finally:
        guard.close()


@pytest.fixture
def struck(record_property: Callable[[str, object], None]) -> Struck:
    """For tests of crashes to call; as a property of the test's report, which other processes hand on."""
    return lambda operation, strike, points: record_property(_PROPERTY, (operation, strike, points))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if told:
        terminalreporter.section(f"no decision lost: the controller was struck at {sum(n for *_, n in told)} points")
        for operation, strike, points in told:
            terminalreporter.write_line(f"{operation:<20}{strike:<30}{points:>5}")
