"""Replay: order, causality, epochs and the comparison of answers in memory; real recordings at our brokers."""

from __future__ import annotations

import dataclasses

import pytest
import trio
import trio.testing

import wire
from broker_stub import Broker
from captures.errors import CaptureError
from captures.pcap import CaptureFile
from captures.replay import Recording, Replay, Verdict, needed
from captures.restarts import restarts
from captures.rewrite import Rewriter, differences, newest_controller_epoch
from tests.broker_stub.support import ONE_LISTENER, TWO_LISTENERS, config
from tests.captures.samples import CAPTURES, scenario
from tests.captures.test_exchanges import SERVER, Talk, produce

SECOND = 10**9


class Conversation(Talk):
    """A recording whose packets have the times that ``at`` sets."""

    def __init__(self):
        self.now = 10**18
        super().__init__()
        self.recorder._clock = lambda: self.now

    def at(self, seconds):
        self.now = 10**18 + round(seconds * SECOND)
        return self

    def recording(self):
        self.target.seek(0)
        return Recording.read(CaptureFile(self.target, "x"))


def update(epoch, broker_epoch=25, controller=1):
    return wire.UpdateMetadataRequest(controller_id=controller, controller_epoch=epoch, broker_epoch=broker_epoch)


class Server:
    """Answers as ``answer`` says, and remembers what came when."""

    def __init__(self, answer):
        self.answer, self.heard, self.connections = answer, [], 0
        self.nursery = None

    async def dial(self, host, port):
        self.connections += 1
        here, there = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.serve, there, self.connections)
        return here

    async def serve(self, stream, connection):
        buffer = wire.FrameBuffer()
        async for data in stream:
            buffer.receive_data(data)
            while (frame := buffer.next_frame()) is not None:
                header, body = wire.decode_request(frame)
                self.heard.append((connection, round(trio.current_time(), 3), header.correlation_id, body))
                reply = await self.answer(len(self.heard), header, body)
                if reply is None:
                    continue
                if reply == "close":
                    await stream.aclose()
                    return
                response = wire.encode_response(
                    reply, api_version=header.api_version, correlation_id=header.correlation_id
                )
                await stream.send_all(wire.frame(response))


async def replayed(recording, answer, **settings):
    server = Server(answer)
    async with trio.open_nursery() as server.nursery:
        replay = Replay(recording.steps, {None: ("broker", 9092)}, dial=server.dial, **settings)
        outcomes = await replay.run()
    return outcomes, server.heard


async def silence(_number, _header, _body):
    return None


async def same(_number, _header, _body):
    return wire.UpdateMetadataResponse()


def three_requests():
    talk = Conversation()
    for number, seconds in enumerate((0, 1, 5)):
        talk.at(seconds).ask(update(3), 6, 100 + number, "1")
        talk.at(seconds + 0.5).answer(wire.UpdateMetadataResponse(error_code=0), 6, 100 + number)
    return talk.recording()


async def test_times_are_kept_and_correlation_ids_are_new(autojump_clock):
    start = trio.current_time()
    outcomes, heard = await replayed(three_requests(), same)
    assert [(c, at - start, correlation_id) for c, at, correlation_id, _ in heard] == [(1, 0, 0), (1, 1, 1), (1, 5, 2)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME] * 3


@pytest.mark.parametrize(("speed", "times"), [(2.0, [0, 0.5, 2.5]), (None, [0, 0, 0])])
async def test_speed(autojump_clock, speed, times):
    start = trio.current_time()
    _, heard = await replayed(three_requests(), same, speed=speed)
    assert [at - start for _, at, _, _ in heard] == times


