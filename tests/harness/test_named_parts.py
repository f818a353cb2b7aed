"""Parts of messages that name topics and partitions: found, taken out, and put together again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire
from kce.harness.named_parts import Names, merged, named, only, without
from kce.wire import ErrorCode

ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def of(topic: str | None, partition: int | None = None) -> Names:
    return lambda t, p: topic in (None, t) and (partition is None or partition == p)


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
    names = of(topic, partition) if (topic, partition) != (None, None) else (lambda t, p: t is not None)
    whole = committed(*partitions)
    chosen = {tp for tp in partitions if names(*tp)}
    rest = without(whole, names)
    assert (rest is None) == (chosen == set(partitions))
    assert rest is None or codes(rest) == {(*tp, 0) for tp in partitions if tp not in chosen}
    refused = only(whole, names, ERROR)
    assert codes(refused) == {(*tp, ERROR) for tp in chosen}
    assert any(named(whole, names)) == bool(chosen)
    together = merged(rest or wire.OffsetCommitResponse(throttle_time_ms=3), refused)
    assert codes(together) == {(*tp, ERROR if tp in chosen else 0) for tp in partitions}
    assert len(together.topics) == len({t for t, _ in partitions})
    assert rest is not None or together.throttle_time_ms == 3


def test_what_names_nothing_stays() -> None:
    metadata = wire.MetadataResponse(
        brokers=(wire.MetadataResponseBroker(node_id=1),),
        topics=tuple(wire.MetadataResponseTopic(name=name) for name in "tu"),
    )
    rest = without(metadata, of("t"))
    assert rest is not None
    assert (rest.brokers, [topic.name for topic in rest.topics]) == (metadata.brokers, ["u"])
    refused = only(metadata, of("t"), ERROR)
    assert (refused.brokers, [(topic.name, topic.error_code) for topic in refused.topics]) == ((), [("t", ERROR)])
    assert merged(rest, refused).brokers == metadata.brokers
    assert without(wire.HeartbeatRequest(), of("t")) is None


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
    rest = without(decoded, of("t", 1))
    assert rest is not None
    again: Any = wire.decode_request(wire.encode_request(rest, api_version=version, correlation_id=1, client_id=None))[
        1
    ]
    found = [(t.topic_name, p.partition_index) for t in again.topic_states for p in t.partition_states]
    assert found == [("t", 0), ("t", 2), ("u", 0), ("u", 1), ("u", 2)]
