"""Control requests as flat arrays, and back: for analysis, and for clusters too large for objects.

``columns`` returns a dict of numpy arrays. A row is a partition state; topics and requests have rows of their own:

    <field>             (rows,)       a field of the partition states: int32, int8 or bool
    <field>_offsets     (rows + 1,)   int64, for an array field: row i is <field>[offsets[i] : offsets[i + 1]]
    topic               (rows,)       int64, index of the row's topic
    topic_name          (bytes,)      uint8, the names in UTF-8; a topic in two requests has two names
    topic_name_offsets  (topics + 1,) int64: name i is topic_name[offsets[i] : offsets[i + 1]] (see ``topic_names``)
    topic_id            (topics, 16)  uint8, in versions that have topic ids
    topic_request       (topics,)     int64, index of the topic's request
    request_<field>     (requests,)   correlation_id, client_id and the other fields of the request: numbers, and
                                      object for structures (live brokers and leaders)

Values and rejected input are the same as with the row codec; unknown tagged fields are skipped. Needs numpy and numba.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from construct import Construct

from kce.wire import columnar_kernels as reading
from kce.wire import columnar_memory as kinds
from kce.wire import columnar_write_kernels as writing
from kce.wire import errors
from kce.wire.codegen import Run, code_of, is_numbers, parts_of
from kce.wire.headers import Header, read_request_header, request_header
from kce.wire.primitives import Primitive, String, TaggedFields, Uuid
from kce.wire.protocol import decode_request, encode_request
from kce.wire.registry import ApiKey, api, check_version, message_class
from kce.wire.schema import AsStruct, Field, Message, struct_for

Columns = dict[str, npt.NDArray[Any]]

CONTROL_REQUESTS = (4, 5, 6)  # LeaderAndIsr, StopReplica, UpdateMetadata

_NUMBERS = {"i": kinds.INT32, "b": kinds.INT8, "?": kinds.BOOL}
_DTYPES = {type(kind): np.dtype(dtype) for kind, dtype in zip(_NUMBERS.values(), "ib?", strict=True)}
_LEAST_BYTES = {type(kind): size for size, some in (
    (1, (kinds.INT8, kinds.BOOL, kinds.COMPACT_INTS, kinds.COMPACT_NAME, kinds.TAGS)),
    (2, (kinds.NAME,)),
    (4, (kinds.INT32, kinds.INTS)),
) for kind in some}  # fmt: skip
#: longer ends of requests, after the topics, are not kept
_KEPT_BYTES = 1 << 16


class _Plan(NamedTuple):
    """The layout of one version of a control request: where its topics are, and the fields of topics and states."""

    api: ApiKey
    message: type[Message]
    version: int
    compact: bool
    field: str  # the array of topics, or of states if they are not grouped by topic
    head: struct.Struct  # the fields before it
    head_columns: list[tuple[str, str, np.dtype[Any]]]  # of these fields: name, column, its type
    tail_columns: list[tuple[str, str, np.dtype[Any]]]  # of the fields after it
    head_defaults: list[tuple[str, Any]]
    tail_defaults: list[tuple[str, Any]]
    lacking: list[tuple[str, Any]]  # of fields that the version lacks and that must have their defaults
    header: bytes  # a request header
    grouped: bool
    has_ids: bool
    numbers: list[tuple[str, np.dtype[Any]]]  # of a partition state
    lists: list[tuple[str, str]]  # an array field of a state, and the column of its offsets
    least: int  # minimum size of a topic, or of a state if they are not grouped by topic
    least_state: int
    read: Callable[[int, int, int], int]
    write: Callable[[int, int, int, int], int]

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
    topic_kinds: list[Any] = []
    fields = dict(_fields(array.element))
    if "partition_index" not in fields:
        for name, part in fields.items():
            if name in ("partition_states", "partition_indexes"):
                topic_kinds.append(kinds.COMPACT_PARTITIONS if compact else kinds.PARTITIONS)
                state = part.element
            else:
                topic_kinds.append(_kind(part, compact))
    # StopReplica 1 and 2 have partition indexes only
    parts = _fields(state) if isinstance(state, AsStruct) else [("partition_index", state)]
    of_state = {name: _kind(part, compact) for name, part in parts}
    layout = tuple(topic_kinds), tuple(of_state.values())
    least_state = sum(_LEAST_BYTES[type(kind)] for kind in of_state.values())
    frame = encode_request(cls(), api_version=version, correlation_id=0, client_id=None)
    names = [name for name, _ in before.fields]
    defaults = {f.name: f.default for f in cls.__fields__}
    others = [f for f in cls.__fields__ if version in f.versions and f.name not in (field, *names)]
    return _Plan(
        api=known, message=cls, version=version, compact=compact, field=field, head=struct.Struct(f">{before.code}"),
        head_columns=[
            (n, f"request_{n}", np.dtype(code)) for n, code in zip(names, before.code, strict=True)
        ],
        tail_columns=[(f.name, f"request_{f.name}", _dtype(f)) for f in others],
        head_defaults=[(f"request_{n}", defaults[n]) for n in names],
        tail_defaults=[(f"request_{f.name}", f.default) for f in others],
        lacking=[
            (f"request_{f.name}", f.default) for f in cls.__fields__ if version not in f.versions and not f.ignorable
        ],
        header=frame[: read_request_header(frame)[2]],
        grouped=bool(topic_kinds), has_ids=any(type(kind) is type(kinds.ID) for kind in topic_kinds),
        numbers=[(n, _DTYPES[type(kind)]) for n, kind in of_state.items() if type(kind) in _DTYPES],
        lists=[(n, f"{n}_offsets") for n, kind in of_state.items() if type(kind) in (np.float32, np.float64)],
        least=array.element_min_bytes, least_state=least_state,
        read=reading.reader(*layout, array.element_min_bytes, least_state, compact),
        write=writing.writer(*layout, compact),
    )  # fmt: skip


def _dtype(field: Field) -> np.dtype[Any]:
    """Of the column of a request's field."""
    is_number = isinstance(field.type, Primitive) and not field.array
    return np.dtype(field.type.name if is_number else object)