async def test_nothing_is_sent_before_the_answers_that_came_before_it(autojump_clock):
    talk = Conversation()
    talk.at(0).ask(update(3), 6, 1, "1")
    first = talk.tap
    talk.connect()
    talk.at(1).ask(update(3), 6, 7, "1")  # before the answer to the first
    first.server_to_client(
        wire.frame(wire.encode_response(wire.UpdateMetadataResponse(), api_version=6, correlation_id=1))
    )
    talk.at(2).ask(update(3), 6, 8, "1")  # after it

    async def slow(number, _header, _body):
        if number == 1:
            await trio.sleep(10)
        return wire.UpdateMetadataResponse()

    start = trio.current_time()
    outcomes, heard = await replayed(talk.recording(), slow, speed=None)
    assert [(connection, at - start) for connection, at, _, _ in heard] == [(1, 0), (2, 0), (2, 10)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME, Verdict.UNRECORDED, Verdict.UNRECORDED]


async def test_differences_are_named_field_by_field(autojump_clock):
    async def refuse(number, _header, _body):
        return wire.UpdateMetadataResponse(error_code=11 if number == 2 else 0)

    outcomes, _ = await replayed(three_requests(), refuse)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME, Verdict.DIFFERENT, Verdict.SAME]
    assert outcomes[1].fields == ("error_code: 0 recorded, 11 now",)
    assert "UpdateMetadata v6 #101" in str(outcomes[1])


async def test_what_is_not_answered_is_missing(autojump_clock):
    async def hangs_up(number, _header, _body):
        return wire.UpdateMetadataResponse() if number == 1 else "close"

    outcomes, _ = await replayed(three_requests(), hangs_up)
    assert [(outcome.verdict, outcome.fields) for outcome in outcomes] == [
        (Verdict.SAME, ()), *[(Verdict.MISSING, ("the connection was closed",))] * 2,
    ]  # fmt: skip


async def test_who_never_answers_is_not_waited_for_again(autojump_clock):
    talk = Conversation()
    for number in (1, 2, 3):
        talk.ask(update(3), 6, number, "1")
        talk.answer(wire.UpdateMetadataResponse(), 6, number)
        if number == 2:
            talk.connect()
    start = trio.current_time()
    outcomes, heard = await replayed(talk.recording(), silence, answer_seconds=3)
    assert [outcome.fields for outcome in outcomes] == [
        ("nothing was answered within 3 s",),
        ("given up: the answer to the request of packet 4 stayed away",),
        ("given up: broker:9092 answers nothing",),
    ]
    assert (len(heard), trio.current_time() - start) == (1, 3)


async def test_who_reads_nothing_is_not_waited_for_either(autojump_clock):
    async def dial(_host, _port):
        here, _there = trio.testing.lockstep_stream_pair()
        return here

    start = trio.current_time()
    replay = Replay(three_requests().steps, {None: ("broker", 9092)}, dial=dial, speed=None, answer_seconds=3)
    assert {outcome.fields for outcome in await replay.run()} == {("given up: a request was not taken within 3 s",)}
    assert trio.current_time() - start == 3


async def test_half_an_answer_and_one_that_is_nonsense(autojump_clock):
    async def serve(stream):
        await stream.receive_some()
        await stream.send_all(wire.frame(bytes(4) + b"\x00"))  # an error code has two bytes
        await stream.receive_some()
        await stream.send_all(b"\x00\x00\x00\x20\x00\x00")
        await stream.aclose()

    async with trio.open_nursery() as nursery:

        async def dial(_host, _port):
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(serve, there)
            return here

        outcomes = await Replay(three_requests().steps, {None: ("broker", 9092)}, dial=dial).run()
    assert outcomes[0].fields[0].startswith("the answer cannot be decoded (")
    assert [outcome.fields for outcome in outcomes[1:]] == [
        ("the connection was closed in the middle of an answer",)
    ] * 2


async def test_what_is_broken_off_tells_what_it_knows(autojump_clock):
    server = Server(same)
    async with trio.open_nursery() as server.nursery:
        replay = Replay(three_requests().steps, {None: ("broker", 9092)}, dial=server.dial)
        with trio.move_on_after(3):  # the third is to be sent after five seconds
            await replay.run()
    assert [outcome.verdict for outcome in replay.outcomes()] == [Verdict.SAME, Verdict.SAME, Verdict.UNSENT]


