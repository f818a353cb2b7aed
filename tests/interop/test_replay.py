"""What a real controller once said to a real broker, said again by `kce replay` to another one: its answers agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from captures.pcap import CaptureFile
from captures.replay import Recording, Replay, Verdict
from captures.rewrite import Rewriter, newest_controller_epoch
from harness.cli.options import connected
from tests.captures.samples import CAPTURES
from tests.captures.test_replay import lives
from tests.interop.real_kafka import real_brokers

pytestmark = pytest.mark.slow

BROKER = 2


async def test_a_real_broker_answers_a_recorded_controller_as_it_did(zookeeper: str, tmp_path: Path) -> None:
    with CaptureFile(CAPTURES["kafka-3.9.1-tour"]) as capture:
        recording = Recording.read(capture)
    (steps,) = lives(step for step in recording.of_controllers() if step.broker_id == BROKER)
    chroot = f"{zookeeper}/replayed"
    async with real_brokers([BROKER], chroot, tmp_path) as brokers:
        async with connected(chroot, None) as zk:
            registered = await zk.get_brokers(watch=False)
            known = await zk.get_controller_epoch()
        assert known is not None
        newest = newest_controller_epoch(step.request for step in steps)
        assert newest is not None
        rewrite = Rewriter(
            [(step.request, step.broker_id) for step in steps],
            controller_shift=known[0] + 10 - newest,
            broker_epochs={int(broker): int(epoch) for broker, (_, epoch) in registered.items()},
        )
        replay = Replay(
            steps, {BROKER: ("127.0.0.1", brokers[BROKER].control_port)}, dial=trio.open_tcp_stream, rewrite=rewrite,
            speed=None,
        )  # fmt: skip
        outcomes = await replay.run()
    other = [str(outcome) for outcome in outcomes if outcome.verdict is not Verdict.SAME]
    assert len(outcomes) > 50
    assert other == []
