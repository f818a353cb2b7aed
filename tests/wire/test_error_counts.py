"""Which error codes of a response count, as in the `errorCounts` of Kafka's responses (rule B1.33).

Covers: wire/error_counts.py.
"""

from __future__ import annotations

import pytest

from kce import wire
from kce.wire import ErrorCode

NONE, DENIED, UNKNOWN = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def group(code: int, *partitions: int) -> wire.OffsetFetchResponseGroup:
    made = tuple(
        wire.OffsetFetchResponsePartitions(partition_index=i, committed_offset=0, error_code=partition)
        for i, partition in enumerate(partitions)
    )
    topic = wire.OffsetFetchResponseTopics(name="t", partitions=made)
    return wire.OffsetFetchResponseGroup(group_id="g", topics=(topic,), error_code=code)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            wire.OffsetFetchResponse(groups=(group(NONE, NONE, UNKNOWN), group(DENIED))),
            {NONE: 2, UNKNOWN: 1, DENIED: 1},
        ),
        (wire.OffsetFetchResponse(error_code=DENIED), {DENIED: 1}),
        (wire.FindCoordinatorResponse(coordinators=(wire.Coordinator(error_code=DENIED),) * 2), {DENIED: 2}),
        (wire.FindCoordinatorResponse(error_code=DENIED), {DENIED: 1}),
        (
            wire.MetadataResponse(
                topics=(
                    wire.MetadataResponseTopic(
                        name="t", partitions=(wire.MetadataResponsePartition(error_code=UNKNOWN),) * 3
                    ),
                    wire.MetadataResponseTopic(name="u", error_code=DENIED),
                )
            ),
            {NONE: 1, UNKNOWN: 3, DENIED: 1},
        ),
        (
            wire.DeleteAclsResponse(
                filter_results=(
                    wire.DeleteAclsFilterResult(matching_acls=(wire.DeleteAclsMatchingAcl(error_code=DENIED),)),
                )
            ),
            {NONE: 1},
        ),
        (
            wire.UpdateFeaturesResponse(
                error_code=DENIED, results=(wire.UpdatableFeatureResult(feature="f", error_code=UNKNOWN),)
            ),
            {DENIED: 1, UNKNOWN: 1},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_counts(response: wire.Message, expected: dict[int, int]) -> None:
    assert wire.error_counts(response) == expected
