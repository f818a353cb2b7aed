"""Control requests as flat arrays, and back: for analysis, and for clusters too large for objects.

``columns`` returns a dict of numpy arrays. A row is a partition state; topics and requests have rows of their own:

    <field>             (rows,)       a field of the partition states: int32, int8 or bool
    <field>_offsets     (rows + 1,)   int64, for an array field: row i is <field>[offsets[i] : offsets[i + 1]]
    topic               (rows,)       int64, index of the row's topic
    topic_name          (topics,)     object (str); a topic in two requests has two rows
    topic_id            (topics, 16)  uint8, in versions that have topic ids
    topic_request       (topics,)     int64, index of the topic's request
    request_<field>     (requests,)   correlation_id, client_id and the other fields of the request: numbers, and
                                      object for structures (live brokers and leaders)

Values and rejected input are the same as with the row codec; unknown tagged fields are skipped. Needs numpy and numba.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from construct import Construct

from kce.wire import columnar_kernels as kernels
from kce.wire import columnar_write_kernels as writing
from kce.wire import errors
from kce.wire.codegen import Run, code_of, is_numbers, parts_of
from kce.wire.headers import read_request_header
from kce.wire.primitives import Primitive, String, TaggedFields, Uuid
from kce.wire.protocol import decode_request, encode_request
from kce.wire.registry import api, check_version, message_class
from kce.wire.schema import AsStruct, Message, struct_for

Columns = dict[str, npt.NDArray[Any]]

CONTROL_REQUESTS = (4, 5, 6)  # LeaderAndIsr, StopReplica, UpdateMetadata

_DTYPES = {kernels.INT32: np.int32, kernels.INT8: np.int8, kernels.BOOL: np.bool_}
_KINDS = {"i": kernels.INT32, "b": kernels.INT8, "?": kernels.BOOL}


class _Plan(NamedTuple):
    """The layout of one version of a control request: where its topics are, and the fields of topics and states."""

    message: type[Message]
    compact: bool
    field: str  # the array of topics, or of states if they are not grouped by topic
    at: int  # its offset in the body
    topic_plan: npt.NDArray[np.int64]  # empty if states are not grouped by topic
    plan: npt.NDArray[np.int64]
    numbers: list[tuple[str, int]]  # (field, kind) of the numbers of a partition state
    lists: list[str]
    least: int  # minimum size of a topic, or of a state if they are not grouped by topic
    least_state: int

    @property
    def empty(self) -> bytes:
        """An empty array."""
        return b"\1" if self.compact else b"\0\0\0\0"


@functools.cache
def _plan(api_key: int, version: int) -> _Plan:
    cls = message_class(api_key, "request") if api_key in CONTROL_REQUESTS else None
    if cls is None:
        raise errors.UnsupportedVersion(f"columns are for LeaderAndIsr, StopReplica, UpdateMetadata, not {api_key}")
    known = api(api_key)
    check_version(known, version)
    compact = version in known.flexible
    construct = struct_for(cls, version, compact)
    assert isinstance(construct, AsStruct)
    before, topics, *_ = parts_of(construct)
    assert isinstance(before, Run)
    assert not isinstance(topics, Run)
    field, array = topics
    state: Construct = array.element
    least_state = array.element_min_bytes
    topic_plan = []
    fields = dict(_fields(array.element))
    if "partition_index" not in fields:
        for name, part in fields.items():
            if name in ("partition_states", "partition_indexes"):
                topic_plan.append(kernels.PARTITIONS)
                state, least_state = part.element, part.element_min_bytes
            else:
                topic_plan.append(_kind(part))
    # StopReplica 1 and 2 have partition indexes only
    kinds = {n: _kind(p) for n, p in (_fields(state) if isinstance(state, AsStruct) else [("partition_index", state)])}
    return _Plan(
        message=cls, compact=compact, field=field, at=before.size,
        topic_plan=np.array(topic_plan, np.int64), plan=np.array(list(kinds.values()), np.int64),
        numbers=[(n, kind) for n, kind in kinds.items() if kind in _DTYPES],
        lists=[n for n, kind in kinds.items() if kind == kernels.INTS],
        least=array.element_min_bytes, least_state=least_state,
    )  # fmt: skip


def _fields(construct: AsStruct) -> Iterable[tuple[str, Construct]]:
    for part in parts_of(construct):
        yield from part.fields if isinstance(part, Run) else [part]


def _kind(construct: Construct) -> int:
    if is_numbers(construct):
        return kernels.INTS
    for cls, kind in ((String, kernels.NAME), (Uuid, kernels.ID), (TaggedFields, kernels.TAGS)):
        if isinstance(construct, cls):
            return kind
    return _KINDS[code_of(construct) or ""]


def columns(api_key: int, version: int, frames: Sequence[bytes]) -> Columns:
    """Decode requests of one API and version into arrays (see the module); ``frames`` have no length prefix.

    Raises DecodeError, UnsupportedVersion.
    """
    return _Reader(_plan(api_key, version), api_key, version, frames).columns()


class _Reader:
    """Fills the arrays. Their sizes are bounded by the number of bytes."""

    def __init__(self, plan: _Plan, api_key: int, version: int, frames: Sequence[bytes]) -> None:
        self.plan = plan
        self.api_key, self.version = api_key, version
        self.frames = frames
        size = sum(map(len, frames))
        rows, lists = size // plan.least_state + 1, len(plan.lists)
        wanted = [(rows, _DTYPES[kind]) for _, kind in plan.numbers]
        made = _empty([*wanted, *[(size // 4 + 1, np.int32)] * lists, *[(rows + 1, np.int64)] * lists])
        numbers = len(wanted)
        self.numbers, self.lists, self.ends = made[:numbers], made[numbers : numbers + lists], made[numbers + lists :]
        for ends in self.ends:
            ends[0] = 0
        self.filled = np.zeros(lists, np.int64)
        self.row = 0
        self.topic_begins: list[npt.NDArray[np.int64]] = []
        self.topic_ids: list[npt.NDArray[np.uint8]] = [np.empty((0, 16), np.uint8)]
        self.topic_names: list[str] = []
        self.topic_counts: list[int] = []
        self.requests: list[tuple[int, str | None, Message]] = []

    def columns(self) -> Columns:
        for frame in self.frames:
            self._read(bytes(frame))
        plan, rows, topics = self.plan, self.row, len(self.topic_names)
        out: Columns = {}
        for (name, _), values in zip(plan.numbers, self.numbers, strict=True):
            out[name] = values[:rows]
        for name, values, ends, filled in zip(plan.lists, self.lists, self.ends, self.filled, strict=True):
            out[name], out[f"{name}_offsets"] = values[:filled], ends[: rows + 1]
        begins = np.concatenate([*self.topic_begins, [rows]])
        out["topic"] = np.repeat(np.arange(topics), np.diff(begins))
        out["topic_name"] = _objects(self.topic_names)
        if kernels.ID in plan.topic_plan:
            out["topic_id"] = np.concatenate(self.topic_ids)
        out["topic_request"] = np.repeat(np.arange(len(self.requests)), self.topic_counts)
        out["request_correlation_id"] = np.array([c for c, _, _ in self.requests], np.int32)
        out["request_client_id"] = _objects([c for _, c, _ in self.requests])
        for f in plan.message.__fields__:
            if self.version in f.versions and f.name != plan.field:
                values_of_requests = [getattr(message, f.name) for _, _, message in self.requests]
                is_number = isinstance(f.type, Primitive) and not f.array
                out[f"request_{f.name}"] = (
                    np.array(values_of_requests, f.type.name) if is_number else _objects(values_of_requests)
                )
        return out

    def _read(self, frame: bytes) -> None:
        plan = self.plan
        _, header, body = read_request_header(frame)
        if (header.api_key, header.api_version) != (self.api_key, self.version):
            found, wanted = f"{header.api_key} {header.api_version}", f"{self.api_key} {self.version}"
            raise errors.InvalidValue(f"request {len(self.requests)} is of API and version {found}, not {wanted}")
        start = body + plan.at
        b = np.frombuffer(frame, np.uint8)
        count, at = kernels.length(b, start, len(frame), plan.compact, 4)
        if at < 0 or count > (len(frame) - at) // plan.least:
            self._refuse(frame)
        names = np.empty((count, 3), np.int64)  # start, length and first row of each topic
        ids = np.empty((count if kernels.ID in plan.topic_plan else 0, 16), np.uint8)
        at, self.row, topics = self._read_states(b, at, count, names, ids)
        if at < 0:
            self._refuse(frame)
        names, ids = names[:topics], ids[:topics]
        try:
            # the row codec decodes the rest of the request
            _, message = decode_request(frame[:start] + plan.empty + frame[at:])
            self.topic_names += _texts(b, names)
        except (errors.DecodeError, UnicodeDecodeError):
            self._refuse(frame)
        self.topic_begins.append(names[:, 2])
        self.topic_ids.append(ids)
        self.topic_counts.append(topics)
        self.requests.append((header.correlation_id, header.client_id, message))

    def _read_states(
        self, b: npt.NDArray[np.uint8], at: int, count: int, names: npt.NDArray[np.int64], ids: npt.NDArray[np.uint8]
    ) -> tuple[int, int, int]:
        plan, end = self.plan, len(b)
        numbers, lists, ends = map(_addresses, (self.numbers, self.lists, self.ends))
        into = (numbers, lists, self.filled, ends, names)
        if not len(plan.topic_plan):
            return kernels.read_partitions(  # type: ignore[no-any-return]
                b, at, end, count, plan.plan, plan.compact, self.row, *into
            )
        return kernels.read_topics(  # type: ignore[no-any-return]
            b, at, end, count, plan.topic_plan, plan.plan, plan.least_state, plan.compact, self.row, *into, ids
        )

    def _refuse(self, frame: bytes) -> None:
        decode_request(frame)  # raises an error with field path and offset
        raise errors.InvalidValue("refused")


def _texts(b: npt.NDArray[np.uint8], names: npt.NDArray[np.int64]) -> list[str]:
    """The strings at (start, length, ...) of each row of ``names``. Raises UnicodeDecodeError."""
    joined = kernels.joined(b, names).tobytes()
    ends = np.cumsum(names[:, 1])
    places = zip((ends - names[:, 1]).tolist(), ends.tolist(), strict=True)
    if joined.isascii():
        text = joined.decode()
        return [text[begin:end] for begin, end in places]
    return [joined[begin:end].decode() for begin, end in places]


def _empty(wanted: Sequence[tuple[int, Any]]) -> list[npt.NDArray[Any]]:
    """Uninitialised arrays of these (lengths, types) in one allocation, which the next call can reuse."""
    ends = np.cumsum([0, *(-(-count * np.dtype(dtype).itemsize // 64) * 64 for count, dtype in wanted)]).tolist()
    memory = np.empty(ends[-1], np.uint8)
    return [
        memory[begin : begin + count * np.dtype(dtype).itemsize].view(dtype)
        for begin, (count, dtype) in zip(ends[:-1], wanted, strict=True)
    ]


def _addresses(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """Addresses of contiguous arrays of several types, for the kernels. The caller keeps the arrays alive."""
    return np.array([a.__array_interface__["data"][0] for a in arrays], np.int64)


def _objects(values: Sequence[object]) -> npt.NDArray[Any]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def from_columns(api_key: int, version: int, columns: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
    """Encode ``columns`` as requests; missing request columns have Kafka's defaults.

    Raises EncodeError for other missing columns, wrong lengths and values out of range; UnsupportedVersion.
    """
    plan = _plan(api_key, version)
    try:
        return _write(plan, version, columns)
    except KeyError as e:
        raise errors.EncodeError(f"no column {e}") from None
    except (ValueError, TypeError, OverflowError, IndexError) as e:
        raise errors.EncodeError(f"columns of {plan.message.__name__} {version}: {e}") from None


def _write(plan: _Plan, version: int, columns: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
    topic = np.asarray(columns["topic"], np.int64)
    rows, topics = len(topic), len(columns["topic_name"])
    numbers = [_of_type(columns[name], _DTYPES[kind], name) for name, kind in plan.numbers]
    for (name, _), values in zip(plan.numbers, numbers, strict=True):
        if len(values) != rows:
            raise ValueError(f"{name} has {len(values)} entries for {rows} partition states")
    lists = [_of_type(columns[name], np.int32, name) for name in plan.lists]
    ends = [_of_type(columns[f"{name}_offsets"], np.int64, f"{name}_offsets") for name in plan.lists]
    for name, values, offsets in zip(plan.lists, lists, ends, strict=True):
        if len(offsets) != rows + 1 or not writing.ascends(offsets, len(offsets), len(values)):
            raise ValueError(f"{name}_offsets must be {rows + 1} ascending numbers from 0 to {len(values)}")
    encoded = [name.encode() for name in columns["topic_name"]]
    if any(len(name) > kernels.MAX_NAME_BYTES for name in encoded):
        raise ValueError(f"a topic's name has more than {kernels.MAX_NAME_BYTES} bytes")
    name_ends = np.cumsum([0, *map(len, encoded)])
    names = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    has_ids = kernels.ID in plan.topic_plan
    ids = np.ascontiguousarray(columns["topic_id"] if has_ids else np.empty((0, 16)), np.uint8)
    if has_ids and ids.shape != (topics, 16):
        raise ValueError(f"topic_id has shape {ids.shape}, not {(topics, 16)}")
    requests = len(columns["request_correlation_id"])
    first_rows = _begins(topic, topics, "topic")
    first_topics = _begins(columns["topic_request"], requests, "topic_request")
    if len(columns["topic_request"]) != topics:
        raise ValueError(f"topic_request has {len(columns['topic_request'])} entries for {topics} topics")
    into = (_addresses(numbers), _addresses(lists), _addresses(ends), names, name_ends)
    frames = []
    for i in range(requests):
        head, tail = _around(plan, version, columns, i)
        first, last = int(first_topics[i]), int(first_topics[i + 1])
        row, end = int(first_rows[first]), int(first_rows[last])
        listed = sum(int(e[end] - e[row]) for e in ends)
        grouped = len(plan.topic_plan) > 0
        name_bytes = (
            int(name_ends[last] - name_ends[first]) if grouped else int(np.sum(np.diff(name_ends)[topic[row:end]]))
        )
        # at most 5 bytes for a number, or for the length before an array or a name
        room = 16 + (end - row) * 5 * (len(plan.plan) + 1) + 4 * listed + (last - first) * 40 + name_bytes
        out = np.empty(len(head) + room + len(tail), np.uint8)
        out[: len(head)] = np.frombuffer(head, np.uint8)
        at = writing.put_length(out, len(head), last - first if grouped else end - row, plan.compact, 4)
        if grouped:
            at = writing.write_topics(
                out, at, first, last, plan.topic_plan, plan.plan, first_rows, plan.compact, *into, ids
            )
        else:
            at = writing.write_partitions(out, at, row, end, plan.plan, topic, plan.compact, *into)
        out[at : at + len(tail)] = np.frombuffer(tail, np.uint8)
        frames.append(out[: at + len(tail)].tobytes())
    return frames


def _around(plan: _Plan, version: int, columns: Mapping[str, npt.NDArray[Any]], i: int) -> tuple[bytes, bytes]:
    """The bytes before and after the topics of request ``i``, from the row codec."""
    given = {f.name: f"request_{f.name}" for f in plan.message.__fields__ if f"request_{f.name}" in columns}
    message = plan.message(**{name: _plain(columns[column][i]) for name, column in given.items()})
    client_id = columns["request_client_id"][i]
    correlation_id = int(columns["request_correlation_id"][i])
    frame = encode_request(message, api_version=version, correlation_id=correlation_id, client_id=client_id)
    start = read_request_header(frame)[2] + plan.at
    return frame[:start], frame[start + len(plan.empty) :]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _of_type(values: Any, dtype: Any, name: str) -> npt.NDArray[Any]:
    """``values`` as a contiguous array of that type."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype != dtype and not np.array_equal(array, array.astype(dtype))):
        raise ValueError(f"{name} has values that are not {np.dtype(dtype)}")
    return np.ascontiguousarray(array, dtype)


def _begins(owners: Any, count: int, name: str) -> npt.NDArray[np.int64]:
    """The first row of each of ``count`` owners, and the end of the last."""
    owners = np.asarray(owners, np.int64)
    if len(owners) and ((np.diff(owners) < 0).any() or owners[0] < 0 or owners[-1] >= count):
        raise ValueError(f"{name} must ascend from 0 to at most {count - 1}")
    return np.searchsorted(owners, np.arange(count + 1)).astype(np.int64)
