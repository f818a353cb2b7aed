"""What the tests of this room say at the end of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

#: told of an operation, what struck the controller in it, and at how many points
Struck = Callable[[str, str, int], None]
_PROPERTY = "struck"


@pytest.fixture
def struck(record_property: Callable[[str, object], None]) -> Struck:
    """For `test_crash_points` to call; as a property of the test's report, which other processes hand on."""
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
            terminalreporter.write_line(f"{operation:<20}{strike:<22}{points:>5}")
