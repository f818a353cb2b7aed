"""Rules: what they match, which frames they choose, and what each fault does, between two links and in clusters."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.handlers import produce as produce_handler
from kce.broker_stub.reactor import RequestContext
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Response
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder
from kce.harness import Cluster, HarnessError
from kce.harness.faults import Rule
from kce.harness.world import memory
from kce.wire import ErrorCode
from kce.wire.transport import ConnectionLost
from tests.harness.test_links import Pair, pair

FAST = {"zookeeper.session.timeout.ms": "2000"}


def request(number: int, client_id: str = "c", *, topic: str = "t", version: int = 12) -> bytes:
    message = wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name=topic),))
    return wire.encode_request(message, api_version=version, correlation_id=number, client_id=client_id)


async def arrived(p: Pair, seconds: float = 60) -> list[int]:
    """Correlation ids of the requests that arrive until nothing comes for so long."""
    numbers = []
    while True:
        with trio.move_on_after(seconds) as scope:
            frame = await p.accepted.receive()
            assert frame is not None
            numbers.append(wire.decode_request_header(frame).correlation_id)
        if scope.cancelled_caught:
            return numbers


async def send(p: Pair, *numbers: int, **how: Any) -> None:
    for number in numbers:
        await p.dialled.send_frame(request(number, **how))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(drop=True), []),
        (Rule(drop=True, api="LeaderAndIsr"), [1, 2, 3, 4]),
        (Rule(drop=True, source=2, to=1, listener="DATA"), []),
        (Rule(drop=True, client_id="other"), [1, 2, 3, 4]),
        (Rule(drop=True, version=12), []),
        (Rule(drop=True, version=11), [1, 2, 3, 4]),
        (Rule(drop=True, topic="t"), []),
        (Rule(drop=True, topic="u"), [1, 2, 3, 4]),
        (Rule(drop=True, where=lambda m: m.topics[0].name == "t"), []),  # type: ignore[attr-defined]
        (Rule(drop=True, controller_epoch="older"), [1, 2, 3, 4]),
        (Rule(drop=True, nth=2), [1, 3, 4]),
        (Rule(drop=True, every=2), [1, 3]),
        (Rule(drop=True, probability=0), [1, 2, 3, 4]),
        (Rule(drop=True, probability=1), []),
        (Rule(duplicate=True, nth=1), [1, 1, 2, 3, 4]),
        (Rule(reorder=True, nth=2), [1, 3, 2, 4]),
        (Rule(reorder=True, nth=4), [1, 2, 3]),
    ],
)
async def test_which_requests_arrive(rule: Rule, expected: list[int]) -> None:
    async with pair() as p:
        p.links.add(rule)
        await send(p, 1, 2, 3, 4)
        assert await arrived(p) == expected
        assert rule.fired <= rule.matched <= 4


#: controller epoch, broker epoch, partition
CONTROL = ((5, 20, 0), (4, 21, 1), (6, 20, 0), (6, 21, 1))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(drop=True, controller_epoch=6), [1, 2]),
        (Rule(drop=True, controller_epoch="older"), [1, 3, 4]),
        (Rule(drop=True, controller_epoch="newer"), [1, 2, 4]),
        (Rule(drop=True, controller_epoch="equal"), [2, 3]),
        (Rule(drop=True, broker_epoch=20), [2, 4]),
        (Rule(drop=True, broker_epoch="older"), [1, 2, 4]),
        (Rule(drop=True, broker_epoch="newer"), [1, 3, 4]),
        (Rule(drop=True, partition=1), [1, 3]),
        (Rule(drop=True, topic="t", partition=0), [2, 4]),
        (Rule(drop=True, topic="u", partition=0), [1, 2, 3, 4]),
    ],
)
async def test_which_control_requests_arrive(rule: Rule, expected: list[int]) -> None:
    async with pair() as p:
        p.links.add(rule)
        for number, (controller_epoch, broker_epoch, partition) in enumerate(CONTROL, start=1):
            states = (wire.StopReplicaPartitionState(partition_index=partition, leader_epoch=1),)
            message = wire.StopReplicaRequest(
                controller_id=2, controller_epoch=controller_epoch, broker_epoch=broker_epoch,
                topic_states=(wire.StopReplicaTopicState(topic_name="t", partition_states=states),),
            )  # fmt: skip
            frame = wire.encode_request(message, api_version=3, correlation_id=number, client_id="2")
            await p.dialled.send_frame(frame)
        assert await arrived(p) == expected


async def test_a_probability_chooses_by_the_seed() -> None:
    async def chosen(seed: int) -> list[int]:
        async with pair() as p:
            p.links.add(Rule(drop=True, probability=0.5, seed=seed))
            await send(p, *range(40))
            return await arrived(p)

    first = await chosen(1)
    assert 5 < len(first) < 35
    assert (first == await chosen(1), first == await chosen(2)) == (True, False)


@pytest.mark.parametrize(
    ("rule", "seconds"),
    [
        (Rule(delay=5), 5), (Rule(delay=5, jitter=2, seed=1), 5.27), (Rule(bandwidth=10), len(request(1)) / 10),
        (Rule(), 0),
    ],
)  # fmt: skip
async def test_when_a_request_arrives(rule: Rule, seconds: float) -> None:
    async with pair() as p:
        p.links.add(rule)
        begin = trio.current_time()
        await send(p, 1)
        await p.accepted.receive()
        assert trio.current_time() - begin == pytest.approx(seconds, abs=0.01)


async def test_a_request_gets_an_error_and_does_not_arrive() -> None:
    async with pair() as p:
        p.links.add(Rule(api="Metadata", topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE))
        await send(p, 7)
        assert await arrived(p) == []
        frame = await p.dialled.receive_frame()
        header, response = wire.decode_response(frame, api_key=3, api_version=12)
        assert header.correlation_id == 7
        assert isinstance(response, wire.MetadataResponse)
        assert [(t.name, t.error_code) for t in response.topics] == [("t", ErrorCode.LEADER_NOT_AVAILABLE)]


def produce(*partitions: tuple[str, int], acks: int = -1) -> wire.ProduceRequest:
    topics = tuple(
        wire.TopicProduceData(
            name=name,
            partition_data=tuple(wire.PartitionProduceData(index=p, records=None) for t, p in partitions if t == name),
        )
        for name in dict.fromkeys(topic for topic, _ in partitions)
    )
    return wire.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)


async def produced(p: Pair, *partitions: tuple[str, int]) -> tuple[list[tuple[str, int]] | None, list[Any]]:
    """Which partitions of a Produce request arrive, None if it does not; and what its sender is answered."""
    message = produce(*partitions)
    await p.dialled.send_frame(wire.encode_request(message, api_version=9, correlation_id=3, client_id="c"))
    seen = None
    with trio.move_on_after(60):
        frame = await p.accepted.receive()
        assert frame is not None
        header, came = wire.decode_request(frame)
        assert isinstance(came, wire.ProduceRequest)
        seen = [(topic.name, data.index) for topic in came.topic_data for data in topic.partition_data]
        answer = produce_handler.error_response(came, RequestContext(header, None), ErrorCode.NONE)  # type: ignore[arg-type]
        assert answer is not None
        response = dataclasses.replace(answer, throttle_time_ms=5)
        await p.accepted.send(wire.encode_response(response, api_version=9, correlation_id=3))
    header, got = wire.decode_response(await p.dialled.receive_frame(), api_key=0, api_version=9)
    assert isinstance(got, wire.ProduceResponse)
    assert (header.correlation_id, got.throttle_time_ms) == (3, 0 if seen is None else 5)
    return seen, [(t.name, d.index, ErrorCode(d.error_code).name) for t in got.responses for d in t.partition_responses]


async def test_only_what_a_rule_names_gets_its_error() -> None:
    """The rest of the request arrives, and its response comes with the errors."""
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    t0, t1, u0 = ("t", 0), ("t", 1), ("u", 0)
    refused = [(*tp, error.name) for tp in (t0, t1, u0)]
    fine = [(*tp, "NONE") for tp in (t0, t1, u0)]
    async with pair() as p:
        p.links.add(rule := Rule(api="Produce", topic="t", error=error))
        assert await produced(p, t0, t1, u0) == ([u0], [fine[2], *refused[:2]])
        assert await produced(p, t0, t1) == (None, refused[:2])
        assert await produced(p, u0) == ([u0], fine[2:])
        p.links.remove(rule)
        p.links.add(rule := Rule(api="Produce", topic="t", partition=1, error=error))
        assert await produced(p, t0, t1, u0) == ([t0, u0], [fine[0], refused[1], fine[2]])
        assert await produced(p, t1) == (None, refused[1:2])
        p.links.add(Rule(api="Produce", topic="u", error=error))
        assert await produced(p, t0, t1, u0) == ([t0], [fine[0], refused[1], refused[2]])
        assert await produced(p, t1, u0) == (None, [refused[2], refused[1]])
        p.links.remove(rule)
        p.links.add(Rule(api="Produce", partition=0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        unknown = ("t", 0, "UNKNOWN_TOPIC_OR_PARTITION")
        assert await produced(p, t0, t1, u0) == ([t1], [fine[1], unknown, refused[2]])


async def test_each_of_many_pipelined_requests_is_completed() -> None:
    """librdkafka has any number in flight."""
    count = 200
    async with pair(max_frame_bytes=100_000) as p:
        p.links.add(Rule(api="Metadata", topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE))
        topics = tuple(wire.MetadataRequestTopic(name=name) for name in "tu")
        message, answer = wire.MetadataRequest(topics=topics), wire.MetadataResponse()
        for number in range(count):
            frame = wire.encode_request(message, api_version=9, correlation_id=number, client_id="c")
            await p.dialled.send_frame(frame)
            assert await p.accepted.receive() is not None
        for number in range(count):
            await p.accepted.send(wire.encode_response(answer, api_version=9, correlation_id=number))
            _, response = wire.decode_response(await p.dialled.receive_frame(), api_key=3, api_version=9)
            assert isinstance(response, wire.MetadataResponse)
            assert [topic.name for topic in response.topics] == ["t"]


async def test_the_response_to_a_request_behind_the_next_one_is_seen_and_completed() -> None:
    async with pair() as p:
        p.links.add(Rule(api="Metadata", topic="t", reorder=True, nth=1))
        p.links.add(Rule(api="Metadata", topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE))
        topics = tuple(wire.MetadataRequestTopic(name=name) for name in "tu")
        message, answer = wire.MetadataRequest(topics=topics), wire.MetadataResponse()
        for number in (1, 2):
            await p.dialled.send_frame(
                wire.encode_request(message, api_version=9, correlation_id=number, client_id="c")
            )
        assert await arrived(p) == [2, 1]
        for number in (2, 1):
            await p.accepted.send(wire.encode_response(answer, api_version=9, correlation_id=number))
            _, response = wire.decode_response(await p.dialled.receive_frame(), api_key=3, api_version=9)
            assert isinstance(response, wire.MetadataResponse)
            assert [topic.name for topic in response.topics] == ["t"]


def test_a_rule_is_described_in_the_words_of_its_options() -> None:
    rule = Rule(api=["Fetch", "Produce"], topic="t", error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert rule.describe() == "requests api=Fetch,Produce topic='t' error=NOT_LEADER_OR_FOLLOWER"
    with pytest.raises(HarnessError, match=r"^Rule\(partition=-1\): must not be below 0$"):
        Rule(partition=-1)


async def test_responses_of_other_requests_are_not_completed() -> None:
    """Nor one that cannot be decoded, which goes on as it is."""
    async with pair() as p:
        p.links.add(Rule(api="Metadata", topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE))
        topics = tuple(wire.MetadataRequestTopic(name=name) for name in "tu")
        two = wire.encode_request(wire.MetadataRequest(topics=topics), api_version=9, correlation_id=2, client_id="c")
        one = wire.encode_request(
            wire.MetadataRequest(topics=topics[1:]), api_version=9, correlation_id=1, client_id="c"
        )
        answer = wire.MetadataResponse(topics=(wire.MetadataResponseTopic(name="u"),))
        for frame in (one, two, two):
            await p.dialled.send_frame(frame)
            assert await p.accepted.receive() is not None
        for number in (1, 2):
            await p.accepted.send(wire.encode_response(answer, api_version=9, correlation_id=number))
        damaged = wire.encode_response(answer, api_version=9, correlation_id=2)[:9]
        await p.accepted.send(damaged)
        names = []
        for _ in range(2):
            _, response = wire.decode_response(await p.dialled.receive_frame(), api_key=3, api_version=9)
            assert isinstance(response, wire.MetadataResponse)
            names.append([(topic.name, topic.error_code) for topic in response.topics])
        assert names == [[("u", 0)], [("u", 0), ("t", ErrorCode.LEADER_NOT_AVAILABLE)]]
        assert await p.dialled.receive_frame() == damaged


@pytest.mark.parametrize(
    "unanswerable",
    [
        wire.encode_request(wire.ProduceRequest(acks=0), api_version=9, correlation_id=1, client_id="c"),
        request(1)[:20],  # its body cannot be decoded
    ],
)
async def test_an_error_that_cannot_be_told_breaks_the_connection(unanswerable: bytes) -> None:  # rule B1.41
    async with pair() as p:
        p.links.add(Rule(error=ErrorCode.NOT_CONTROLLER))
        await p.dialled.send_frame(unanswerable)
        with pytest.raises(trio.BrokenResourceError):
            await p.accepted.receive()
        with pytest.raises(ConnectionLost):
            await p.dialled.receive_frame()


async def test_messages_without_the_fields_that_are_changed_do_not_match() -> None:
    async with pair() as p:
        rule = Rule(change={"controller_epoch": 0})
        p.links.add(rule)
        await send(p, 1)
        assert await p.accepted.receive() == request(1)
        stop = wire.StopReplicaRequest(controller_epoch=5)
        await p.dialled.send_frame(wire.encode_request(stop, api_version=4, correlation_id=2, client_id="c"))
        frame = await p.accepted.receive()
        assert frame is not None
        assert wire.decode_request(frame)[1] == dataclasses.replace(stop, controller_epoch=0)
        assert (rule.matched, rule.fired) == (1, 1)


async def test_a_value_that_a_version_cannot_have_changes_nothing() -> None:
    whole = wire.encode_request(wire.MetadataRequest(), api_version=0, correlation_id=1, client_id="c")
    async with pair() as p:
        p.links.add(Rule(api="Metadata", change={"topics": None}))  # all topics, from version 1 on
        await p.dialled.send_frame(whole)
        assert await p.accepted.receive() == whole


async def test_a_request_that_a_rule_answers_is_recorded_with_its_response(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "c.pcapng")
    async with pair(recorder=recorder) as p:
        p.links.add(Rule(api="Metadata", topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE))
        await send(p, 7)
        assert await arrived(p) == []
        await p.dialled.receive_frame()
    recorder.close()
    with CaptureFile(tmp_path / "c.pcapng") as capture:
        request, response = Decoder(capture).messages()
    assert isinstance(response, Response)
    assert response.request is request


@pytest.mark.parametrize("change", [{"include_topic_authorized_operations": True}, None])
async def test_a_message_is_changed(change: dict[str, Any] | None) -> None:
    def rewrite(message: Any) -> wire.Message:
        return wire.MetadataRequest(topics=message.topics, include_topic_authorized_operations=True)

    async with pair() as p:
        p.links.add(Rule(change=change or rewrite))
        await send(p, 1)
        frame = await p.accepted.receive()
        assert frame is not None
        header, message = wire.decode_request(frame)
        assert (header.correlation_id, header.client_id) == (1, "c")
        assert isinstance(message, wire.MetadataRequest)
        assert message.include_topic_authorized_operations is True


async def test_frames_are_truncated_and_corrupted() -> None:
    whole = request(1)
    for rule, check in (
        (Rule(truncate=10), lambda frame: frame == whole[:10]),
        (Rule(corrupt=3), lambda frame: sum(a != b for a, b in zip(frame, whole, strict=True)) == 3),
    ):
        async with pair() as p:
            p.links.add(rule)
            await send(p, 1)
            assert check(await p.accepted.receive())


async def test_a_rule_changes_what_earlier_rules_have_made_of_a_frame() -> None:
    async with pair() as p:
        p.links.add(Rule(change={"include_topic_authorized_operations": True}))
        p.links.add(Rule(change={"allow_auto_topic_creation": False}))
        await send(p, 1)
        frame = await p.accepted.receive()
        assert frame is not None
        _, message = wire.decode_request(frame)
        assert isinstance(message, wire.MetadataRequest)
        assert (message.include_topic_authorized_operations, message.allow_auto_topic_creation) == (True, False)


@pytest.mark.parametrize("later", [Rule(corrupt=3), Rule(change={"allow_auto_topic_creation": False})])
async def test_what_a_rule_has_truncated_has_nothing_left_to_corrupt_or_change(later: Rule) -> None:
    async with pair() as p:
        p.links.add(Rule(truncate=4))
        p.links.add(later)
        await send(p, 1)
        assert await p.accepted.receive() == request(1)[:4]


async def test_a_response_goes_out_in_segments_and_arrives_whole() -> None:
    async with pair() as p:
        await send(p, 1)
        p.links.add(Rule(is_request=None, segments=3))  # from here on: the request passed before
        await p.accepted.receive()
        response = wire.encode_response(wire.MetadataResponse(), api_version=12, correlation_id=1)
        await p.accepted.send(response)
        assert await p.dialled.receive_frame() == response


@pytest.mark.parametrize("rule", [Rule(reset=True, nth=2), Rule(close_after=len(request(1)) + 5)])
async def test_a_connection_breaks(rule: Rule) -> None:
    async with pair() as p:
        p.links.add(rule)
        await send(p, 1, 2)
        assert await p.accepted.receive() == request(1)
        with pytest.raises(trio.BrokenResourceError):
            await p.accepted.receive()
        with pytest.raises(ConnectionLost):
            await p.dialled.receive_frame()


async def test_a_response_is_cut_off() -> None:
    async with pair() as p:
        p.links.add(Rule(is_request=False, close_after=6))
        await send(p, 1)
        await p.accepted.receive()
        with pytest.raises(trio.BrokenResourceError):
            await p.accepted.send(wire.encode_response(wire.MetadataResponse(), api_version=12, correlation_id=1))
        with pytest.raises(ConnectionLost):
            await p.dialled.receive_frame()
        assert p.dialled.buffered_bytes == 6


async def test_a_half_open_connection_stays_open_and_carries_nothing() -> None:
    async with pair() as p:
        p.links.add(Rule(half_open=True, nth=2))
        await send(p, 1, 2, 3)
        assert await arrived(p) == [1]
        await p.accepted.send(wire.encode_response(wire.MetadataResponse(), api_version=12, correlation_id=1))
        with trio.move_on_after(60) as scope:
            await p.dialled.receive_frame()
        assert scope.cancelled_caught
        assert list(p.accepted.unanswered) == []  # the broker never had the others


@pytest.mark.parametrize(("rule", "expected"), [(Rule(slow_close=5), 5), (Rule(slow_close=5, api="Fetch"), 0)])
async def test_the_end_of_a_connection_is_learnt_late(rule: Rule, expected: float) -> None:
    async with pair() as p:
        p.links.add(rule)
        await send(p, 1)
        assert await p.accepted.receive() == request(1)
        closed = trio.current_time()
        await p.dialled.aclose()
        assert await p.accepted.receive() is None
        assert trio.current_time() - closed == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"nth": 0}, r"Rule\(nth=0\): must be above 0"),
        ({"delay": -1}, r"Rule\(delay=-1\): must not be below 0"),
        ({"delay": float("nan")}, r"Rule\(delay=nan\): must be finite"),
        ({"bandwidth": float("inf")}, r"Rule\(bandwidth=inf\): must be finite"),
        ({"controller_epoch": "old"}, "must be a number or one of older, equal, newer"),
        ({"probability": 2}, "must be from 0 to 1"),
        ({"api": "Leader"}, "api=Leader: Kafka has no such API"),
        ({"error": "NOPE"}, r"Rule\(error=NOPE\): Kafka has no such error"),
        ({"error": 99999}, r"Rule\(error=99999\): Kafka has no such error"),
        ({"speed": 1}, "a rule has no speed; it has api, bandwidth"),
        ({"to": "1"}, r"Rule\(to='1'\): must be of type int"),
        ({"nth": True}, r"Rule\(nth=True\): must be of type int"),
        ({"delay": "x"}, r"Rule\(delay='x'\): must be of type int or float"),
        ({"is_request": "maybe"}, r"Rule\(is_request='maybe'\): must be of type bool"),
        ({"drop": None}, r"Rule\(drop=None\): must be of type bool"),
        ({"where": "x"}, r"Rule\(where='x'\): a function works only for nodes in this process"),
        ({"change": [1]}, r"Rule\(change=\[1\]\): must be of type dict"),
        (
            {"api": "LeaderAndIsr", "change": {"contoller_epoch": 0}},
            "LeaderAndIsrRequest has the fields controller_id, .*, controller_epoch, ",
        ),
        (
            {"api": ["LeaderAndIsr", "Fetch"], "change": {"controller_epoch": 0}},
            "FetchRequest has the fields ",
        ),
        (
            {"api": "LeaderAndIsr", "is_request": None, "change": {"controller_epoch": 0}},
            "LeaderAndIsrResponse has the fields ",
        ),
        ({"change": {"contoller_epoch": 0}}, "no message has these fields; `kce schema` lists them"),
        (
            {"api": "LeaderAndIsr", "change": {"controller_epoch": "x"}},
            r"LeaderAndIsrRequest 7: .* given value 'x' at controller_epoch",
        ),
    ],
)
def test_rules_that_cannot_be(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(HarnessError, match=error):
        Rule.from_json(fields)


def test_rules_as_json() -> None:
    rule = Rule(api=["LeaderAndIsr"], to=2, nth=3, delay=5, error=ErrorCode.STALE_BROKER_EPOCH)
    fields = {"api": ["LeaderAndIsr"], "to": 2, "nth": 3, "delay": 5, "error": ErrorCode.STALE_BROKER_EPOCH}
    assert rule.to_json() == fields
    assert Rule.from_json({**fields, "error": "STALE_BROKER_EPOCH"}).to_json() == fields
    change = {"error_code": 1}
    given = {"is_request": None, "source": None, "bandwidth": 5, "controller_epoch": "older", "change": change}
    assert Rule.from_json(given).to_json() == {k: v for k, v in given.items() if k != "source"}
    with pytest.raises(HarnessError, match="works only for nodes in this process"):
        Rule(where=lambda _: True).to_json()


# clusters


async def test_a_delayed_request_of_a_cluster() -> None:
    async with Cluster(3, world=memory(seed=1), properties=FAST) as cluster:
        await cluster.wait_for_controller()
        async with cluster.faults(Rule(api="LeaderAndIsr", to=2, nth=1, delay=5)) as fault:
            before = trio.current_time()
            await cluster.create_topic("t", assignment={0: [2, 1]})
            await cluster.history.wait_for(api="LeaderAndIsr", source=1, is_request=False)
            assert trio.current_time() - before < 5
            await cluster.history.wait_for(api="LeaderAndIsr", source=2, is_request=False)
            assert trio.current_time() - before >= 5
        assert fault.fired == 1
        assert cluster.links.rules == ()


async def test_a_rule_that_does_not_fire_fails_with_what_came_instead() -> None:
    async with Cluster(2, world=memory(seed=1), properties=FAST) as cluster:
        await cluster.create_topic("t", assignment={0: [2, 1]})
        error = r"(?s)the rule for requests api='StopReplica' drop=True did not fire, of 0 frames.*LeaderAndIsr v7"
        with pytest.raises(AssertionError, match=error):
            async with cluster.faults(Rule(api="StopReplica", drop=True)):
                await cluster.create_topic("u", assignment={0: [1]})
        async with cluster.faults(Rule(api="StopReplica", drop=True), must_fire=False):
            pass


async def test_a_rule_is_applied_once_at_a_time() -> None:
    async with Cluster(1, world=memory(seed=1), properties=FAST) as cluster:
        rule, other = Rule(api="StopReplica", drop=True), Rule(api="LeaderAndIsr", drop=True)
        async with cluster.faults(rule, must_fire=False):
            with pytest.raises(HarnessError, match="applied already"):
                async with cluster.faults(other, rule):
                    raise AssertionError
            assert cluster.links.rules == (rule,)
        async with cluster.faults(rule, other, must_fire=False):
            pass
        assert not cluster.links.rules


async def test_a_rule_without_a_seed_has_that_of_the_run() -> None:
    async def chosen(run: int, seed: int | None) -> list[int]:
        """Which of the first frames a rule with a probability chooses."""
        rule = Rule(api="UpdateMetadata", probability=0.5, jitter=0.001, seed=seed)
        fired: list[int] = []
        async with Cluster(2, world=memory(run), properties=FAST) as cluster, cluster.faults(rule, must_fire=False):
            for number in range(12):
                before = rule.fired
                await cluster.create_topic(f"t{number}", assignment={0: [1]})
                await cluster.wait_until_settled()
                fired.append(rule.fired - before)
        return fired

    assert await chosen(1, None) == await chosen(1, None)
    assert await chosen(1, None) != await chosen(2, None)
    assert await chosen(1, 7) == await chosen(2, 7)


async def test_stale_and_future_controller_epochs() -> None:
    """A request of a future epoch fences the real controller; one of an older epoch is fenced."""
    async with Cluster(2, world=memory(seed=1), properties=FAST) as cluster:
        active = await cluster.wait_for_controller()
        stale = Rule(api="LeaderAndIsr", to=2, nth=1, change={"controller_epoch": 0})
        async with cluster.faults(stale):
            await cluster.create_topic("t", assignment={0: [2]}, wait=False)
            answers = await cluster.history.wait_for(
                lambda m: getattr(m, "error_code", 0) == ErrorCode.STALE_CONTROLLER_EPOCH,
                api="LeaderAndIsr", is_request=False,
            )  # fmt: skip
        assert [answer.source for answer in answers] == [2]
        older = Rule(api="UpdateMetadata", controller_epoch="older", drop=True)
        equal = Rule(api="UpdateMetadata", controller_epoch="equal", to=1, delay=0.1)
        await cluster.add_rule(older)
        async with cluster.faults(equal):
            await cluster.create_topic("u", assignment={0: [1]})
            (event,) = await cluster.history.wait_for(
                lambda m: [t.topic_name for t in m.topic_states] == ["u"],
                api="UpdateMetadata",
                to=1,  # type: ignore[attr-defined]
            )
            assert event.message().controller_epoch == active.epoch  # type: ignore[attr-defined]
        await cluster.remove_rule(older)
        assert older.fired == 0


@pytest.mark.slow
async def test_rules_in_nodes_that_are_processes(zookeeper: str) -> None:
    where = f"{zookeeper}/faults"
    async with Cluster(2, zookeeper=where, processes=True, properties=FAST) as cluster:
        await cluster.wait_for_controller()
        async with cluster.faults(Rule(api="LeaderAndIsr", to=2, nth=1, delay=0.5)) as fault:
            await cluster.create_topic("t", assignment={0: [2, 1]})

            async def answered() -> bool:
                active = await cluster.wait_for_controller()
                return not any((await cluster.node_status(active.id)).unanswered.values())

            await cluster.wait_until(answered, "responses")
        assert fault.fired == 1
        with pytest.raises(HarnessError, match="works only for nodes in this process"):
            await cluster.add_rule(Rule(where=lambda _: True))
