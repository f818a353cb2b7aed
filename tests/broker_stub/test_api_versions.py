"""ApiVersions (rules B1.36-B1.40, B1.61-B1.63).

Covers: broker_stub/handlers/kafka_apis.py.
"""

from __future__ import annotations

import struct
from contextlib import nullcontext

import pytest

from kce import wire
from kce.broker_stub.finalized_features import FinalizedFeatureCache
from kce.broker_stub.handlers.kafka_apis import REPEATED_BYTES, REPEATED_REQUESTS, served_apis
from kce.wire import ErrorCode
from kce.wire.steps import finish
from tests.broker_stub.support import Node, answer_of

KAFKA_RANGES = {
    0: (0, 11), 1: (0, 17), 2: (0, 9), 21: (0, 2), 23: (0, 4), 35: (0, 4), 61: (0, 0),
    3: (0, 12), 4: (0, 7), 5: (0, 4), 6: (0, 8), 7: (0, 3), 10: (0, 6), 18: (0, 4), 19: (0, 7), 20: (0, 6), 22: (0, 5),
    32: (0, 4), 33: (0, 2), 37: (0, 3), 43: (0, 2), 44: (0, 1), 45: (0, 0), 46: (0, 0), 56: (0, 3), 60: (0, 1),
    57: (0, 1), 8: (0, 9), 9: (0, 9), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 5), 16: (0, 5),
    17: (0, 1), 34: (0, 2), 36: (0, 2), 50: (0, 0), 51: (0, 0), 42: (0, 2), 47: (0, 0), 29: (0, 3), 30: (0, 3),
    48: (0, 1), 49: (0, 1),
    31: (0, 3), 38: (0, 3), 39: (0, 2), 40: (0, 2), 41: (0, 3), 58: (0, 0), 68: (0, 0), 69: (0, 0),
    24: (0, 5), 25: (0, 4), 26: (0, 4), 27: (0, 1), 28: (0, 4), 65: (0, 0), 66: (0, 1), 67: (0, 0),
}  # fmt: skip


def _ranges(answer: wire.ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}


def _request(name: str = "client", version: str = "1.0") -> wire.ApiVersionsRequest:
    return wire.ApiVersionsRequest(client_software_name=name, client_software_version=version)


@pytest.mark.kafka("AV-1")
@pytest.mark.kafka("AV-3")
@pytest.mark.parametrize("listener", ["CONTROL", "DATA"])
@pytest.mark.parametrize("version", range(5))
async def test_all_served_apis_are_listed_and_no_others(version, listener) -> None:  # rules B1.40, B1.61
    node = Node()
    answer = await node.ask(_request(), version, listener=listener)
    assert answer.error_code == ErrorCode.NONE
    assert _ranges(answer) == KAFKA_RANGES
    assert (answer.supported_features, answer.finalized_features) == ((), ())
    assert (answer.finalized_features_epoch, answer.zk_migration_ready) == (-1, False)
    for key, (first, last) in KAFKA_RANGES.items():
        for served in range(first, last + 1):
            node.apis.check_served(key, served)


async def test_each_response_has_the_correlation_id_of_its_request() -> None:
    node = Node()
    for correlation_id in (-1, 0, 2**31 - 1, -(2**31)):
        request, captured = node.request(_request(), 3)
        header = wire.Header(api_key=18, api_version=3, correlation_id=correlation_id, client_id="c")
        request.context = request.context._replace(header=header)
        node.apis.handle(request)
        assert captured.response is not None
        assert captured.response.payload[:4] == struct.pack(">i", correlation_id)


