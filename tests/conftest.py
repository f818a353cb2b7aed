"""Fixtures that several rooms share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import trio

from harness.guard import Guard
from harness.zookeeper import embedded_zookeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real ZooKeeper for the whole session; each test takes a chroot of its own."""
    folder = tmp_path_factory.mktemp("zookeeper")
    with running_zookeeper(folder) as address:
        yield address


class running_zookeeper:  # noqa: N801 - used like a function
    """A ZooKeeper for synchronous callers: it lives in a trio run of its own, in a thread."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = settings
        self._started = threading.Event()
        self._address = ""
        self._failure: BaseException | None = None
        self._stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as e:  # noqa: BLE001 - told to the caller
            self._failure = e
        finally:
            self._started.set()

    async def _serve(self) -> None:
        guard = Guard()
        stop = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self._stop = lambda: token.run_sync_soon(stop.set)
        try:
            async with embedded_zookeeper(self._folder, guard, settings=self._settings) as self._address:
                self._started.set()
                await stop.wait()
        finally:
            guard.close()

    def __enter__(self) -> str:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self._address

    def __exit__(self, *exc: object) -> None:
        self._stop()
        self._thread.join()
