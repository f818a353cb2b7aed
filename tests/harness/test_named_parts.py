"""Parts of messages that name topics and partitions: found, taken out, and put together again."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor import RequestContext
from kce.harness import named_parts
from kce.harness.named_parts import Names, is_named, merged, refusal, without
from kce.wire import ErrorCode

ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def committed(*partitions: tuple[str, int]) -> wire.OffsetCommitResponse:
    return wire.OffsetCommitResponse(
        topics=tuple(
            wire.OffsetCommitResponseTopic(
                name=name,
                partitions=tuple(
                    wire.OffsetCommitResponsePartition(partition_index=p) for t, p in partitions if t == name
                ),
            )
            for name in dict.fromkeys(topic for topic, _ in partitions)
        )
    )


def codes(response: Any) -> set[tuple[str, int, int]]:
    return {(t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions}


PARTITIONS = st.lists(st.tuples(st.sampled_from("tuv"), st.integers(0, 3)), unique=True, max_size=9)


@given(PARTITIONS, st.sampled_from([None, *"tuvw"]), st.sampled_from([None, 0, 1, 2, 3, 4]))
def test_a_message_is_what_is_named_and_the_rest(
    partitions: list[tuple[str, int]], topic: str | None, partition: int | None
) -> None:
    names = Names(topic, partition)
    whole = committed(*partitions)
    chosen = {(t, p) for t, p in partitions if topic in (None, t) and partition in (None, p)}
    rest = without(whole, names)
    assert (rest is None) == (chosen == set(partitions))
    assert rest is None or codes(rest) == {(*tp, 0) for tp in partitions if tp not in chosen}
    assert is_named(whole, names) == bool(chosen)
    refused = committed(*chosen)
    refused = dataclasses.replace(
        refused,
        topics=tuple(
            dataclasses.replace(t, partitions=tuple(dataclasses.replace(p, error_code=ERROR) for p in t.partitions))
            for t in refused.topics
        ),
    )
    together = merged(rest or wire.OffsetCommitResponse(throttle_time_ms=3), refused)
    assert codes(together) == {(*tp, ERROR if tp in chosen else 0) for tp in partitions}
    assert len(together.topics) == len({t for t, _ in partitions})
    assert rest is not None or together.throttle_time_ms == 3


def test_what_names_nothing_stays() -> None:
    metadata = wire.MetadataResponse(
        brokers=(wire.MetadataResponseBroker(node_id=1),),
        topics=tuple(wire.MetadataResponseTopic(name=name) for name in "tu"),
    )
    rest = without(metadata, Names("t"))
    assert rest is not None
    assert (rest.brokers, [topic.name for topic in rest.topics]) == (metadata.brokers, ["u"])
    request = wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name=name) for name in "tu"))
    refused = refusal(request, wire.MetadataResponse(), Names("t"), ERROR, 9)
    assert refused == wire.MetadataResponse(topics=(wire.MetadataResponseTopic(name="t", error_code=ERROR),))
    assert merged(rest, refused).brokers == metadata.brokers
    assert without(wire.HeartbeatRequest(), Names("t")) is None


@pytest.mark.parametrize("version", [2, 7])
def test_columns(version: int) -> None:
    """Partition states that are kept as columns."""
    message = wire.LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        topic_states=tuple(
            wire.LeaderAndIsrTopicState(
                topic_name=name,
                partition_states=tuple(
                    wire.LeaderAndIsrPartitionState(partition_index=p, leader=1, isr=(1,), replicas=(1,))
                    for p in range(3)
                ),
            )
            for name in "tu"
        ),
    )
    frame = wire.encode_request(message, api_version=version, correlation_id=1, client_id=None)
    decoded = wire.decode_request(frame)[1]
    rest = without(decoded, Names("t", 1))
    assert rest is not None
    again: Any = wire.decode_request(wire.encode_request(rest, api_version=version, correlation_id=1, client_id=None))[
        1
    ]
    found = [(t.topic_name, p.partition_index) for t in again.topic_states for p in t.partition_states]
    assert found == [("t", 0), ("t", 2), ("u", 0), ("u", 1), ("u", 2)]


T, U = uuid.UUID(int=1), uuid.UUID(int=2)
NUMBERS = {"t": (0, 1), "u": (0,)}


def two(cls: Any, *, by: str = "name", of: str = "partitions", part: Any = None, ids: bool = False) -> Any:
    """Partitions 0 and 1 of topic t and 0 of u, as plain numbers or as parts of a class."""
    return tuple(
        cls(**{
            by: name,
            of: numbers if part is None else tuple(part(partition_index=number) for number in numbers),
            **({"topic_id": T if name == "t" else U} if ids else {}),
        })
        for name, numbers in NUMBERS.items()
    )  # fmt: skip


#: of t-1, then which version; the response for it alone
ONE: list[tuple[Any, int, Any]] = [
    (
        wire.StopReplicaRequest(topics=two(wire.StopReplicaTopicV1, of="partition_indexes")),
        1,
        wire.StopReplicaResponse(
            partition_errors=(wire.StopReplicaPartitionError(topic_name="t", partition_index=1, error_code=ERROR),)
        ),
    ),
    (
        wire.LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=1,
            topic_states=two(
                wire.LeaderAndIsrTopicState,
                by="topic_name",
                of="partition_states",
                part=wire.LeaderAndIsrPartitionState,
                ids=True,
            ),
        ),
        7,
        wire.LeaderAndIsrResponse(
            topics=(
                wire.LeaderAndIsrTopicError(
                    topic_id=T, partition_errors=(wire.LeaderAndIsrPartitionError(partition_index=1, error_code=ERROR),)
                ),
            )
        ),
    ),
    (
        wire.OffsetFetchRequest(group_id="g", topics=two(wire.OffsetFetchRequestTopic, of="partition_indexes")),
        7,
        wire.OffsetFetchResponse(
            topics=(
                wire.OffsetFetchResponseTopic(
                    name="t", partitions=(wire.OffsetFetchResponsePartition(partition_index=1, error_code=ERROR),)
                ),
            )
        ),
    ),
    (
        wire.OffsetFetchRequest(
            groups=(
                wire.OffsetFetchRequestGroup(
                    group_id="g", topics=two(wire.OffsetFetchRequestTopics, of="partition_indexes")
                ),
                wire.OffsetFetchRequestGroup(group_id="h"),
            )
        ),
        9,
        wire.OffsetFetchResponse(
            groups=(
                wire.OffsetFetchResponseGroup(
                    group_id="g",
                    topics=(
                        wire.OffsetFetchResponseTopics(
                            name="t",
                            partitions=(wire.OffsetFetchResponsePartitions(partition_index=1, error_code=ERROR),),
                        ),
                    ),
                ),
            )
        ),
    ),
    (
        wire.AddPartitionsToTxnRequest(v3_and_below_topics=two(wire.AddPartitionsToTxnTopic)),
        3,
        wire.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=(
                wire.AddPartitionsToTxnTopicResult(
                    name="t",
                    results_by_partition=(
                        wire.AddPartitionsToTxnPartitionResult(partition_index=1, partition_error_code=ERROR),
                    ),
                ),
            )
        ),
    ),
    (
        wire.ElectLeadersRequest(topic_partitions=two(wire.ElectLeadersRequestTopicPartitions, by="topic")),
        2,
        wire.ElectLeadersResponse(
            replica_election_results=(
                wire.ReplicaElectionResult(
                    topic="t",
                    partition_result=(wire.PartitionResult(partition_id=1, error_code=ERROR, error_message=None),),
                ),
            )
        ),
    ),
    (
        wire.OffsetDeleteRequest(
            group_id="g", topics=two(wire.OffsetDeleteRequestTopic, part=wire.OffsetDeleteRequestPartition)
        ),
        0,
        wire.OffsetDeleteResponse(
            topics=(
                wire.OffsetDeleteResponseTopic(
                    name="t", partitions=(wire.OffsetDeleteResponsePartition(partition_index=1, error_code=ERROR),)
                ),
            )
        ),
    ),
    (
        wire.AlterPartitionRequest(
            broker_id=1,
            topics=tuple(
                wire.AlterPartitionRequestTopicData(
                    topic_id=topic_id,
                    partitions=tuple(wire.AlterPartitionRequestPartitionData(partition_index=n) for n in (0, 1)),
                )
                for topic_id in (T, U)
            ),
        ),
        3,
        wire.AlterPartitionResponse(
            topics=(
                wire.AlterPartitionResponseTopicData(
                    topic_id=T,
                    partitions=(wire.AlterPartitionResponsePartitionData(partition_index=1, error_code=ERROR),),
                ),
            )
        ),
    ),
]


@pytest.mark.parametrize(("request_", "version", "expected"), ONE, ids=[f"{type(r).__name__}-{v}" for r, v, _ in ONE])
def test_one_partition_is_refused(request_: Any, version: int, expected: Any) -> None:
    """Plain numbers, topic ids, and partitions of which brokers' own error responses say nothing."""
    names = Names("t", 1, {T: "t", U: "u"}.get)
    handler = next(h for h in HANDLERS if h.api_key == request_.__api_key__)
    frame = wire.encode_request(request_, api_version=version, correlation_id=1, client_id=None)
    header, decoded = wire.decode_request(frame)
    context = RequestContext(header, None)  # type: ignore[arg-type]
    fine = handler.error_response(decoded, context, ErrorCode.NONE)
    refused: Any = refusal(decoded, fine, names, ERROR, version)
    again = wire.encode_response(refused, api_version=version, correlation_id=1)
    key = request_.__api_key__
    found = [about for _, about in named_parts._walk(decoded, names, {}) if "partition" in about]
    rest = without(decoded, names)
    for number, is_there in ((0, True), (1, True), (2, False)):
        assert is_named(decoded, Names("t", number, names.topic_name)) == is_there
    left = [about for _, about in named_parts._walk(rest, names, {}) if "partition" in about]
    assert left == [about for about in found if (about["topic"], about["partition"]) != ("t", 1)]
    assert len(left) == len(found) - 1
    assert merged(type(expected)(), refused) == merged(type(expected)(), expected)
    assert wire.decode_response(again, api_key=key, api_version=version)[1] is not None


