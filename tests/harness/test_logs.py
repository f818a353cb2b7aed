"""Logs of nodes: Kafka's file names, one line for each change, and what they say about a node that has ended."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

import pytest

from kce.harness import Cluster
from kce.harness.logs import last_words, log_to_folder
from kce.harness.world import memory
from tests.clusters import is_registered

FAST = {"zookeeper.session.timeout.ms": "2000"}


def test_parts_of_the_log_have_files_of_their_own(tmp_path: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("kce.controller", "state.change.logger")]
    before = [list(logger.handlers) for logger in loggers]
    try:
        log_to_folder(tmp_path)
        logging.getLogger("kce.controller.elector").warning("elected")
        logging.getLogger("state.change.logger").warning("changed")
        logging.getLogger("kce.harness").warning("other")
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            for handler in set(logger.handlers) - set(handlers):
                logger.removeHandler(handler)
                handler.close()
    assert (tmp_path / "controller.log").read_text().endswith("] WARNING elected (kce.controller.elector)\n")
    assert (tmp_path / "state-change.log").read_text().endswith("] WARNING changed (state.change.logger)\n")


def test_lines_are_those_of_the_standard_formatter(tmp_path: Path) -> None:
    expected = logging.Formatter("[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    logger = logging.getLogger("state.change.logger")
    before = list(logger.handlers)
    log_to_folder(tmp_path)
    (handler,) = set(logger.handlers) - set(before)
    logger.removeHandler(handler)
    handler.close()
    try:
        int("no")
    except ValueError:
        failure = sys.exc_info()
    for created in (0.0, 1_700_000_000.25, 1_700_000_000.75, 1_700_000_001.0009):
        for known, args in ((None, ("x", 7)), (failure, ("y", 8))):
            record = logging.LogRecord("a.b", logging.INFO, "", 1, "%s at %d", args, known)
            record.created, record.msecs = created, created % 1 * 1000
            assert handler.format(record) == handler.format(record) == expected.format(record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("[t] INFO a (x)\n[t] INFO b (x)\n", "[t] INFO b (x)"),
        ("[t] ERROR a (x)\n[t] INFO b (x)\n", "[t] ERROR a (x)"),
        ("[t] INFO a (x)\nTraceback (most recent call last):\n  File x\nOSError: no\n", "OSError: no"),
        ("[t] INFO a (x)\n  +-+---- 1 ----\n    | OSError: no\n    +------------\n", "OSError: no"),
    ],
)
def test_last_words(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "server.log"
    assert last_words(path) == ""
    path.write_text(text)
    assert last_words(path) == expected


def test_last_words_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.log"
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    path.write_text("[2026-11-28 05:23:07,101] INFO a (x)\n[2026")
    assert last_words(path) == "no space is left on the disk of its log"
    path.write_text("[2026-11-28 05:23:07,101] ERROR a (x)\n[2026")
    assert last_words(path) == "[2026-11-28 05:23:07,101] ERROR a (x)"


async def test_a_line_for_each_change_with_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Cluster(3, world=memory(seed=1), properties=FAST) as cluster:
        await cluster.create_topic("t", assignment={0: [1, 2, 3]})
        old = await cluster.wait_for_controller()
        await cluster.hold_control_requests(old.id)
        await cluster.create_topic("held", assignment={0: [1, 2, 3]}, wait=False)

        async def sent() -> bool:
            return all((await cluster.node_status(old.id)).unanswered.values())

        await cluster.wait_until(sent, "held requests")
        await cluster.cut_from_zookeeper(old.id)
        new = await cluster.wait_for_controller(other_than=old)

        async def obeyed() -> bool:
            status = await cluster.node_status(new.id)
            return status.controller_epoch == new.epoch and not any(status.unanswered.values())

        await cluster.wait_until(obeyed, "responses to the new controller")
        await cluster.release_control_requests(old.id)

        async def answered() -> bool:
            return not any((await cluster.node_status(old.id)).unanswered.values())

        await cluster.wait_until(answered, "responses to the zombie")
        await cluster.heal(old.id)
        await cluster.wait_until(lambda: is_registered(cluster, old.id), "the zombie to return")
    changes = [record for record in caplog.records if record.name == "state.change.logger"]
    lines = [record.getMessage() for record in changes]
    change = f"[Controller epoch={old.epoch}] Changed partition t-0 from NEW to ONLINE with LeaderAndIsr(leader=1"
    assert any(line.startswith(change) for line in lines)
    accepted = [line for line in lines if line.endswith(": accepted")]
    assert any(f"LeaderAndIsr of controller {old.id} epoch {old.epoch}, broker epoch " in line for line in accepted)
    assert all("connection 127.0.0.1:" in line for line in accepted)
    fenced = [record for record in changes if "fenced with STALE_CONTROLLER_EPOCH" in record.getMessage()]
    assert fenced
    assert {record.levelname for record in fenced} == {"WARNING"}
    assert all(f"of controller {old.id} epoch {old.epoch}," in record.getMessage() for record in fenced)
    of_node = [record.getMessage() for record in caplog.records if record.name == "kce.harness.node"]
    assert [line for line in of_node if line.startswith(f"node {old.id}: ")] == [
        f"node {old.id}: lost the connection to ZooKeeper at memory:2181",
        f"node {old.id}: the session at ZooKeeper memory:2181 has expired",
        f"node {old.id}: a new session at ZooKeeper memory:2181 is established",
        f"node {old.id}: connected to ZooKeeper at memory:2181",
    ]
