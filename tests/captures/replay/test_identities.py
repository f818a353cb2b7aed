"""Ids that servers assign: learned from live responses, sent in later requests, and no difference in responses."""

from __future__ import annotations

import uuid

import pytest
import trio

from kce import wire
from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.identities import Identities
from kce.captures.replay.recording import Recording
from kce.captures.replay.replay import Verdict
from kce.wire.batch_header import check_crc, read_headers
from kce.wire.record_batch import write_values
from tests.captures.replay.recordings import Conversation
from tests.captures.replay.test_replay import replayed
from tests.captures.samples import CAPTURES

THEN, NOW, OTHER = (uuid.UUID(int=i) for i in (1, 2, 3))


def identities():
    return Identities({THEN: "orders"})


def of_a_producer():
    """Producer 1000 of epoch 2 is 4 of epoch 0."""
    ids = identities()
    ids.learn(
        wire.InitProducerIdRequest(), wire.InitProducerIdResponse(producer_id=1000, producer_epoch=2),
        wire.InitProducerIdResponse(producer_id=4, producer_epoch=0),
    )  # fmt: skip
    return ids


def joined(member_id="then", generation=7, **more):
    return wire.JoinGroupResponse(member_id=member_id, generation_id=generation, leader=member_id, **more)


def heartbeat(member_id="then", generation=7, group="g"):
    return wire.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)


def batch(producer_id, epoch, value=b"value"):
    values = [(b"key", value)]
    return write_values(values, 5, producer_id=producer_id, producer_epoch=epoch, base_sequence=3)


def produced(records):
    partition = wire.PartitionProduceData(index=0, records=records)
    return wire.ProduceRequest(
        acks=-1, timeout_ms=9, topic_data=(wire.TopicProduceData(name="orders", partition_data=(partition,)),)
    )


def test_members_and_generations_of_a_group():
    ids = identities()
    ids.learn(wire.JoinGroupRequest(group_id="g"), joined(), joined("now", 1))
    assert ids.translated(heartbeat()) == heartbeat("now", 1)
    assert ids.translated(heartbeat("another", 8)) == heartbeat("another", 8)
    assert ids.translated(heartbeat(group="h")) == heartbeat("now", 7, group="h"), "generations are of one group"
    commit = wire.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=7, member_id="then")
    assert ids.translated(commit) == wire.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=1, member_id="now"
    )
    leave = wire.LeaveGroupRequest(group_id="g", members=(wire.MemberIdentity(member_id="then"),))
    assert ids.translated(leave).members == (wire.MemberIdentity(member_id="now"),)
    sync = wire.SyncGroupRequest(assignments=(wire.SyncGroupRequestAssignment(member_id="then", assignment=b"x"),))
    assert ids.translated(sync).assignments[0].member_id == "now"
    # the response that they were learned from, which does not name its group
    assert ids.translated(joined(), "g") == joined("now", 1)


def test_a_member_id_that_was_required_has_no_generation():
    ids = identities()
    ids.learn(
        wire.JoinGroupRequest(group_id="g"),
        joined(generation=-1, error_code=wire.ErrorCode.MEMBER_ID_REQUIRED),
        joined("now", -1, error_code=wire.ErrorCode.MEMBER_ID_REQUIRED),
    )
    again = wire.JoinGroupRequest(group_id="g", member_id="then")
    assert ids.translated(again) == wire.JoinGroupRequest(group_id="g", member_id="now")
    assert ids.translated(heartbeat("", -1)) == heartbeat("", -1)


@pytest.mark.parametrize("now", [0, -1])
def test_nothing_is_learned_from_a_response_without_an_id(now):
    ids = identities()
    ids.learn(wire.FetchRequest(), wire.FetchResponse(session_id=55), wire.FetchResponse(session_id=0))
    ids.learn(
        wire.InitProducerIdRequest(), wire.InitProducerIdResponse(producer_id=5, producer_epoch=1),
        wire.InitProducerIdResponse(producer_id=-1, producer_epoch=now),
    )  # fmt: skip
    request = wire.FetchRequest(session_id=55, session_epoch=1)
    assert ids.translated(request) is request
    ending = wire.EndTxnRequest(transactional_id="t", producer_id=5, producer_epoch=1)
    assert ids.translated(ending) is ending


