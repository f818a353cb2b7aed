"""Replay: order, causality, epochs and the comparison of answers in memory; real recordings at our brokers."""

from __future__ import annotations

import uuid

import pytest
import trio
import trio.testing

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.recording import Recording
from kce.captures.replay.replay import Replay, Verdict
from kce.captures.replay.rewrite import Rewriter, newest_controller_epoch
from tests.broker_stub.support import ONE_LISTENER, TWO_LISTENERS, config, make_broker
from tests.captures.exchanges.dialogue import produce
from tests.captures.replay.recordings import Conversation, update
from tests.captures.samples import CAPTURES, scenario


class Server:
    """Answer requests with ``answer`` and record when each arrived."""

    def __init__(self, answer):
        self.answer, self.received, self.connections = answer, [], 0
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
                self.received.append((connection, round(trio.current_time(), 3), header.correlation_id, body))
                reply = await self.answer(len(self.received), header, body)
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
    return outcomes, server.received


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
    outcomes, received = await replayed(three_requests(), same)
    assert [(c, at - start, correlation_id) for c, at, correlation_id, _ in received] == [
        (1, 0, 0),
        (1, 1, 1),
        (1, 5, 2),
    ]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME] * 3


@pytest.mark.parametrize(("speed", "times"), [(2.0, [0, 0.5, 2.5]), (None, [0, 0, 0])])
async def test_speed(autojump_clock, speed, times):
    start = trio.current_time()
    _, received = await replayed(three_requests(), same, speed=speed)
    assert [at - start for _, at, _, _ in received] == times


async def test_nothing_is_sent_before_the_answers_that_came_before_it(autojump_clock):
    talk = Conversation()
    talk.at(0).ask(update(3), 6, 1, "1")
    first = talk.tap
    talk.connect()
    talk.at(1).ask(update(3), 6, 7, "1")  # before the answer to the first
    first.sent(
        "server", wire.frame(wire.encode_response(wire.UpdateMetadataResponse(), api_version=6, correlation_id=1))
    )
    talk.at(2).ask(update(3), 6, 8, "1")  # after it

    async def slow(number, _header, _body):
        if number == 1:
            await trio.sleep(10)
        return wire.UpdateMetadataResponse()

    start = trio.current_time()
    outcomes, received = await replayed(talk.recording(), slow, speed=None)
    assert [(connection, at - start) for connection, at, _, _ in received] == [(1, 0), (2, 0), (2, 10)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME, Verdict.UNRECORDED, Verdict.UNRECORDED]


async def test_differences_are_named_field_by_field(autojump_clock):
    async def refuse(number, _header, _body):
        return wire.UpdateMetadataResponse(error_code=11 if number == 2 else 0)

    outcomes, _ = await replayed(three_requests(), refuse)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME, Verdict.DIFFERENT, Verdict.SAME]
    assert outcomes[1].fields == ("error_code: NONE recorded, STALE_CONTROLLER_EPOCH now",)
    assert "UpdateMetadata v6 #101" in str(outcomes[1])


async def test_differences_name_topics_of_which_a_response_has_only_the_ids(autojump_clock):
    talk, topic_id = Conversation(), uuid.UUID(int=7)
    orders = wire.LeaderAndIsrTopicState(topic_name="orders", topic_id=topic_id)
    request = wire.LeaderAndIsrRequest(controller_id=1, controller_epoch=3, broker_epoch=25, topic_states=(orders,))

    def answer(error_code):
        partition = wire.LeaderAndIsrPartitionError(partition_index=4, error_code=error_code)
        return wire.LeaderAndIsrResponse(
            topics=(wire.LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=(partition,)),)
        )

    talk.ask(request, 7, 1, "1")
    talk.answer(answer(0), 7, 1)
    recording = talk.recording()

    async def refuse(number, _header, _body):
        return answer(11)

    outcomes, _ = await replayed(recording, refuse, topic_names=recording.topic_names())
    assert outcomes[0].fields == (
        "topics[orders].partition_errors[4].error_code: NONE recorded, STALE_CONTROLLER_EPOCH now",
    )


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
    outcomes, received = await replayed(talk.recording(), silence, answer_seconds=3)
    assert [outcome.fields for outcome in outcomes] == [
        ("no response within 3 s",),
        ("closed: no response to the request of packet 4",),
        ("given up: broker:9092 does not answer",),
    ]
    assert (len(received), trio.current_time() - start) == (1, 3)


async def test_who_reads_nothing_is_not_waited_for_either(autojump_clock):
    async def dial(_host, _port):
        here, _there = trio.testing.lockstep_stream_pair()
        return here

    start = trio.current_time()
    replay = Replay(three_requests().steps, {None: ("broker", 9092)}, dial=dial, speed=None, answer_seconds=3)
    assert {outcome.fields for outcome in await replay.run()} == {("given up: a request could not be sent within 3 s",)}
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
    assert outcomes[0].fields[0].startswith("the response cannot be decoded (")
    assert [outcome.fields for outcome in outcomes[1:]] == [
        ("the connection was closed in the middle of a response",)
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
        (), ("cannot connect to broker:9092 (Connection refused)",)
    ]  # fmt: skip


async def test_produce_without_acks_is_sent_and_not_waited_for(autojump_clock):
    talk = Conversation()
    talk.tap.sent("client", produce(8, 0, 1, records=None))
    outcomes, received = await replayed(talk.recording(), silence)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SAME]
    assert len(received) == 1


async def test_nobody_there(autojump_clock):
    async def dial(_host, _port):
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(CaptureError, match=r"cannot connect to broker:9092 \(Connection refused"):
        await Replay(three_requests().steps, {None: ("broker", 9092)}, dial=dial).run()
    with pytest.raises(CaptureError, match="went to an unknown broker, for which there is no --to"):
        Replay(three_requests().steps, {4: ("broker", 9092)}, dial=dial)


async def unreachable(_host, _port, **_target):
    raise OSError("no such broker here")


#: Before brokers had epochs, of these it is known that they ran from the beginning of a capture to its end.
NEVER_BOUNCED = {"kafka-0.10.2.2-tour": (2, 3), "kafka-1.1.1-tour": (2,)}


#: What real brokers answered differently, and why. The paused process of broker 2 had lost its ZooKeeper session when
#: it came to this request: UNKNOWN_SERVER_ERROR. Kafka 2.8 still fences a StopReplica of the very leader epoch that it
#: knows.
NOT_OURS = {("kafka-3.9.1-zombie", 226), ("kafka-2.8.2-tour", 1352), ("kafka-2.8.2-tour", 1360)}


def lives(steps):
    """The requests to one broker, by broker epoch: a restart clears the broker's state."""
    found, newest = {}, -1
    for step in sorted(steps, key=lambda step: step.request.place):
        newest = max(newest, getattr(step.request.body, "broker_epoch", -1))
        found.setdefault(newest, []).append(step)
    return list(found.values())


async def outcomes_of_a_life(steps, broker_id, *, shift, planes):
    broker = make_broker(config(broker_id, TWO_LISTENERS if planes else ONE_LISTENER), dial=unreachable)
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
