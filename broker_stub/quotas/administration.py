"""Describing and changing quotas of users, clients and addresses (rules B8.15-B8.17). Pure.

An entity here is a mapping of types ("user", "client-id", "ip") to names; None is the default entity.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kce.broker_stub.errors import ApiException, InvalidRequest, Refused
from kce.broker_stub.quotas.entities import desanitize, sanitize
from kce.wire import ErrorCode
from kce.zookeeper.znodes import DEFAULT_ENTITY

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

#: what errors call them
_TOLD: Final = {CLIENT_ID: "client"}

CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
#: key -> whether its value is an integer, and of how many bits
CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    "producer_byte_rate": 64,
    "consumer_byte_rate": 64,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
IP_KEYS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: 32}
#: the settings of a user that are no numbers
_CREDENTIALS: Final = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
_EPSILON: Final = 1e-6
#: no path in ZooKeeper ends with these
_NO_ZNODES: Final = (".", "..")

EXACT, DEFAULT_NAME, ANY_NAME = 0, 1, 2

Entity = Mapping[str, str | None]


class Component(NamedTuple):
    """Of a filter; ``match_type`` is one of `EXACT`, `DEFAULT_NAME` and `ANY_NAME`."""

    entity_type: str
    match_type: int
    match: str | None


class Filter:
    """Rule B8.16. ``strict``: entities with other types than the components' do not match."""

    def __init__(self, components: Iterable[Component], *, strict: bool) -> None:
        """Raises ApiException."""
        self._strict = strict
        self._components: dict[str, Component] = {}
        components = list(components)
        for component in components:
            check_match(component)
        for component in components:
            _check_type(component)
            kind = component.entity_type
            if kind in self._components:
                raise InvalidRequest(f"Duplicate {_TOLD.get(kind, kind)} filter component entity type")
            self._components[kind] = component
        if IP in self._components and len(self._components) > 1:
            raise InvalidRequest(
                "Invalid entity filter component combination, IP filter component should not be used with "
                "user or clientId filter component."
            )
        if self._is_of_one():
            for component in self._components.values():
                if component.match_type == EXACT and component.match in ("", *_NO_ZNODES):
                    raise ApiException(f"no znode can be {component.match!r}")

    def _is_of_one(self) -> bool:
        """Whether Kafka reads the znode of one entity only."""
        if any(component.match_type == ANY_NAME for component in self._components.values()):
            return False
        return self._strict or IP in self._components or len(self._components) > 1

    @property
    def kinds(self) -> Sequence[str]:
        """Of the configurations that may match, as in `/config/<kind>`."""
        if IP in self._components:
            return ("ips",)
        return ("users", "clients") if self._components else () if self._strict else ("users", "clients", "ips")

    def matches(self, entity: Entity) -> bool:
        if self._strict and entity.keys() != self._components.keys():
            return False
        return all(
            kind in entity
            and (
                component.match_type == ANY_NAME
                or entity[kind] == (component.match if component.match_type == EXACT else None)
            )
            for kind, component in self._components.items()
        )


def check_match(component: Component) -> None:
    """Raises ApiException."""
    if not EXACT <= component.match_type <= ANY_NAME:
        raise ApiException(f"Unexpected match type: {component.match_type}")
    if component.match_type == EXACT and component.match is None:
        raise ApiException("no name to match")


def _check_type(component: Component) -> None:
    """Raises ApiException."""
    if not component.entity_type:
        raise InvalidRequest("Unexpected empty filter component entity type")
    if component.entity_type not in TYPES:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{component.entity_type}' not supported")


def entity_of(kind: str, name: str) -> Entity:
    """That of `/config/<kind>/<name>`."""
    if kind == "ips":
        return {IP: _name(name)}
    if kind == "clients":
        return {CLIENT_ID: _name(name)}
    user, _, client = name.partition("/clients/")
    return {USER: _name(user), CLIENT_ID: _name(client)} if client else {USER: _name(user)}


def _name(sanitized: str) -> str | None:
    return None if sanitized == DEFAULT_ENTITY else desanitize(sanitized)


def quotas_in(kind: str, config: Mapping[str, str]) -> dict[str, float]:
    """Raises ValueError for a quota that is no number."""
    keys = IP_KEYS if kind == "ips" else CLIENT_KEYS
    return {key: float(value) for key, value in config.items() if key in keys}


def place_of(entity: Entity) -> tuple[str, str]:
    """``kind`` and ``name`` in `/config/<kind>/<name>`. Raises ApiException (rule B8.17)."""
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    names = {}
    for kind, name in entity.items():
        if kind not in TYPES:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")
        names[kind] = DEFAULT_ENTITY if name is None else sanitize(name)
    if IP in names:
        if len(names) > 1:
            raise InvalidRequest(
                "Invalid quota entity combination, IP entity should not be used with user/client ID entity."
            )
        if not _is_address(names[IP]):
            raise InvalidRequest(f"{names[IP]} is not a valid IP or resolvable host.")
        return "ips", names[IP]
    for name in names.values():
        if name in _NO_ZNODES:
            raise ApiException(f"no znode can be {name!r}")
    if USER not in names:
        return "clients", names[CLIENT_ID]
    return "users", f"{names[USER]}/clients/{names[CLIENT_ID]}" if CLIENT_ID in names else names[USER]


def _is_address(sanitized: str) -> bool:
    """No names are resolved. An IPv6 address is none either, because its colons are encoded."""
    if sanitized in (DEFAULT_ENTITY, "localhost"):
        return True
    try:
        ipaddress.IPv4Address(sanitized)
    except ValueError:
        return False
    return True


def altered(kind: str, config: Mapping[str, str], ops: Iterable[tuple[str, float | None]]) -> dict[str, str]:
    """The new configuration. ``ops``: key and value; None removes. Raises ApiException (rule B8.17)."""
    changed = dict(config)
    keys = IP_KEYS if kind == "ips" else CLIENT_KEYS
    for key, value in ops:
        if value is None:
            changed.pop(key, None)
        elif key in keys:
            changed[key] = _text(key, value, keys[key])
        elif kind == "users" and key in _CREDENTIALS:
            raise ApiException(f"{key} is no quota")
        else:
            raise InvalidRequest(f"Invalid configuration key {key}")
    return changed


def _text(key: str, value: float, bits: int | None) -> str:
    """Raises InvalidRequest."""
    if bits is None:
        return repr(value) if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    whole = _whole(value + _EPSILON, bits)
    if abs(whole - value) > _EPSILON:
        raise InvalidRequest(f"Configuration {key} must be a {'LONG' if bits == 64 else 'INT'} value")
    return str(whole)


def _whole(value: float, bits: int) -> int:
    """As Java cuts a number: the nearest that has so many bits, and 0 for none."""
    if math.isnan(value):
        return 0
    most = 2 ** (bits - 1)
    return -most if value <= -most else most - 1 if value >= most - 1 else int(value)
