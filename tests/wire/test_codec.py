"""The generated codec and its Construct produce the same bytes and values, and reject the same input.

Covers: wire/codegen.py, wire/layouts.py, wire/primitives.py.
"""

from __future__ import annotations

import gc
import io
import random
from typing import Any

import pytest
from construct import ConstructError
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire import layouts
from kce.wire.codec import REFUSALS, codec_for
from kce.wire.primitives import remaining
from kce.wire.registry import api
from kce.wire.schema import Struct, struct_for
from tests.wire.strategies import MESSAGE_IDS, MESSAGES, messages

REFUSED = object()


def _is_flexible(cls: type[wire.Message], version: int) -> bool:
    return version in api(cls.__api_key__).flexible


def _fast_bytes(message: Any, cls: type[Struct], version: int, flexible: bool) -> object:
    pieces: list[bytes] = []
    try:
        codec_for(cls, version, flexible).encode(message, pieces.append)
    except REFUSALS:
        return REFUSED
    return b"".join(pieces)


def _reference_bytes(message: Any, cls: type[Struct], version: int, flexible: bool) -> object:
    stream = io.BytesIO()
    try:
        struct_for(cls, version, flexible).build_stream(message, stream)
    except (ConstructError, *REFUSALS):
        return REFUSED
    return stream.getvalue()


def _fast_value(body: bytes, cls: type[Struct], version: int, flexible: bool) -> object:
    try:
        message, end = codec_for(cls, version, flexible).decode(body, 0)
    except REFUSALS:
        return REFUSED
    return message, message.unknown_tagged_fields, end


def _reference_value(body: bytes, cls: type[Struct], version: int, flexible: bool) -> object:
    stream = io.BytesIO(body)
    try:
        message = struct_for(cls, version, flexible).parse_stream(stream)
    except (ConstructError, *REFUSALS):
        return REFUSED
    return message, message.unknown_tagged_fields, len(body) - remaining(stream)


def _assert_same_value(body: bytes, cls: type[wire.Message], version: int, flexible: bool) -> None:
    fast, reference = _fast_value(body, cls, version, flexible), _reference_value(body, cls, version, flexible)
    if fast != reference:  # a NaN is unlike itself: its bytes tell
        assert isinstance(fast, tuple)
        assert isinstance(reference, tuple)
        assert fast[1:] == reference[1:]
        expected = _reference_bytes(reference[0], cls, version, flexible)
        assert _reference_bytes(fast[0], cls, version, flexible) == expected


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_engines_agree_on_bytes_and_values(cls: type[wire.Message], version: int, data: st.DataObject) -> None:
    flexible = _is_flexible(cls, version)
    message = data.draw(messages(cls, version))
    body = _reference_bytes(message, cls, version, flexible)
    assert isinstance(body, bytes)
    assert _fast_bytes(message, cls, version, flexible) == body
    assert _fast_value(body, cls, version, flexible) == _reference_value(body, cls, version, flexible)
    random_ = data.draw(st.randoms(use_true_random=False))
    for _ in range(12):
        _assert_same_value(_damage(body, random_), cls, version, flexible)


def _damage(body: bytes, chance: random.Random) -> bytes:
    """One of what goes wrong on the way: bits, lengths, cuts, insertions."""
    out = bytearray(body)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(4):
            case 0 if at < len(out):
                out[at] = chance.randrange(256)
            case 1:
                out[at : at + 4] = chance.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\x01"]
                )
            case 2:
                del out[at:]
            case _:
                out[at:at] = chance.randbytes(chance.randint(1, 5))
    return bytes(out)


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_engines_agree_on_invalid_values(cls: type[wire.Message], version: int) -> None:
    """Each field in turn holds something that is not of its type, or more than it can hold."""
    flexible = _is_flexible(cls, version)
    wrong = [None, True, 1.5, -1, 2**63, "x", "x" * 40_000, "\ud800", b"b", (None,), ("x",), [1], {}, object(), cls]
    for f in cls.__fields__:
        for value in wrong:
            message = cls(**{f.name: value})
            fast, reference = (
                _fast_bytes(message, cls, version, flexible),
                _reference_bytes(message, cls, version, flexible),
            )
            assert fast == reference, f"{f.name}={value!r:.60}"