async def test_nobody_is_there_any_more(autojump_clock):
    talk = Conversation()
    talk.ask(update(3), 6, 1, "1")
    talk.answer(wire.UpdateMetadataResponse(), 6, 1)
    talk.connect()
    talk.ask(update(3), 6, 2, "1")
    talk.answer(wire.UpdateMetadataResponse(), 6, 2)
    server = Server(same)
    async with trio.open_nursery() as server.nursery:

        async def dial(host, port):
            if server.connections:
                raise ConnectionRefusedError(111, "Connection refused")
            return await server.dial(host, port)

        outcomes = await Replay(talk.recording().steps, {None: ("broker", 9092)}, dial=dial).run()
    assert [outcome.fields for outcome in outcomes] == [
        (), ("nobody can be reached at broker:9092 (Connection refused)",)
    ]  # fmt: skip


async def test_produce_without_acks_is_sent_and_not_waited_for(autojump_clock):
    talk = Conversation()
    talk.tap.client_to_server(produce(8, 0, 1, records=None))
    outcomes, heard = await replayed(talk.recording(), silence)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME]
    assert len(heard) == 1


async def test_nobody_there(autojump_clock):
    async def dial(_host, _port):
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(CaptureError, match=r"nobody can be reached at broker:9092 \(Connection refused"):
        await Replay(three_requests().steps, {None: ("broker", 9092)}, dial=dial).run()
    with pytest.raises(CaptureError, match="went to an unknown broker, for which there is no --to"):
        Replay(three_requests().steps, {4: ("broker", 9092)}, dial=dial)


# epochs


def test_epochs_are_shifted_and_what_was_stale_stays_stale():
    talk = Conversation()
    state = wire.UpdateMetadataPartitionState(controller_epoch=2, isr=(1,), replicas=(1,))
    topic = wire.UpdateMetadataTopicState(topic_name="a", partition_states=(state,))
    for number, (epoch, broker_epoch) in enumerate([(3, 25), (2, 25), (3, 40), (3, 25), (3, -1)]):
        body = wire.UpdateMetadataRequest(
            controller_id=1, controller_epoch=epoch, broker_epoch=broker_epoch, topic_states=(topic,)
        )
        talk.ask(body, 6, number, "1")
    requests = [step.request for step in talk.recording().steps]
    assert newest_controller_epoch(requests) == 3
    rewrite = Rewriter([(request, 1) for request in requests], controller_shift=4, broker_epochs={1: 1000})
    bodies = [rewrite(request) for request in requests]
    assert [(b.controller_epoch, b.broker_epoch) for b in bodies] == [
        (7, 1000), (6, 1000), (7, 1000), (7, 985), (7, -1),
    ]  # fmt: skip
    assert {b.topic_states[0].partition_states[0].controller_epoch for b in bodies} == {6}
    assert Rewriter([(request, 2) for request in requests], broker_epochs={1: 5})(requests[0]) == requests[0].body
    with pytest.raises(ValueError, match="controller epoch 2 shifted by -3 would be below 0"):
        Rewriter(controller_shift=-3)(requests[1])


def test_an_epoch_is_that_of_the_broker_it_speaks_of():
    talk = Conversation()
    shutdown = wire.ControlledShutdownRequest(broker_id=2, broker_epoch=30)
    talk.ask(shutdown, 3, 1, "2")
    talk.ask(update(3, broker_epoch=25), 6, 2, "1")
    talk.ask(update(3, broker_epoch=26), 6, 3, "1")
    talk.ask(update(3, broker_epoch=24), 6, 4, "1")
    requests = [step.request for step in talk.recording().steps]
    rewrite = Rewriter([(request, 1) for request in requests], broker_epochs={1: 1, 2: 700})
    assert [rewrite(request).broker_epoch for request in requests] == [700, 1, 1, 0]  # -1 would be no epoch: rule 9.5
    rewrite.broker_epochs[1] = 900
    assert [rewrite(request).broker_epoch for request in requests] == [700, 900, 900, 898]


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
        done.append((broker_id, len(server.heard)))
        rewrite.broker_epochs[broker_id] = 200

    server = Server(same)
    async with trio.open_nursery() as server.nursery:
        replay = Replay(
            recording.steps, {2: ("broker", 9092)}, dial=server.dial, rewrite=rewrite, restarts=found, restart=restart
        )
        assert {outcome.verdict for outcome in await replay.run()} == {Verdict.SAME}
    assert done == [(2, 2)]
    assert [body.broker_epoch for *_, body in server.heard] == [100, 100, 200, 200]
    assert needed(found, recording.steps[2:]) == []  # nothing was said before


