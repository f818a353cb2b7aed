"""`kce elect` and `kce leader` against a real ZooKeeper."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from kce.election.java_stream import encode_leader_node
from kce.election.session import ElectionSession
from kce.zookeeper.store import Create, Delete, SetData, value
from kce.zookeeper.store.kazoo import KazooStore
from tests.harness.cli.support import KCE
from tests.harness.conftest import Here, Output
from tests.harness.processes import family, wait_gone

pytestmark = pytest.mark.slow

PATIENCE_S = 30
_chroots = itertools.count()


@pytest.fixture
def where(zookeeper: str) -> str:
    return f"{zookeeper}/elect-{next(_chroots)}"


class Running:
    """A `kce` that goes on; ``saw`` waits for a line of what it prints."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*KCE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
            start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def saw(self, pattern: str) -> str:
        """The rest of the first line, from here on, in which the pattern is found."""
        watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self.lines.append(line)
                if found := re.search(pattern, line):
                    return line[found.end() :].strip()
        finally:
            watchdog.cancel()
        raise AssertionError(f"{pattern} was not among {self.lines}")

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Running]


@pytest.fixture
def start(env: dict[str, str]) -> Iterator[Start]:
    running: list[Running] = []

    def make(*arguments: str) -> Running:
        running.append(Running(env, *arguments))
        return running[-1]

    yield make
    for process in running:
        process.close()


def in_zookeeper(where: str, *do: Callable[[ElectionSession], object]) -> None:
    async def run() -> None:
        store = await KazooStore.connect(where, session_timeout_ms=6000, connection_timeout_ms=10_000)
        async with trio.open_nursery() as nursery:
            session = ElectionSession(store, nursery)
            for step in do:
                await step(session)  # type: ignore[misc]
        await store.aclose()

    trio.run(run)


def elect(where: str, name: str, *more: str) -> tuple[str, ...]:
    return (
        "elect", "--zookeeper", where, "--path", "/cron", "--address", f"{name}:1", "--session-timeout", "1000", *more,
    )  # fmt: skip


#: prints its session, starts a child that would outlive it, and prints when it gets SIGTERM
COMMAND = (
    'sleep 600 & child=$!; trap "echo terminated; exit 0" TERM; '
    "echo running $$ $child as $KCE_ADDRESS $KCE_SESSION_ID; wait"
)


def test_the_second_leads_after_kill_9_of_the_first(where: str, here: Here, start: Start) -> None:
    watcher = start("leader", "--zookeeper", where, "--path", "/cron", "--watch")
    watcher.saw("no leader")
    first = start(*elect(where, "first", "--exec", COMMAND))
    shell, child, _, address, session_id = first.saw("running ").split()
    assert address == "first:1"
    assert watcher.saw("first:1 ") == session_id
    second = start(*elect(where, "second", "--exec", COMMAND))
    second.saw("contending at /cron/latch")
    assert here("leader", "--zookeeper", where, "--path", "/cron") == Output(0, f"first:1 {session_id}\n", "")
    first.process.kill()
    _, _, _, address, next_id = second.saw("running ").split()
    assert address == "second:1"
    assert UUID(next_id) != UUID(session_id)
    assert watcher.saw("second:1 ") == next_id
    assert wait_gone([int(shell), int(child)]) == []
    assert second.end() == 0
    last_words = second.process.stdout.read()  # type: ignore[union-attr]
    assert "terminated\n" in last_words
    assert "the connection" not in last_words  # that it ends is no news
    watcher.saw("no leader")
    assert here("leader", "--zookeeper", where, "--path", "/cron") == Output(
        1, "", "kce: there is no leader at /cron\n"
    )