# runs of elements that are laid out alike

CONTROL = [
    (wire.LeaderAndIsrRequest, 2), (wire.LeaderAndIsrRequest, 4), (wire.LeaderAndIsrRequest, 7),
    (wire.UpdateMetadataRequest, 5), (wire.UpdateMetadataRequest, 8), (wire.StopReplicaRequest, 4),
]  # fmt: skip


def _states(cls: type[wire.Message], count: int, chance: random.Random) -> wire.Message:
    """Partitions of a cluster, most of them healthy."""

    def replicas() -> tuple[int, ...]:
        return tuple(chance.choices(range(10), k=3))

    def isr() -> tuple[int, ...]:
        return tuple(chance.choices(range(10), k=chance.choice([3] * 30 + [2, 1, 0, 17])))

    if cls is wire.LeaderAndIsrRequest:
        states: Any = tuple(
            wire.LeaderAndIsrPartitionState(
                partition_index=i,
                leader=i % 10,
                leader_epoch=i,
                isr=isr(),
                partition_epoch=7,
                replicas=replicas(),
                is_new=i % 2 == 0,
            )
            for i in range(count)
        )
        return cls(topic_states=(wire.LeaderAndIsrTopicState(topic_name="t", partition_states=states),))  # type: ignore[call-arg]
    if cls is wire.UpdateMetadataRequest:
        states = tuple(
            wire.UpdateMetadataPartitionState(partition_index=i, leader=i % 10, isr=isr(), replicas=replicas())
            for i in range(count)
        )
        return cls(topic_states=(wire.UpdateMetadataTopicState(topic_name="t", partition_states=states),))  # type: ignore[call-arg]
    states = tuple(
        wire.StopReplicaPartitionState(partition_index=i, leader_epoch=i, delete_partition=i % 3 == 0)
        for i in range(count)
    )
    return cls(topic_states=(wire.StopReplicaTopicState(topic_name="t", partition_states=states),))  # type: ignore[call-arg]


@pytest.mark.parametrize(("cls", "version"), CONTROL, ids=lambda x: x if isinstance(x, int) else x.__name__)
def test_engines_agree_on_long_runs(cls: type[wire.Message], version: int) -> None:
    chance = random.Random(f"{cls.__name__}{version}")
    flexible = _is_flexible(cls, version)
    for _ in range(3):  # by the second, loops have been earned
        message = _states(cls, 2_000, chance)
        body = _reference_bytes(message, cls, version, flexible)
        assert isinstance(body, bytes)
        assert _fast_bytes(message, cls, version, flexible) == body
        assert _fast_value(body, cls, version, flexible) == (message, (), len(body))


@pytest.mark.parametrize(("cls", "version"), CONTROL, ids=lambda x: x if isinstance(x, int) else x.__name__)
def test_damage_inside_long_run(cls: type[wire.Message], version: int) -> None:
    chance = random.Random(f"{cls.__name__}{version}")
    flexible = _is_flexible(cls, version)
    body = _reference_bytes(_states(cls, 400, chance), cls, version, flexible)
    assert isinstance(body, bytes)
    for _ in range(60):
        _assert_same_value(_damage(body, chance), cls, version, flexible)


