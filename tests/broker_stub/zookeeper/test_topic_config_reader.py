"""The settings of topics are read soon, first where something depends on them, later if ZooKeeper is away."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce.broker_stub.zookeeper.topic_config_reader import GATHER_S, TopicConfigReader
from kce.zookeeper.store import SessionExpired, SessionState, StoreError

LARGE = {"max.message.bytes": "5000000"}


class Zk:
    """``answers`` is set while it answers; a topic without settings has none to read."""

    def __init__(self) -> None:
        self.configs: dict[str, Mapping[str, str] | StoreError] = {"t": LARGE, "u": {}, "bad": StoreError("no")}
        self.answers = trio.Event()
        self.answers.set()
        self.expired = False
        self.asked: list[list[str]] = []

    async def get_children(self, path: str) -> list[str]:
        assert path == "/config/topics"
        return list(self.configs)

    async def get_topic_configs(self, topics: list[str]) -> dict[str, Mapping[str, str] | StoreError]:
        self.asked.append(list(topics))
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


async def test_what_depends_on_settings_waits_for_them() -> None:
    reading = Reading()
    reading.zk.answers = trio.Event()
    reading.reader.expect(["t", "u"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading.reader.read, ["t"])
        await wait_all_tasks_blocked()
        assert reading.read == {}
        assert set(reading.reader.unread) == {"t", "u"}
        reading.zk.answers.set()
    assert reading.read == {"t": LARGE}
    assert set(reading.reader.unread) == {"u"}


async def test_topics_are_read_soon_many_at_a_time(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    reading = Reading()
    nursery.start_soon(reading.reader.run)
    await wait_all_tasks_blocked()
    reading.reader.expect(["t"])
    await trio.sleep(GATHER_S / 2)
    reading.reader.expect(["u", "unknown"])
    assert reading.zk.asked == []
    await trio.sleep(GATHER_S)
    assert reading.zk.asked == [["t", "u", "unknown"]]
    assert reading.read == {"t": LARGE, "u": {}}
    assert not reading.reader.unread
    await trio.sleep(2 * GATHER_S)
    assert len(reading.zk.asked) == 1


@pytest.mark.parametrize("when", ["before", "meanwhile", "expired"])
async def test_without_zookeeper_nothing_waits_and_the_settings_come_later(
    when: str, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    reading = Reading()
    nursery.start_soon(reading.reader.run)
    if when == "expired":
        reading.zk.expired = True
    else:
        reading.zk.answers = trio.Event()
    if when == "before":
        reading.reader.session_changed(SessionState.DISCONNECTED)
    reading.reader.expect(["t"])
    async with trio.open_nursery() as waiting:
        waiting.start_soon(reading.reader.read, ["t", "unknown"])
        await wait_all_tasks_blocked()
        if when == "meanwhile":
            assert len(waiting.child_tasks) == 1
            reading.reader.session_changed(SessionState.EXPIRED)
            await wait_all_tasks_blocked()
        assert not waiting.child_tasks
    assert "the settings of topics t, unknown cannot be read from ZooKeeper now" in caplog.text
    assert not reading.reader.unread  # nothing waits for them any more
    assert reading.read == {}
    reading.zk.expired = False
    reading.zk.answers.set()
    reading.reader.session_changed(SessionState.ESTABLISHED)
    await trio.sleep(2 * GATHER_S)
    assert reading.read == {"t": LARGE}
    reading.read.clear()
    reading.reader.session_changed(SessionState.CONNECTED)
    await trio.sleep(2 * GATHER_S)
    assert reading.read == {}  # once
    await reading.reader.read(["u"])
    assert reading.read == {"u": {}}


async def test_what_is_expected_without_zookeeper_is_read_once_it_is_back(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    reading = Reading()
    nursery.start_soon(reading.reader.run)
    reading.reader.session_changed(SessionState.DISCONNECTED)
    reading.reader.expect(["t"])
    await trio.sleep(2 * GATHER_S)
    assert reading.zk.asked == []
    reading.reader.session_changed(SessionState.CONNECTED)
    await trio.sleep(2 * GATHER_S)
    assert reading.read == {"t": LARGE}
