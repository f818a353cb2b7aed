"""Rewrites the epochs of recorded control requests for another cluster, and compares responses.

A recording's epochs belong to its ZooKeeper. For other brokers, all controller epochs are shifted by the same distance,
so a zombie stays a zombie. Broker epochs are replaced: the newest known at the time becomes the current one, and an
older one stays older by as much, so a stale request stays stale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from kce import wire
from kce.captures.exchanges.pairing import Request
from kce.wire import error_name
from kce.wire.control import ControlRequest, map_states
from kce.wire.registry import CONTROL_REQUESTS

_NO_EPOCH = -1
_MAX_CONTROLLER_EPOCH = 2**31 - 1


class Rewriter:
    """``controller_shift`` is added to every controller epoch. ``broker_epochs`` maps broker ids to current epochs;
    it may change when brokers restart; other brokers keep theirs. ``requests`` are all that will be replayed, with
    their brokers' ids. Raises ValueError where a controller epoch would be below 0 or have more than 32 bits.
    """

    def __init__(
        self,
        requests: Iterable[tuple[Request, int | None]] = (),
        *,
        controller_shift: int = 0,
        broker_epochs: Mapping[int, int] | None = None,
    ) -> None:
        self._shift = controller_shift
        self.broker_epochs = dict(broker_epochs or {})
        self._behind: dict[Request, tuple[int, int]] = {}  # (broker, how far its epoch was behind the newest)
        newest: dict[int, int] = {}
        for request, server_id in requests:
            broker_id = whose_epoch(request, server_id)
            if broker_id is not None and broker_id in self.broker_epochs:
                recorded: int = getattr(request.body, "broker_epoch", _NO_EPOCH)
                newest[broker_id] = max(newest.get(broker_id, recorded), recorded)
                self._behind[request] = broker_id, newest[broker_id] - recorded
            self(request)

    def __call__(self, request: Request) -> wire.Message:
        """The body to send. Raises ValueError as above."""
        body: Any = request.body
        assert body is not None, "what was not decoded is not replayed"
        if self._shift and isinstance(body, ControlRequest):
            body = self._shifted(body)
        if request in self._behind:
            broker_id, behind = self._behind[request]
            # -1 means no epoch
            body = dataclasses.replace(body, broker_epoch=max(0, self.broker_epochs[broker_id] - behind))
        rewritten: wire.Message = body
        return rewritten

    def _shifted(self, body: ControlRequest) -> ControlRequest:
        body = dataclasses.replace(body, controller_epoch=self._epoch(body.controller_epoch))
        if isinstance(body, wire.StopReplicaRequest):
            return body  # its partitions have none
        return map_states(body, self._shifted_state)

    def _shifted_state(self, state: Any) -> Any:
        return dataclasses.replace(state, controller_epoch=self._epoch(state.controller_epoch))

    def _epoch(self, epoch: int) -> int:
        if epoch + self._shift < 0:
            raise ValueError(f"controller epoch {epoch} shifted by {self._shift} would be below 0; +N shifts them up")
        if epoch + self._shift > _MAX_CONTROLLER_EPOCH:
            raise ValueError(f"controller epoch {epoch} shifted by {self._shift} would have more than 32 bits")
        return epoch + self._shift


def whose_epoch(request: Request, server_id: int | None) -> int | None:
    """The broker whose epoch a request to ``server_id`` carries: its receiver's, if a controller sent it, else its
    sender's (AlterPartition, ControlledShutdown); None if it carries none."""
    if getattr(request.body, "broker_epoch", _NO_EPOCH) == _NO_EPOCH:
        return None
    return server_id if request.api_key in CONTROL_REQUESTS else getattr(request.body, "broker_id", None)


def newest_controller_epoch(requests: Iterable[Request]) -> int | None:
    """The highest controller epoch in ``requests``; None if there is none."""
    epochs = (getattr(r.body, "controller_epoch", None) for r in requests if r.api_key in CONTROL_REQUESTS)
    return max((epoch for epoch in epochs if epoch is not None), default=None)


#: Fields that differ between runs without meaning.
VOLATILE = frozenset({"throttle_time_ms", "log_append_time_ms"})

#: Fields that identify the elements of arrays without an order: the first of each row that an element has.
_IDENTITIES = (
    ("topic_name", "name", "topic", "topic_id"), ("partition_index", "partition", "index"), ("api_key",), ("node_id",),
)  # fmt: skip


def differences(
    recorded: Any,
    replayed: Any,
    *,
    volatile: frozenset[str] = VOLATILE,
    names: Mapping[str, str] = MappingProxyType({}),
    path: str = "",
) -> list[str]:
    """List differences of two bodies (from ``wire.as_dict``): ``path: recorded value, replayed value``.

    In a path, what is about a topic, partition or broker has its name or number, else its place; ``names`` are topics'
    by their ids. Arrays of different lengths are compared by these, if they tell all elements apart.
    """
    inner = partial(differences, volatile=volatile, names=names)
    if isinstance(recorded, Mapping) and isinstance(replayed, Mapping):
        return [
            line
            for name in sorted(recorded.keys() | replayed.keys(), key=str)
            if name not in volatile
            for line in inner(recorded.get(name), replayed.get(name), path=f"{path}.{name}" if path else str(name))
        ]
    if _is_array(recorded) and _is_array(replayed):
        one, other = ([(_identity(each, names), each) for each in array] for array in (recorded, replayed))
        if len(one) == len(other):
            pairs = zip(sorted(one, key=_order), sorted(other, key=_order), strict=True)
            return [
                line
                for at, ((label, a), (same, b)) in enumerate(pairs)
                for line in inner(a, b, path=f"{path}[{'-'.join(label) if label and label == same else at}]")
            ]
        then, now = dict(one), dict(other)
        if len(then) == len(one) and len(now) == len(other) and () not in {*then, *now}:
            labels = sorted(then.keys() | now.keys(), key=_padded)
            return [
                line
                for label in labels
                for line in inner(then.get(label), now.get(label), path=f"{path}[{'-'.join(label)}]")
            ]
    if recorded == replayed:
        return []
    return [f"{path}: {_shown(path, recorded)} recorded, {_shown(path, replayed)} now"]


def _shown(path: str, value: Any) -> str:
    """A value, errors by their names."""
    if path.endswith("error_code") and isinstance(value, int):
        return error_name(value)
    return repr(value)


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _identity(element: Any, names: Mapping[str, str]) -> tuple[str, ...]:
    """Its topic, partition, API or broker; empty if it has none."""
    if not isinstance(element, Mapping):
        return ()
    found = (next((element[name] for name in row if element.get(name) is not None), None) for row in _IDENTITIES)
    return tuple(names.get(str(value), str(value)) for value in found if value is not None)


def _padded(identity: tuple[str, ...]) -> tuple[str, ...]:
    """In the order of numbers."""
    return tuple(each.rjust(12) for each in identity)


def _order(identified: tuple[tuple[str, ...], Any]) -> tuple[str, ...]:
    return _padded(identified[0])