@pytest.mark.kafka("AV-5")
@pytest.mark.parametrize("version", [5, 6, 32767])
async def test_an_unknown_version_gets_a_version_0_response_with_one_entry(version) -> None:  # rule B1.37
    node = Node()
    request, captured = node.request(_request(), 3)
    header = wire.Header(api_key=18, api_version=version, correlation_id=5, client_id="c")
    request.context = request.context._replace(header=header)
    node.apis.handle(request)
    answer = answer_of(captured, 18, 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert _ranges(answer) == {18: (0, 4)}


@pytest.mark.kafka("AV-6")
@pytest.mark.kafka("AV-7")
@pytest.mark.parametrize("listener", ["CONTROL", "DATA"])
@pytest.mark.parametrize("version", range(3))
async def test_old_versions_need_no_software_name(version, listener) -> None:  # rule B1.38
    answer = await Node().ask(wire.ApiVersionsRequest(), version, listener=listener)
    assert answer.error_code == ErrorCode.NONE
    assert _ranges(answer) == KAFKA_RANGES


BAD = ["", "-", "a-", ".a", "a b", "a_b", "ä", "a\n", "a/b"]
GOOD = ["a", "9", "a-b.c", "A1"]


@pytest.mark.kafka("AV-9")
@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("text", BAD)
async def test_a_malformed_software_name_or_version_is_an_invalid_request(text, version) -> None:  # rule B1.38
    for request in (_request(name=text), _request(version=text)):
        answer = await Node().ask(request, version)
        assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, ())


@pytest.mark.kafka("SS-2")
@pytest.mark.kafka("SS-3")
@pytest.mark.parametrize("text", GOOD)
async def test_valid_software_names_are_stored_with_the_connection(text) -> None:  # rule B1.38
    node = Node()
    request, _ = node.request(_request(text, "2.0"), 2)
    node.apis.handle(request)
    assert request.connection.client_software_name == "unknown"
    request, _ = node.request(_request(text, "2.0"), 3)
    node.apis.handle(request)
    assert (request.connection.client_software_name, request.connection.client_software_version) == (text, "2.0")


@pytest.mark.parametrize(
    ("api_key", "version", "reason"),
    [
        (52, 0, "Vote is not served"),
        (4, 8, "only versions 0-7"),
        (4, -1, "only versions 0-7"),
        (3, 13, "only versions 0-12"),
        (56, 4, "only versions 0-3"),
        (9999, 0, "no API has key 9999"),
        (-1, 0, "no API has key -1"),
    ],
)
def test_unserved_apis_and_versions_are_refused_before_decoding(api_key, version, reason) -> None:  # rule B1.35
    with pytest.raises(wire.DecodeError, match=reason):
        Node().apis.check_served(api_key, version)


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_any_version_of_api_versions_is_accepted(version) -> None:  # rule B1.37
    Node().apis.check_served(18, version)


def test_a_repeated_request_is_decoded_once_and_keeps_its_own_header(monkeypatch) -> None:
    apis, decoded = Node().apis, []
    monkeypatch.setattr(apis, "_decode", lambda frame, *limit: decoded.append(frame) or wire.decode_request(frame))

    def frame(message: wire.Message, correlation_id: int, client_id: str, version: int = 3) -> bytes:
        return wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=client_id)

    same = [frame(_request(), correlation_id, "a") for correlation_id in (1, -1, 2**31 - 1, 1)]
    other = [frame(_request(), 1, "b"), frame(_request("other"), 1, "a"), frame(_request(), 1, "a", version=4)]
    long = frame(_request("x" * REPEATED_BYTES), 1, "a")
    for each in (*same, *other, *same, long, long):
        assert apis.decode(each) == wire.decode_request(each)
    assert decoded == [same[0], *other, long, long]


def test_few_requests_are_remembered() -> None:
    apis = Node().apis
    for i in range(3 * REPEATED_REQUESTS):
        apis.decode(wire.encode_request(_request(f"client{i}"), api_version=3, correlation_id=i, client_id="a"))
    assert 0 < len(apis._repeated) <= REPEATED_REQUESTS


def test_a_long_request_is_left_to_steps() -> None:
    apis = Node().apis
    message = wire.DeleteTopicsRequest(topic_names=tuple(map(str, range(10))), timeout_ms=0)
    frame = wire.encode_request(message, api_version=3, correlation_id=1, client_id="c" * REPEATED_BYTES)
    assert apis.decode(frame, 10) == apis.decode(frame) == wire.decode_request(frame)
    with pytest.raises(wire.TooManyElements):
        apis.decode(frame, 9)
    with pytest.raises(wire.DecodeError):
        apis.decode(frame[:3])
    with pytest.raises(wire.DecodeError, match="no API has key"):
        apis.decode(b"\x7f" + frame[1:])