def _fields(construct: AsStruct) -> Iterable[tuple[str, Construct]]:
    for part in parts_of(construct):
        yield from part.fields if isinstance(part, Run) else [part]


def _kind(construct: Construct, compact: bool) -> Any:
    if is_numbers(construct):
        return kinds.COMPACT_INTS if compact else kinds.INTS
    if isinstance(construct, String):
        return kinds.COMPACT_NAME if compact else kinds.NAME
    if isinstance(construct, Uuid):
        return kinds.ID
    if isinstance(construct, TaggedFields):
        return kinds.TAGS
    return _NUMBERS[code_of(construct) or ""]


def columns(api_key: int, version: int, frames: Sequence[bytes]) -> Columns:
    """Decode requests of one API and version into arrays (see the module); ``frames`` have no length prefix.

    Raises DecodeError, UnsupportedVersion.
    """
    return _Reader(_plan(api_key, version), api_key, version, list(map(bytes, frames))).columns()


def topic_names(columns: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """The names of the topics. Raises UnicodeDecodeError for columns that ``columns`` did not make."""
    joined, ends = columns["topic_name"].tobytes(), columns["topic_name_offsets"].tolist()
    if joined.isascii():
        text = joined.decode()
        return [text[begin:end] for begin, end in itertools.pairwise(ends)]
    return [joined[begin:end].decode() for begin, end in itertools.pairwise(ends)]


class _Reader:
    """Fills the arrays. Their sizes are bounded by the number of bytes."""

    def __init__(self, plan: _Plan, api_key: int, version: int, frames: list[bytes]) -> None:
        self.plan = plan
        #: frame, header, body's position, and its bytes as an array
        self.frames: list[tuple[bytes, Header, int, npt.NDArray[np.uint8]]] = []
        #: correlation id, client id; the fields before the topics; those after; first topic
        self.requests: list[tuple[int, str | None, tuple[Any, ...], tuple[Any, ...], int]] = []
        for i, frame in enumerate(frames):
            _, header, body = read_request_header(frame)
            if header[:2] != (api_key, version):
                found, wanted = f"{header.api_key} {header.api_version}", f"{api_key} {version}"
                raise errors.InvalidValue(f"request {i} is of API and version {found}, not {wanted}")
            if body + plan.head.size > len(frame):
                _refuse(frame)
            self.frames.append((frame, header, body, np.frombuffer(frame, np.uint8)))

    def columns(self) -> Columns:
        size = sum(len(frame) for frame, *_ in self.frames)
        found = self._columns(size, size // 8)  # an array field seldom has more than half of the bytes
        if found is None:
            found = self._columns(size, size // 4)
        assert found is not None
        return found

    def _columns(self, size: int, values: int) -> Columns | None:
        """None if an array field has more ``values``. ``size``: bytes of all frames."""
        plan = self.plan
        rows, numbers, lists = size // plan.least_state + 1, len(plan.numbers), len(plan.lists)
        topics = self._most_topics() if plan.grouped else rows
        names = np.empty(size + kinds.SLACK_BYTES, np.uint8)
        table = np.zeros(reading.COLUMNS // 8 + numbers + 3 * lists, np.int64)
        memory = np.empty(
            numbers * (4 * rows + 8) + lists * (4 * values + 8 * rows + 40) + 8 * rows + topics * 32 + 8, np.uint8
        )
        base = reading.lay_out(table, memory, names, rows, values, topics, numbers, lists, plan.has_ids)
        at = reading.address(table)
        self.requests.clear()
        for frame, header, body, data in self.frames:
            first_topic = table.item(reading.TOPICS // 8)
            begin = reading.address(data)
            end = plan.read(begin + body + plan.head.size, begin + len(frame), at)
            if end == reading.NO_ROOM:
                return None
            if end < 0:
                _refuse(frame)
            try:
                tail = _tail(plan, frame[end - begin :])
            except errors.DecodeError:
                _refuse(frame)
            head = plan.head.unpack_from(frame, body)
            self.requests.append((header.correlation_id, header.client_id, head, tail, first_topic))
        return self._views(memory, base, names, table.tolist())

    def _most_topics(self) -> int:
        plan, most = self.plan, 0
        for frame, _, body, data in self.frames:
            begin = body + plan.head.size
            at = reading.address(data)
            most += min(
                reading.announced(at + begin, at + len(frame), plan.compact), (len(frame) - begin) // plan.least
            )
        return most

    def _views(
        self, memory: npt.NDArray[np.uint8], base: int, names: npt.NDArray[np.uint8], table: list[int]
    ) -> Columns:
        plan, make = self.plan, np.ndarray
        rows, topics, name_bytes = table[:3]
        lists, first = len(plan.lists), reading.COLUMNS // 8
        out: Columns = {}
        for (name, dtype), address in zip(plan.numbers, table[first + 3 * lists :], strict=True):
            out[name] = make((rows,), dtype, memory, address - base)
        for k, (name, offsets) in enumerate(plan.lists, first):
            out[name] = make((table[k + 2 * lists],), _INT32, memory, table[k] - base)
            out[offsets] = make((rows + 1,), _INT64, memory, table[k + lists] - base)
        out["topic"] = make((rows,), _INT64, memory, table[reading.ROW_TOPICS // 8] - base)
        out["topic_name"] = names[:name_bytes]
        out["topic_name_offsets"] = make((topics + 1,), _INT64, memory, table[reading.TOPIC_NAME_ENDS // 8] - base)
        self._check_names(out)
        if plan.has_ids:
            out["topic_id"] = make((topics, 16), _UINT8, memory, table[reading.TOPIC_IDS // 8] - base)
        if len(self.requests) == 1:
            out["topic_request"] = np.zeros(topics, _INT64)
        else:
            first_topics = [first for *_, first in self.requests]
            out["topic_request"] = np.repeat(np.arange(len(self.requests)), np.diff([*first_topics, topics]))
        out["request_correlation_id"] = np.array([each[0] for each in self.requests], _INT32)
        out["request_client_id"] = _objects([each[1] for each in self.requests])
        for k, (_, name, dtype) in enumerate(plan.head_columns):
            out[name] = np.array([each[2][k] for each in self.requests], dtype)
        for k, (_, name, dtype) in enumerate(plan.tail_columns):
            values = [each[3][k] for each in self.requests]
            out[name] = _objects(values) if dtype.hasobject else np.array(values, dtype)
        return out

    def _check_names(self, out: Columns) -> None:
        if not out["topic_name"].tobytes().isascii():
            try:
                topic_names(out)
            except UnicodeDecodeError:
                for frame, *_ in self.frames:
                    decode_request(frame)  # raises an error with field path and offset
                raise errors.InvalidValue("refused") from None


def _refuse(frame: bytes) -> NoReturn:
    decode_request(frame)  # raises an error with field path and offset
    raise errors.InvalidValue("refused")


def _tail(plan: _Plan, data: bytes) -> tuple[Any, ...]:
    """The fields after the topics, decoded by the row codec. Requests to different brokers have the same."""
    if len(data) > _KEPT_BYTES:
        return _decode_tail(plan, data)
    return _kept_tail(plan.api.key, plan.version, data)


@functools.lru_cache(maxsize=64)
def _kept_tail(api_key: int, version: int, data: bytes) -> tuple[Any, ...]:
    return _decode_tail(_plan(api_key, version), data)


def _decode_tail(plan: _Plan, data: bytes) -> tuple[Any, ...]:
    _, message = decode_request(plan.header + bytes(plan.head.size) + plan.empty + data)
    return tuple(getattr(message, name) for name, *_ in plan.tail_columns)


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
        return _write(plan, columns)
    except KeyError as e:
        raise errors.EncodeError(f"no column {e}") from None
    except (ValueError, TypeError, OverflowError, IndexError) as e:
        raise errors.EncodeError(f"columns of {plan.message.__name__} {version}: {e}") from None


def _write(plan: _Plan, columns: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
    topic = _of_type(columns["topic"], _INT64, "topic")
    topic_request = _of_type(columns["topic_request"], _INT64, "topic_request")
    name_ends = _of_type(columns["topic_name_offsets"], _INT64, "topic_name_offsets")
    names = _of_type(columns["topic_name"], _UINT8, "topic_name")
    rows, topics, requests = len(topic), len(name_ends) - 1, len(columns["request_correlation_id"])
    values = tuple([_of_type(columns[name], _INT32, name) for name, _ in plan.lists])
    ends = tuple([_of_type(columns[offsets], _INT64, offsets) for _, offsets in plan.lists])
    numbers = [_of_type(columns[name], dtype, name) for name, dtype in plan.numbers]
    ids = np.ascontiguousarray(columns["topic_id"], np.uint8) if plan.has_ids else _NO_IDS
    _check_lengths(plan, rows, topics, topic_request, name_ends, numbers, ends, ids)
    first_rows, first_topics = np.empty(topics + 1, np.int64), np.empty(requests + 1, np.int64)
    table = np.empty(writing.COLUMNS // 8 + 3 * len(values) + len(numbers), np.int64)
    table[writing.COLUMNS // 8 + 3 * len(values) :] = list(map(reading.address, numbers))
    problem = writing.prepare(table, topic, first_rows, topic_request, first_topics, name_ends, names, ids)
    if problem == writing.GOOD and values:
        problem = writing.prepare_lists(table, values, ends)
    if problem != writing.GOOD:
        raise ValueError(_problem(plan, problem))
    for name, default in plan.lacking:
        if name in columns and any(value != default for value in columns[name].tolist()):
            raise ValueError(f"{name}: version {plan.version} has no such field")
    frames = []
    for i in range(requests):
        head, tail = _around(plan, columns, i)
        first, last = first_topics.item(i), first_topics.item(i + 1)
        row, end = first_rows.item(first), first_rows.item(last)
        listed = sum([of_list.item(end) - of_list.item(row) for of_list in ends])
        if plan.grouped:
            name_bytes = name_ends.item(last) - name_ends.item(first)
        else:
            name_bytes = int(np.sum(np.diff(name_ends)[topic[row:end]]))
        # at most 5 bytes for a number, or for the length before an array or a name
        columns_of_state = len(numbers) + len(values) + 2
        room = 16 + (end - row) * 5 * columns_of_state + 4 * listed + (last - first) * 40 + name_bytes
        out = np.empty(len(head) + room + len(tail) + kinds.SLACK_BYTES, np.uint8)
        begin = reading.address(out)
        out[: len(head)] = np.frombuffer(head, np.uint8)
        which = (first, last) if plan.grouped else (row, end)
        at = plan.write(begin + len(head), *which, reading.address(table)) - begin
        out[at : at + len(tail)] = np.frombuffer(tail, np.uint8)
        frames.append(out[: at + len(tail)].tobytes())
    return frames


_INT64, _INT32, _UINT8 = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.uint8)
_NO_IDS = np.empty((0, 16), np.uint8)


def _check_lengths(
    plan: _Plan,
    rows: int,
    topics: int,
    topic_request: npt.NDArray[np.int64],
    name_ends: npt.NDArray[np.int64],
    numbers: Sequence[npt.NDArray[Any]],
    ends: Sequence[npt.NDArray[np.int64]],
    ids: npt.NDArray[np.uint8],
) -> None:
    if not len(name_ends):
        raise ValueError("topic_name_offsets is empty")
    for (name, _), values in zip(plan.numbers, numbers, strict=True):
        if len(values) != rows:
            raise ValueError(f"{name} has {len(values)} entries for {rows} partition states")
    for (_, offsets), of_list in zip(plan.lists, ends, strict=True):
        if len(of_list) != rows + 1:
            raise ValueError(f"{offsets} has {len(of_list)} entries, not {rows + 1}")
    if plan.has_ids and ids.shape != (topics, 16):
        raise ValueError(f"topic_id has shape {ids.shape}, not {(topics, 16)}")
    if len(topic_request) != topics:
        raise ValueError(f"topic_request has {len(topic_request)} entries for {topics} topics")


def _problem(plan: _Plan, problem: int) -> str:
    """What a number other than GOOD of `columnar_write_kernels.prepare` and ``prepare_lists`` means."""
    match problem:
        case writing.LONG_NAME:
            return f"a topic's name has more than {kinds.MAX_NAME_BYTES} bytes"
        case writing.TOPIC_ORDER:
            return "topic must ascend from 0 to the number of topics"
        case writing.REQUEST_ORDER:
            return "topic_request must ascend from 0 to the number of requests"
        case writing.NAME_ORDER:
            return "topic_name_offsets must ascend from 0 to the length of topic_name"
        case _:
            name, offsets = plan.lists[problem]
            return f"{offsets} must ascend from 0 to the length of {name}"


#: the last tail that was encoded of each message and version: its values, and the bytes
_last_tails: dict[tuple[type[Message], int], tuple[list[Any], bytes]] = {}


def _around(plan: _Plan, columns: Mapping[str, npt.NDArray[Any]], i: int) -> tuple[bytes, bytes]:
    """The bytes before and after the topics of request ``i``. Raises EncodeError."""
    correlation_id, client_id = columns["request_correlation_id"].item(i), columns["request_client_id"][i]
    header = request_header(plan.api, Header(plan.api.key, plan.version, correlation_id, client_id))
    head = [columns[c].item(i) if c in columns else default for c, default in plan.head_defaults]
    tail = [columns[c].item(i) if c in columns else default for c, default in plan.tail_defaults]
    known = _last_tails.get((plan.message, plan.version))
    if known is None or any(a is not b for a, b in zip(known[0], tail, strict=True)):
        given = {name: value for (name, *_), value in zip(plan.tail_columns, tail, strict=True)}
        frame = encode_request(plan.message(**given), api_version=plan.version, correlation_id=0, client_id=None)
        known = tail, frame[len(plan.header) + plan.head.size + len(plan.empty) :]
        if len(known[1]) <= _KEPT_BYTES:
            _last_tails[plan.message, plan.version] = known
    try:
        return header + plan.head.pack(*head), known[1]
    except struct.error as e:
        raise ValueError(f"fields {[name for name, *_ in plan.head_columns]}: {e}") from None


def _of_type(values: Any, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """``values`` as a contiguous array of that type."""
    if type(values) is np.ndarray and values.dtype == dtype and values.ndim == 1 and values.flags.c_contiguous:
        return values
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype != dtype and not np.array_equal(array, array.astype(dtype))):
        raise ValueError(f"{name} has values that are not {dtype}")
    return np.ascontiguousarray(array, dtype)
