"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.tools import Tools


@pytest.fixture(scope="session")
def tools() -> Iterator[Tools]:
    """Kafka's command-line tools."""
    with Tools() as running:
        yield running
