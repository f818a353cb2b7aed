"""Subscriptions and assignments. test_against_kafka_classes.py compares their bytes with Kafka's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire.consumer_protocol import decode_subscription_topics
from tests.captures.samples import CAPTURES, TOURS
from tests.sampling import examples
from tests.wire import seeded

SUBSCRIPTION = wire.ConsumerProtocolSubscription(
    topics=("orders", "payments"),
    user_data=b"\1",
    owned_partitions=(wire.ConsumerProtocolSubscriptionTopicPartition(topic="orders", partitions=(0, 2)),),
    generation_id=9,
    rack_id="r1",
)
ASSIGNMENT = wire.ConsumerProtocolAssignment(
    assigned_partitions=(wire.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=(1, 3)),)
)


def test_bytes_of_version_0() -> None:
    data = wire.encode_consumer_protocol(ASSIGNMENT, 0)
    assert data.hex() == "0000000000010006" + b"orders".hex() + "000000020000000100000003ffffffff"
    assert wire.decode_assignment(data) == (0, ASSIGNMENT)


@pytest.mark.parametrize("version", range(4))
def test_absent_fields_are_omitted(version: int) -> None:
    read_version, read = wire.decode_subscription(wire.encode_consumer_protocol(SUBSCRIPTION, version))
    assert read_version == version
    assert (read.topics, read.user_data) == (SUBSCRIPTION.topics, SUBSCRIPTION.user_data)
    assert read.owned_partitions == (SUBSCRIPTION.owned_partitions if version >= 1 else ())
    assert read.generation_id == (9 if version >= 2 else -1)
    assert read.rack_id == ("r1" if version >= 3 else None)


def test_unknown_version_is_decoded_as_newest() -> None:
    data = wire.encode_consumer_protocol(SUBSCRIPTION)
    later = b"\0\x63" + data[2:] + b"what that version adds"
    assert wire.decode_subscription(later) == (99, SUBSCRIPTION)


def test_unknown_versions_are_rejected() -> None:
    with pytest.raises(wire.UnsupportedVersion, match="ConsumerProtocolSubscription has versions 0-3, not -1"):
        wire.decode_subscription(b"\xff\xff\0\0\0\0")
    with pytest.raises(wire.EncodeError, match="ConsumerProtocolAssignment has versions 0-3, not 4"):
        wire.encode_consumer_protocol(ASSIGNMENT, 4)
    with pytest.raises(wire.Truncated, match="2 bytes needed for its version, 1 there"):
        wire.decode_assignment(b"\0")


@pytest.mark.parametrize("version", range(4))
def test_truncated_message_is_rejected(version: int) -> None:
    for message, decode in ((SUBSCRIPTION, wire.decode_subscription), (ASSIGNMENT, wire.decode_assignment)):
        data = wire.encode_consumer_protocol(message, version)
        for cut in range(len(data)):
            with pytest.raises(wire.DecodeError, match=type(message).__name__):
                decode(data[:cut])


def test_errors_contain_field_and_offset() -> None:
    data = wire.encode_consumer_protocol(SUBSCRIPTION, 1).replace(b"orders", b"\xff" * 6)
    with pytest.raises(
        wire.InvalidValue, match=r"ConsumerProtocolSubscription 1: not UTF-8.* at topics\[0\], offset 14"
    ):
        wire.decode_subscription(data)
    assert decode_subscription_topics(data) == (
        "\ufffd" * 6,
        *SUBSCRIPTION.topics[1:],
    )  # as Kafka's coordinator reads it
    with pytest.raises(wire.EncodeError, match=r"ConsumerProtocolSubscription 3: .* at topics\[0\]"):
        wire.encode_consumer_protocol(wire.ConsumerProtocolSubscription(topics=(None,)))  # type: ignore[arg-type]


@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from(["Subscription", "Assignment"]))
@settings(max_examples=examples(100), deadline=None)
def test_round_trip(seed: int, version: int, kind: str) -> None:
    message = seeded.message(random.Random(seed), getattr(wire, f"ConsumerProtocol{kind}"), version)
    decode = wire.decode_subscription if kind == "Subscription" else wire.decode_assignment
    assert decode(wire.encode_consumer_protocol(message, version)) == (version, message)


@pytest.mark.parametrize("name", TOURS)
def test_real_consumers_protocol(name: str) -> None:
    from kce.captures.exchanges.decode import Decoder
    from kce.captures.files.pcap import CaptureFile

    topics, partitions = set(), set()
    with CaptureFile(str(CAPTURES[name])) as capture:
        for message in Decoder(capture).messages():
            match message.body:
                case wire.JoinGroupRequest() as body:
                    for protocol in body.protocols:
                        topics |= {*wire.decode_subscription(protocol.metadata)[1].topics}
                case wire.SyncGroupRequest() as body:
                    for assignment in body.assignments:
                        for topic in wire.decode_assignment(assignment.assignment)[1].assigned_partitions:
                            partitions |= {(topic.topic, partition) for partition in topic.partitions}
    assert topics == {"orders"}
    assert {topic for topic, _ in partitions} == {"orders"}
    assert len(partitions) >= 4
