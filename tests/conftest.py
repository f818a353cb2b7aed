"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.guard import Guard
from harness.zookeeper import embedded_zookeeper
from tests.background import InBackground


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