@pytest.mark.parametrize(
    "wrong",
    [
        {"leader": 2**31},
        {"leader": None},
        {"isr": [1, 2, 3]},
        {"isr": "abc"},
        {"isr": (1, 2, "3")},
        {"is_new": 1},
        {"replicas": None},
    ],
    ids=str,
)
def test_wrong_element_in_long_run(wrong: dict[str, Any]) -> None:
    good = [wire.LeaderAndIsrPartitionState(partition_index=i, isr=(1, 2, 3), replicas=(1, 2, 3)) for i in range(1_000)]
    good[700] = wire.LeaderAndIsrPartitionState(**{"isr": (1, 2, 3), "replicas": (1, 2, 3), **wrong})
    topic = wire.LeaderAndIsrTopicState(topic_name="t", partition_states=tuple(good))
    message = wire.LeaderAndIsrRequest(topic_states=(topic,))
    for _ in range(2):
        fast = _fast_bytes(message, wire.LeaderAndIsrRequest, 7, True)
        assert fast == _reference_bytes(message, wire.LeaderAndIsrRequest, 7, True)


def test_unknown_tagged_fields_inside_a_long_run_are_kept() -> None:
    chance = random.Random(5)
    body = _reference_bytes(_states(wire.UpdateMetadataRequest, 600, chance), wire.UpdateMetadataRequest, 8, True)
    assert isinstance(body, bytes)
    message, end = codec_for(wire.UpdateMetadataRequest, 8, True).decode(body, 0)
    state = message.topic_states[0].partition_states[300]
    object.__setattr__(state, "_unknown_tagged_fields", (wire.TaggedField(9, b"later"),))
    longer = _fast_bytes(message, wire.UpdateMetadataRequest, 8, True)
    assert isinstance(longer, bytes)
    assert longer == _reference_bytes(message, wire.UpdateMetadataRequest, 8, True)
    assert len(longer) == end + 2 + len(b"later")
    back, _ = codec_for(wire.UpdateMetadataRequest, 8, True).decode(longer, 0)
    assert back.topic_states[0].partition_states[300].unknown_tagged_fields == (wire.TaggedField(9, b"later"),)


def test_cached_layouts_are_bounded() -> None:
    """Every element with arrays of other lengths: no more loops are written than are kept."""
    cls = wire.LeaderAndIsrPartitionState
    loops = layouts.decode_run(struct_for(cls, 7, True))
    assert loops is not None
    for n in range(2_000):
        loops.loop((n,), 1)  # type: ignore[attr-defined]
    assert len(loops._elements) <= layouts.MAX_COUNTED  # type: ignore[attr-defined]
    for n in range(17):
        for m in range(17):
            loops.loop((n, m, 0, 0), 1_000_000)  # type: ignore[attr-defined]
    assert len(loops._loops) == layouts.MAX_LOOPS  # type: ignore[attr-defined]


def test_records_are_views_of_the_frame() -> None:
    frame = wire.encode_request(
        wire.ProduceRequest(
            topic_data=(
                wire.TopicProduceData(
                    name="t", partition_data=(wire.PartitionProduceData(index=0, records=b"12345"),)
                ),
            )
        ),
        api_version=9, correlation_id=1, client_id="c",
    )  # fmt: skip
    records = wire.decode_request(frame)[1].topic_data[0].partition_data[0].records  # type: ignore[attr-defined]
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records == b"12345"


@pytest.mark.parametrize("wanted", [True, False])
def test_garbage_collector_state_is_restored(wanted: bool) -> None:
    states = tuple(wire.UpdateMetadataPartitionState(partition_index=i) for i in range(2000))
    topics = (wire.UpdateMetadataTopicState(topic_name="t", partition_states=states),)
    message = wire.UpdateMetadataRequest(topic_states=topics)
    frame = wire.encode_request(message, api_version=8, correlation_id=1, client_id=None)
    before = gc.isenabled()
    try:
        (gc.enable if wanted else gc.disable)()
        assert wire.decode_request(frame)[1] == message
        assert gc.isenabled() is wanted
        with pytest.raises(wire.DecodeError):
            wire.decode_request(frame[:-1])
        assert gc.isenabled() is wanted
    finally:
        (gc.enable if before else gc.disable)()
