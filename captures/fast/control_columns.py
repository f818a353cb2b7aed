"""Partition states and brokers of many control requests of one API and version, as Arrow.

The values equal those of ``captures.tables.tabulate``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kce import wire
from kce.captures.exchanges.cluster import listeners_of
from kce.captures.tables.rows import LIVE_BROKER, PARTITION_STATE
from kce.wire import control, error_name
from kce.wire.registry import LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA

_Columns = dict[str, npt.NDArray[Any]]

#: Those of ``control.STATE_FIELDS`` that are lists of broker ids.
_LISTS = frozenset({"isr", "replicas", "adding_replicas", "removing_replicas", "offline_replicas"})


class ControlColumns(NamedTuple):
    """``columns`` are those of PARTITION_STATE, ``request`` is the index of each row's request."""

    requests: int
    request: npt.NDArray[np.int64]
    columns: dict[str, pa.Array]
    fields: _Columns

    def states(self) -> pa.Array:
        """The partition states of each request, as a list."""
        kinds = {c.name: c.type for c in PARTITION_STATE}
        rows = len(self.request)
        arrays = [self.columns[n].cast(t) if n in self.columns else pa.nulls(rows, t) for n, t in kinds.items()]
        fields = [pa.field(*kind) for kind in kinds.items()]
        return _lists(self._ends(), pa.StructArray.from_arrays(arrays, fields=fields))

    def live_brokers(self) -> pa.Array:
        """The listeners that each request announces; null if that is no UpdateMetadata."""
        kind = pa.list_(pa.struct([(c.name, c.type) for c in LIVE_BROKER]))
        brokers = self.fields.get("request_live_brokers")
        if brokers is None:
            return pa.nulls(self.requests, kind)
        names = [c.name for c in LIVE_BROKER]
        listeners = [[(o.broker_id, o.name, o.host, o.port, o.rack) for o in listeners_of(each)] for each in brokers]
        return pa.array([[dict(zip(names, one, strict=True)) for one in each] for each in listeners], kind)

    def _ends(self) -> npt.NDArray[np.int32]:
        return np.searchsorted(self.request, np.arange(self.requests + 1)).astype(np.int32)


def control_columns(
    api_key: int, version: int, requests: Sequence[bytes], responses: Callable[[], Iterator[bytes]]
) -> ControlColumns:
    """The columns of ``requests`` of one API and version and of their ``responses``, all without length prefixes."""
    fields = wire.columns(api_key, version, requests)
    topics = pa.array(fields["topic"])
    ids = fields.get("topic_id")
    names = _strings(fields["topic_name_offsets"], fields["topic_name"])
    id_texts = [None] * len(names) if ids is None else [_topic_id(bytes(each)) for each in ids]
    request = fields["topic_request"][fields["topic"]]
    columns: dict[str, pa.Array] = {
        "topic": names.take(topics),
        "topic_id": pa.array(id_texts, pa.string()).take(topics),
    }
    nothing = np.zeros(len(topics) + 1, np.int64), np.zeros(0, np.int32)
    for name, field in control.STATE_FIELDS[api_key].items():
        if name in _LISTS:
            ends, values = (fields[f"{field}_offsets"], fields[field]) if field in fields else nothing
            columns[name] = _lists(ends.astype(np.int32), pa.array(values))
        elif field in fields:
            columns[name] = pa.array(fields[field])
    if api_key == LEADER_AND_ISR:
        columns.setdefault("is_new", pa.repeat(pa.scalar(False), len(topics)))
    if api_key == STOP_REPLICA and "delete" not in columns:
        columns["delete"] = pa.array(fields["request_delete_partitions"][request])
    if api_key != UPDATE_METADATA:
        columns |= _errors(api_key, version, fields, columns, request, responses())
    return ControlColumns(len(requests), request, columns, fields)


def _errors(
    api_key: int, version: int, fields: _Columns, columns: dict[str, pa.Array], request: npt.NDArray[np.int64],
    responses: Iterator[bytes],
) -> dict[str, pa.Array]:  # fmt: skip
    """Error codes of partitions. Topics without an id are matched by name."""
    names: list[dict[uuid.UUID, str]] = [{} for _ in range(len(fields["request_correlation_id"]))]
    if "topic_id" in fields:
        for of, name, topic_id in zip(
            fields["topic_request"], wire.topic_names(fields), fields["topic_id"], strict=True
        ):
            names[of][uuid.UUID(bytes=bytes(topic_id))] = name
    errors = []
    for known, frame in zip(names, responses, strict=True):
        _, body = wire.decode_response(frame, api_key=api_key, api_version=version)
        errors.append({(topic, partition): code for topic, partition, code in control.partition_errors(body, known)})
    topics, partitions = columns["topic"].to_pylist(), fields["partition_index"].tolist()
    places = zip(request.tolist(), zip(topics, partitions, strict=True), strict=True)
    codes = [errors[of].get(place) for of, place in places]
    texts = {code: None if code is None else error_name(code) for code in set(codes)}
    return {
        "error_code": pa.array(codes, pa.int16()),
        "error": pa.array([texts[code] for code in codes], pa.string()),
    }


def _strings(ends: npt.NDArray[np.int64], values: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(values))


def _lists(ends: npt.NDArray[np.int32], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends), values)


def _topic_id(data: bytes) -> str | None:
    return str(uuid.UUID(bytes=data)) if any(data) else None