def test_what_has_errors_only_as_a_whole_is_not_refused_in_parts() -> None:
    states = (wire.UpdateMetadataPartitionState(partition_index=0),)
    request = wire.UpdateMetadataRequest(
        topic_states=(wire.UpdateMetadataTopicState(topic_name="t", partition_states=states),)
    )
    assert refusal(request, wire.UpdateMetadataResponse(), Names("t"), ERROR, 8) is None
    create = wire.CreateTopicsRequest(
        topics=(wire.CreatableTopic(name="t", assignments=(wire.CreatableReplicaAssignment(partition_index=0),)),)
    )
    assert refusal(create, wire.CreateTopicsResponse(), Names("t", 0), ERROR, 7) is None


def answer_with_errors(request: Any, version: int, names: Names) -> tuple[Any, Any]:
    """What is refused of a request, and what is left of it."""
    handler = next(h for h in HANDLERS if h.api_key == request.__api_key__)
    frame = wire.encode_request(request, api_version=version, correlation_id=1, client_id=None)
    context = RequestContext(wire.decode_request(frame)[0], None)  # type: ignore[arg-type]
    fine = handler.error_response(request, context, ErrorCode.NONE)
    return refusal(request, fine, names, ERROR, version), without(request, names)


def test_a_topic_with_settings_is_refused_alone() -> None:
    settings = (wire.CreatableTopicConfig(name="retention.ms", value="1"),)
    create = wire.CreateTopicsRequest(topics=tuple(wire.CreatableTopic(name=name, configs=settings) for name in "tu"))
    refused, rest = answer_with_errors(create, 7, Names("t"))
    assert [(topic.name, topic.error_code) for topic in refused.topics] == [("t", ERROR)]
    assert rest.topics == create.topics[1:]


