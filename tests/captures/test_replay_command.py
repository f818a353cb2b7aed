"""`kce replay`, and recorded answers for live requests."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import trio
import trio.testing
from click.testing import CliRunner

import wire
from captures.impersonation import Impersonator
from captures.pcap import CaptureFile
from captures.replay import Recording
from harness import Cluster
from harness.cli import cli
from tests.captures.samples import CAPTURES
from tests.captures.test_replay import Conversation, update

ZOMBIE, TOUR = CAPTURES["kafka-3.9.1-zombie"], CAPTURES["kafka-3.9.1-tour"]


async def ask(stream, message, version, correlation_id):
    request = wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id="live")
    await stream.send_all(wire.frame(request))
    buffer = wire.FrameBuffer()
    while (frame := buffer.next_frame()) is None:
        data = await stream.receive_some()
        if not data:
            return None
        buffer.receive_data(data)
    key = wire.decode_request_header(request).api_key
    header, body = wire.decode_response(frame, api_key=key, api_version=version)
    assert header.correlation_id == correlation_id
    return body


async def test_live_requests_get_the_recorded_answers_to_what_they_are_like():
    talk = Conversation()
    brokers = tuple(wire.UpdateMetadataBroker(id=i) for i in (1, 2))
    for number, (live, code) in enumerate([((), 11), (brokers, 0), ((), 77)]):
        body = wire.UpdateMetadataRequest(controller_id=1, controller_epoch=number, live_brokers=live)
        talk.at(number).ask(body, 6, number, "1")
        talk.answer(wire.UpdateMetadataResponse(error_code=code), 6, number)
    broker = Impersonator(talk.recording().steps)
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve, there)
        with_brokers = wire.UpdateMetadataRequest(controller_id=5, controller_epoch=90, live_brokers=brokers)
        codes = [(await ask(here, with_brokers, 6, 500)).error_code]
        codes += [(await ask(here, update(90), 6, 501 + i)).error_code for i in range(2)]
        codes += [(await ask(here, with_brokers, 5, 510)).error_code]  # in another version, and nothing is left
        assert codes == [0, 11, 77, 77]
        assert await ask(here, wire.LeaderAndIsrRequest(), 4, 600) is None
    assert [str(answered).partition(" #")[2] for answered in broker.answered] == [
        "500: answered as packet 6",
        "501: answered as packet 4",
        "502: answered as packet 8",
        "510: answered not alike, but as packet 8",
        "600: no answer to such a request was recorded",
    ]


async def test_nonsense_ends_the_connection_and_is_told():
    broker = Impersonator([])
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve, there)
        await here.send_all(wire.frame(b"\x00\x00\x00"))
        assert await here.receive_some() == b""
    assert "could not be decoded" in str(broker.answered[0])


def kce(*arguments):
    result = CliRunner().invoke(cli, ["replay", *map(str, arguments)])
    return result.exit_code, result.stdout, f"{result.stderr}{result.exception or ''}"


def test_dry_run_shows_what_would_be_sent_and_where():
    result = CliRunner().invoke(
        cli,
        ["replay", str(ZOMBIE), "--as", "controller", "--broker", "3", "--to", "127.0.0.1:1", "--dry-run",
         "--controller-epoch", "+10", "--broker-epoch", "500"],
        standalone_mode=False, catch_exceptions=False,
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert result.return_value == 0
    assert f"{len(lines)} requests would be sent; 0 cannot be" in result.stderr
    assert all(line.endswith("=> 127.0.0.1:1") for line in lines)
    (zombie,) = [line for line in lines if " 386 " in line]
    assert "controller 2 epoch 11 broker epoch 500" in zombie
    epochs = {line.partition("controller ")[2].split()[2] for line in lines}
    assert epochs == {"11", "12", "13"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--as", "controller", "--to", "127.0.0.1:1"], "the requests went to brokers 1, 2, 3: choose one"),
        (["--as", "controller", "--to", "1=127.0.0.1:1"], "for which there is no --to"),
        (["--as", "controller", "--broker", "2"], "--to HOST:PORT is missing"),
        (["--as", "controller", "--broker", "9", "--to", "127.0.0.1:1"], "no request in it is to be replayed"),
        (["--as", "controller", "--to", "nowhere"], "--to nowhere: not HOST:PORT or ID=HOST:PORT"),
        (["--as", "controller", "--broker", "2", "--to", "127.0.0.1:1", "--broker-epoch", "x"], "an epoch is a number"),
        (["--as", "client", "--to", "127.0.0.1:1"], "connections; a client is one of them, by --connection"),
        (["--as", "broker"], "--as broker needs --broker ID"),
        (["--as", "client", "--connection", "93", "--to", "127.0.0.1:1"], "nobody can be reached at 127.0.0.1:1"),
    ],
)
def test_wrong_wishes_are_told(arguments, told):
    code, _, err = kce(ZOMBIE, *arguments)
    assert code != 0
    assert told in err


COMMAND = [sys.executable, "-c", "import sys; from harness.cli import main; sys.exit(main())", "replay"]


@pytest.mark.slow
async def test_at_a_live_cluster_as_controller_as_client_and_as_broker(zookeeper, tmp_path):
    where = f"{zookeeper}/replay"
    async with Cluster(1, zookeeper=where) as cluster:
        await cluster.wait_for_controller()
        (node,) = cluster.members

        async def run(*arguments):
            done = await trio.run_process(
                [*COMMAND, *map(str, arguments)], capture_stdout=True, capture_stderr=True, check=False
            )
            return done.returncode, done.stdout.decode(), done.stderr.decode()

        new = tmp_path / "new.pcapng"
        code, out, err = await run(
            TOUR, "--as", "controller", "--broker", 1, "--api", "UpdateMetadata", "--to", node.addresses["CONTROL"],
            "--controller-epoch", "current", "--broker-epoch", "current", "--zookeeper", where, "--no-wait",
            "--until", "2026-11-21T02:44:28", "--record", new,
        )  # fmt: skip
        assert code == 0, (out, err)
        sent = int(out.split()[0])
        assert sent > 3
        assert f"{sent} same" in out
        with CaptureFile(new) as capture:
            recorded = Recording.read(capture).steps
        assert len(recorded) == sent
        assert all(step.response.body.error_code == 0 for step in recorded)

        # what was just recorded, as a client
        code, out, err = await run(new, "--as", "client", "--to", node.addresses["CONTROL"], "--speed", 100)
        assert (code, out) == (0, f"{sent} requests replayed: {sent} same\n"), err

        broker = await trio.lowlevel.open_process(
            [*COMMAND, str(TOUR), "--as", "broker", "--broker", "2", "--zookeeper", where], stdout=subprocess.PIPE
        )

        async def registered():
            return await cluster.registered() == {1, 2}

        await cluster.wait_until(registered, "the recorded broker to register")
        await cluster.create_topic("orders", assignment={0: [1, 2]})  # which the controller tells it
        broker.send_signal(signal.SIGINT)
        told = b"".join([data async for data in broker.stdout]).decode()
        await broker.wait()
        assert "UpdateMetadata v8 #0: answered" in told
        assert "LeaderAndIsr v7" in told
        assert "0 of them without an answer" in told