def test_fetch_sessions_and_tokens():
    ids = identities()
    ids.learn(wire.FetchRequest(), wire.FetchResponse(session_id=55), wire.FetchResponse(session_id=66))
    ids.learn(
        wire.CreateDelegationTokenRequest(), wire.CreateDelegationTokenResponse(token_id="then", hmac=b"old"),
        wire.CreateDelegationTokenResponse(token_id="now", hmac=b"new"),
    )  # fmt: skip
    assert ids.translated(wire.FetchRequest(session_id=55, session_epoch=4)).session_id == 66
    assert ids.translated(wire.FetchRequest(session_id=4, session_epoch=55)) == wire.FetchRequest(
        session_id=4, session_epoch=55
    )
    assert ids.translated(wire.RenewDelegationTokenRequest(hmac=b"old")).hmac == b"new"
    assert ids.translated(wire.ExpireDelegationTokenRequest(hmac=b"other")).hmac == b"other"


def test_producers_in_requests_and_in_batches():
    ids = of_a_producer()
    ending = wire.EndTxnRequest(transactional_id="t", producer_id=1000, producer_epoch=2)
    assert ids.translated(ending) == wire.EndTxnRequest(transactional_id="t", producer_id=4, producer_epoch=0)
    fenced = wire.EndTxnRequest(transactional_id="t", producer_id=1000, producer_epoch=1)
    assert ids.translated(fenced) == fenced, "an epoch that was not given is no other's"
    old = wire.AddPartitionsToTxnRequest(v3_and_below_producer_id=1000, v3_and_below_producer_epoch=2)
    assert ids.translated(old).v3_and_below_producer_id == 4
    records = batch(1000, 2) + batch(1000, 1, b"fenced") + batch(-1, -1, b"plain")
    sent = ids.translated(produced(records + b"rest")).topic_data[0].partition_data[0].records
    assert sent == batch(4, 0) + batch(1000, 1, b"fenced") + batch(-1, -1, b"plain") + b"rest"
    for at, header in read_headers(sent[:-4]):
        check_crc(memoryview(sent)[at : at + header.size], header)


def test_records_of_a_capture_are_views():
    ids = of_a_producer()
    sent = ids.translated(produced(memoryview(batch(1000, 2) + b"\xff" * 61)))
    assert sent.topic_data[0].partition_data[0].records == batch(4, 0) + b"\xff" * 61
    others = produced(memoryview(batch(1000, 3)))
    assert ids.translated(others) is others


@pytest.mark.parametrize("records", [None, b"", b"short", b"\xff" * 61, b"\x00" * 100])
def test_what_is_no_batch_is_sent_as_it_is(records):
    ids = identities()
    assert ids.translated(produced(records)) == produced(records)


def test_topics_are_found_by_their_names():
    ids = identities()
    fetch = wire.FetchRequest(
        topics=(wire.FetchTopic(topic_id=THEN), wire.FetchTopic(topic_id=OTHER)),
        forgotten_topics_data=(wire.ForgottenTopic(topic_id=THEN),),
    )
    assert ids.topics_of(fetch) == {"orders"}
    assert ids.translated(fetch) is fetch, "not known yet"
    ids.learn_topics(wire.MetadataResponse(topics=(wire.MetadataResponseTopic(name="orders", topic_id=NOW),)))
    translated = ids.translated(fetch)
    assert [topic.topic_id for topic in translated.topics] == [NOW, OTHER]
    assert translated.forgotten_topics_data[0].topic_id == NOW
    assert ids.topic_names() == {str(THEN): "orders", str(NOW): "orders"}


@pytest.mark.parametrize("name", ["kafka-3.9.1-load", "kafka-0.10.2.2-tour"])
def test_without_live_responses_nothing_changes(name):
    with CaptureFile(CAPTURES[name]) as capture:
        recording = Recording.read(capture)
    ids = Identities(recording.topic_names())
    for step in recording.steps:
        assert ids.translated(step.request.body) is step.request.body
        if step.response is not None:
            assert ids.translated(step.response.body, "g") is step.response.body
    for step in recording.steps:  # the same responses again: every id stands for itself
        if step.response is not None and step.response.body is not None:
            ids.learn(step.request.body, step.response.body, step.response.body)
    changed = [step for step in recording.steps if ids.translated(step.request.body) != step.request.body]
    assert changed == []


