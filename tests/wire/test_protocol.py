"""Headers, errors and limits. test_against_kio.py compares bytes with kio's.

Covers: wire/__init__.py, wire/errors.py, wire/headers.py.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import tracemalloc
import uuid

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire.registry import API_KEYS, BY_NAME
from tests.wire import seeded
from tests.wire.strategies import MESSAGE_IDS, MESSAGES

SAMPLE = wire.LeaderAndIsrRequest(
    controller_id=1,
    controller_epoch=5,
    broker_epoch=77,
    topic_states=(
        wire.LeaderAndIsrTopicState(
            topic_name="orders",
            topic_id=uuid.UUID(int=9),
            partition_states=(wire.LeaderAndIsrPartitionState(leader=2, isr=(2, 3), replicas=(2, 3), is_new=True),),
        ),
    ),
    live_leaders=(wire.LeaderAndIsrLiveLeader(broker_id=2, host_name="h", port=9092),),
)


def _encode(message: wire.Message, version: int) -> bytes:
    if message.__direction__ == "request":
        return wire.encode_request(message, api_version=version, correlation_id=7, client_id="c")
    return wire.encode_response(message, api_version=version, correlation_id=7)


def _decode(frame: bytes, cls: type[wire.Message], version: int) -> wire.Message:
    if cls.__direction__ == "request":
        return wire.decode_request(frame)[1]
    return wire.decode_response(frame, api_key=cls.__api_key__, api_version=version)[1]


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=3, deadline=None)
def test_truncated_or_extended_frame_is_rejected(cls: type[wire.Message], version: int, seed: int) -> None:
    message = seeded.message(random.Random(seed), cls, version)
    assume(not (isinstance(message, wire.ApiVersionsResponse) and message.error_code == 35))  # cut, it is version 0
    frame = _encode(message, version)
    for cut in range(0, len(frame), 1 + len(frame) // 150):
        with pytest.raises(wire.DecodeError):
            _decode(frame[:cut], cls, version)
    with pytest.raises(wire.TrailingBytes) as trailing:
        _decode(frame + b"\0", cls, version)
    assert trailing.value.left_over == b"\0"
    assert trailing.value.message == _decode(frame, cls, version)


@pytest.mark.parametrize("version", [0, 2, 7])
def test_huge_array_count_is_rejected_without_allocation(version: int) -> None:
    frame = bytearray(
        wire.encode_request(wire.LeaderAndIsrRequest(), api_version=version, correlation_id=1, client_id="")
    )
    if version < 4:
        frame[-4:] = struct.pack(">i", 2**31 - 1)
    else:
        frame[-2:-1] = b"\xff\xff\xff\xff\x07"
    for _ in range(2):  # what grows once, such as the table of a cache, does not count
        tracemalloc.start()
        with pytest.raises(wire.LimitExceeded, match="live_leaders"):
            wire.decode_request(bytes(frame))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 500_000


def test_errors_contain_message_version_path_and_offset() -> None:
    frame = bytearray(wire.encode_request(SAMPLE, api_version=7, correlation_id=1, client_id="c"))
    frame[frame.index(b"orders")] = 0xFF
    with pytest.raises(
        wire.InvalidValue, match=r"LeaderAndIsrRequest 7: not UTF-8.*topic_states\[0\].topic_name, offset"
    ):
        wire.decode_request(bytes(frame))
    bad = wire.LeaderAndIsrRequest(live_leaders=(wire.LeaderAndIsrLiveLeader(host_name=None),))  # type: ignore[arg-type]
    with pytest.raises(wire.EncodeError, match=r"LeaderAndIsrRequest 2:.*live_leaders\[0\].host_name"):
        wire.encode_request(bad, api_version=2, correlation_id=1, client_id="c")


def test_decode_error_carries_header() -> None:
    frame = wire.encode_request(SAMPLE, api_version=7, correlation_id=41, client_id="c")
    with pytest.raises(wire.Truncated) as caught:
        wire.decode_request(frame[:-1])
    assert (caught.value.api_key, caught.value.api_version, caught.value.correlation_id) == (4, 7, 41)


def test_absent_fields() -> None:  # rule 13.2
    ignorable = wire.LeaderAndIsrPartitionState(is_new=True, adding_replicas=(1,))
    with_it = wire.LeaderAndIsrRequest(broker_epoch=9, ungrouped_partition_states=(ignorable,))
    without = wire.LeaderAndIsrRequest(ungrouped_partition_states=(wire.LeaderAndIsrPartitionState(),))
    assert _encode(with_it, 0) == _encode(without, 0)
    recovering = wire.LeaderAndIsrPartitionState(leader_recovery_state=1)
    with pytest.raises(wire.EncodeError, match="version 0 has no leader_recovery_state"):
        _encode(wire.LeaderAndIsrRequest(ungrouped_partition_states=(recovering,)), 0)
    with pytest.raises(wire.EncodeError, match="version 6 has no is_kraft_controller"):
        _encode(wire.LeaderAndIsrRequest(is_kraft_controller=True), 6)


def test_is_kraft_controller_precedes_controller_epoch() -> None:  # rule 13.12
    frame = _encode(wire.LeaderAndIsrRequest(controller_id=1, is_kraft_controller=True, controller_epoch=2), 7)
    assert b"\0\0\0\1\1\0\0\0\2" in frame


def test_endpoints_have_port_before_host() -> None:  # rule 13.20
    endpoint = wire.UpdateMetadataEndpoint(port=0x1234, host="hh", listener="L")
    frame = _encode(wire.UpdateMetadataRequest(live_brokers=(wire.UpdateMetadataBroker(endpoints=(endpoint,)),)), 3)
    assert frame.index(b"\x12\x34") < frame.index(b"hh")


def test_update_metadata_type_is_tag_0_and_omitted_if_0() -> None:  # rule 13.16
    plain, full = wire.UpdateMetadataRequest(), wire.UpdateMetadataRequest(type=2)
    assert len(_encode(full, 8)) == len(_encode(plain, 8)) + 3
    assert wire.decode_request(_encode(full, 8))[1] == full


def test_controlled_shutdown_0_has_no_client_id() -> None:  # rule 13.4
    frame = wire.encode_request(
        wire.ControlledShutdownRequest(broker_id=3), api_version=0, correlation_id=1, client_id="gone"
    )
    assert frame == struct.pack(">hhii", 7, 0, 1, 3)
    assert wire.decode_request(frame)[0].client_id is None


def test_null_client_id_is_kept() -> None:
    frame = wire.encode_request(wire.ApiVersionsRequest(), api_version=0, correlation_id=1, client_id=None)
    assert wire.decode_request(frame)[0].client_id is None


def test_unknown_tagged_fields_round_trip() -> None:
    frame = wire.encode_request(
        wire.ControlledShutdownRequest(broker_id=1), api_version=3, correlation_id=1, client_id=""
    )
    assert frame.endswith(b"\0")
    strange = frame[:-1] + b"\x02\x05\x01a\x09\x00"
    _, message = wire.decode_request(strange)
    assert [tuple(f) for f in message.unknown_tagged_fields] == [(5, b"a"), (9, b"")]
    assert wire.encode_request(message, api_version=3, correlation_id=1, client_id="") == strange
    for bad in (b"\x02\x05\x00\x05\x00", b"\x02\x05\x00\x04\x00"):  # the same tag twice, tags descending
        with pytest.raises(wire.InvalidValue, match="tag"):
            wire.decode_request(frame[:-1] + bad)


def test_unknown_api_versions_version_gets_version_0_response() -> None:  # rule B1.37
    frame = struct.pack(">hhih", 18, 9, 5, 1) + b"c\0" + b"whatever the future holds"
    header, message = wire.decode_request(frame)
    assert (header.api_version, header.correlation_id, header.client_id) == (9, 5, "c")
    assert message == wire.ApiVersionsRequest()
    refusal = wire.ApiVersionsResponse(
        error_code=wire.ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(wire.ApiVersion(api_key=18, min_version=0, max_version=4),),
    )
    answer = wire.encode_response(refusal, api_version=9, correlation_id=5)
    assert answer == struct.pack(">ihihhh", 5, 35, 1, 18, 0, 4)
    for requested in (0, 3, 4, 9):
        header, message = wire.decode_response(answer, api_key=18, api_version=requested)
        assert message == refusal
        assert header.api_version == 0


def test_api_versions_error_35_in_requested_version_is_decoded() -> None:
    refusal = wire.ApiVersionsResponse(error_code=35, throttle_time_ms=3)
    for version in (1, 3, 4):
        answer = wire.encode_response(refusal, api_version=version, correlation_id=5)
        assert wire.decode_response(answer, api_key=18, api_version=version)[1] == refusal


def test_api_versions_response_has_header_0_even_if_flexible() -> None:  # rule B1.39
    answer = wire.encode_response(wire.ApiVersionsResponse(), api_version=4, correlation_id=5)
    assert answer[:6] == struct.pack(">ih", 5, 0)


def test_unknown_api_and_version_are_reported() -> None:
    with pytest.raises(wire.UnknownApiKey, match="9999"):
        wire.decode_request(struct.pack(">hhih", 9999, 0, 1, -1))
    with pytest.raises(wire.UnsupportedVersion, match=r"LeaderAndIsr has versions 0-7, not 8"):
        wire.decode_request(struct.pack(">hhihB", 4, 8, 1, -1, 0))
    with pytest.raises(wire.UnsupportedVersion, match="LeaderAndIsr has versions 0-7, not 8"):
        _encode(SAMPLE, 8)
    with pytest.raises(wire.EncodeError, match="a response expected"):
        wire.encode_response(SAMPLE, api_version=0, correlation_id=1)


def test_header_of_any_api_can_be_decoded() -> None:
    produce = struct.pack(">hhih", 0, 9, 5, 2) + b"me\0" + b"body"
    assert wire.decode_request_header(produce) == wire.Header(
        api_key=0, api_version=9, correlation_id=5, client_id="me"
    )


def test_header_versions() -> None:  # rule 13.3
    table = {
        "LeaderAndIsr": [1, 1, 1, 1, 2, 2, 2, 2],
        "StopReplica": [1, 1, 2, 2, 2],
        "UpdateMetadata": [1] * 6 + [2] * 3,
        "ControlledShutdown": [0, 1, 1, 2],
        "AlterPartition": [2, 2, 2, 2],
    }
    for name, versions in table.items():
        known = BY_NAME[name]
        assert [known.request_header_version(v) for v in range(len(versions))] == versions
        assert [known.response_header_version(v) for v in range(len(versions))] == [v // 2 for v in versions]


def test_there_are_62_apis_on_a_zookeeper_broker() -> None:  # rule B1.61
    assert [a.key for a in API_KEYS if a.zk_broker] == [*range(52), 56, 57, 58, 60, 61, *range(65, 70)]


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_every_message_has_defaults(cls: type[wire.Message], version: int) -> None:
    assert getattr(wire, cls.__name__) is cls
    message = cls()
    assert _decode(_encode(message, version), cls, version) == message
    for field in dataclasses.fields(message):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, 1)
