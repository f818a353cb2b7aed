"""The settings of topics are read before their logs are made, and later if ZooKeeper cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce.broker_stub.zookeeper.topic_config_reader import TopicConfigReader
from kce.zookeeper.store import SessionExpired, SessionState, StoreError

LARGE = {"max.message.bytes": "5000000"}


class Zk:
    """``answers`` is set while it answers; a topic without settings has none to read."""

    def __init__(self) -> None:
        self.configs: dict[str, Mapping[str, str] | StoreError] = {"t": LARGE, "u": {}, "bad": StoreError("no")}
        self.answers = trio.Event()
        self.answers.set()
        self.expired = False

    async def get_children(self, path: str) -> list[str]:
        assert path == "/config/topics"
        return list(self.configs)

    async def get_topic_configs(self, topics: list[str]) -> dict[str, Mapping[str, str] | StoreError]:
        await self.answers.wait()
        if self.expired:
            raise SessionExpired("gone")
        return {topic: self.configs[topic] for topic in topics if topic in self.configs}


class Reading:
    def __init__(self) -> None:
        self.zk = Zk()
        self.read: dict[str, Mapping[str, str]] = {}
        self.reader = TopicConfigReader(self.zk, self.read.__setitem__)  # type: ignore[arg-type]


async def test_all_are_read_at_the_start() -> None:
    reading = Reading()
    await reading.reader.read_all()
    assert reading.read == {"t": LARGE, "u": {}}


async def test_a_log_waits_for_its_settings() -> None:
    reading = Reading()
    reading.zk.answers = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading.reader.prepare, ["t"])
        await wait_all_tasks_blocked()
        assert reading.read == {}
        reading.zk.answers.set()
    assert reading.read == {"t": LARGE}


@pytest.mark.parametrize("when", ["before", "meanwhile", "expired"])
async def test_without_zookeeper_nothing_waits_and_the_settings_come_later(
    when: str, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    reading = Reading()
    nursery.start_soon(reading.reader.run)
    if when == "expired":
        reading.zk.expired = True
    else:
        reading.zk.answers = trio.Event()
    if when == "before":
        reading.reader.session_changed(SessionState.DISCONNECTED)
    async with trio.open_nursery() as waiting:
        waiting.start_soon(reading.reader.prepare, ["t", "unknown"])
        await wait_all_tasks_blocked()
        if when == "meanwhile":
            assert len(waiting.child_tasks) == 1
            reading.reader.session_changed(SessionState.EXPIRED)
            await wait_all_tasks_blocked()
        assert not waiting.child_tasks
    assert "the settings of topics t, unknown cannot be read from ZooKeeper now" in caplog.text
    assert reading.read == {}
    reading.zk.expired = False
    reading.zk.answers.set()
    reading.reader.session_changed(SessionState.ESTABLISHED)
    await wait_all_tasks_blocked()
    assert reading.read == {"t": LARGE}
    reading.read.clear()
    reading.reader.session_changed(SessionState.CONNECTED)
    await wait_all_tasks_blocked()
    assert reading.read == {}  # once
    await reading.reader.prepare(["u"])
    assert reading.read == {"u": {}}
