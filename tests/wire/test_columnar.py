"""Columns hold the values of the row codec, reject the same input, and encode to the same bytes.

Covers: wire/columnar_memory.py, wire/columnar_kernels.py, wire/columnar_write_kernels.py.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from tests.wire.strategies import messages

CONTROL = [
    (cls, version)
    for cls in (wire.LeaderAndIsrRequest, wire.StopReplicaRequest, wire.UpdateMetadataRequest)
    for version in range(cls.__versions__.first, cls.__versions__.last + 1)
]
each_version = pytest.mark.parametrize(
    ("cls", "version"), CONTROL, ids=lambda x: x if isinstance(x, int) else x.__name__
)


def _frame(message: wire.Message, version: int, correlation_id: int = 7) -> bytes:
    return wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id="c")


def _rows(message: Any, version: int) -> list[tuple[str, bytes | None, dict[str, Any]]]:
    """(topic, its id, fields) of each partition state, as the row codec has them."""
    rows = []
    topics = next(
        value
        for name in ("topic_states", "topics", "ungrouped_partition_states", "ungrouped_partitions")
        if any(f.name == name and version in f.versions for f in message.__fields__)
        for value in [getattr(message, name)]
    )
    for topic in topics:
        fields = {f.name: getattr(topic, f.name) for f in topic.__fields__ if version in f.versions}
        name = fields.get("topic_name", fields.get("name", ""))
        topic_id = fields["topic_id"].bytes if "topic_id" in fields else None
        if "partition_indexes" in fields:
            rows += [(name, topic_id, {"partition_index": i}) for i in topic.partition_indexes]
            continue
        for state in fields.get("partition_states", (topic,)):
            own = {f.name: getattr(state, f.name) for f in state.__fields__ if version in f.versions}
            rows.append((own.pop("topic_name", name), topic_id, own))
    return rows


def _rows_of(columns: dict[str, Any]) -> list[tuple[str, bytes | None, dict[str, Any]]]:
    apart = ("topic", "request_")
    names = [n for n in columns if not n.startswith(apart) and not n.endswith("_offsets")]
    topics = wire.topic_names(columns)
    rows = []
    for i, topic in enumerate(columns["topic"]):
        own: dict[str, Any] = {}
        for name in names:
            if f"{name}_offsets" in columns:
                begin, end = columns[f"{name}_offsets"][i : i + 2]
                own[name] = tuple(columns[name][begin:end].tolist())
            else:
                own[name] = columns[name][i].item()
        topic_id = columns["topic_id"][topic].tobytes() if "topic_id" in columns else None
        rows.append((topics[topic], topic_id, own))
    return rows


@pytest.mark.heavy
@each_version
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_columns_equal_rows_and_round_trip(cls: Any, version: int, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(messages(cls, version), max_size=3))
    frames = [_frame(message, version, i) for i, message in enumerate(drawn)]
    columns = wire.columns(cls.__api_key__, version, frames)
    decoded = [wire.decode_request(frame)[1] for frame in frames]
    assert _rows_of(columns) == [row for message in decoded for row in _rows(message, version)]
    assert columns["request_correlation_id"].tolist() == list(range(len(frames)))
    assert columns["request_controller_epoch"].tolist() == [m.controller_epoch for m in decoded]  # type: ignore[attr-defined]
    assert wire.from_columns(cls.__api_key__, version, columns) == frames


@pytest.mark.heavy
@each_version
def test_columns_reject_what_rows_reject(cls: Any, version: int) -> None:
    chance = random.Random(f"{cls.__name__} {version}")
    frame = _frame(_cluster(cls, version), version)
    rejected = 0
    for _ in range(150):
        damaged = bytearray(frame)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(8, len(damaged))
            match chance.randrange(4):
                case 0:
                    damaged[at] = chance.randrange(256)
                case 1:
                    damaged[at : at + 4] = chance.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x01"])
                case 2 if at > 20:
                    del damaged[at:]
                case _:
                    damaged[at:at] = chance.randbytes(chance.randint(1, 5))
        by_row = _outcome(lambda d=bytes(damaged): _rows(wire.decode_request(d)[1], version))
        by_column = _outcome(lambda d=bytes(damaged): _rows_of(wire.columns(cls.__api_key__, version, [d])))
        assert by_column == by_row
        rejected += isinstance(by_row, str)
    assert rejected > 20


def _outcome(read: Callable[[], object]) -> object:
    """The decoded value, or the error."""
    try:
        return read()
    except wire.DecodeError as e:
        return f"{type(e).__name__}: {e}"


def _cluster(cls: Any, version: int) -> wire.Message:
    """Some topics with partitions, in the shape of that version."""
    if cls is wire.StopReplicaRequest:
        if version == 0:
            return cls(ungrouped_partitions=tuple(
                wire.StopReplicaPartitionV0(topic_name=f"t{i // 9}", partition_index=i % 9) for i in range(30)
            ))  # type: ignore[no-any-return]  # fmt: skip
        if version < 3:
            return cls(topics=tuple(wire.StopReplicaTopicV1(name=f"t{i}", partition_indexes=(1, 2)) for i in range(5)))  # type: ignore[no-any-return]
        states: Any = tuple(wire.StopReplicaPartitionState(partition_index=i, leader_epoch=i) for i in range(9))
        return cls(topic_states=tuple(
            wire.StopReplicaTopicState(topic_name=f"t{i}", partition_states=states) for i in range(5)
        ))  # type: ignore[no-any-return]  # fmt: skip
    leader_and_isr = cls is wire.LeaderAndIsrRequest
    state = wire.LeaderAndIsrPartitionState if leader_and_isr else wire.UpdateMetadataPartitionState
    topic = wire.LeaderAndIsrTopicState if leader_and_isr else wire.UpdateMetadataTopicState
    common: dict[str, Any] = {"leader": 1, "isr": (1, 2), "replicas": (1, 2, 3)}
    if version < (2 if leader_and_isr else 5):
        return cls(ungrouped_partition_states=tuple(  # type: ignore[no-any-return]
            state(topic_name=f"t{i // 9}", partition_index=i % 9, **common) for i in range(30)
        ))  # fmt: skip
    states = tuple(state(partition_index=i, **common) for i in range(9))
    return cls(topic_states=tuple(  # type: ignore[no-any-return]
        topic(topic_name=f"t{i}", partition_states=states) for i in range(5)
    ))  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("cls", "version"),
    [each for each in CONTROL if each[0] is not wire.StopReplicaRequest],
    ids=lambda x: x if isinstance(x, int) else x.__name__,
)
@pytest.mark.parametrize("seed", range(2))
def test_runs_of_equal_layout(cls: Any, version: int, seed: int) -> None:
    """Runs of any length, with arrays of any length, and with tagged fields."""
    chance = random.Random(seed)
    leader_and_isr = cls is wire.LeaderAndIsrRequest
    state: Any = wire.LeaderAndIsrPartitionState if leader_and_isr else wire.UpdateMetadataPartitionState
    topic: Any = wire.LeaderAndIsrTopicState if leader_and_isr else wire.UpdateMetadataTopicState
    grouped, flexible = version >= (2 if leader_and_isr else 5), version >= (4 if leader_and_isr else 6)
    arrays = [n for n in ("isr", "replicas", "offline_replicas", "adding_replicas", "removing_replicas")
              if any(f.name == n and version in f.versions for f in state.__fields__)]  # fmt: skip
    topics: list[list[Any]] = []
    for t in range(30):
        states: list[Any] = []
        name = {} if grouped else {"topic_name": f"a topic, {t}"}
        for _ in range(chance.randrange(6)):
            lengths = {name: chance.choice((0, 1, 3, 3, 3, 126, 127, 200)) for name in arrays}
            for _ in range(chance.choice((1, 2, 3, 4, 5, 6, 40))):
                values = {name: tuple(chance.randrange(-(2**31), 2**31) for _ in range(n))
                          for name, n in lengths.items()}  # fmt: skip
                states.append(state(partition_index=chance.randrange(2**31), leader=len(states), **values, **name))
        topics.append(states)

    def request() -> wire.Message:
        if not grouped:
            return cls(ungrouped_partition_states=tuple(state for states in topics for state in states))  # type: ignore[no-any-return]
        return cls(topic_states=tuple(  # type: ignore[no-any-return]
            topic(topic_name=f"a topic, {t}", partition_states=tuple(states)) for t, states in enumerate(topics)
        ))  # fmt: skip

    frame = _frame(request(), version)
    for state in [state for states in topics for state in states if flexible and chance.random() < 0.02]:
        object.__setattr__(state, "_unknown_tagged_fields", (wire.TaggedField(9, b"later"),))
    with_unknown_tags = _frame(request(), version)
    assert (with_unknown_tags != frame) == flexible
    columns = wire.columns(cls.__api_key__, version, [with_unknown_tags, with_unknown_tags])
    assert _rows_of(columns) == 2 * _rows(wire.decode_request(with_unknown_tags)[1], version)
    assert wire.from_columns(cls.__api_key__, version, columns) == 2 * [frame]


def test_unknown_tagged_fields_are_skipped() -> None:
    state = wire.UpdateMetadataPartitionState(partition_index=5)
    object.__setattr__(state, "_unknown_tagged_fields", (wire.TaggedField(3, b"later"), wire.TaggedField(300, b"")))
    topic = wire.UpdateMetadataTopicState(topic_name="t", partition_states=(state,))
    object.__setattr__(topic, "_unknown_tagged_fields", (wire.TaggedField(1, b"x" * 200),))
    frame = _frame(wire.UpdateMetadataRequest(topic_states=(topic,)), 8)
    columns = wire.columns(6, 8, [frame])
    assert columns["partition_index"].tolist() == [5]
    assert wire.topic_names(columns) == ["t"]


NUMBERS = ("partition_index", "controller_epoch", "leader", "leader_epoch", "partition_epoch")


def test_types_and_shapes() -> None:
    message = wire.LeaderAndIsrRequest(
        broker_epoch=5,
        topic_states=(
            wire.LeaderAndIsrTopicState(topic_name="none"),
            wire.LeaderAndIsrTopicState(
                topic_name="t",
                topic_id=uuid.UUID(int=9),
                partition_states=(wire.LeaderAndIsrPartitionState(isr=(1, 2), is_new=True),),
            ),
        ),
        live_leaders=(wire.LeaderAndIsrLiveLeader(broker_id=4),),
    )
    columns = wire.columns(4, 7, [_frame(message, 7)])
    assert {name: (column.dtype, column.shape) for name, column in columns.items()} == {
        **dict.fromkeys(NUMBERS, (np.int32, (1,))),
        "is_new": (np.bool_, (1,)), "leader_recovery_state": (np.int8, (1,)),
        "isr": (np.int32, (2,)), "isr_offsets": (np.int64, (2,)),
        **dict.fromkeys(("replicas", "adding_replicas", "removing_replicas"), (np.int32, (0,))),
        **{f"{n}_offsets": (np.int64, (2,)) for n in ("replicas", "adding_replicas", "removing_replicas")},
        "topic": (np.int64, (1,)), "topic_name": (np.uint8, (5,)), "topic_name_offsets": (np.int64, (3,)),
        "topic_id": (np.uint8, (2, 16)),
        "topic_request": (np.int64, (2,)),
        "request_correlation_id": (np.int32, (1,)), "request_client_id": (np.dtype(object), (1,)),
        "request_controller_id": (np.int32, (1,)), "request_is_kraft_controller": (np.bool_, (1,)),
        "request_controller_epoch": (np.int32, (1,)), "request_broker_epoch": (np.int64, (1,)),
        "request_type": (np.int8, (1,)), "request_live_leaders": (np.dtype(object), (1,)),
    }  # fmt: skip
    assert columns["topic"].tolist() == [1]
    assert columns["request_live_leaders"][0] == message.live_leaders


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"leader": None}, "no column 'leader'"),
        ({"leader": np.array([2**31])}, "leader has values that are not int32"),
        ({"isr_offsets": np.array([0, 9])}, "isr_offsets must ascend"),
        ({"isr_offsets": np.array([2, 0])}, "isr_offsets must ascend"),
        ({"topic": np.array([3])}, "topic must ascend"),
        ({"topic_request": np.array([-1])}, "topic_request must ascend"),
        (
            {"topic_name": np.zeros(40_000, np.uint8), "topic_name_offsets": np.array([0, 40_000])},
            "32767 bytes",
        ),
        ({"topic_name_offsets": np.array([0, 2])}, "topic_name_offsets must ascend"),
        ({"topic_name_offsets": np.array([], np.int64)}, "topic_name_offsets is empty"),
        ({"isr_offsets": np.array([0, 1, 2])}, "isr_offsets has 3 entries, not 2"),
        ({"isr_offsets": np.array([-1, 2])}, "isr_offsets must ascend"),
        ({"removing_replicas_offsets": np.array([0, 1])}, "removing_replicas_offsets must ascend"),
        ({"topic": np.array([1])}, "topic must ascend"),
        ({"topic_request": np.array([1])}, "topic_request must ascend"),
        ({"topic_id": np.zeros((1, 15), np.uint8)}, "topic_id has shape"),
        ({"request_controller_id": np.array([2**31])}, "LeaderAndIsrRequest 7"),
    ],
    ids=str,
)
def test_invalid_columns_are_rejected(change: dict[str, Any], error: str) -> None:
    state = wire.LeaderAndIsrPartitionState(isr=(1, 2))
    topic = wire.LeaderAndIsrTopicState(topic_name="t", partition_states=(state,))
    columns = wire.columns(4, 7, [_frame(wire.LeaderAndIsrRequest(topic_states=(topic,)), 7)])
    changed = {name: column for name, column in {**columns, **change}.items() if column is not None}
    with pytest.raises(wire.EncodeError, match=error):
        wire.from_columns(4, 7, changed)


def test_an_array_field_with_most_of_the_bytes() -> None:
    """The first attempt has no room for it."""
    replicas = tuple(range(5000))
    state = wire.UpdateMetadataPartitionState(partition_index=1, isr=(7,), replicas=replicas)
    topic = wire.UpdateMetadataTopicState(topic_name="t", partition_states=(state, state))
    frames = [_frame(wire.UpdateMetadataRequest(topic_states=(topic,)), 8, i) for i in range(2)]
    columns = wire.columns(6, 8, frames)
    assert columns["replicas"].tolist() == [*replicas] * 4
    assert columns["isr"].tolist() == [7] * 4
    assert columns["topic_request"].tolist() == [0, 1]
    assert columns["request_correlation_id"].tolist() == [0, 1]
    assert wire.from_columns(6, 8, columns) == frames


def test_fields_after_the_topics_are_those_of_each_request() -> None:
    """They are kept from one request to the next."""
    leaders = [(), (wire.LeaderAndIsrLiveLeader(broker_id=1),), (wire.LeaderAndIsrLiveLeader(broker_id=2),)]
    frames = [_frame(wire.LeaderAndIsrRequest(controller_id=i, live_leaders=each), 7) for i, each in enumerate(leaders)]
    for _ in range(2):
        columns = wire.columns(4, 7, frames)
        assert columns["request_live_leaders"].tolist() == leaders
        assert wire.from_columns(4, 7, columns) == frames
    damaged = frames[1][:-3]
    with pytest.raises(wire.DecodeError):
        wire.columns(4, 7, [frames[0], damaged])


def test_names_are_utf_8() -> None:
    topics = tuple(
        wire.UpdateMetadataTopicState(topic_name=name) for name in ("a", "\N{GREEK SMALL LETTER PI}", "", "b")
    )
    frame = _frame(wire.UpdateMetadataRequest(topic_states=topics), 8)
    columns = wire.columns(6, 8, [frame])
    assert wire.topic_names(columns) == [topic.topic_name for topic in topics]
    assert wire.from_columns(6, 8, columns) == [frame]
    with pytest.raises(wire.DecodeError, match="UTF-8"):
        wire.columns(6, 8, [frame, frame.replace("\N{GREEK SMALL LETTER PI}".encode(), b"\xcf\xff")])


def test_a_field_that_the_version_lacks() -> None:
    columns = wire.columns(5, 0, [_frame(wire.StopReplicaRequest(), 0)])
    assert wire.from_columns(5, 0, {**columns, "request_broker_epoch": np.array([-1])})
    lacking = wire.columns(4, 7, [_frame(wire.LeaderAndIsrRequest(), 7)]) | {
        "request_is_kraft_controller": np.array([True])
    }
    assert wire.from_columns(4, 7, lacking)
    with pytest.raises(wire.EncodeError, match="has no such field"):
        wire.from_columns(4, 6, lacking)


def test_other_requests() -> None:
    with pytest.raises(wire.UnsupportedVersion, match="LeaderAndIsr, StopReplica, UpdateMetadata"):
        wire.columns(3, 0, [])
    with pytest.raises(wire.UnsupportedVersion, match="LeaderAndIsr"):
        wire.columns(4, 8, [])
    with pytest.raises(wire.InvalidValue, match="request 1 is"):
        wire.columns(4, 7, [_frame(wire.LeaderAndIsrRequest(), 7), _frame(wire.LeaderAndIsrRequest(), 6)])
    assert len(wire.columns(4, 7, [])["leader"]) == 0
    assert wire.from_columns(4, 7, wire.columns(4, 7, [])) == []
