"""The addresses of brokers in responses: the fields that name them, and replacing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from kce import wire
from kce.broker_stub.ports import Address
from kce.wire.registry import BY_NAME

#: API -> the array of brokers in its response, and the field with their id
_ARRAYS = {
    "Metadata": ("brokers", "node_id"),
    "FindCoordinator": ("coordinators", "node_id"),
    "DescribeCluster": ("brokers", "broker_id"),
    "Produce": ("node_endpoints", "node_id"),  # new leaders, KIP-951
    "Fetch": ("node_endpoints", "node_id"),
}
#: the first version that names a broker
_SINCE = {"Produce": 10, "Fetch": 16}
_BY_KEY = {BY_NAME[name].key: (name, *field) for name, field in _ARRAYS.items()}


def names_brokers(header: wire.Header) -> bool:
    """Whether the response to such a request may contain addresses."""
    found = _BY_KEY.get(header.api_key)
    return found is not None and header.api_version >= _SINCE.get(found[0], 0)


def brokers(api_key: int, response: wire.Message) -> Iterator[tuple[int, Address]]:
    """Broker id and address of every broker in ``response``; a coordinator that does not exist is none."""
    for part, id_field in _parts(api_key, response):
        if part.host and part.port >= 0:
            yield getattr(part, id_field), (part.host, part.port)


def replaced(api_key: int, response: wire.Message, by: Callable[[int, Address], Address]) -> Any:
    """The response with other addresses of the ``brokers`` in it."""
    _, array, id_field = _BY_KEY[api_key]

    def new(part: Any) -> Any:
        if not part.host or part.port < 0:
            return part
        host, port = by(getattr(part, id_field), (part.host, part.port))
        return dataclasses.replace(part, host=host, port=port)

    changes: dict[str, Any] = {array: tuple(map(new, getattr(response, array)))}
    changed: Any = dataclasses.replace(response, **changes)  # type: ignore[type-var]
    return new(changed) if isinstance(changed, wire.FindCoordinatorResponse) else changed


def _parts(api_key: int, response: Any) -> Iterator[tuple[Any, str]]:
    _, array, id_field = _BY_KEY[api_key]
    for part in getattr(response, array):
        yield part, id_field
    if isinstance(response, wire.FindCoordinatorResponse):  # before version 4
        yield response, id_field