def test_the_command_is_stopped_on_revocation(where: str, start: Start) -> None:
    """The contender loses its latch node, leads again later, and runs the command again."""
    contender = start(
        *elect(where, "only", "--grace", "0.2", "--exec", "trap '' TERM; echo running $$; sleep 600 & wait")
    )
    stubborn = contender.saw("running ")
    other = start(*elect(where, "other"))
    other.saw("contending at")

    async def take_away(session: ElectionSession) -> None:
        names: list[str] = []
        while len(names) < 2:
            names = value((await session.store.get_children(["/cron/latch"]))[0])
        first = min(names, key=lambda name: name.rpartition("-")[2])
        await session.store.write([Delete(f"/cron/latch/{first}")])

    in_zookeeper(where, take_away)
    contender.saw("no longer leading")
    assert wait_gone([int(stubborn)]) == []
    other.saw("leading as")
    assert other.end(signal.SIGTERM) == 0
    assert contender.saw("running ") != stubborn
    assert contender.end() == 0


def test_the_command_ends_by_itself(where: str, here: Here) -> None:
    for command, code in (("exit 3", 3), ("kill -9 $$", 137), ("true", 0)):
        ended = here(*elect(where, "brief", "--exec", command))
        assert (ended.code, f"has ended with exit code {code}" in ended.err) == (code, True)
    assert "there is no leader" in here("leader", "--zookeeper", where, "--path", "/cron").err


def test_a_session_timeout_that_zookeeper_cannot_read_is_wrong_usage(here: Here) -> None:
    asked = here(*elect("127.0.0.1:1", "a", "--session-timeout", str(2**31)))
    assert asked.code == 2
    assert "2147483648 is not in the range 1<=x<=2147483647" in asked.err


def test_who_asks_for_a_leader_writes_nothing(zookeeper: str, here: Here) -> None:
    for _ in range(2):
        asked = here("leader", "--zookeeper", f"{zookeeper}/misspelt", "--path", "/cron")
        assert asked == Output(1, "", f"kce: there is no /misspelt in ZooKeeper at {zookeeper}\n")


def test_leaders_of_others(where: str, here: Here) -> None:
    session_id = uuid4()

    async def write(session: ElectionSession) -> None:
        java = encode_leader_node("jobmanager\x1b[2J:6123", session_id)
        for path, data in {
            "/flink/default/leader/dispatcher/connection_info": java,
            "/flink/default/leader/dispatcher_lock": java,
            "/controller": b'{"version":2,"brokerid":7,"timestamp":"0","kraftControllerEpoch":-1}',
            "/rubbish": b"rubbish",
            "/json": b'{"brokerid": "x"}',
            "/empty": b"",
        }.items():
            await session.make_parents(path)
            await session.store.write([Create(path), SetData(path, data)])

    in_zookeeper(where, write)
    flink = f"jobmanager\\x1b[2J:6123 {session_id}\n"
    for path, expected in {
        "/flink/default/leader/dispatcher": Output(0, flink, ""),
        "/flink/default/leader/dispatcher_lock": Output(0, flink, ""),
        "/controller": Output(0, "broker 7, Kafka's controller\n", ""),
        "/rubbish": Output(
            1, "", "kce: /rubbish holds no leader: leader node, offset 0: stream header is 72756262, not aced0005\n"
        ),
        "/json": Output(
            1, "", "kce: /json holds no leader: leader node, offset 0: neither Flink's leader nor Kafka's controller\n"
        ),
        "/empty": Output(1, "", "kce: there is no leader at /empty\n"),
        "/nowhere": Output(1, "", "kce: there is no leader at /nowhere\n"),
    }.items():
        assert here("leader", "--zookeeper", where, "--path", path) == expected


def test_nothing_is_left_behind(where: str, start: Start, tmp_path: Path) -> None:
    contender = start(*elect(where, "only", "--exec", COMMAND))
    contender.saw("running ")
    everyone = family(contender.process.pid)
    assert len(everyone) >= 4  # with the guard, the shell and its child
    os.kill(contender.process.pid, signal.SIGSTOP)  # it cannot clean up by itself
    contender.process.kill()
    contender.process.wait()
    assert wait_gone(everyone) == []