def test_differences_know_what_order_and_what_time_are_worth():
    one = {"throttle_time_ms": 1, "topics": [{"name": "a", "error_code": 0}, {"name": "b", "error_code": 3}]}
    other = {"throttle_time_ms": 2, "topics": [{"name": "b", "error_code": 5}, {"name": "a", "error_code": 0}]}
    assert differences(one, other) == ["topics[1].error_code: 3 recorded, 5 now"]
    assert differences([1, 2], [1]) == [": [1, 2] recorded, [1] now"]
    assert differences({"a": 1}, {"b": 1}) == ["a: 1 recorded, None now", "b: None recorded, 1 now"]


# real recordings at our brokers


async def unreachable(_host, _port):
    raise OSError("no such broker here")


#: Before brokers had epochs, of these it is known that they ran from the beginning of a capture to its end.
NEVER_BOUNCED = {"kafka-0.10.2.2-tour": (2, 3), "kafka-1.1.1-tour": (2,)}

#: What real brokers answered differently, and why. The paused process of broker 2 had lost its ZooKeeper session when
#: it came to this request: UNKNOWN_SERVER_ERROR. Kafka 2.8 still fences a StopReplica of the very leader epoch that it
#: knows.
NOT_OURS = {("kafka-3.9.1-zombie", 226), ("kafka-2.8.2-tour", 1352), ("kafka-2.8.2-tour", 1360)}


def lives(steps):
    """What was said to one broker, each of its lives for itself: in between it forgot what it had been told."""
    found, newest = {}, -1
    for step in sorted(steps, key=lambda step: step.request.place):
        newest = max(newest, getattr(step.request.body, "broker_epoch", -1))
        found.setdefault(newest, []).append(step)
    return list(found.values())


async def outcomes_of_a_life(steps, broker_id, *, shift, planes):
    broker = Broker(config(broker_id, TWO_LISTENERS if planes else ONE_LISTENER), dial=unreachable, cluster_id="x")
    rewrite = Rewriter(
        [(step.request, step.broker_id) for step in steps], controller_shift=shift, broker_epochs={broker_id: 7777}
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        broker.broker_epoch = 7777
        broker.enable_request_processing()
        listener = "CONTROL" if planes else "DATA"
        port = next(endpoint.port for endpoint in broker.endpoints if endpoint.listener == listener)
        targets = {broker_id: ("127.0.0.1", port)}
        outcomes = await Replay(steps, targets, dial=trio.open_tcp_stream, rewrite=rewrite, speed=None).run()
        nursery.cancel_scope.cancel()
    return outcomes


@pytest.mark.parametrize("name", CAPTURES)
async def test_what_a_real_controller_said_gets_the_answers_that_real_brokers_gave(name):
    with CaptureFile(CAPTURES[name]) as capture:
        recording = Recording.read(capture)
    assert recording.left_out == []
    shift = 100 - newest_controller_epoch(step.request for step in recording.steps)
    planes = scenario(name)["control_listener"]
    outcomes = []
    for broker_id in NEVER_BOUNCED.get(name, (1, 2, 3)):
        for steps in lives(step for step in recording.of_controllers() if step.broker_id == broker_id):
            outcomes += await outcomes_of_a_life(steps, broker_id, shift=shift, planes=planes)
    other = [outcome for outcome in outcomes if outcome.verdict is not Verdict.SAME]
    different = [o for o in other if o.verdict is not Verdict.UNRECORDED]
    assert {(name, o.step.request.place.packet) for o in different} <= NOT_OURS, "\n".join(map(str, different))
    assert len(other) - len(different) <= 1  # one was on its way when its broker ended
    assert len(outcomes) - len(other) > 50