def test_finalized_features_are_told_beside_the_apis() -> None:  # rule B1.40
    features = FinalizedFeatureCache({"f": (1, 4), "e": (1, 4)})
    apis = served_apis(features)
    plain = wire.ApiVersionsResponse(api_keys=apis.entries)
    assert apis.response() == plain
    before = apis.encoded_response(3)
    features.update({"f": 3, "e": 2}, 10)
    made = wire.FinalizedFeatureKey
    assert apis.response() == wire.ApiVersionsResponse(
        api_keys=apis.entries,
        finalized_features=(
            made(name="e", max_version_level=2, min_version_level=1),
            made(name="f", max_version_level=3, min_version_level=1),
        ),
        finalized_features_epoch=10,
    )
    assert len(apis.encoded_response(3)) > len(before)
    features.clear()
    assert apis.encoded_response(3) == before


async def test_sasl_after_the_authentication() -> None:  # rule B9.9
    node, code = Node(), ErrorCode.ILLEGAL_SASL_STATE
    assert await node.ask(wire.SaslHandshakeRequest(mechanism="PLAIN"), 1) == wire.SaslHandshakeResponse(
        error_code=code
    )
    assert await node.ask(wire.SaslAuthenticateRequest(), 2) == wire.SaslAuthenticateResponse(
        error_code=code, error_message="SaslAuthenticate request received after successful authentication"
    )


def damaged(client_id: bytes = b"app", rest: bytes = b"", version: int = 12, topics: int = 1) -> bytes:
    """A Metadata request."""
    message = wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name="a"),) * topics)
    frame = wire.encode_request(message, api_version=version, correlation_id=7, client_id="?")
    return frame[:8] + len(client_id).to_bytes(2) + client_id + frame[11:] + rest


@pytest.mark.parametrize("version", [0, 8, 9, 12])
@pytest.mark.parametrize(
    ("client_id", "rest", "read"),
    [
        (b"app", b"x", "app"),
        (b"app", bytes(9), "app"),
        (b"m\xfcller", b"", "m\ufffdller"),  # Latin-1
        (b"\xfc" * 20_000, b"", "\ufffd" * 20_000),
        (b"m\xfcller", b"xyz", "m\ufffdller"),
        (b"\xed\xa0\x80", b"", "\ufffd"),  # a surrogate, as Java reads it
    ],
)
def test_what_kafka_reads_nevertheless(version: int, client_id: bytes, rest: bytes, read: str) -> None:
    """It ignores bytes after a request, and replaces what is no UTF-8 in a text; nothing else."""
    apis = Node().apis
    good = damaged(version=version)
    for frame, decode in (
        (damaged(client_id, rest, version), apis.decode),
        (damaged(client_id, rest, version, topics=1000), lambda frame: finish(apis.decode_in_steps(frame))),
    ):
        header, message = decode(frame)
        assert header == wire.Header(3, version, 7, read)
        assert isinstance(message, wire.MetadataRequest)
        assert {topic.name for topic in message.topics or ()} == {"a"}
        other = decode(frame.replace(b"\1a" if version < 9 else b"\2a", b"\1\xff" if version < 9 else b"\2\xff"))[1]
        assert isinstance(other, wire.MetadataRequest)
        assert {topic.name for topic in other.topics or ()} == {"\ufffd"}
    assert apis.decode(good)[0].client_id == "app"
    with pytest.raises(wire.DecodeError):
        apis.decode(good[:-1])
    with pytest.raises(wire.InvalidValue, match="not UTF-8"):  # what is refused first is said
        apis.decode(damaged(b"\xfc", version=version)[:-1])


@pytest.mark.parametrize(("version", "is_refused"), [(0, False), (1, True), (2, True), (3, False), (8, False)])
def test_security_protocols_are_looked_up_as_kafka_parses_a_request(version: int, is_refused: bool) -> None:
    for protocol in (3, 4, -1):
        endpoint = wire.UpdateMetadataEndpoint(port=1, host="h", listener="SASL_SSL", security_protocol=protocol)
        broker = wire.UpdateMetadataBroker(id=1, endpoints=(endpoint,), v0_host="h", v0_port=1)
        message = wire.UpdateMetadataRequest(live_brokers=(broker,))
        frame = wire.encode_request(message, api_version=version, correlation_id=7, client_id="c")
        for rest in (b"", b"rest"):
            with (
                pytest.raises(wire.DecodeError, match=f"number {protocol}")
                if is_refused and protocol != 3
                else nullcontext()
            ):
                Node().apis.decode(frame + rest)
