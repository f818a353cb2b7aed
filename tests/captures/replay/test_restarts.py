"""Which brokers of a recording were restarted."""

from __future__ import annotations

import dataclasses

import pytest
import trio
import trio.testing

from kce import wire
from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.recording import Recording
from kce.captures.replay.replay import Replay, Verdict
from kce.captures.replay.restarts import needed, restarts
from kce.captures.replay.rewrite import Rewriter
from tests.captures.exchanges.dialogue import SERVER
from tests.captures.replay.recordings import Conversation, update
from tests.captures.replay.test_replay import Server, same
from tests.captures.samples import CAPTURES, scenario


@pytest.mark.parametrize("name", [name for name in CAPTURES if not name.startswith(("kafka-0.10", "kafka-1.1"))])
def test_brokers_that_were_restarted_are_known_from_those_whose_session_expired(name):
    with CaptureFile(CAPTURES[name]) as capture:
        found = [broker_id for _, broker_id in restarts(Recording.read(capture).steps)]
    came_back = {"restarted broker", "back", "old controller back", "broker back"}  # "resumed" is the same process
    gone, expected = None, []
    for step in scenario(name)["steps"]:
        gone = step.get("broker", step.get("old", gone))
        if step["step"] in came_back:
            expected.append(gone)
    assert found == expected


async def test_a_broker_is_restarted_where_the_recorded_one_was(autojump_clock):
    talk = Conversation()
    host, port = SERVER
    brokers = (wire.UpdateMetadataBroker(id=2, endpoints=(wire.UpdateMetadataEndpoint(host=host, port=port),)),)
    for number, epoch in enumerate((5, 5, 9, 9)):
        if number == 2:
            talk.connect()
        body = dataclasses.replace(update(3, broker_epoch=epoch), live_brokers=brokers)
        talk.ask(body, 6, number, "1")
        talk.answer(wire.UpdateMetadataResponse(), 6, number)
    recording = talk.recording()
    found = restarts(recording.steps)
    rewrite = Rewriter([(step.request, 2) for step in recording.steps], broker_epochs={2: 100})
    done = []

    async def restart(broker_id):
        done.append((broker_id, len(server.received)))
        rewrite.broker_epochs[broker_id] = 200

    server = Server(same)
    async with trio.open_nursery() as server.nursery:
        replay = Replay(
            recording.steps, {2: ("broker", 9092)}, dial=server.dial, rewrite=rewrite, restarts=found, restart=restart
        )
        assert {outcome.verdict for outcome in await replay.run()} == {Verdict.SAME}
    assert done == [(2, 2)]
    assert [body.broker_epoch for *_, body in server.received] == [100, 100, 200, 200]
    assert needed(found, recording.steps[2:]) == []  # no requests before
