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
