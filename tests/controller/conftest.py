"""What the tests of this room say at the end of a run."""

from __future__ import annotations

import pytest

#: (operation, what struck the controller) -> at how many points
StruckPoints = dict[tuple[str, str], int]
_STRUCK = pytest.StashKey[StruckPoints]()


@pytest.fixture
def struck(pytestconfig: pytest.Config) -> StruckPoints:
    """For `test_crash_points` to fill."""
    return pytestconfig.stash.setdefault(_STRUCK, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    struck = config.stash.get(_STRUCK, {})
    if struck:
        terminalreporter.section(f"no decision lost: the controller was struck at {sum(struck.values())} points")
        for (operation, strike), points in struck.items():
            terminalreporter.write_line(f"{operation:<20}{strike:<22}{points:>5}")