def test_names_of_settings_assignors_and_users_are_no_topics() -> None:
    settings = (wire.CreatableTopicConfig(name="x", value="1"),)
    for message in (
        wire.CreateTopicsRequest(topics=(wire.CreatableTopic(name="t", configs=settings),)),
        wire.JoinGroupRequest(protocols=(wire.JoinGroupRequestProtocol(name="x"),)),
        wire.DescribeUserScramCredentialsRequest(users=(wire.UserName(name="x"),)),
        wire.ApiVersionsResponse(supported_features=(wire.SupportedFeatureKey(name="x"),)),
    ):
        assert not is_named(message, Names("x")), message


def test_the_settings_of_a_topic_name_it() -> None:
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource
    settings = (wire.IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", value="1"),)
    alter = wire.IncrementalAlterConfigsRequest(
        resources=tuple(
            resource(resource_type=kind, resource_name=name, configs=settings)
            for kind, name in ((2, "t"), (4, "t"), (2, "u"))  # topics, and a broker
        )
    )
    refused, rest = answer_with_errors(alter, 1, Names("t"))
    assert [(one.resource_type, one.resource_name, one.error_code) for one in refused.responses] == [(2, "t", ERROR)]
    assert rest.resources == alter.resources[1:]


def test_partitions_of_the_response_are_replaced() -> None:
    """A fetch session answers for what was taken out of a request."""
    assert codes(merged(committed(("t", 0), ("t", 1)), committed(("t", 1)))) == {("t", 0, 0), ("t", 1, 0)}