def dialogue():
    """A consumer joins, fetches by topic id and leaves; its cluster's ids are those of THEN."""
    talk = Conversation()
    exchanges = [
        (wire.JoinGroupRequest(group_id="g"), joined(generation=-1, error_code=wire.ErrorCode.MEMBER_ID_REQUIRED), 5),
        (wire.JoinGroupRequest(group_id="g", member_id="then"), joined(), 5),
        (heartbeat(), wire.HeartbeatResponse(), 3),
        (wire.MetadataRequest(topics=None), metadata(THEN), 12),
        (fetch(0, 0, THEN), fetched(55, THEN), 13),
        (fetch(55, 1, THEN), fetched(55, THEN), 13),
    ]
    for number, (request, response, version) in enumerate(exchanges):
        talk.at(number).ask(request, version, number)
        talk.at(number + 0.5).answer(response, version, number)
    return talk.recording()


def metadata(topic_id):
    return wire.MetadataResponse(topics=(wire.MetadataResponseTopic(name="orders", topic_id=topic_id),))


def fetch(session_id, epoch, topic_id):
    partitions = (wire.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),)
    topics = (wire.FetchTopic(topic_id=topic_id, partitions=partitions),)
    return wire.FetchRequest(max_wait_ms=1, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics)


def fetched(session_id, topic_id):
    return wire.FetchResponse(session_id=session_id, responses=(wire.FetchableTopicResponse(topic_id=topic_id),))


class LiveGroup:
    """Refuses every id but its own."""

    async def __call__(self, _number, _header, body):
        if isinstance(body, wire.MetadataRequest):
            return metadata(NOW)
        if isinstance(body, wire.JoinGroupRequest):
            return (
                joined("now", 1)
                if body.member_id == "now"
                else joined("now", -1, error_code=wire.ErrorCode.MEMBER_ID_REQUIRED)
            )
        if isinstance(body, wire.HeartbeatRequest):
            return wire.HeartbeatResponse(
                error_code=wire.ErrorCode.NONE if body == heartbeat("now", 1) else wire.ErrorCode.UNKNOWN_MEMBER_ID
            )
        assert isinstance(body, wire.FetchRequest)
        known = body.topics[0].topic_id == NOW and body.session_id in (0, 66)
        return fetched(66, NOW) if known else wire.FetchResponse(error_code=wire.ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


async def test_a_client_is_replayed_with_the_ids_of_the_live_cluster(autojump_clock):
    recording = dialogue()
    outcomes, received = await replayed(recording, LiveGroup(), topic_names=recording.topic_names(), translate_ids=True)
    assert [(str(o), o.verdict) for o in outcomes if o.verdict is not Verdict.SAME] == []
    assert len(outcomes) == 6
    # the ids of topics that requests refer to are asked for first, on a connection of its own
    connection, _, _, first = received[0]
    assert isinstance(first, wire.MetadataRequest)
    assert [topic.name for topic in first.topics] == ["orders"]
    assert {each for each, *_ in received[1:]} == {connection + 1}


async def test_without_translation_ids_are_sent_as_recorded(autojump_clock):
    recording = dialogue()
    outcomes, received = await replayed(recording, LiveGroup(), topic_names=recording.topic_names())
    assert [body.member_id for *_, body in received if isinstance(body, wire.HeartbeatRequest)] == ["then"]
    assert [o.verdict for o in outcomes] == [Verdict.DIFFERENT] * 6


async def test_a_difference_names_the_topic_by_its_live_id_too(autojump_clock):
    recording = dialogue()
    live = LiveGroup()

    async def answer(number, header, body):
        if isinstance(body, wire.FetchRequest):
            topic = wire.FetchableTopicResponse(
                topic_id=NOW,
                partitions=(
                    wire.FetchResponsePartitionData(
                        partition_index=0, error_code=wire.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    ),
                ),
            )
            return wire.FetchResponse(session_id=66, responses=(topic,))
        return await live(number, header, body)

    outcomes, _ = await replayed(recording, answer, topic_names=recording.topic_names(), translate_ids=True)
    different = [line for o in outcomes if o.verdict is Verdict.DIFFERENT for line in o.fields]
    assert different
    assert all("[orders]" in line for line in different)


async def test_a_target_that_does_not_tell_topic_ids_is_sent_the_recorded(autojump_clock):
    recording = dialogue()

    async def answer(number, _header, body):
        if isinstance(body, wire.MetadataRequest) and number == 1:
            return "close"
        await trio.lowlevel.checkpoint()
        return await LiveGroup()(number, _header, body)

    outcomes, received = await replayed(recording, answer, topic_names=recording.topic_names(), translate_ids=True)
    assert isinstance(received[0][3], wire.MetadataRequest)
    # the recording's own Metadata tells them later
    assert [o.verdict for o in outcomes] == [Verdict.SAME] * 6
