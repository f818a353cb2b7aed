"""A recorded broker answers live requests."""

from __future__ import annotations

import dataclasses
import uuid

import trio
import trio.testing

from kce import wire
from kce.captures.replay.impersonation import Impersonator
from tests.captures.replay.recordings import Conversation, update


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
        # in another version, and nothing is left
        codes += [(await ask(here, with_brokers, 5, 510 + i)).error_code for i in range(2)]
        assert codes == [0, 11, 77, 77, 77]
        assert await ask(here, wire.LeaderAndIsrRequest(), 4, 600) is None
    assert [str(answered).partition(" #")[2] for answered in broker.answered] == [
        "500: answered as packet 6",
        "501: answered as packet 4",
        "502: answered as packet 8, and 2 more",
        "600: no response to such a request was recorded",
    ]


async def test_the_answer_is_about_the_partitions_that_were_asked_for_by_the_ids_they_have_now():
    def request(topic, topic_id, partition):
        state = wire.LeaderAndIsrPartitionState(partition_index=partition, isr=(1,), replicas=(1,))
        states = (wire.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=(state,)),)
        return wire.LeaderAndIsrRequest(controller_id=1, controller_epoch=1, topic_states=states)

    talk, ids = Conversation(), [uuid.UUID(int=i) for i in range(10)]
    for number, (topic, partition) in enumerate([("a", 0), ("b", 0), ("a", 1)]):
        talk.at(number).ask(request(topic, ids[number + 1], partition), 7, number, "1")
        error = wire.LeaderAndIsrPartitionError(partition_index=partition, error_code=0)
        topics = (wire.LeaderAndIsrTopicError(topic_id=ids[number + 1], partition_errors=(error,)),)
        talk.at(number + 0.25).answer(wire.LeaderAndIsrResponse(topics=topics), 7, number)
    broker = Impersonator(talk.recording().steps, speed=25)
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve, there)
        begin = trio.current_time()
        answers = [
            await ask(here, dataclasses.replace(request(topic, ids[7], partition), controller_epoch=9), 7, number)
            for number, (topic, partition) in enumerate([("b", 0), ("a", 1)])
        ]
        assert trio.current_time() - begin >= 0.02  # a quarter of a second each, at that speed
        nursery.cancel_scope.cancel()
    errors = [(topic.topic_id, topic.partition_errors[0].partition_index) for a in answers for topic in a.topics]
    assert errors == [(ids[7], 0), (ids[7], 1)]
    assert all(answered.exact for answered in broker.answered)


async def test_nonsense_ends_the_connection_and_is_reported():
    broker = Impersonator([])
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve, there)
        await here.send_all(wire.frame(b"\x00\x00\x00"))
        assert await here.receive_some() == b""
    assert "could not be decoded" in str(broker.answered[0])


async def test_a_recorded_broker_that_is_too_old_for_a_controller_says_what_to_set():
    talk = Conversation()
    talk.at(0).ask(wire.LeaderAndIsrRequest(), 0, 1, "1")
    error = wire.LeaderAndIsrPartitionError(topic_name="orders", partition_index=0)
    talk.answer(wire.LeaderAndIsrResponse(partition_errors=(error,)), 0, 1)
    broker = Impersonator(talk.recording().steps)
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve, there)
        assert await ask(here, wire.LeaderAndIsrRequest(), 7, 5) is None
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(broker.serve, there)
        assert await ask(here, wire.LeaderAndIsrRequest(), 7, 6) is None  # it tries again
    (answered,) = map(str, broker.answered)
    assert answered.endswith("let the controller have the inter.broker.protocol.version of the recorded, and 1 more")
